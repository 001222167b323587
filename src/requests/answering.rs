//! The answerer's side, and memory to build messages that are copied when they are sent.

use core::fmt;

use doorbell_core::provider::Provider;
use doorbell_core::wire::{CorrelationId, REQUEST_HEADER_BYTES, RequestHeader, RequestKind};
use doorbell_ffi::Rdma;

use crate::worker::lease::Lease;
use crate::worker::message::Message;

/// A request of a peer, in the memory in which it arrived.
pub struct Asked<P: Provider = Rdma> {
    lease: Lease<P>,
    id: CorrelationId,
}

impl<P: Provider> Asked<P> {
    /// Makes a request of a message, and keeps the message's memory.
    ///
    /// # Errors
    /// The message is no request, and is returned.
    #[inline]
    pub fn of(message: Message<'_, P>) -> Result<Self, Message<'_, P>> {
        match RequestHeader::parse(message.payload()) {
            Ok((RequestKind::Request, id, _)) => Ok(Self {
                lease: message.keep(),
                id,
            }),
            _ => Err(message),
        }
    }

    /// Returns the identifier that the requester assigned.
    #[must_use]
    pub const fn id(&self) -> CorrelationId {
        self.id
    }

    /// Returns the body of the request.
    #[must_use]
    #[inline]
    pub fn body(&self) -> &[u8] {
        self.lease
            .payload()
            .get(REQUEST_HEADER_BYTES..)
            .unwrap_or_default()
    }

    /// Length of the longest answer that fits into the memory.
    #[must_use]
    pub fn answer_bytes_max(&self) -> usize {
        self.lease.capacity_bytes().saturating_sub(REQUEST_HEADER_BYTES)
    }

    /// Overwrites the request with its answer. Send the returned lease by [`Channel::send_lease`](crate::Channel::send_lease), now or later.
    ///
    /// # Errors
    /// The answer is longer than [`Asked::answer_bytes_max`]. The request is returned.
    #[inline]
    pub fn answer(mut self, body: &[u8]) -> Result<Lease<P>, Self> {
        match write(&mut self.lease, RequestKind::Answer, self.id, body) {
            Some(()) => Ok(self.lease),
            None => Err(self),
        }
    }

    /// Returns the memory without an answer.
    #[must_use]
    pub fn into_lease(self) -> Lease<P> {
        self.lease
    }
}

impl<P: Provider> fmt::Debug for Asked<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Asked")
            .field("id", &self.id)
            .field("body_bytes", &self.body().len())
            .finish_non_exhaustive()
    }
}

/// Writes a message into a lease. Returns `None`, and writes nothing, if the message does not fit.
#[inline]
pub(super) fn write<P: Provider>(
    lease: &mut Lease<P>,
    kind: RequestKind,
    id: CorrelationId,
    body: &[u8],
) -> Option<()> {
    let (header, room) = lease
        .buffer_mut()
        .split_first_chunk_mut::<REQUEST_HEADER_BYTES>()?;
    room.get_mut(..body.len())?.copy_from_slice(body);
    *header = RequestHeader::new(kind, id).to_bytes();
    lease.set_len_bytes(REQUEST_HEADER_BYTES.saturating_add(body.len()));
    Some(())
}

/// Memory to build a message for calls that copy it: [`Links::send`](crate::link::Links::send) and [`Channel::send`](crate::Channel::send).
#[derive(Debug)]
pub struct Framing {
    bytes: Vec<u8>,
    body_bytes_max: usize,
}

impl Framing {
    /// Reserves memory for bodies of at most `body_bytes_max` bytes. A value above 2^30 stands for 2^30.
    #[must_use]
    pub fn new(body_bytes_max: usize) -> Self {
        let body_bytes_max = body_bytes_max.min(1 << 30);
        Self {
            bytes: Vec::with_capacity(REQUEST_HEADER_BYTES.saturating_add(body_bytes_max)),
            body_bytes_max,
        }
    }

    /// Length of the longest body.
    #[must_use]
    pub const fn body_bytes_max(&self) -> usize {
        self.body_bytes_max
    }

    /// Builds an answer, to be sent by [`Links::send`](crate::link::Links::send) or [`Channel::send`](crate::Channel::send). Returns `None` if
    /// the body is longer than [`Framing::body_bytes_max`].
    #[must_use]
    pub fn answer(&mut self, id: CorrelationId, body: &[u8]) -> Option<&[u8]> {
        self.message(RequestKind::Answer, id, body)
    }

    pub(super) fn message(&mut self, kind: RequestKind, id: CorrelationId, body: &[u8]) -> Option<&[u8]> {
        if body.len() > self.body_bytes_max {
            return None;
        }
        self.bytes.clear();
        self.bytes
            .extend_from_slice(&RequestHeader::new(kind, id).to_bytes());
        self.bytes.extend_from_slice(body);
        Some(&self.bytes)
    }
}
