//! The terms of a measurement, in addition to its tests: the address of the peer, and options that apply to all
//! tests.

use core::fmt;
use core::net::SocketAddr;
use core::time::Duration;

use doorbell::worker::SharedReceivesConfig;
use doorbell::{ChannelConfig, Handle, WorkerConfig};

use super::metering::Metering;
use super::test::{Role, Test};

/// The address of the peer.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    /// The handle that its listener printed.
    Handle(Handle),
    /// The first of these TCP addresses that responds.
    Addresses {
        name: String,
        addresses: Vec<SocketAddr>,
    },
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Handle(handle) => fmt::Display::fmt(handle, f),
            Self::Addresses { name, .. } => f.write_str(name),
        }
    }
}

/// The options of one side that apply to all tests.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    /// The device to use; if `None`, all usable devices.
    pub(crate) device: Option<String>,
    /// The limit of the peer's silence, at every step.
    pub(crate) timeout: Duration,
    /// If set, the connections under test use a shared receive queue with this number of receives in addition to
    /// the connection's own.
    pub(crate) shared_receives: Option<u32>,
    /// The duration of each test, instead of its number of iterations.
    pub(crate) duration: Option<Duration>,
    /// The metrics of the measurement.
    pub(crate) metering: Metering,
}

impl Terms {
    /// Returns the configuration of a test's Worker.
    pub(super) fn worker_config(&self, test: &Test, role: Role) -> WorkerConfig {
        let mut config = test.worker_config(role);
        if let Some(spare) = self.shared_receives {
            let mut shared = SharedReceivesConfig::default();
            shared.depth = test.receive_depth(role).saturating_add(spare);
            config.slots = config.slots.saturating_add(spare);
            config.shared_receives = Some(shared);
        }
        config
    }

    /// Extends the timeout of each stage of the handshake to the general timeout: a side that runs under an
    /// instrumentation tool is slow.
    pub(super) fn patient(&self, mut config: ChannelConfig) -> ChannelConfig {
        config.handshake_stage = config.handshake_stage.max(self.timeout);
        config
    }
}
