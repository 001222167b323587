//! Rejected peers: sent the reason, and given time to read it.

use core::time::Duration;
use std::collections::VecDeque;

use doorbell_core::handshake::{Io, IoError};
use doorbell_core::network::{Network, Waited};
use doorbell_core::wire::{FrameBuffer, Reject};
use doorbell_core::{Deadline, Instant};

/// Limit on peers that are being rejected at a time; beyond it the first of them is dropped.
const REJECTIONS_MAX: usize = 64;

/// Time that a peer has to read its reject. If the stream were closed at once, with bytes of the peer on their way, the peer
/// might see a reset instead of the reason.
const HEARING: Duration = Duration::from_millis(500);

/// Rejections that are being sent.
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

    /// Turns a peer away.
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

    /// Goes on with all.
    pub(super) fn poll(&mut self, now: Instant) {
        self.rejections.retain_mut(|rejection| !rejection.is_over(now));
    }

    /// When to poll again at the latest.
    pub(super) fn deadline(&self) -> Option<Deadline> {
        self.rejections.iter().map(|rejection| rejection.deadline).min()
    }

    /// Streams to wait for.
    pub(super) fn waited(&self) -> impl Iterator<Item = Waited<'_, N::Stream>> {
        self.rejections.iter().map(|rejection| Waited {
            stream: &rejection.stream,
            has_unsent: rejection.sent < rejection.frame.as_bytes().len(),
        })
    }
}

impl<N: Network> Rejection<N> {
    /// Sends the rest of the Reject; returns whether the peer has read it, or its time is over.
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
        // Bytes of the peer are read, so that they are no reason to reset the stream. Once the peer said something, or is gone,
        // it is let go.
        let mut unread = [0; 4096];
        let is_silent = matches!(self.stream.read(&mut unread), Err(IoError::WouldBlock));
        let is_sent = self.sent >= self.frame.as_bytes().len();
        (is_sent && !is_silent) || self.deadline.has_passed(now)
    }
}
