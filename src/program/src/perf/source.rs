//! The messages that one side sends in a test: their bytes, and the corruption that was requested.

use doorbell::Lease;
use doorbell::provider::{Provider, Window};

use super::atomic::Counter;
use super::error::{PerfError, no_memory};
use super::pattern::{Direction, Pattern};
use super::test::{Kind, Op, Role, Test};

/// The messages of one side of a test.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source {
    test: Test,
    /// The pattern of this side's bytes.
    pub(super) ours: Pattern,
    /// The pattern of the peer's bytes.
    pub(super) theirs: Pattern,
    /// The message that is corrupted.
    planted: Option<u64>,
}

impl Source {
    pub(super) fn new(test: &Test, role: Role, token: u64) -> Self {
        let out = Pattern::new(token, Direction::ToListener);
        let back = Pattern::new(token, Direction::ToClient);
        let (ours, theirs) = match role {
            Role::Client => (out, back),
            Role::Listener => (back, out),
        };
        Self {
            test: *test,
            ours,
            theirs,
            planted: test.planted(role),
        }
    }

    /// Whether this message contains the requested corruption.
    #[inline]
    pub(super) fn is_planted(&self, sequence: u64) -> bool {
        self.planted == Some(sequence)
    }

    /// Writes the message with this sequence number.
    pub(super) fn write(&self, sequence: u64, bytes: &mut [u8]) {
        if self.test.is_polled() {
            self.ours.fill_polled(sequence, bytes);
        } else {
            self.ours.fill(sequence, bytes);
        }
        if self.is_planted(sequence) {
            if let Some(byte) = bytes.get_mut(self.test.planted_offset()) {
                *byte ^= 1;
            }
        }
    }

    /// Writes the message with this sequence number into a lease.
    ///
    /// # Errors
    /// The message does not fit.
    pub(super) fn write_into<P: Provider>(
        &self,
        sequence: u64,
        lease: &mut Lease<P>,
    ) -> Result<(), PerfError> {
        let bytes = self.test.bytes();
        let message = lease.buffer_mut().get_mut(..bytes).ok_or_else(no_memory)?;
        self.write(sequence, message);
        lease.set_len_bytes(bytes);
        Ok(())
    }

    /// The word on which atomics operate, with the initial value that both sides expect.
    pub(super) const fn counter(&self, role: Role) -> Counter {
        let operands = match role {
            Role::Client => self.ours,
            Role::Listener => self.theirs,
        };
        Counter::new(self.test.op, operands)
    }

    /// Fills the listener's window for the round that begins at `first`: with the messages that the
    /// client READs, or with the word of its atomics.
    ///
    /// # Errors
    /// The messages do not fit.
    pub(super) fn fill_window(
        &self,
        window: &mut impl Window,
        first: u64,
        count: u64,
    ) -> Result<(), PerfError> {
        let put = |place, bytes: &[u8]| window.copy_in(place, bytes).map_err(|_| PerfError::NoMemory);
        match self.test.op {
            Op::Send | Op::Write | Op::WriteImm | Op::Ring => Ok(()),
            Op::Read => {
                let mut message = vec![0; self.test.bytes()];
                for sequence in first..first.saturating_add(count) {
                    self.write(sequence, &mut message);
                    put(self.test.place_of(sequence, first), &message)?;
                }
                Ok(())
            }
            Op::FetchAdd | Op::CompareSwap => {
                let corrupt = self.is_planted(self.test.total() / 2);
                let word = self.counter(Role::Listener).value() ^ u64::from(corrupt);
                put(0, &word.to_ne_bytes())
            }
        }
    }

    /// The number of messages in the window before the test begins.
    pub(super) fn filled_at_first(&self) -> u64 {
        match self.test.kind {
            Kind::Latency => self.test.places(),
            Kind::Bandwidth => self.test.rounds().next().map_or(0, |round| round.count),
        }
    }
}
