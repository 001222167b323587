//! Admission: a channel gets an index, and room in the completion queues for all its requests, before its queue pair is made.

use core::net::IpAddr;
use std::sync::{Arc, Weak};

use doorbell_core::in_place;
use doorbell_core::provider::{
    Arena, CompletionQueue, GATHER_MAX, Provider, QueuePair, ReceivesClaim, SharedReceiveQueue, Window,
};
use doorbell_core::sync::AtomicU32;
use doorbell_core::wire::CreditWord;
use doorbell_hotpath::{Grants, WindowWord};

use super::channel_table::{ChannelEntry, Listed, Room};
use super::promised::{Promised, Supplied, Supply};
use super::{CREDIT_WORD_BYTES, QueuePairNumber, Reservation, Worker};
use crate::error::ConnectError;
use crate::machine::unfinished::Unfinished;
use crate::worker::channel::{Channel, ChannelId};
use crate::worker::config::ChannelConfig;
use crate::worker::half::Held;

impl<P: Provider> Worker<P> {
    /// Reserves an index and room for completions for a new channel. `from` is the source address of a peer that connects to this
    /// side.
    ///
    /// # Errors
    /// The completion queues, the slots or the shared receives have no room, or there are too many channels, in all or from this
    /// address. Or unfinished handshakes from this address already hold as much as is left for others.
    pub(crate) fn reserve(
        &mut self,
        sends: u32,
        receives: u32,
        from: Option<IpAddr>,
    ) -> Result<Arc<Reservation>, ConnectError> {
        self.make_room();
        let is_limited = self.channels_per_address < self.channels_max;
        let limited = from.filter(|_| is_limited);
        if let Some(from) = limited.filter(|from| self.channels_from(*from) >= self.channels_per_address) {
            return Err(ConnectError::TooManyChannelsFrom {
                address: from,
                channels_per_address: self.channels_per_address,
            });
        }
        let is_shared = self.receives.shared.is_some();
        let entries = &mut self.table.entries;
        let completions = &self.sends.completions;
        let is_free =
            |at: usize, entry: &ChannelEntry<_>| !entry.is_promised() && !is_claimed::<P>(completions, at);
        let (mut sends_left, mut receives_taken, mut free) = (completions.depth(), 0_u32, None);
        // Shared receives got their slots when the Worker was made.
        let slots = if is_shared { u32::MAX } else { self.arena.slots() };
        let mut slots_left = slots.saturating_sub(self.leases_kept);
        let mut places_left = self.channels_max;
        for (at, entry) in entries.iter().enumerate() {
            if is_free(at, entry) {
                free = free.or(Some(at));
                continue;
            }
            places_left = places_left.saturating_sub(1);
            sends_left = sends_left.saturating_sub(entry.room.sends);
            receives_taken = receives_taken.saturating_add(entry.room.receives);
            slots_left = slots_left.saturating_sub(entry.room.receives);
        }
        let at = free.unwrap_or(entries.len());
        let index = u32::try_from(at).ok().filter(|index| *index < self.channels_max);
        let channels_max = self.channels_max;
        let index = index.ok_or(ConnectError::TooManyChannels { channels_max })?;
        // Now, since the place and the shares that are free may still have completions of connections that were given up.
        self.receives
            .let_go_early(entries, &mut self.arena, &self.statistics);
        let receives_most = match &mut self.receives.shared {
            Some(shared) => shared.promisable(&self.statistics),
            None => self.receives.completions.depth(),
        };
        let receives_left = receives_most.saturating_sub(receives_taken);
        if is_shared && receives > receives_left {
            return Err(ConnectError::NoShare {
                receives_left,
                receives_needed: receives,
            });
        }
        if sends > sends_left || receives > receives_left {
            return Err(ConnectError::NoRoom {
                sends_left,
                receives_left,
            });
        }
        if !is_shared && receives > slots_left {
            return Err(ConnectError::NoSlots {
                receives_left: slots_left,
                slots,
                leases_kept: self.leases_kept,
            });
        }
        if let Some(from) = from {
            // A leased slot is not free, so it is not subtracted once more with the slots that are kept for leases: promised receives leave
            // `slots_left` beside those. The other term is greater while a promise has no slots yet, or has returned them.
            let free_slots = self.arena.free_slots();
            let unleased = free_slots
                .saturating_sub(self.leases_kept)
                .max(slots_left.min(free_slots));
            let room = [
                (places_left, 1),
                (sends_left, sends),
                (receives_left, receives),
                // Shared receives need no more slots.
                (unleased, if is_shared { 0 } else { receives }),
            ];
            let left = room.into_iter().filter_map(|(left, each)| left.checked_div(each));
            let left = left.min().unwrap_or(u32::MAX).saturating_sub(1);
            unfinished(entries, from).check(from, left as usize)?;
        }
        if free.is_none() {
            entries.push(ChannelEntry {
                generation: 0,
                listed: Listed::default(),
                reserved: Weak::new(),
                room: Room { sends, receives },
                is_admitted: false,
                channel: None,
                closed: None,
            });
        }
        let entry = entries
            .get_mut(at)
            .ok_or(ConnectError::TooManyChannels { channels_max })?;
        let id = ChannelId {
            index,
            generation: entry.generation,
        };
        let reservation = Arc::new(Reservation {
            id,
            from,
            news: AtomicU32::new(0),
            is_finished: AtomicU32::new(0),
            qpn: Arc::new(QueuePairNumber::none()),
        });
        entry.reserved = Arc::downgrade(&reservation);
        entry.room = Room { sends, receives };
        entry.is_admitted = false;
        // Room for one more completion of each connection than its peer may cause. With shared receives, that one shows that a
        // peer used more receives than it was granted.
        let on_their_way = entries.iter().filter(|entry| entry.awaits_admission());
        let early = on_their_way.fold(0_usize, |sum, entry| {
            sum.saturating_add(entry.room.receives as usize).saturating_add(1)
        });
        self.receives.early.make_room(early);
        Ok(reservation)
    }

    /// Returns how many channels and connections in progress there are from an address.
    fn channels_from(&self, from: IpAddr) -> u32 {
        let reserved = self.table.entries.iter();
        let reserved = reserved.filter_map(|entry| entry.reserved.upgrade());
        let of_it = reserved.filter(|reserved| reserved.from == Some(from));
        u32::try_from(of_it.count()).unwrap_or(u32::MAX)
    }

    /// Reserves the resources of a channel that only the Worker's thread may access. The call takes microseconds, and makes no
    /// call of the device.
    ///
    /// # Errors
    /// As for [`Worker::reserve`], or the completion queues still have completions of an earlier channel with the same index.
    pub(crate) fn promise(
        &mut self,
        config: &ChannelConfig,
        from: Option<IpAddr>,
    ) -> Result<Promised<P>, ConnectError> {
        let reservation = self.reserve(config.sends_in_flight(), config.receive_depth, from)?;
        let channel = reservation.id.index;
        let (word, credit) = credit_word(&self.credit_words, channel)?;
        let sends = self.sends.completions.claim_sends(channel)?;
        let receives = match &self.receives.shared {
            Some(shared) => ReceivesClaim::Shared(shared.queue().claim()),
            None => ReceivesClaim::Own(self.receives.completions.claim_receives(channel)?),
        };
        Ok(Promised {
            sends,
            receives,
            word,
            credit,
            reservation,
        })
    }

    /// Provides the receives that a peer may use from the start. The peer counts announcements from `start` on.
    ///
    /// # Errors
    /// There is no memory for all receives, or the device refused to post shared ones.
    pub(crate) fn supply(
        &mut self,
        reservation: &Arc<Reservation>,
        start: u32,
        config: &ChannelConfig,
    ) -> Result<Supply<P>, ConnectError> {
        let grants = Arc::new(Grants::new(start, config.receive_depth));
        let receives = match &mut self.receives.shared {
            Some(shared) => {
                let arena = &mut self.arena;
                Supplied::Shared(shared.open(reservation, Arc::clone(&grants), arena, config)?)
            }
            None => Supplied::Own(self.slots(config.receive_depth)?),
        };
        Ok(Supply { grants, receives })
    }

    /// Takes slots for so many receives: all of them or none.
    fn slots(&mut self, receives: u32) -> Result<Vec<P::Slot>, ConnectError> {
        let mut slots = Vec::with_capacity(receives as usize);
        for _ in 0..receives {
            let Some(slot) = self.arena.lease() else {
                slots.into_iter().for_each(|slot| self.arena.release(slot));
                return Err(ConnectError::NoMemory);
            };
            slots.push(slot);
        }
        Ok(slots)
    }

    /// Puts a channel into its reserved place in the table.
    ///
    /// # Errors
    /// The place was reserved on another Worker.
    pub(crate) fn admit(&mut self, mut channel: Channel<P>) -> Result<ChannelId, ConnectError> {
        let id = channel.id();
        let reserved = self
            .table
            .entries
            .get(id.index as usize)
            .map(|entry| entry.reserved.as_ptr());
        if reserved != Some(Arc::as_ptr(channel.reservation())) {
            return Err(ConnectError::OtherWorkers);
        }
        // All memory is allocated and touched here, so that polls do not allocate and meet no page fault.
        let channels = self.table.entries.len();
        let sends = &mut self.sends;
        self.receives.hungry.make_room(channels);
        sends.unannounced.make_room(channels);
        sends.wanting.make_room(channels);
        sends.lost.make_room(channels);
        self.closing.reserve(channels.saturating_sub(self.closing.len()));
        let fetched_max = (channel.limits().send_depth as usize).saturating_mul(GATHER_MAX);
        // One more for the completion's own event.
        sends.events_max = sends.events_max.max(fetched_max.saturating_add(1));
        sends.undelivered.reserve(sends.events_max);
        if sends.submissions.is_used() {
            sends.submissions.make_room(channels, &mut channel.send);
        }
        in_place::touch(self.closing.spare_capacity_mut());
        in_place::touch(sends.undelivered.spare_capacity_mut());
        if let Some(shared) = &mut self.receives.shared {
            shared.admit(channel.reservation(), channel.send.control.qpn());
        }
        let Some(entry) = self.table.entries.get_mut(id.index as usize) else {
            return Err(ConnectError::OtherWorkers);
        };
        if channel.send.care.probe_after().is_some() {
            self.upkeep.probe();
        }
        entry.channel = Some(channel);
        entry.is_admitted = true;
        self.receives.early.note_admitted();
        self.note_leases();
        Ok(id)
    }

    /// Updates in all channels whether their receives leave any slot for leases. Only needed if no slots are reserved for leases.
    pub(super) fn note_leases(&mut self) {
        if self.leases_kept > 0 {
            return;
        }
        let is_without_leases = self.leases_max() == 0;
        for channel in self
            .table
            .entries
            .iter_mut()
            .filter_map(|entry| entry.channel.as_mut())
        {
            channel.send.is_without_leases = is_without_leases;
        }
    }
}

/// Returns the unfinished handshakes that have a place here, as counted for an address. A connection counts as long as its queue
/// pair is being made or destroyed, even if its peer is gone.
fn unfinished<C>(entries: &[ChannelEntry<C>], from: IpAddr) -> Unfinished {
    let on_their_way = entries.iter().filter(|entry| entry.awaits_admission());
    let reserved = on_their_way.filter_map(|entry| entry.reserved.upgrade());
    Unfinished::of(from, reserved.filter_map(|reserved| reserved.unfinished()))
}

/// Whether a queue pair, or a reservation for one, uses the index in the completion queue.
pub(super) fn is_claimed<P: Provider>(completions: &P::CompletionQueue, at: usize) -> bool {
    u32::try_from(at).is_ok_and(|channel| completions.is_claimed(channel))
}

/// Returns the credit word of a channel, and the description of it that the handshake sends to the peer.
fn credit_word<W: Window>(
    words: &Arc<W>,
    channel: u32,
) -> Result<(WindowWord<Arc<W>>, CreditWord), ConnectError> {
    let offset = (channel as usize).saturating_mul(CREDIT_WORD_BYTES);
    let remote = words.remote();
    let address = remote.address_of(offset as u64, CREDIT_WORD_BYTES as u64);
    let word = WindowWord::new(Arc::clone(words), offset);
    let (Some(word), Some(address)) = (word, address) else {
        // The window has a word for each index that can be reserved.
        return Err(ConnectError::Unreachable("a reserved channel has no credit word"));
    };
    let sent = CreditWord {
        address,
        rkey: remote.rkey(),
        // The count continues from the word that an earlier peer left, so that its bytes are no announcement of the new peer.
        start: word.next_start(),
    };
    Ok((word, sent))
}
