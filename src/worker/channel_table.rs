//! The places of a Worker's channels, or of halves of them.

use core::time::Duration;
use std::sync::Weak;

use super::channel_list::ChannelList;
use super::{CloseError, Reservation};
use crate::machine::reaper::Reaper;
use crate::worker::channel::ChannelId;
use crate::worker::event::ChannelState;
use crate::worker::half::Held;

/// How long a peer without receives is waited for, and how long its device is given to acknowledge a farewell past the deadline of the
/// closing: some round trips of a loaded host.
/// A farewell that is lost on the way is not waited for, since the peer's probes find the channel gone.
pub(super) const PARTING_MAX: Duration = Duration::from_millis(20);

/// The places, in the order of their indices.
pub(super) struct ChannelTable<C: Held + Send + 'static> {
    pub(super) entries: Vec<ChannelEntry<C>>,
    pub(super) reaper: Reaper,
}

/// A place for a channel. Empty ones are used again.
pub(super) struct ChannelEntry<C> {
    pub(super) generation: u32,
    pub(super) listed: Listed,
    /// Reservation of this place for a channel, from before the channel exists until it is gone.
    pub(super) reserved: Weak<Reservation>,
    /// Completions that were promised with it.
    pub(super) room: Room,
    /// Whether the channel it is promised to was put here, and may be gone again.
    pub(super) is_admitted: bool,
    pub(super) channel: Option<C>,
    /// How the last channel here was closed.
    pub(super) closed: Option<Closed>,
}

/// How a channel was closed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Closed {
    pub(super) generation: u32,
    pub(super) outcome: Result<(), CloseError>,
    /// How it was before.
    pub(super) state: ChannelState,
    /// Whether the Worker closed it by itself, and nobody has asked for it since.
    pub(super) is_by_itself: bool,
}

/// How many completions a channel has room for in the queues.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub(super) sends: u32,
    pub(super) receives: u32,
}

/// The lists a channel is on.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Listed {
    /// The list of hungry channels.
    pub(super) is_hungry: bool,
    /// The list of channels with receives to announce.
    pub(super) is_unannounced: bool,
    /// The list of channels that want credits.
    pub(super) is_wanting: bool,
    /// The list of lost channels.
    pub(super) is_lost: bool,
}

impl Listed {
    /// Puts a channel on the list of those that went without memory, once.
    #[inline]
    pub(super) fn note_hungry(&mut self, index: u32, hungry: &mut ChannelList) {
        if !self.is_hungry {
            self.is_hungry = hungry.put(index);
        }
    }

    /// Puts a channel on the list of those with receives to announce, once.
    #[inline]
    pub(super) fn note_unannounced(&mut self, index: u32, unannounced: &mut ChannelList) {
        if !self.is_unannounced {
            self.is_unannounced = unannounced.put(index);
        }
    }

    /// Puts a channel on the list of those that are lost, once.
    pub(super) fn note_lost(&mut self, index: u32, lost: &mut ChannelList) {
        if !self.is_lost {
            self.is_lost = lost.put(index);
        }
    }

    /// Puts a channel on the list of those that want credits, once.
    #[inline]
    pub(super) fn note_wanting(&mut self, index: u32, wanting: &mut ChannelList) {
        if !self.is_wanting {
            self.is_wanting = wanting.put(index);
        }
    }
}

/// The places beside that of the channel that an event is reported of.
pub(crate) struct Others<'w, C> {
    before: &'w mut [ChannelEntry<C>],
    after: &'w mut [ChannelEntry<C>],
    /// The generation of the place between them.
    generation: u32,
}

/// The place of this index, and all others.
#[inline(always)]
pub(super) fn apart<C>(
    entries: &mut [ChannelEntry<C>],
    index: usize,
) -> Option<(&mut ChannelEntry<C>, Others<'_, C>)> {
    // Looked at first, so that the parts need no look of their own.
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

/// The channel at this index, and all others.
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
    /// These, for a shorter time.
    #[inline(always)]
    pub(super) const fn again(&mut self) -> Others<'_, C> {
        Others {
            before: self.before,
            after: self.after,
            generation: self.generation,
        }
    }

    /// Whether this is the name of the channel between them.
    #[inline]
    pub(super) const fn is_between(&self, id: ChannelId) -> bool {
        id.index as usize == self.before.len() && id.generation == self.generation
    }

    /// The channel of this name, if it is one of them.
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

    /// All of them, in the order of their places.
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

    /// The channel of this name.
    #[inline]
    pub(super) fn named(&mut self, id: ChannelId) -> Option<&mut C> {
        self.entries.get_mut(id.index as usize)?.named(id)
    }

    /// The names of all channels there are.
    pub(super) fn names(&self) -> impl Iterator<Item = ChannelId> {
        self.entries
            .iter()
            .filter_map(|entry| Some(entry.channel.as_ref()?.reservation().id))
    }
}

impl<C> ChannelEntry<C> {
    /// The channel here, if it has this name.
    #[inline]
    fn named(&mut self, id: ChannelId) -> Option<&mut C> {
        if self.generation != id.generation {
            return None;
        }
        self.channel.as_mut()
    }

    /// Whether it is promised to a channel. One that is not may be taken all the same: by a queue pair that the device would
    /// not destroy.
    pub(super) fn is_promised(&self) -> bool {
        self.reserved.strong_count() > 0
    }

    /// Whether a connection on its way may yet become the channel here.
    pub(super) fn awaits_admission(&self) -> bool {
        !self.is_admitted && self.is_promised()
    }
}

impl<C: Held> ChannelEntry<C> {
    /// The lists it is on, and the channel.
    #[inline]
    pub(super) fn split(&mut self) -> Option<(&mut Listed, &mut C)> {
        Some((&mut self.listed, self.channel.as_mut()?))
    }

    /// The lists it is on, and the channel, if the channel can be used.
    pub(super) fn split_open(&mut self) -> Option<(&mut Listed, &mut C)> {
        self.split().filter(|(_, channel)| channel.is_open())
    }
}

impl<C: Held + Send + 'static> Drop for ChannelTable<C> {
    /// The peers are notified, and the reaper gets the channels; what is under them is destroyed behind the last of them.
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
