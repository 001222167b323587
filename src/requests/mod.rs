//! Requests and answers: many in flight, each with a deadline, and each ends exactly once.
//!
//! [`Requests`] is the requester's table. It is of one peer, over a channel or over a link, and neither waits nor polls:
//! the loop that polls the Worker gives it what came ([`Requests::take`], [`Requests::take_link`]) and the time
//! ([`Requests::expire`]). A request ends in one of these ways:
//!
//! | end | how the requester learns of it |
//! |---|---|
//! | answered | [`Ended::Answered`], with the body of the answer |
//! | timed out | [`Ended::TimedOut`]: its deadline passed; the peer may still carry it out |
//! | failed | [`Ended::Failed`], with the cause: the channel failed, the peer closed it, or the link is over |
//! | cancelled | what [`Requests::cancel`] returns |
//!
//! An answer that comes after the end is dropped and counted ([`RequestCounts::late`]); [`Requests::hear_from`] shows its body ([`Heard::Late`]). An
//! answer to no request is dropped and counted, too ([`RequestCounts::unasked`]). A hostile peer ends none but its own requests, and none twice.
//!
//! [`Asked`] is the answerer's side: a request in the memory that it came in, which the answer goes in.
//!
//! Nothing allocates after [`Requests::new`]. On the wire a header of 16 bytes stands in front of each body
//! ([`RequestHeader`]).
//!
//! ```
//! use core::time::Duration;
//! use doorbell::requests::{Asked, Ended, Requests};
//! use doorbell::{ChannelId, Event, Worker};
//! use doorbell::provider::Provider;
//!
//! # type Failure = Box<dyn std::error::Error>;
//! /// Asks, and goes on until the answer came or a millisecond is over.
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
//! /// Answers what came.
//! fn answer<P: Provider>(worker: &mut Worker<P>) -> Result<(), Failure> {
//!     worker.poll(|turn, event| {
//!         if let Event::Received { message, .. } = event {
//!             let answer = Asked::of(message).ok().and_then(|asked| asked.answer(b"all of it").ok());
//!             // Where there is no room, the requester's deadline ends it.
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
