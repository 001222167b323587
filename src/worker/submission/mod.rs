//! Requests that a Worker's poll posts, from other threads and from its own: what both sides of it share, and
//! the side that submits.
//!
//! The Worker's side is `worker::submissions`.

mod bell;
mod deferred;
mod desk;
mod error;
mod intake;
mod record;
mod request;
mod submitter;

pub(crate) use bell::Bell;
pub(crate) use deferred::Deferred;
pub(crate) use desk::{Desk, Registry};
pub use error::{Submission, SubmissionError, SubmitError, SubmitErrorKind};
pub(crate) use intake::{Intake, LastOfAll, RequestConsumer, RequestRing};
pub(crate) use record::{Record, Records};
pub(crate) use request::{Request, SHARING_MAX};
pub use submitter::Submitter;
