//! Rejected peers: each is sent a Reject, and gets time to read it before the stream is closed.

use core::time::Duration;
use std::collections::VecDeque;

use doorbell_core::handshake::{Io, IoError};
use doorbell_core::network::{Network, Waited};
use doorbell_core::wire::{FrameBuffer, Reject};
use doorbell_core::{Deadline, Instant};

/// The maximum number of rejected peers whose streams are kept open. For one more, the oldest stream is closed.
const REJECTIONS_MAX: usize = 64;

/// How long a stream stays open after the Reject. If it were closed while bytes of the peer are in flight, the peer might see a TCP
/// reset instead of the Reject.
const HEARING: Duration = Duration::from_millis(500);

/// The rejected peers whose streams are still open.
pub(super) struct Rejections<N: Network> {
    rejections: VecDeque<Rejection<N>>,
}

struct Rejection<N: Network> {
    stream: N::Stream,
    frame: FrameBuffer,
    sent: usize,
    deadline: Deadline,
}

impl<N: Network> Rejections<N> {
    pub(super) const fn new() -> Self {
        Self {
            rejections: VecDeque::new(),
        }
    }

    /// Sends this Reject to a peer, and keeps its stream open for a while.
    pub(super) fn reject(&mut self, now: Instant, stream: N::Stream, reject: &Reject) {
        if self.rejections.len() >= REJECTIONS_MAX {
            self.rejections.pop_front();
        }
        let mut rejection = Rejection {
            stream,
            frame: FrameBuffer::reject(reject),
            sent: 0,
            deadline: Deadline::after(now, HEARING),
        };
        if !rejection.is_over(now) {
            self.rejections.push_back(rejection);
        }
    }

    /// Advances all rejections, and closes the streams of those that are over.
    pub(super) fn poll(&mut self, now: Instant) {
        self.rejections.retain_mut(|rejection| !rejection.is_over(now));
    }

    /// Returns the latest time of the next poll.
    pub(super) fn deadline(&self) -> Option<Deadline> {
        self.rejections.iter().map(|rejection| rejection.deadline).min()
    }

    /// Returns the streams to wait for.
    pub(super) fn waited(&self) -> impl Iterator<Item = Waited<'_, N::Stream>> {
        self.rejections.iter().map(|rejection| Waited {
            stream: &rejection.stream,
            has_unsent: rejection.sent < rejection.frame.as_bytes().len(),
        })
    }
}

impl<N: Network> Rejection<N> {
    /// Sends the rest of the Reject, and reads what the peer sent. Returns whether the stream can be closed.
    fn is_over(&mut self, now: Instant) -> bool {
        while let Some(rest) = self
            .frame
            .as_bytes()
            .get(self.sent..)
            .filter(|rest| !rest.is_empty())
        {
            match self.stream.write(rest) {
                Ok(bytes) if bytes > 0 => self.sent = self.sent.saturating_add(bytes),
                Ok(_) | Err(IoError::WouldBlock) => break,
                Err(_) => return true,
            }
        }
        // Closing a TCP stream with unread bytes resets it, so the bytes of the peer are read first. After the peer has sent something,
        // or has closed its side, the stream can be closed.
        let mut unread = [0; 4096];
        let is_silent = matches!(self.stream.read(&mut unread), Err(IoError::WouldBlock));
        let is_sent = self.sent >= self.frame.as_bytes().len();
        (is_sent && !is_silent) || self.deadline.has_passed(now)
    }
}
