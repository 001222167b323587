//! Polling: completions in bulk, each to its channel, and receives posted again.

use doorbell_core::WorkKind;
use doorbell_core::provider::{Arena, Completion, CompletionQueue, Provider, ProviderError};

use super::{Entry, Listed, Turn, Worker};
use doorbell_hotpath::Outcome;

use crate::channel::Channel;
use crate::{ChannelState, Event, Lease};

impl<P: Provider> Worker<P> {
    /// Takes what completed, in bulk, receives first; `each` gets every event with its
    /// channel. Says how many completions there were. Never waits.
    ///
    /// # Errors
    /// A completion queue cannot be polled; the Worker is of no further use.
    #[inline]
    pub fn poll(&mut self, mut each: impl FnMut(Turn<'_, P>, Event<P>)) -> Result<u32, ProviderError> {
        let (received, sent) = self.poll_queues(&mut each)?;
        if !self.closing.is_empty() {
            self.advance_closings(received, sent);
        }
        Ok(received.saturating_add(sent))
    }

    /// Polls as [`Worker::poll`] does, and leaves channels that are being closed as they are: for a
    /// loop that goes on with those at a time of its own. This, and not the closing of channels, is
    /// what never allocates, makes a system call or panics.
    ///
    /// # Errors
    /// As for [`Worker::poll`].
    #[inline]
    pub fn poll_open(&mut self, mut each: impl FnMut(Turn<'_, P>, Event<P>)) -> Result<u32, ProviderError> {
        let (received, sent) = self.poll_queues(&mut each)?;
        Ok(received.saturating_add(sent))
    }

    /// Says how many completions there were of receives and of sends.
    #[inline]
    fn poll_queues(
        &mut self,
        each: &mut impl FnMut(Turn<'_, P>, Event<P>),
    ) -> Result<(u32, u32), ProviderError> {
        let received = self.poll_receives(each)?;
        let sent = self.poll_sends(each)?;
        // Late, so that an answer given above carries what would go by itself here.
        if !self.unannounced.is_empty() {
            self.announce(each);
        }
        Ok((received, sent))
    }

    #[inline]
    fn poll_receives(&mut self, each: &mut impl FnMut(Turn<'_, P>, Event<P>)) -> Result<u32, ProviderError> {
        let Self {
            channels,
            receive_completions,
            arena,
            statistics,
            hungry,
            unannounced,
            ..
        } = self;
        let count = receive_completions.poll(|completion| {
            let id = completion.work_id();
            let entry = channels.get_mut(id.channel() as usize);
            let Some((listed, channel)) = entry
                .and_then(Entry::split)
                .filter(|_| id.kind() == Some(WorkKind::Receive))
            else {
                statistics.orphaned.add(1);
                return;
            };
            let Some(event) = channel.retire_receive(completion, arena) else {
                statistics.rejected.add(1);
                return;
            };
            let failed = matches!(event, Event::ReceiveFailed { .. });
            each(Turn { channel, arena }, event);
            if failed {
                return;
            }
            if !channel.replenish(arena, each) && !listed.is_hungry {
                listed.is_hungry = hungry.put(id.channel());
            }
            if channel.receiver.is_announcement_due() && !listed.is_unannounced {
                listed.is_unannounced = unannounced.put(id.channel());
            }
        })?;
        if !self.hungry.is_empty() {
            self.feed(each);
        }
        Ok(count)
    }

    /// Posts receives for channels that went without, as far as memory came back.
    #[cold]
    fn feed(&mut self, each: &mut impl FnMut(Turn<'_, P>, Event<P>)) {
        let Self {
            channels,
            arena,
            hungry,
            unannounced,
            ..
        } = self;
        hungry.retain(|index| {
            let Some(entry) = channels.get_mut(index as usize) else {
                return false;
            };
            entry.listed.is_hungry = false;
            let Some((listed, channel)) = entry.split_open() else {
                return false;
            };
            listed.is_hungry = !channel.replenish(arena, each);
            if channel.receiver.is_announcement_due() && !listed.is_unannounced {
                listed.is_unannounced = unannounced.put(index);
            }
            listed.is_hungry
        });
    }

    /// Announces receives of channels on which nothing went out to carry that.
    fn announce(&mut self, each: &mut impl FnMut(Turn<'_, P>, Event<P>)) {
        let Self {
            channels,
            arena,
            unannounced,
            ..
        } = self;
        unannounced.retain(|index| {
            let Some(entry) = channels.get_mut(index as usize) else {
                return false;
            };
            entry.listed.is_unannounced = false;
            let Some((listed, channel)) = entry.split_open() else {
                return false;
            };
            listed.is_unannounced = channel.receiver.is_announcement_due() && !channel.announce(arena, each);
            listed.is_unannounced
        });
    }

    #[inline]
    fn poll_sends(&mut self, each: &mut impl FnMut(Turn<'_, P>, Event<P>)) -> Result<u32, ProviderError> {
        let Self {
            channels,
            send_completions,
            arena,
            statistics,
            fetched,
            ..
        } = self;
        send_completions.poll(|completion| {
            let id = completion.work_id();
            let entry = channels.get_mut(id.channel() as usize);
            let channel = entry.and_then(|entry| entry.channel.as_mut());
            let Some(channel) = channel.filter(|_| id.kind() == Some(WorkKind::Send)) else {
                statistics.orphaned.add(1);
                return;
            };
            let outcome = channel.sender.retire(
                completion,
                |ticket, slot| {
                    // There is room, since admission: so this never comes to allocate.
                    if fetched.len() < fetched.capacity() {
                        fetched.push((ticket, Lease { slot }));
                    }
                },
                |slot| arena.release(slot),
            );
            let Ok(Outcome { retired, through, .. }) = outcome else {
                statistics.rejected.add(1);
                return;
            };
            let success = retired.status.is_success();
            for (ticket, data) in fetched.drain(..) {
                if success || ticket != retired.last {
                    each(Turn { channel, arena }, Event::Fetched { ticket, data });
                } else {
                    arena.release(data.slot);
                }
            }
            let event = match through {
                _ if !success => Event::Failed {
                    ticket: retired.last,
                    status: retired.status,
                },
                Some(through) => Event::Done { through },
                // Nothing but announcements.
                None => return,
            };
            each(Turn { channel, arena }, event);
        })
    }
}

impl<P: Provider> Entry<P> {
    /// The lists it is on, and the channel.
    #[inline]
    fn split(&mut self) -> Option<(&mut Listed, &mut Channel<P>)> {
        Some((&mut self.listed, self.channel.as_mut()?))
    }

    /// The same, of a channel that can be used.
    fn split_open(&mut self) -> Option<(&mut Listed, &mut Channel<P>)> {
        self.split()
            .filter(|(_, channel)| channel.state() == ChannelState::Open)
    }
}
