//! Rig of a provider for the cases to run on.

use core::time::Duration;

use doorbell_core::Gid;
use doorbell_core::provider::{AddressVector, Provider};

use crate::Trouble;

/// Two ports that reach each other, and what can be done to them.
pub trait Rig {
    /// Provider of the ports.
    type P: Provider;

    /// The two, fresh for a case.
    ///
    /// # Errors
    /// There are none.
    fn ends(&self) -> Result<[End<Self::P>; 2], Trouble>;

    /// The two, with packets between them disturbed; `None` where the rig cannot do that.
    ///
    /// # Errors
    /// There are none.
    fn disturbed_ends(&self, _how: Disturbance) -> Result<Option<[End<Self::P>; 2]>, Trouble> {
        Ok(None)
    }

    /// Counts of the packets between the ends that were disturbed last; `None` where the rig cannot do that.
    ///
    /// # Errors
    /// It cannot be counted.
    fn struck(&self) -> Result<Option<Struck>, Trouble> {
        Ok(None)
    }

    /// How long to wait for what should come, and for what should not.
    fn patience(&self) -> Patience;

    /// Present time of the ends, since any origin.
    fn now(&self) -> Duration;

    /// Brings the port of the first end down or up.
    ///
    /// # Errors
    /// It cannot.
    fn set_port(&self, up: bool) -> Result<(), Trouble>;

    /// Gives the port of the first end another address.
    ///
    /// # Errors
    /// It cannot.
    fn change_address(&self) -> Result<(), Trouble>;

    /// Breaks the device of the first end for good.
    ///
    /// # Errors
    /// It cannot.
    fn break_device(&self) -> Result<(), Trouble>;

    /// Puts a whole one in the place of the device that was broken, of which nothing is open any more.
    ///
    /// # Errors
    /// It cannot.
    fn mend_device(&self) -> Result<(), Trouble>;

    /// Starts another program and waits for its end.
    ///
    /// # Errors
    /// It cannot.
    fn start_child(&self) -> Result<(), Trouble> {
        let ended = std::process::Command::new("true").status();
        match ended {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(Trouble(format!("the child ended with {status}"))),
            Err(error) => Err(Trouble(format!("no child: {error}"))),
        }
    }
}

/// Disturbance of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a rig that disturbs does all of it")]
pub enum Disturbance {
    /// Some are lost, and some come twice, either way.
    LostAndRepeated,
    /// The thirteenth packet from the first end is lost. Nothing else happens until twice as many were sent.
    Gap,
}

/// Counts of disturbed packets, so that a case in which none was disturbed cannot pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Struck {
    /// How many were lost.
    pub lost: u64,
    /// How many came that had come before.
    pub repeated: u64,
    /// How often the second end reported a gap to the first.
    pub gaps: u64,
}

/// One of the two.
#[derive(Clone, Debug)]
pub struct End<P> {
    /// Provider of the port.
    pub provider: P,
    /// The device's name.
    pub device: String,
    /// The port, from 1.
    pub port: u8,
    /// The index of the GID.
    pub gid_index: u8,
    /// The GID.
    pub gid: Gid,
}

impl<P> End<P> {
    /// How it addresses a port that has this GID.
    #[must_use]
    pub const fn way_to(&self, destination: Gid) -> AddressVector {
        AddressVector {
            destination,
            source_gid_index: self.gid_index,
            port: self.port,
            hop_limit: 64,
            traffic_class: 0,
            flow_label: 0,
            service_level: 0,
        }
    }
}

/// How long to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// For what should come: longer than anything takes that is not broken.
    pub come: Duration,
    /// For what should not come.
    pub quiet: Duration,
    /// Least number of empty polls for an expected event, at any time: they let time pass on a simulated
    /// fabric.
    pub polls: u32,
    /// And for what should not.
    pub quiet_polls: u32,
}
