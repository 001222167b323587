//! A comm: one direction between two processes, with its requests.

use doorbell::Deadline;
use doorbell::link::{LinkId, Sequence};

use crate::abi::{NcclResult, REQUESTS_MAX};
use crate::frame::{RECEIVES_MAX, Receive, RequestNumber, SERIAL_MASK, Target};
use crate::places::Key;

const _: () = assert!(REQUESTS_MAX == u32::BITS as usize);

/// Maximum number of send requests of a comm: one for each receive that the other side may have open.
pub(super) const SENDS_MAX: usize = REQUESTS_MAX * RECEIVES_MAX;

/// Stage of a comm's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The peer has not answered.
    Opening { until: Deadline },
    /// Requests are possible.
    Open,
    /// The comm cannot be used any more.
    Failed(NcclResult),
    /// The comm is closed here, and the peer does not know yet.
    Closing,
}

/// A message that has to be sent to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owed {
    /// Open the comm at this listener of the peer.
    Open(Key),
    /// The comm is open.
    Opened,
    /// The comm is closed.
    Close,
}

#[derive(Debug)]
pub(super) struct Comm {
    pub(super) link: LinkId,
    /// Its number at the peer; `None` until the peer has reported it.
    pub(super) peer: Option<Key>,
    pub(super) stage: Stage,
    pub(super) owes: Option<Owed>,
    /// The last message that was sent on the link. The peer has received it when it is done.
    pub(super) last_sent: Option<Sequence>,
    /// Whether the peer has closed it.
    pub(super) is_peer_gone: bool,
    /// Whether `connect` has not returned it yet.
    pub(super) is_attempt: bool,
    /// Whether the peer's `connect` never returned it: then it must not be accepted.
    pub(super) is_given_up: bool,
    /// Whether relays were asked to open it, since no rail leads to the peer.
    pub(super) is_sought: bool,
    /// Whether the peer opened it, even if it has closed it since.
    pub(super) was_opened: bool,
    pub(super) side: Side,
}

#[derive(Debug)]
pub(super) enum Side {
    Send(Box<Sends>),
    Receive(Box<Receives>),
}

/// The sending side.
#[derive(Debug)]
pub(super) struct Sends {
    /// The peer's receives that have no send yet, the newest first: the last one is the next to be used.
    open: Vec<OpenReceive>,
    /// A bit for each free slot.
    free: [u64; SENDS_MAX / 64],
    requests: [SendRequest; SENDS_MAX],
}

/// A receive of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OpenReceive {
    pub(super) bytes: u64,
    pub(super) tag: i32,
    request: RequestNumber,
    /// Longest message that goes into it as one copy; 0 if only transfers or parts do.
    copied_bytes_max: u32,
    index: u8,
    /// Whether it accepts only transfers.
    pub(super) is_placed: bool,
}

impl OpenReceive {
    /// Whether this number of bytes, and not 0, goes into it as one copy.
    #[inline]
    pub(super) fn takes_copy(&self, bytes: usize) -> bool {
        bytes.wrapping_sub(1) < self.copied_bytes_max as usize
    }

    /// The receive as a target, at the comm with this number.
    #[inline]
    pub(super) fn target(&self, to: Key) -> Target {
        Target {
            to,
            request: self.request,
            index: self.index,
        }
    }
}

/// A send request.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendRequest {
    pub(super) serial: u32,
    pub(super) state: SendState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendState {
    Free,
    /// A transfer carries it.
    Moving,
    /// This number of bytes is sent.
    Done(usize),
    Failed(NcclResult),
}

impl Sends {
    pub(super) fn new() -> Box<Self> {
        Box::new(Self {
            open: Vec::with_capacity(SENDS_MAX),
            free: [u64::MAX; SENDS_MAX / 64],
            requests: [SendRequest {
                serial: 0,
                state: SendState::Free,
            }; SENDS_MAX],
        })
    }

    /// Adds a request of the peer. It replaces an older one in the same slot, which has ended. Messages of up to `copied_bytes_max` bytes may be
    /// sent as one copy.
    pub(super) fn cleared(
        &mut self,
        request: RequestNumber,
        receives: [Receive; RECEIVES_MAX],
        (count, placed): (u8, u8),
        copied_bytes_max: u32,
    ) {
        self.open.retain(|open| open.request.slot() != request.slot());
        let receives = (0_u8..).zip(receives).take(count.into());
        for (index, Receive { tag, bytes }) in receives {
            let is_placed = placed >> index & 1 != 0;
            let room = if is_placed { 0 } else { bytes };
            let receive = OpenReceive {
                bytes,
                tag,
                request,
                copied_bytes_max: u32::try_from(room)
                    .map_or(copied_bytes_max, |room| room.min(copied_bytes_max)),
                index,
                is_placed,
            };
            self.open.insert(0, receive);
        }
    }

    /// The oldest receive that has no send yet.
    #[inline]
    pub(super) fn oldest(&self) -> Option<&OpenReceive> {
        self.open.last()
    }

    /// Removes the oldest receive, which now has a send.
    #[inline]
    pub(super) fn take_oldest(&mut self) {
        self.open.pop();
    }

    /// The oldest receive with this tag that has no send yet, and its index.
    pub(super) fn find(&self, tag: i32) -> Option<(usize, OpenReceive)> {
        let mut open = self.open.iter().copied().enumerate().rev();
        open.find(|(_, open)| open.tag == tag)
    }

    /// Removes the receive with this index, which now has a send.
    pub(super) fn take(&mut self, place: usize) {
        self.open.remove(place);
    }

    /// A free slot.
    pub(super) fn free_slot(&self) -> Option<u8> {
        let (place, word) = (0_u32..).zip(&self.free).find(|(_, word)| **word != 0)?;
        u8::try_from(place << 6 | word.trailing_zeros()).ok()
    }

    pub(super) fn set(&mut self, slot: u8, request: SendRequest) {
        self.mark(slot, false);
        if let Some(place) = self.requests.get_mut(usize::from(slot)) {
            *place = request;
        }
    }

    pub(super) fn free(&mut self, slot: u8) {
        self.mark(slot, true);
        if let Some(place) = self.requests.get_mut(usize::from(slot)) {
            place.state = SendState::Free;
        }
    }

    fn mark(&mut self, slot: u8, is_free: bool) {
        if let Some(word) = self.free.get_mut(usize::from(slot / 64)) {
            let bit = 1 << (slot % 64);
            *word = if is_free { *word | bit } else { *word & !bit };
        }
    }

    /// The request in a slot, if it has this serial number.
    pub(super) fn request(&mut self, slot: u8, serial: u32) -> Option<&mut SendRequest> {
        let request = self.requests.get_mut(usize::from(slot))?;
        (request.serial == serial && request.state != SendState::Free).then_some(request)
    }
}

/// The receiving side.
#[derive(Debug)]
pub(super) struct Receives {
    /// A bit for each free slot.
    free: u32,
    requests: [ReceiveRequest; REQUESTS_MAX],
}

/// A receive request.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReceiveRequest {
    pub(super) serial: u32,
    /// Number of receives; 0 if the slot is free.
    pub(super) count: u8,
    pub(super) entries: [Entry; RECEIVES_MAX],
}

/// One receive of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) tag: i32,
    pub(super) bytes: usize,
    pub(super) memory: Key,
    pub(super) offset: usize,
    pub(super) state: EntryState,
    /// Whether its bytes arrive by a transfer, whatever their number.
    pub(super) is_placed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EntryState {
    /// Nothing has arrived yet.
    Waiting,
    /// This number of bytes has arrived, and more are expected.
    Coming(usize),
    /// A transfer carries it.
    Moving,
    /// All bytes have arrived: this number.
    Done(usize),
    Failed(NcclResult),
}

impl Entry {
    /// Whether it waits for messages of the peer.
    const fn is_waiting(&self) -> bool {
        matches!(self.state, EntryState::Waiting | EntryState::Coming(_))
    }
}

impl ReceiveRequest {
    const FREE: Self = Self {
        serial: 0,
        count: 0,
        entries: [Entry {
            tag: 0,
            bytes: 0,
            memory: Key::NONE,
            offset: 0,
            state: EntryState::Done(0),
            is_placed: false,
        }; RECEIVES_MAX],
    };

    pub(super) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().take(usize::from(self.count))
    }

    fn entries_mut(&mut self) -> impl Iterator<Item = &mut Entry> {
        self.entries.iter_mut().take(usize::from(self.count))
    }

    /// Its result. `None` if devices may still write to its memory, or if bytes are missing.
    #[inline]
    pub(super) fn end(&self) -> Option<Result<(), NcclResult>> {
        let (mut failed, mut is_waiting) = (None, false);
        for entry in self.entries() {
            match entry.state {
                EntryState::Moving => return None,
                EntryState::Waiting | EntryState::Coming(_) => is_waiting = true,
                EntryState::Failed(code) => failed = failed.or(Some(code)),
                EntryState::Done(_) => {}
            }
        }
        match failed {
            Some(code) => Some(Err(code)),
            None => (!is_waiting).then_some(Ok(())),
        }
    }

    /// Whether a part of it has failed, while others may be in progress.
    pub(super) fn has_failed(&self) -> bool {
        self.entries()
            .any(|entry| matches!(entry.state, EntryState::Failed(_)))
    }
}

impl Receives {
    pub(super) fn new() -> Box<Self> {
        Box::new(Self {
            free: u32::MAX,
            requests: [ReceiveRequest::FREE; REQUESTS_MAX],
        })
    }

    /// A free slot.
    #[inline]
    pub(super) fn free_slot(&mut self) -> Option<FreeSlot<'_>> {
        let slot = self.free.trailing_zeros();
        Some(FreeSlot {
            slot: u8::try_from(slot).ok()?,
            request: self.requests.get_mut(usize::try_from(slot).ok()?)?,
            free: &mut self.free,
        })
    }

    #[inline]
    pub(super) fn free(&mut self, slot: u8) {
        if let Some(request) = self.requests.get_mut(usize::from(slot)) {
            request.count = 0;
            self.free |= 1_u32.wrapping_shl(slot.into());
        }
    }

    /// The request in a slot, if it has this serial number.
    pub(super) fn request(&self, slot: u8, serial: u32) -> Option<&ReceiveRequest> {
        let request = self.requests.get(usize::from(slot))?;
        (request.serial == serial && request.count > 0).then_some(request)
    }

    /// The receive that a message is for. `None` if its request has ended.
    pub(super) fn entry(&mut self, request: RequestNumber, index: u8) -> Option<&mut Entry> {
        let of = self.requests.get_mut(usize::try_from(request.slot()).ok()?)?;
        let is_it = of.serial & SERIAL_MASK == request.serial() && index < of.count;
        of.entries.get_mut(usize::from(index)).filter(|_| is_it)
    }
}

/// The lowest free slot for a receive request.
pub(super) struct FreeSlot<'r> {
    pub(super) slot: u8,
    request: &'r mut ReceiveRequest,
    free: &'r mut u32,
}

impl FreeSlot<'_> {
    /// The entries of its request, to be filled.
    #[inline]
    pub(super) const fn entries(&mut self) -> &mut [Entry; RECEIVES_MAX] {
        &mut self.request.entries
    }

    /// Makes it the request with this serial number, of the first `count` entries.
    #[inline]
    pub(super) const fn set(self, (serial, count): (u32, u8)) {
        (self.request.serial, self.request.count) = (serial, count);
        // Its bit is the lowest that is set.
        *self.free &= self.free.wrapping_sub(1);
    }
}

impl Comm {
    pub(super) const fn new(link: LinkId, stage: Stage, owes: Owed, side: Side) -> Self {
        Self {
            link,
            peer: None,
            stage,
            owes: Some(owes),
            last_sent: None,
            is_peer_gone: false,
            is_attempt: false,
            is_given_up: false,
            is_sought: false,
            was_opened: false,
            side,
        }
    }

    /// Fails every request that waits for the peer, and returns their number. Requests with a transfer end when it does.
    pub(super) fn fail_waiting(&mut self, code: NcclResult) -> usize {
        let Side::Receive(receives) = &mut self.side else {
            return 0;
        };
        let entries = receives.requests.iter_mut().flat_map(ReceiveRequest::entries_mut);
        let waiting = entries.filter(|entry| entry.is_waiting());
        waiting
            .map(|entry| entry.state = EntryState::Failed(code))
            .count()
    }

    /// Fails every receive into this memory that waits for the peer.
    pub(super) fn fail_waiting_for(&mut self, memory: Key, code: NcclResult) -> usize {
        let Side::Receive(receives) = &mut self.side else {
            return 0;
        };
        let entries = receives.requests.iter_mut().flat_map(ReceiveRequest::entries_mut);
        let waiting = entries.filter(|entry| entry.is_waiting() && entry.memory == memory);
        waiting
            .map(|entry| entry.state = EntryState::Failed(code))
            .count()
    }
}

#[cfg(test)]
mod tests {
    use super::{
        EntryState, NcclResult, RECEIVES_MAX, REQUESTS_MAX, Receive, ReceiveRequest, Receives, RequestNumber,
        SENDS_MAX, SendRequest, SendState, Sends,
    };

    fn receives(tags: &[i32]) -> ([Receive; RECEIVES_MAX], u8) {
        let mut receives = [Receive::default(); RECEIVES_MAX];
        for (receive, tag) in receives.iter_mut().zip(tags) {
            *receive = Receive { tag: *tag, bytes: 10 };
        }
        (receives, tags.len() as u8)
    }

    fn clear(sends: &mut Sends, slot: u32, serial: u32, tags: &[i32]) {
        let (receives, count) = receives(tags);
        sends.cleared(RequestNumber::new(slot, serial), receives, (count, 0), 8);
    }

    fn take(sends: &mut Sends, tag: i32) -> Option<(u32, u8)> {
        let (place, found) = sends.find(tag)?;
        sends.take(place);
        Some((found.request.serial(), found.index))
    }

    #[test]
    fn sends_take_receives_of_their_tag_in_order() {
        let mut sends = Sends::new();
        clear(&mut sends, 0, 1, &[5, 6, 5]);
        clear(&mut sends, 1, 2, &[6, 7]);
        assert_eq!(take(&mut sends, 9), None);
        assert_eq!(take(&mut sends, 5), Some((1, 0)));
        assert_eq!(take(&mut sends, 7), Some((2, 1)));
        assert_eq!(take(&mut sends, 5), Some((1, 2)));
        assert_eq!(take(&mut sends, 5), None);
        assert_eq!(take(&mut sends, 6), Some((1, 1)));
        assert_eq!(take(&mut sends, 6), Some((2, 0)));
        assert!(sends.open.is_empty());
    }

    #[test]
    fn a_request_of_a_slot_takes_the_place_of_the_one_before() {
        let mut sends = Sends::new();
        for serial in 0..3 * REQUESTS_MAX as u32 {
            clear(&mut sends, serial % 32, serial, &[1]);
        }
        assert_eq!(sends.open.len(), REQUESTS_MAX);
        assert_eq!(take(&mut sends, 1), Some((64, 0)));
    }

    #[test]
    fn a_request_ends_once_no_device_writes_for_it() {
        let failed = NcclResult::REMOTE_ERROR;
        let (waiting, moving) = (EntryState::Waiting, EntryState::Moving);
        let (done, failure) = (EntryState::Done(1), EntryState::Failed(failed));
        for (states, end) in [
            ([done, done], Some(Ok(()))),
            ([done, waiting], None),
            ([done, failure], Some(Err(failed))),
            ([waiting, failure], Some(Err(failed))),
            ([moving, failure], None),
            ([moving, done], None),
        ] {
            let mut request = ReceiveRequest::FREE;
            request.count = 2;
            for (entry, state) in request.entries.iter_mut().zip(states) {
                entry.state = state;
            }
            assert_eq!(request.end(), end, "{states:?}");
        }
    }

    #[test]
    fn there_is_a_slot_for_each_receive_that_the_peer_may_open() {
        let mut sends = Sends::new();
        assert_eq!(SENDS_MAX, 256);
        let request = |serial| SendRequest {
            serial,
            state: SendState::Moving,
        };
        for slot in 0..=u8::MAX {
            assert_eq!(sends.free_slot(), Some(slot));
            sends.set(slot, request(slot.into()));
        }
        assert_eq!(sends.free_slot(), None);
        for slot in [200, 3] {
            sends.free(slot);
            assert_eq!(sends.free_slot(), Some(slot));
            assert!(sends.request(slot, slot.into()).is_none());
        }
        let mut receives = Receives::new();
        for slot in 0..REQUESTS_MAX as u8 {
            let free = receives.free_slot().unwrap();
            assert_eq!(free.slot, slot);
            free.set((slot.into(), 1));
        }
        assert!(receives.free_slot().is_none());
        receives.free(31);
        assert_eq!(receives.free_slot().unwrap().slot, 31);
        assert!(receives.request(31, 31).is_none() && receives.request(30, 30).is_some());
    }
}
