//! A network of a simulated host whose ports fail.

use core::net::SocketAddr;
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

use doorbell::Deadline;
use doorbell::provider::{Clock, Instant, Network, NetworkError, Waited};
use doorbell_sim::{Acceptor, Host, Stream};

/// Its ports take in some peers, and then fail some times, with this error.
pub(crate) struct Failing {
    pub(crate) host: Host,
    pub(crate) peers: Arc<AtomicU32>,
    pub(crate) failures: Arc<AtomicU32>,
    pub(crate) errno: i32,
}

impl Clock for Failing {
    fn now(&self) -> Instant {
        self.host.now()
    }
}

impl Network for Failing {
    type Stream = Stream;
    type Acceptor = Acceptor;

    fn connect(&self, to: SocketAddr) -> Result<Stream, NetworkError> {
        self.host.connect(to)
    }

    fn listen(&self, at: SocketAddr) -> Result<Acceptor, NetworkError> {
        self.host.listen(at)
    }

    fn accept(&self, at: &Acceptor) -> Result<Option<Stream>, NetworkError> {
        if self.peers.load(Ordering::Relaxed) == 0 && take_one(&self.failures) {
            return Err(NetworkError { errno: self.errno });
        }
        let taken = self.host.accept(at)?;
        if taken.is_some() {
            take_one(&self.peers);
        }
        Ok(taken)
    }

    fn wait<'s>(
        &self,
        acceptor: Option<&'s Acceptor>,
        streams: impl Iterator<Item = Waited<'s, Stream>>,
        deadline: Deadline,
    ) -> Result<(), NetworkError> {
        self.host.wait(acceptor, streams, deadline)
    }

    fn random(&self, into: &mut [u8]) -> Result<(), NetworkError> {
        self.host.random(into)
    }
}

fn take_one(left: &AtomicU32) -> bool {
    let less = |left: u32| left.checked_sub(1);
    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)
        .is_ok()
}
