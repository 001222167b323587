//! Halves of a split Worker: one thread sends, another thread receives, and the halves share no lock.
//!
//! The halves share atomic words: the counts of posted and announced receives of each channel (`hotpath::Grants`), and the list
//! of channels with receives to announce (`hotpath::DueList`). Slots also return to their arena through atomic words.

mod receiving;
mod sending;
#[cfg(test)]
pub(super) mod tests;

use core::fmt;
use std::sync::Arc;

use doorbell_core::in_place;
use doorbell_core::provider::{ArenaConfig, MemoryError, Provider};
use doorbell_ffi::Rdma;

use super::channel_list::due;
use super::channel_table::{ChannelEntry, ChannelTable, Listed};
use super::memory::arena_in;
use super::upkeep::Upkeep;
use super::{Under, Worker};
use crate::worker::arena::Arena;
use crate::worker::channel::Channel;
use crate::worker::half::Held;

pub use receiving::ReceiveWorker;
pub use sending::SendWorker;

impl<P: Provider> Worker<P> {
    /// Splits the Worker into two halves, so that one thread sends and another thread receives on all its channels. The sending
    /// half leases from a new arena with this configuration. The Worker's own slots go to the receiving half. Leases may be
    /// passed between the halves.
    ///
    /// To connect, accept or close channels, join the halves again by [`SendWorker::join`].
    ///
    /// # Errors
    /// [`NotSplit`] hands the Worker back: a channel is being closed, or there is no memory for the arena.
    pub fn split(mut self, arena: &ArenaConfig) -> Result<(SendWorker<P>, ReceiveWorker<P>), NotSplit<P>> {
        let made = if self.closing.is_empty() {
            arena_in::<P>(&self.domain, arena).map_err(SplitError::Memory)
        } else {
            Err(SplitError::Closing)
        };
        let arena = match made {
            Ok(arena) => arena,
            Err(reason) => {
                return Err(NotSplit {
                    worker: Box::new(self),
                    reason,
                });
            }
        };
        let reaper = self.table.reaper.clone();
        let mut sending = ChannelTable::new(reaper.clone());
        let mut receiving = ChannelTable::new(reaper.clone());
        for entry in core::mem::take(&mut self.table.entries) {
            let (send, receive) = match entry.channel {
                Some(Channel {
                    mut send,
                    mut receive,
                }) => {
                    // If the end of the channel was reported before the split, neither half reports it again.
                    let is_reported = send.ending.is_reported || receive.ending.is_reported;
                    (send.ending.is_reported, receive.ending.is_reported) = (is_reported, is_reported);
                    // No receives take slots of the sending half's arena.
                    send.is_without_leases = false;
                    (Some(send), Some(receive))
                }
                None => (None, None),
            };
            sending.entries.push(ChannelEntry {
                generation: entry.generation,
                listed: entry.listed,
                reserved: entry.reserved.clone(),
                room: entry.room,
                is_admitted: entry.is_admitted,
                channel: send,
                closed: entry.closed,
            });
            receiving.entries.push(ChannelEntry {
                generation: entry.generation,
                listed: entry.listed,
                reserved: entry.reserved,
                room: entry.room,
                is_admitted: entry.is_admitted,
                channel: receive,
                closed: None,
            });
        }
        let channels = sending.entries.len();
        let due = due(channels);
        let context = Arc::clone(&self.context);
        let under = reaper.keep(Under::clone(&self.under));
        let send_worker = SendWorker {
            table: sending,
            sends: self.sends,
            arena: Arena::new(arena, reaper.clone()),
            credit_words: self.credit_words,
            cells: self.cells,
            domain: self.domain,
            context: self.context,
            device: self.device,
            node: self.node,
            channels_max: self.channels_max,
            channels_per_address: self.channels_per_address,
            leases_kept: self.leases_kept,
            classes: self.classes,
            statistics: Arc::clone(&self.statistics),
            waiting: self.waiting,
            due: Arc::clone(&due),
            under,
        };
        let receive_worker = ReceiveWorker {
            table: receiving,
            receives: self.receives,
            arena: self.arena,
            context,
            device_events: self.device_events,
            statistics: self.statistics,
            waiting: self.waiting,
            due,
            under: self.under,
        };
        Ok((send_worker, receive_worker))
    }
}

impl<P: Provider> SendWorker<P> {
    /// Joins the two halves of a Worker. Channels, requests in flight and leases stay valid. The arena of the sending half is
    /// freed once all its slots have returned.
    ///
    /// # Errors
    /// [`NotAPair`] hands both halves back: they are not halves of the same Worker, or the application swapped channels.
    pub fn join(mut self, mut receiving: ReceiveWorker<P>) -> Result<Worker<P>, NotAPair<P>> {
        if !self.is_pair_of(&receiving) {
            return Err(NotAPair {
                sending: Box::new(self),
                receiving: Box::new(receiving),
            });
        }
        self.take_due();
        let mut table = ChannelTable::new(self.table.reaper.clone());
        let sends = core::mem::take(&mut self.table.entries);
        let receives = core::mem::take(&mut receiving.table.entries);
        table.entries = sends
            .into_iter()
            .zip(receives)
            .map(|(send, receive)| ChannelEntry {
                generation: send.generation,
                listed: Listed {
                    is_hungry: receive.listed.is_hungry,
                    is_unannounced: send.listed.is_unannounced,
                    is_wanting: send.listed.is_wanting,
                    is_lost: send.listed.is_lost,
                },
                reserved: send.reserved,
                room: send.room,
                is_admitted: send.is_admitted,
                channel: send
                    .channel
                    .zip(receive.channel)
                    .map(|(send, receive)| Channel { receive, send }),
                closed: send.closed,
            })
            .collect();
        // As at admission, there is room for a closing of each channel, so that nothing is allocated later.
        let mut closing = Vec::with_capacity(table.entries.len());
        in_place::touch(closing.spare_capacity_mut());
        let mut worker = Worker {
            table,
            sends: self.sends,
            receives: receiving.receives,
            arena: receiving.arena,
            credit_words: self.credit_words,
            cells: self.cells,
            domain: self.domain,
            context: self.context,
            device_events: receiving.device_events,
            device: self.device,
            node: self.node,
            channels_max: self.channels_max,
            channels_per_address: self.channels_per_address,
            leases_kept: self.leases_kept,
            classes: self.classes,
            statistics: self.statistics,
            closing,
            upkeep: Upkeep::new(),
            waiting: self.waiting,
            under: receiving.under,
        };
        worker.take_up_lost();
        worker.note_leases();
        Ok(worker)
    }

    fn is_pair_of(&self, receiving: &ReceiveWorker<P>) -> bool {
        let channels = self.table.entries.iter().zip(&receiving.table.entries);
        Arc::ptr_eq(&self.due, &receiving.due)
            && channels
                .map(|(send, receive)| (&send.channel, &receive.channel))
                .all(|halves| match halves {
                    (Some(send), Some(receive)) => Arc::ptr_eq(send.reservation(), receive.reservation()),
                    (None, None) => true,
                    _ => false,
                })
    }
}

/// A Worker that was not split, handed back with the reason.
pub struct NotSplit<P: Provider = Rdma> {
    /// The Worker, unchanged.
    pub worker: Box<Worker<P>>,
    /// The reason.
    pub reason: SplitError,
}

/// Reason why a Worker was not split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SplitError {
    /// A channel is being closed: poll until the closing has ended, and try again.
    Closing,
    /// There is no memory for the arena of the sending half, or a required placement is not available.
    Memory(MemoryError),
}

impl fmt::Display for SplitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closing => f.write_str("a channel of the Worker is being closed: poll until it is"),
            Self::Memory(error) => write!(f, "no memory for the half that sends: {error}"),
        }
    }
}

impl<P: Provider> fmt::Debug for NotSplit<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NotSplit")
            .field("reason", &self.reason)
            .finish_non_exhaustive()
    }
}

impl<P: Provider> fmt::Display for NotSplit<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.reason, f)
    }
}

impl<P: Provider> core::error::Error for NotSplit<P> {}

/// Two halves that do not belong to one Worker, handed back.
pub struct NotAPair<P: Provider = Rdma> {
    /// The sending half.
    pub sending: Box<SendWorker<P>>,
    /// The receiving half.
    pub receiving: Box<ReceiveWorker<P>>,
}

impl<P: Provider> fmt::Debug for NotAPair<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NotAPair")
            .field("sending", &self.sending)
            .field("receiving", &self.receiving)
            .finish()
    }
}

impl<P: Provider> fmt::Display for NotAPair<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("these are not the two halves of one Worker: join those that one split returned")
    }
}

impl<P: Provider> core::error::Error for NotAPair<P> {}
