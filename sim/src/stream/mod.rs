//! A stream of bytes between two hosts, as the host at one end knows it: what TCP is to a real one.
//!
//! Here is what one end does with segments, bytes and time. Which way segments take is
//! `world::streams`, and what is above it uses [`Host`](crate::Host) as a network.

mod end;
#[cfg(test)]
mod tests;

use core::net::SocketAddr;
use std::collections::VecDeque;

use crate::slab::Key;
use crate::world::HostId;

pub(crate) use end::StreamState;

/// Names the end of a stream.
pub(crate) type StreamKey = Key<StreamState>;

/// How many bytes either end keeps: those it may have under way, and those that nobody read yet.
pub(crate) const BUFFER_BYTES: usize = 64 << 10;

/// How many bytes of a stream a segment carries at most.
pub(crate) const SEGMENT_BYTES: usize = 1448;

/// How many bytes a segment has on the wire beside them: Ethernet, IP and TCP with timestamps.
pub(crate) const HEADER_BYTES: u64 = 66;

/// How long an answer to the first segment is waited for before it is sent again; then twice as long, and so on.
pub(crate) const CONNECT_RETRY_NS: u64 = 1_000_000_000;

/// How long bytes may be unanswered before they are sent again; then twice as long, and so on.
pub(crate) const RETRY_NS: u64 = 200_000_000;

/// How often that is done before the peer is given up: after a minute and a half.
pub(crate) const RETRIES_MAX: u32 = 8;

/// Segment from one end of a stream to the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    /// The end it is from, where it is not gone already.
    pub(crate) from: Option<StreamKey>,
    /// The end it is for; none where the peer does not know it yet.
    pub(crate) to: Option<StreamKey>,
    pub(crate) source: SocketAddr,
    pub(crate) destination: SocketAddr,
    pub(crate) kind: Kind,
}

/// Kind of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Somebody wants to connect.
    Connect,
    /// Somebody listens, and is connected.
    Accept,
    /// Bytes, from this place of the stream on; after them it may end.
    Bytes { at: u64, bytes: Vec<u8>, ends: bool },
    /// All came that is before this place.
    Came(u64),
    /// Nobody listens.
    Refused,
    /// There is no such stream.
    Reset,
}

/// A port at which peers arrive.
pub(crate) struct AcceptorState {
    pub(crate) host: HostId,
    pub(crate) address: SocketAddr,
    /// Streams that are connected and were not accepted yet.
    pub(crate) arrived: VecDeque<StreamKey>,
    /// Its host vanished.
    pub(crate) is_dead: bool,
}

/// Names one.
pub(crate) type AcceptorKey = Key<AcceptorState>;

/// How many peers wait to be taken at most; what others send is lost, and sent again.
pub(crate) const ARRIVED_MAX: usize = 128;
