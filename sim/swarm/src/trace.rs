//! The moments of a run: a hash that distinguishes runs, and lines for a reader.

use core::fmt;

/// A moment of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    pub(crate) at_ns: u64,
    pub(crate) host: usize,
    pub(crate) text: String,
}

/// All moments so far.
#[derive(Debug)]
pub(crate) struct Trace {
    hash: u64,
    /// The moments, if they are kept.
    moments: Option<Vec<Moment>>,
}

impl Trace {
    pub(crate) fn new(keeps: bool) -> Self {
        Self {
            hash: 0xcbf2_9ce4_8422_2325,
            moments: keeps.then(Vec::new),
        }
    }

    /// Notes that something happened at a host.
    pub(crate) fn note(&mut self, at_ns: u64, host: usize, what: fmt::Arguments<'_>) {
        self.add(&at_ns.to_le_bytes());
        self.add(&host.to_le_bytes());
        // Hashed as it is written, without a string in between.
        let _ = fmt::write(self, what);
        if let Some(moments) = &mut self.moments {
            moments.push(Moment {
                at_ns,
                host,
                text: what.to_string(),
            });
        }
    }

    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.hash = (self.hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    pub(crate) const fn hash(&self) -> u64 {
        self.hash
    }

    pub(crate) fn into_moments(self) -> Vec<Moment> {
        self.moments.unwrap_or_default()
    }
}

impl fmt::Write for Trace {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.add(text.as_bytes());
        Ok(())
    }
}

/// Methods of a run: the present time, and a note about a host at that time.
macro_rules! clock_and_notes {
    ($run:ident) => {
        impl $run<'_> {
            fn now_ns(&self) -> u64 {
                self.fabric.now().to_ns()
            }

            fn note(&mut self, host: usize, what: core::fmt::Arguments<'_>) {
                let now_ns = self.now_ns();
                self.trace.note(now_ns, host, what);
            }
        }
    };
}

pub(crate) use clock_and_notes;
