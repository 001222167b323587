//! Requests that a Worker's poll posts, from other threads and from its own: the shared state, and the side that
//! submits. The Worker's side is `worker::submissions`.
//!
//! # The way of a request
//! A submitter pushes words that name the detached slot, the channel and the operation. The poll takes at most
//! `submissions_per_poll` requests out of the rings, and posts those of each channel as one doorbell. They go behind
//! requests that waited, and behind those of the polling thread (`deferred`). The last request of each doorbell is
//! signaled: a submitter whose memory is all in flight could not post a signaled request behind it.
//!
//! A request that completes sends its slot home, and reports nothing more. A failed request comes back by a ring that has
//! as many places as there are slots, so the ring is never full. `record` keeps the submitter of each request in flight;
//! it is written at posting and read at a failure, so success costs nothing. A request in flight when its queue pair goes
//! is reported as unknown before its slot can come home.
//!
//! # Order and fairness
//! Neither the polling thread nor the submitters starve the other. If requests of the polling thread left submitters'
//! requests over, those have room and credits first the next time. A request of its own that waits for credits holds up
//! none of theirs that needs none. `Channel::send` and `Batch` ring at once, in front of waiting requests.
//!
//! # Going
//! Worker and submitters may go in any order. Requests of a submitter that is gone are still sent, since the attacher keeps
//! its memory. A Worker that goes closes the rings and gives back their requests. Submitters find requests that enter a
//! ring at that moment. A Worker without submitters has none of this: such a request is posted at once.

mod bell;
mod deferred;
mod error;
mod intake;
mod record;
mod request;
mod return_path;
mod submitter;

pub(crate) use bell::Bell;
pub(crate) use deferred::Deferred;
pub use error::{Submission, SubmissionError, SubmitError, SubmitErrorKind};
pub(crate) use intake::{Intake, LastOfAll, RequestConsumer, RequestRing};
pub(crate) use record::{Record, Records};
pub(crate) use request::{Request, SHARING_MAX};
pub(crate) use return_path::{Registry, ReturnPath};
pub use submitter::Submitter;
