//! Lists of a Worker's channels. Admission makes room in them, so nothing here allocates or panics while polling.

use core::mem;
use std::sync::Arc;

use doorbell_core::in_place;
use doorbell_core::provider::PushError;
use doorbell_core::sync::AtomicU32;
use doorbell_hotpath::{DueList, NotifyFlag};

use crate::worker::channel::SendErrorKind;

/// List of channels that report themselves to the Worker, from code that has no access to the Worker.
pub(crate) type Due = DueList<Box<[AtomicU32]>, Box<[NotifyFlag]>>;

/// Makes a list for so many channels. The memory is touched here.
pub(super) fn due(channels: usize) -> Arc<Due> {
    let mut links: Box<[_]> = (0..channels).map(|_| AtomicU32::new(0)).collect();
    in_place::put(&mut links, || AtomicU32::new(0));
    let mut flags: Box<[_]> = (0..channels).map(|_| NotifyFlag::new()).collect();
    in_place::put(&mut flags, NotifyFlag::new);
    Arc::new(DueList::new(links, flags))
}

/// Lets a channel, which has no reference to its Worker, report changes to the Worker that no completion reports. So the Worker
/// does not have to look through all channels.
#[derive(Debug)]
pub(crate) struct Notice {
    list: Arc<Due>,
    channel: u32,
    /// Whether the Worker already knows that a message wants a credit, so that repeated refusals do not notify again.
    is_wanting: bool,
    /// Whether the peer closed the channel, which is why messages are refused.
    is_peer_closed: bool,
}

impl Notice {
    /// Makes the notice of the channel with this index.
    pub(crate) fn new(list: &Arc<Due>, channel: u32) -> Self {
        Self {
            list: Arc::clone(list),
            channel,
            is_wanting: false,
            is_peer_closed: false,
        }
    }

    /// Notes that a request was not staged. Returns the reason for the caller.
    #[inline]
    pub(crate) fn note_refused(&mut self, reason: PushError) -> SendErrorKind {
        if self.is_peer_closed && matches!(reason, PushError::NoCredit | PushError::State(_)) {
            return SendErrorKind::PeerClosed;
        }
        if reason == PushError::NoCredit && !self.is_wanting {
            self.is_wanting = true;
            self.list.notify(self.channel);
        }
        reason.into()
    }

    /// Reports that the channel is lost, so that the Worker reports its end and closes it.
    #[cold]
    pub(crate) fn note_lost(&self) {
        self.list.notify(self.channel);
    }

    /// Notes that the peer closed the channel, which is the reason of refusals from now on.
    pub(crate) const fn note_peer_closed(&mut self) {
        self.is_peer_closed = true;
    }

    /// Reports that a probe had no answer in time, so that the next polls note whether the completion queue is empty.
    #[cold]
    pub(crate) fn note_overdue(&self) {
        self.list.notify(self.channel);
    }

    /// Reports that the device refused a doorbell, of which it may have taken a part.
    #[cold]
    pub(crate) fn note_not_posted(&self) {
        self.list.notify(self.channel);
    }

    /// Whether the Worker has to keep checking the channel for credits: as long as the channel wants some. If the application
    /// swapped the channels of two places, the notice belongs to another place, and the answer is always yes.
    #[inline]
    pub(super) fn keep_wanting(&mut self, list: &Arc<Due>, channel: u32, wants: bool) -> bool {
        if self.channel != channel || !Arc::ptr_eq(&self.list, list) {
            return true;
        }
        self.is_wanting = wants;
        wants
    }
}

/// A list of channels, by index.
#[derive(Debug, Default)]
pub(super) struct ChannelList {
    /// An entry for each channel that may be listed. The listed ones come first.
    places: Vec<u32>,
    listed: usize,
}

impl ChannelList {
    /// Makes room for so many channels. The memory is touched here.
    pub(super) fn make_room(&mut self, channels: usize) {
        if channels > self.places.len() {
            self.places.resize(channels, 0);
        }
    }

    #[inline]
    pub(super) const fn is_empty(&self) -> bool {
        self.listed == 0
    }

    /// Returns how many channels are listed.
    #[inline(always)]
    pub(super) const fn len(&self) -> usize {
        self.listed
    }

    /// Adds a channel that is not listed. Returns whether there was room, as there is for all admitted channels.
    #[inline]
    pub(super) fn put(&mut self, index: u32) -> bool {
        let Some(place) = self.places.get_mut(self.listed) else {
            return false;
        };
        *place = index;
        self.listed = self.listed.wrapping_add(1);
        true
    }

    /// Returns the listed channels.
    pub(super) fn listed(&self) -> &[u32] {
        self.places.get(..self.listed).unwrap_or_default()
    }

    /// Keeps the channels for which `keep` returns `true`, in order. If `keep` panics, its channel and all later ones are kept.
    #[inline]
    pub(super) fn retain(&mut self, mut keep: impl FnMut(u32) -> bool) {
        let mut going = Retaining {
            list: self,
            kept: 0,
            at: 0,
        };
        while going.at < going.list.listed {
            let Some(index) = going.list.places.get(going.at).copied() else {
                break;
            };
            if keep(index) {
                if let Some(place) = going.list.places.get_mut(going.kept) {
                    *place = index;
                }
                going.kept = going.kept.wrapping_add(1);
            }
            going.at = going.at.wrapping_add(1);
        }
        going.list.listed = going.kept;
        mem::forget(going);
    }
}

/// Guard of a pass over a list. If a panic drops it, the channels that were not visited are kept.
struct Retaining<'l> {
    list: &'l mut ChannelList,
    kept: usize,
    at: usize,
}

impl Drop for Retaining<'_> {
    #[cold]
    fn drop(&mut self) {
        let Self { list, kept, at } = self;
        let rest = list.listed.saturating_sub(*at);
        if list.listed <= list.places.len() && *kept <= *at {
            list.places.copy_within(*at..list.listed, *kept);
        }
        list.listed = kept.saturating_add(rest);
    }
}

#[cfg(test)]
mod tests {
    use super::ChannelList;
    use core::panic::AssertUnwindSafe;
    use std::panic::{catch_unwind, resume_unwind};

    fn listed(list: &mut ChannelList) -> Vec<u32> {
        let mut all = Vec::new();
        list.retain(|index| {
            all.push(index);
            true
        });
        all
    }

    #[test]
    fn there_is_room_for_as_many_as_were_admitted() {
        let mut list = ChannelList::default();
        assert!(list.is_empty() && !list.put(7));
        list.make_room(2);
        assert!(list.put(7) && list.put(8) && !list.put(9));
        // It never shrinks, and what is listed stays.
        list.make_room(1);
        list.make_room(3);
        assert!(list.put(9));
        assert_eq!(listed(&mut list), [7, 8, 9]);
    }

    #[test]
    fn a_panic_keeps_what_was_not_looked_at() {
        for at in 0..4 {
            let mut list = ChannelList::default();
            list.make_room(4);
            for index in 0..4 {
                assert!(list.put(index));
            }
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                list.retain(|index| {
                    if index == at {
                        resume_unwind(Box::new("the callback's own"));
                    }
                    index % 2 == 1
                });
            }));
            assert!(outcome.is_err());
            let expected = (0..4).filter(|index| *index >= at || index % 2 == 1);
            assert_eq!(listed(&mut list), expected.collect::<Vec<_>>());
        }
    }

    #[test]
    fn what_is_not_kept_makes_room() {
        let mut list = ChannelList::default();
        list.make_room(4);
        for index in 0..4 {
            assert!(list.put(index));
        }
        list.retain(|index| index % 2 == 1);
        assert_eq!(listed(&mut list), [1, 3]);
        assert!(list.put(4) && list.put(6) && !list.put(8));
        list.retain(|_| false);
        assert!(list.is_empty());
    }
}
