//! Table of a Worker's channels, or of the halves of channels on a split Worker.

use core::time::Duration;
use std::sync::Weak;

use super::channel_list::ChannelList;
use super::{CloseError, Reservation};
use crate::machine::reaper::Reaper;
use crate::worker::channel::ChannelId;
use crate::worker::event::ChannelState;
use crate::worker::half::Held;

/// Time limit for a closing to wait for a credit for its farewell, and for the peer's device to acknowledge the farewell after
/// the deadline of the closing: some round trips between loaded hosts. A lost farewell is not retransmitted after that, since the
/// peer's probes detect the end of the channel.
pub(super) const PARTING_MAX: Duration = Duration::from_millis(20);

/// The entries of the table, by the index of their channel.
pub(super) struct ChannelTable<C: Held + Send + 'static> {
    pub(super) entries: Vec<ChannelEntry<C>>,
    pub(super) reaper: Reaper,
}

/// A place for a channel. Later channels use it again.
pub(super) struct ChannelEntry<C> {
    pub(super) generation: u32,
    pub(super) listed: Listed,
    /// Reservation of this place, from before the channel exists until its queue pair is destroyed.
    pub(super) reserved: Weak<Reservation>,
    /// Completions that are reserved together with the place.
    pub(super) room: Room,
    /// Whether the channel of the current reservation was admitted. The channel may be gone again.
    pub(super) is_admitted: bool,
    pub(super) channel: Option<C>,
    /// The outcome of closing the last channel here.
    pub(super) closed: Option<Closed>,
}

/// Outcome of closing a channel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Closed {
    pub(super) generation: u32,
    pub(super) outcome: Result<(), CloseError>,
    /// The final state of the channel.
    pub(super) state: ChannelState,
    /// Whether the Worker closed the channel by itself, and no caller took the closing over since.
    pub(super) is_by_itself: bool,
}

/// The completions that are reserved for a channel in each queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub(super) sends: u32,
    pub(super) receives: u32,
}

/// The lists that a channel is on.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Listed {
    /// On the list of channels that lack receives.
    pub(super) is_hungry: bool,
    /// On the list of channels with receives to announce.
    pub(super) is_unannounced: bool,
    /// On the list of channels that want credits.
    pub(super) is_wanting: bool,
    /// On the list of lost channels.
    pub(super) is_lost: bool,
}

impl Listed {
    /// Puts a channel on the list of channels that lack receives, once.
    #[inline]
    pub(super) fn note_hungry(&mut self, index: u32, hungry: &mut ChannelList) {
        if !self.is_hungry {
            self.is_hungry = hungry.put(index);
        }
    }

    /// Puts a channel on the list of channels with receives to announce, once.
    #[inline]
    pub(super) fn note_unannounced(&mut self, index: u32, unannounced: &mut ChannelList) {
        if !self.is_unannounced {
            self.is_unannounced = unannounced.put(index);
        }
    }

    /// Puts a channel on the list of lost channels, once.
    pub(super) fn note_lost(&mut self, index: u32, lost: &mut ChannelList) {
        if !self.is_lost {
            self.is_lost = lost.put(index);
        }
    }

    /// Puts a channel on the list of channels that want credits, once.
    #[inline]
    pub(super) fn note_wanting(&mut self, index: u32, wanting: &mut ChannelList) {
        if !self.is_wanting {
            self.is_wanting = wanting.put(index);
        }
    }
}

/// All places except the place of the channel whose event is delivered.
pub(crate) struct Others<'w, C> {
    before: &'w mut [ChannelEntry<C>],
    after: &'w mut [ChannelEntry<C>],
    /// The generation of the place that is left out.
    generation: u32,
}

/// Returns the place with this index, and all others.
#[inline(always)]
pub(super) fn apart<C>(
    entries: &mut [ChannelEntry<C>],
    index: usize,
) -> Option<(&mut ChannelEntry<C>, Others<'_, C>)> {
    // This check first lets the optimiser drop the checks of the splits below.
    entries.get(index)?;
    let (before, rest) = entries.split_at_mut_checked(index)?;
    let (entry, after) = rest.split_first_mut()?;
    let generation = entry.generation;
    Some((
        entry,
        Others {
            before,
            after,
            generation,
        },
    ))
}

/// Returns the channel at this index, and all other places.
#[inline(always)]
pub(super) fn channel_apart<C>(
    entries: &mut [ChannelEntry<C>],
    index: usize,
) -> Option<(&mut C, Others<'_, C>)> {
    let (entry, others) = apart(entries, index)?;
    Some((entry.channel.as_mut()?, others))
}

/// Returns a channel, the lists that it is on, and the other places.
#[inline(always)]
pub(super) fn listed_apart<C: Held>(
    entries: &mut [ChannelEntry<C>],
    index: usize,
) -> Option<(&mut Listed, &mut C, Others<'_, C>)> {
    let (entry, others) = apart(entries, index)?;
    let (listed, channel) = entry.split()?;
    Some((listed, channel, others))
}

impl<C> Others<'_, C> {
    /// Reborrows the places.
    #[inline(always)]
    pub(super) const fn again(&mut self) -> Others<'_, C> {
        Others {
            before: self.before,
            after: self.after,
            generation: self.generation,
        }
    }

    /// Whether this is the id of the channel whose place is left out.
    #[inline]
    pub(super) const fn is_between(&self, id: ChannelId) -> bool {
        id.index as usize == self.before.len() && id.generation == self.generation
    }

    /// Returns the channel with this id, if it is in one of these places.
    #[inline]
    pub(super) fn named(&mut self, id: ChannelId) -> Option<&mut C> {
        let index = id.index();
        let behind = index
            .checked_sub(self.before.len())
            .and_then(|at| at.checked_sub(1));
        let entry = match behind {
            Some(behind) => self.after.get_mut(behind),
            None => self.before.get_mut(index),
        };
        entry?.named(id)
    }

    /// Returns all channels in these places, in the order of their indices.
    pub(super) fn all(&mut self) -> impl Iterator<Item = &mut C> {
        let entries = self.before.iter_mut().chain(self.after.iter_mut());
        entries.filter_map(|entry| entry.channel.as_mut())
    }
}

impl<C: Held + Send + 'static> ChannelTable<C> {
    pub(super) const fn new(reaper: Reaper) -> Self {
        Self {
            entries: Vec::new(),
            reaper,
        }
    }

    /// Returns the channel with this id.
    #[inline]
    pub(super) fn named(&mut self, id: ChannelId) -> Option<&mut C> {
        self.entries.get_mut(id.index as usize)?.named(id)
    }

    /// Returns the ids of all channels.
    pub(super) fn names(&self) -> impl Iterator<Item = ChannelId> {
        self.entries
            .iter()
            .filter_map(|entry| Some(entry.channel.as_ref()?.reservation().id))
    }
}

impl<C> ChannelEntry<C> {
    /// Returns the channel here, if it has this id.
    #[inline]
    fn named(&mut self, id: ChannelId) -> Option<&mut C> {
        if self.generation != id.generation {
            return None;
        }
        self.channel.as_mut()
    }

    /// Whether the place is reserved for a channel. A place without a reservation may still be in use, by a queue pair that the
    /// device refused to destroy.
    pub(super) fn is_promised(&self) -> bool {
        self.reserved.strong_count() > 0
    }

    /// Whether the place is reserved for a connection in progress.
    pub(super) fn awaits_admission(&self) -> bool {
        !self.is_admitted && self.is_promised()
    }
}

impl<C: Held> ChannelEntry<C> {
    /// Returns the lists that the channel is on, and the channel.
    #[inline]
    pub(super) fn split(&mut self) -> Option<(&mut Listed, &mut C)> {
        Some((&mut self.listed, self.channel.as_mut()?))
    }

    /// Returns the lists that the channel is on, and the channel, if the channel can be used.
    pub(super) fn split_open(&mut self) -> Option<(&mut Listed, &mut C)> {
        self.split().filter(|(_, channel)| channel.is_open())
    }
}

impl<C: Held + Send + 'static> Drop for ChannelTable<C> {
    /// Notifies the peers, and hands the channels to the reaper. If a peer was notified, the reaper waits 20 ms for the
    /// acknowledgements before it destroys the queue pairs.
    fn drop(&mut self) {
        let mut entries = core::mem::take(&mut self.entries);
        let mut has_parted = false;
        for channel in entries.iter_mut().filter_map(|entry| entry.channel.as_mut()) {
            has_parted |= channel.part();
        }
        if entries.iter().any(|entry| entry.channel.is_some()) {
            let patience = if has_parted { PARTING_MAX } else { Duration::ZERO };
            self.reaper.take_after(entries, patience);
        }
    }
}
