//! The ring through which requests reach a Worker, and the return paths of the submitters that push into it.

use core::fmt;
use std::sync::Arc;

use doorbell_core::provider::Provider;
use doorbell_hotpath::ring::{
    ClaimError, Consumer, Descriptor, MpscProducer, MpscRing, PushError, Slot, SpscProducer, SpscRing,
    TakeError,
};
use doorbell_hotpath::take_late;

use super::bell::Bell;
use super::request::Request;
use super::return_path::{ReturnPath, ring_slots};

type OwnRing = Arc<SpscRing<Box<[Slot]>>>;
type SharedRing = Arc<MpscRing<Box<[Slot]>>>;

/// A ring for one submitter, or a ring that several submitters share.
#[derive(Clone, Debug)]
pub(crate) enum RequestRing {
    Own(OwnRing),
    Shared(SharedRing),
}

impl RequestRing {
    /// Makes a ring for at least `depth` requests; `None` if rings cannot be that large.
    pub(crate) fn new(depth: u32, is_shared: bool) -> Option<Self> {
        let slots = ring_slots((depth as usize).max(1));
        Some(if is_shared {
            Self::Shared(Arc::new(MpscRing::new(slots).ok()?))
        } else {
            Self::Own(Arc::new(SpscRing::new(slots).ok()?))
        })
    }

    pub(crate) fn consumer(&self) -> Result<RequestConsumer, ClaimError> {
        Ok(match self {
            Self::Own(ring) => RequestConsumer::Own(Consumer::claim(Arc::clone(ring))?),
            Self::Shared(ring) => RequestConsumer::Shared(Consumer::claim(Arc::clone(ring))?),
        })
    }

    /// Makes a producer for the ring. A ring for one submitter has only one producer.
    pub(crate) fn producer(&self, last: &Arc<LastOfAll>) -> Result<RequestProducer, ClaimError> {
        Ok(match self {
            Self::Own(ring) => RequestProducer::Own(Some(SpscProducer::claim(Arc::clone(ring))?)),
            Self::Shared(ring) => {
                RequestProducer::Shared(MpscProducer::new(Arc::clone(ring)), Arc::clone(last))
            }
        })
    }
}

/// Closes a shared ring when its last producer is dropped.
#[derive(Debug)]
pub(crate) struct LastOfAll(pub(crate) RequestRing);

impl Drop for LastOfAll {
    fn drop(&mut self) {
        if let RequestRing::Shared(ring) = &self.0 {
            MpscProducer::new(Arc::clone(ring)).close();
        }
    }
}

/// The producing end of a request ring.
#[derive(Debug)]
pub(crate) enum RequestProducer {
    /// `Some` until the drop.
    Own(Option<SpscProducer<OwnRing>>),
    Shared(
        MpscProducer<SharedRing>,
        #[expect(dead_code, reason = "it is there to be dropped")] Arc<LastOfAll>,
    ),
}

impl RequestProducer {
    #[inline]
    pub(super) fn push(&mut self, request: Request) -> Result<(), PushError> {
        let item = request.descriptor();
        match self {
            Self::Own(Some(ring)) => ring.push(item),
            Self::Own(None) => Err(PushError::Closed(item)),
            Self::Shared(ring, _) => ring.push(item),
        }
    }

    /// Whether the Worker closed the ring, so it takes no more requests.
    #[inline]
    pub(super) fn is_closed(&self) -> bool {
        match self {
            Self::Own(ring) => ring.as_ref().is_none_or(SpscProducer::is_closed),
            Self::Shared(ring, _) => ring.is_closed(),
        }
    }
}

impl Drop for RequestProducer {
    fn drop(&mut self) {
        if let Self::Own(ring) = self {
            if let Some(ring) = ring.take() {
                ring.close();
            }
        }
    }
}

/// The consuming end of a request ring.
#[derive(Debug)]
pub(crate) enum RequestConsumer {
    Own(Consumer<OwnRing>),
    Shared(Consumer<SharedRing>),
}

impl RequestConsumer {
    #[inline]
    pub(crate) fn take(&mut self) -> Result<Request, TakeError> {
        let taken: Result<Descriptor, TakeError> = match self {
            Self::Own(ring) => ring.take(),
            Self::Shared(ring) => ring.take(),
        };
        taken.map(Request::of)
    }

    pub(crate) fn close(&self) {
        match self {
            Self::Own(ring) => ring.close(),
            Self::Shared(ring) => ring.close(),
        }
    }
}

/// A ring, with the return paths of its submitters by their index ([`Request::who`]).
pub(crate) struct Intake<P: Provider> {
    pub(crate) ring: RequestRing,
    pub(crate) return_paths: Box<[Arc<ReturnPath<P>>]>,
    /// Bell of the Worker, if the Worker can sleep.
    pub(crate) bell: Option<Arc<Bell<P>>>,
}

impl<P: Provider> Intake<P> {
    /// Returns all requests in the ring to their submitters.
    pub(crate) fn return_all(&self, requests: &mut RequestConsumer) {
        while let Ok(request) = requests.take() {
            self.return_one(&request);
        }
    }

    /// Returns requests that entered the ring while the Worker closed it.
    #[cold]
    pub(super) fn return_late(&self) {
        let each = |item| self.return_one(&Request::of(item));
        // By reference: dropping a counted handle here could free the ring on this thread.
        match &self.ring {
            RequestRing::Own(ring) => take_late(&**ring, each),
            RequestRing::Shared(ring) => take_late(&**ring, each),
        }
    }

    fn return_one(&self, request: &Request) {
        // A producer has a return path in any case.
        if let Some(return_path) = self.return_paths.get(request.who()) {
            return_path.returned(request);
        }
    }
}

impl<P: Provider> Drop for Intake<P> {
    /// Returns the requests that are left in the ring. Neither the Worker nor a submitter exists any more, so their slots return
    /// to the arenas.
    fn drop(&mut self) {
        if let Ok(mut requests) = self.ring.consumer() {
            self.return_all(&mut requests);
        }
    }
}

impl<P: Provider> fmt::Debug for Intake<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Intake")
            .field("ring", &self.ring)
            .finish_non_exhaustive()
    }
}
