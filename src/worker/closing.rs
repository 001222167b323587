//! Closing a channel: what was posted is waited for, the rest flushed, and its place given back.

use core::fmt;

use doorbell_core::Deadline;
use doorbell_core::provider::{CompletionQueue, Provider, ProviderError};

use super::{Turn, Worker};
use crate::{ChannelId, Event, edge};

impl<P: Provider> Worker<P> {
    /// Closes a channel: waits until what was posted is done, fails its queue pair, and
    /// destroys it. `each` gets the events that come meanwhile, of all channels.
    ///
    /// What was posted after the last signaled request cannot be waited for: with
    /// `unsignaled_max` set, end with a request of [`PostFlags::SIGNALED`](crate::PostFlags).
    ///
    /// # Errors
    /// Something was not done by the deadline, the device refused, or polling failed. The
    /// channel is closed all the same, and its memory goes home.
    pub fn close(
        &mut self,
        id: ChannelId,
        deadline: Deadline,
        mut each: impl FnMut(Turn<'_, P>, Event<P>),
    ) -> Result<(), CloseError> {
        if self.channel(id).is_none() {
            return Err(CloseError::Unknown);
        }
        let done = self.settle(id, deadline, &mut each);
        let failed = self
            .channel(id)
            .map_or(Ok(()), |channel| channel.shut().map_err(CloseError::Provider));
        // What was left is flushed now, which takes no peer.
        let flushed = if done.is_err() {
            Ok(())
        } else {
            self.settle(id, deadline, &mut each)
        };
        self.remove(id);
        let swept = self.sweep(&mut each);
        done.and(failed).and(flushed).and(swept)
    }

    /// Takes what a queue pair that is gone left in the completion queues: another channel may
    /// be promised that room from now on.
    fn sweep(&mut self, each: &mut impl FnMut(Turn<'_, P>, Event<P>)) -> Result<(), CloseError> {
        let (sends, receives) = (self.send_completions.depth(), self.receive_completions.depth());
        // No more than that was there; what comes meanwhile is not waited for.
        let mut left = sends.saturating_add(receives);
        while left > 0 {
            match self.poll(&mut *each).map_err(CloseError::Poll)? {
                0 => break,
                taken => left = left.saturating_sub(taken),
            }
        }
        Ok(())
    }

    /// Polls until every signaled request of a channel is done.
    fn settle(
        &mut self,
        id: ChannelId,
        deadline: Deadline,
        each: &mut impl FnMut(Turn<'_, P>, Event<P>),
    ) -> Result<(), CloseError> {
        while self
            .channel(id)
            .is_some_and(|channel| channel.sender.awaits_completion())
        {
            self.poll(&mut *each).map_err(CloseError::Poll)?;
            if deadline.has_passed(edge::clock::now()) {
                return Err(CloseError::TimedOut);
            }
        }
        Ok(())
    }

    fn remove(&mut self, id: ChannelId) {
        let Some(entry) = self.channels.get_mut(id.index as usize) else {
            return;
        };
        if entry.channel.take().is_some() {
            entry.generation = entry.generation.wrapping_add(1);
        }
    }
}

/// Why a channel was not closed cleanly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CloseError {
    /// There is no such channel, or it was closed already.
    Unknown,
    /// The queue pair could not be failed.
    Provider(ProviderError),
    /// The Worker could not be polled.
    Poll(ProviderError),
    /// Not everything came back by the deadline.
    TimedOut,
}

impl fmt::Display for CloseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("there is no such channel"),
            Self::Provider(error) => write!(f, "the queue pair could not be failed: {error}"),
            Self::Poll(error) => write!(f, "while closing, the completion queue cannot be polled: {error}"),
            Self::TimedOut => f.write_str("not everything in flight came back before the deadline"),
        }
    }
}

impl core::error::Error for CloseError {}
