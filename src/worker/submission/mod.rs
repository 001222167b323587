//! Submission: requests that a Worker's poll posts for other threads and for its own thread. This module has the shared state and
//! the submitting side. The Worker's side is in `worker::submissions`.
//!
//! # Path of a request
//! A submitter pushes a descriptor into a ring. The descriptor names the detached slot, the channel and the operation. A poll
//! takes at most `submissions_per_poll` requests out of the rings, and posts the requests of each channel with one doorbell. New
//! requests are posted after requests that waited before, and after those of the polling thread (`deferred`). In a doorbell with
//! submitters' requests the last request is signaled. Otherwise a submitter with all its memory in flight could wait for a
//! completion that never comes.
//!
//! When a request completes, its slot returns to the submitter's arena without a report. A failed request returns through a ring
//! with one entry for each slot, so that ring is never full. `record` stores the submitter of each request in flight. A record is
//! written at posting and read only at a failure, so a success costs no look-up. If a queue pair is destroyed with requests in
//! flight, they are reported as unknown before their slots can return.
//!
//! # Order and fairness
//! Neither the polling thread nor the submitters can starve the other. If requests of the polling thread leave no room for
//! submitters' requests, the submitters' requests get room and credits first at the next poll. A request of the polling thread
//! that waits for credits does not delay a submitter's request that needs none. `Channel::send` and `Batch` ring at once, ahead
//! of waiting requests.
//!
//! # Dropping
//! A Worker and its submitters may be dropped in any order. Requests of a dropped submitter are still sent, since the attacher
//! keeps their memory registered. A Worker that is dropped closes the rings and returns the requests in them. If a request enters
//! a ring during the close, its submitter takes it out again. On a Worker that never had a submitter, `Channel::submit` posts at
//! once.

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
