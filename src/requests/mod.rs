//! Requests and answers: many requests may be in flight, each has a deadline, and each ends exactly once.
//!
//! [`Requests`] is the requester's table, for one peer, over a channel or over a link. The table does not wait. The loop that polls the
//! Worker passes each event to [`Requests::take`] or [`Requests::take_link`], and the time to [`Requests::expire`]. A request ends in one
//! of these ways:
//!
//! | end | how the requester learns of it |
//! |---|---|
//! | answered | [`Ended::Answered`], with the body of the answer |
//! | timed out | [`Ended::TimedOut`]: its deadline passed; the peer may still execute it |
//! | failed | [`Ended::Failed`], with the cause: the channel failed, the peer closed it, or the link is over |
//! | cancelled | [`Requests::cancel`] returns its context |
//!
//! An answer that arrives after the end is dropped and counted ([`RequestCounts::late`]); [`Requests::hear_from`] returns its body
//! ([`Heard::Late`]). An answer to no request is dropped and counted, too ([`RequestCounts::unasked`]). A hostile peer can end only
//! requests that were sent to it, and none twice.
//!
//! [`Asked`] is the answerer's side: a request in the memory in which it arrived, which is reused for the answer.
//!
//! Nothing allocates after [`Requests::new`]. On the wire each body has a header of 16 bytes ([`RequestHeader`]).
//!
//! ```
//! use core::time::Duration;
//! use doorbell::requests::{Asked, Ended, Requests};
//! use doorbell::{ChannelId, Event, Worker};
//! use doorbell::provider::Provider;
//!
//! # type Failure = Box<dyn std::error::Error>;
//! /// Sends a request, and polls until the answer arrives or a millisecond is over.
//! fn ask<P: Provider>(worker: &mut Worker<P>, to: ChannelId) -> Result<Option<Vec<u8>>, Failure> {
//!     let mut requests = Requests::new(64, 256);
//!     let deadline = worker.within(Duration::from_millis(1));
//!     requests.send(worker, to, b"what is it worth?", deadline, "worth").map_err(|error| error.kind)?;
//!     let mut worth = None;
//!     while requests.in_flight() > 0 {
//!         requests.poll(worker, |name, end| match end {
//!             Ended::Answered(body) => worth = Some(body.to_vec()),
//!             Ended::TimedOut => println!("{name}: no answer in time"),
//!             end => println!("{name}: {end:?}"),
//!         })?;
//!     }
//!     Ok(worth)
//! }
//!
//! /// Answers the requests that have arrived.
//! fn answer<P: Provider>(worker: &mut Worker<P>) -> Result<(), Failure> {
//!     worker.poll(|turn, event| {
//!         if let Event::Received { message, .. } = event {
//!             let answer = Asked::of(message).ok().and_then(|asked| asked.answer(b"all of it").ok());
//!             // If the answer cannot be sent, the requester's deadline ends the request.
//!             let _ = answer.map(|answer| turn.channel.send_lease(answer));
//!         }
//!     })?;
//!     Ok(())
//! }
//! ```

mod answering;
mod carried;
mod table;
#[cfg(test)]
mod tests;

pub use answering::{Asked, Framing};
pub use carried::{NotSent, NotSentKind};
pub use doorbell_core::wire::{CorrelationId, REQUEST_HEADER_BYTES, RequestHeader, RequestKind};
pub use table::{Ended, Heard, RequestCounts, RequestFailure, Requests};
