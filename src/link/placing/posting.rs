//! Acceptance of placed messages, and posting of their fragments.

use doorbell_core::Instant;
use doorbell_core::network::Network;
use doorbell_core::provider::{Operation, PostFlags, Provider, RemoteAddress};
use doorbell_core::session::{Epoch, Fragment, PushRefusal, Sequence};
use doorbell_core::wire::{LendFrame, Placed, PlacedFrame, RemoteWindow, SessionHeader, VERSION_PLACED};

use super::{BEHIND_PARTS, PART_BYTES, Placing, SHARE_BYTES_MIN};
use crate::link::moment::Moment;
use crate::link::one_sided::posting::posted_now;
use crate::link::rail::{At, Carried};
use crate::link::state::{Link, Posted};
use crate::machine::makers::Makers;
use crate::worker::Worker;
use crate::worker::channel::Channel;

/// Fragments end at multiples of a cache line.
const LINE_BYTES: usize = 64;

impl<P: Provider> Placing<P> {
    /// The key of the peer's memory on a rail's connection.
    fn key(&self, (rail, epoch): (u8, Epoch)) -> Option<RemoteWindow> {
        let (of, window) = self.keys.get(usize::from(rail)).copied().flatten()?;
        (of == epoch).then_some(window)
    }

    /// Posts a WRITE of a range of this side's memory to the same offset of the peer's memory.
    fn write(
        &self,
        (on, at): ((u8, Epoch), At),
        (offset, bytes): (u32, u32),
        workers: &mut [Worker<P>],
    ) -> Posted {
        let (Some(out), Some(key)) = (self.out.there(), self.key(on)) else {
            return Posted::Failed;
        };
        let range = usize::try_from(offset).ok();
        let range = range.and_then(|from| out.region.range(at.worker, from, bytes));
        let to = RemoteAddress::within(&key, offset.into(), bytes.into());
        let (Some(range), Some(to), Some(channel)) = (range, to, channel(workers, at)) else {
            return Posted::Failed;
        };
        posted_now(channel.post_ranges(Operation::Write(to), [range], PostFlags::SIGNALED))
    }

    /// The length of the fragments of a message that is sent over this number of rails; the last fragment may be shorter.
    fn cut(&self, bytes: usize, rails: usize) -> usize {
        let shares = rails.min(bytes.checked_div(SHARE_BYTES_MIN).unwrap_or(1));
        let count = bytes.div_ceil(self.each()).max(shares).max(1);
        let each = bytes.div_ceil(count).next_multiple_of(LINE_BYTES);
        each.min(self.each()).max(1)
    }
}

/// The way in which a long message is sent.
enum Way {
    /// In fragments in slots.
    Slots,
    /// Placed, in fragments of this length.
    Placed(usize),
    /// Refused until places are free.
    Full,
}

impl<P: Provider, N: Network> Link<P, N> {
    /// Accepts a message that is long enough to be placed. `None` if it is sent in fragments in slots.
    pub(in crate::link) fn push_placed(&mut self, message: &[u8]) -> Option<Result<Sequence, PushRefusal>> {
        if message.len() <= self.placing.messages_over {
            return None;
        }
        match self.way_of(message.len()) {
            Way::Slots => None,
            Way::Full => Some(Err(PushRefusal::Full)),
            Way::Placed(each) => Some(self.place(message, each)),
        }
    }

    fn way_of(&mut self, bytes: usize) -> Way {
        let Self {
            placing,
            session,
            rails,
            ..
        } = self;
        let is_open = |rail: &u8| {
            let is_there = rails
                .get(usize::from(*rail))
                .is_some_and(|rail| rail.at.is_some());
            is_there && placing.key((*rail, session.rail_epoch(*rail))).is_some()
        };
        let open = (0..session.rails_end()).filter(is_open).count();
        if open == 0 || session.over().is_some() || session.is_closing() {
            return Way::Slots;
        }
        let each = placing.cut(bytes, open);
        let count = bytes.div_ceil(each);
        let Some(places) = placing.places.as_mut() else {
            placing.is_out_wanted = true;
            return Way::Slots;
        };
        if count > placing.retained {
            return Way::Slots;
        }
        places.let_go(|sequence| session.kept(sequence).is_some());
        match places.free() >= count {
            true => Way::Placed(each),
            // Places may have to wait long for a fence, so the message does not wait for them.
            false if places.expected() >= count => Way::Full,
            false => Way::Slots,
        }
    }

    fn place(&mut self, message: &[u8], each: usize) -> Result<Sequence, PushRefusal> {
        let (bytes, of) = (u64::try_from(message.len()), u32::try_from(each));
        let (Ok(bytes), Ok(of)) = (bytes, of) else {
            return Err(PushRefusal::TooLong {
                bytes: message.len() as u64,
                bytes_max: u32::MAX.into(),
            });
        };
        let taken = self.session.push_placed(bytes, of)?;
        let stride = self.placing.each();
        let Placing {
            out,
            places,
            unused_until,
            ..
        } = &mut self.placing;
        *unused_until = None;
        let mut at = taken.first;
        for these in message.chunks(each) {
            let place = places.as_mut().and_then(|places| places.take(at));
            let place = place.and_then(|place| usize::try_from(place).ok());
            if let (Some(place), Some(out)) = (place, out.there()) {
                // The fragment fits: a place is as long as the longest one.
                let _ = out.region.copy_in(place.saturating_mul(stride), these);
            }
            at = at.plus(1);
        }
        Ok(taken.last)
    }

    /// Posts a fragment: its bytes by WRITEs, and then its frame.
    pub(in crate::link) fn post_placed(
        &mut self,
        (rail, at): (u8, At),
        header: &SessionHeader,
        fragment: &Fragment,
        workers: &mut [Worker<P>],
        now: Instant,
    ) -> Posted {
        let on = (rail, self.session.rail_epoch(rail));
        let places = self.placing.places.as_ref();
        let Some(place) = places.and_then(|places| places.of(fragment.sequence)) else {
            return Posted::Failed;
        };
        // There has to be room for all WRITEs and the frame, so that no fragment is written twice on a connection.
        let requests = fragment.bytes.div_ceil(PART_BYTES).saturating_add(BEHIND_PARTS);
        let has_room = |channel: &mut Channel<P>| channel.room() >= requests && channel.credits() > 0;
        if !channel(workers, at).is_some_and(has_room) {
            return Posted::Blocked;
        }
        let offset = place.saturating_mul(self.placing.place_bytes);
        let mut done = 0_u32;
        while done < fragment.bytes {
            let bytes = PART_BYTES.min(fragment.bytes.saturating_sub(done));
            let part = (offset.saturating_add(done), bytes);
            let outcome = self.placing.write((on, at), part, workers);
            if let (Posted::Done(_) | Posted::InDoubt, Some(places)) = (&outcome, &mut self.placing.places) {
                places.posted(place, on);
            }
            let is_begun = done > 0;
            done = done.saturating_add(bytes);
            match outcome {
                Posted::Done(ticket) => {
                    let carried = match done < fragment.bytes {
                        true => Carried::PlacedPart,
                        false => Carried::Placed(place),
                    };
                    if let Some(rail) = self.rail_mut(rail) {
                        // The frame counts the bytes of the fragment towards the backlog.
                        rail.posted(ticket, 0, Some(carried));
                        rail.did_send(bytes.into());
                    }
                    self.session.posted_beside(rail, 0, now);
                }
                // An earlier part is posted, so the rail is given up.
                _ if is_begun => return Posted::InDoubt,
                Posted::Failed => {
                    self.denied_placed();
                    return Posted::Failed;
                }
                outcome => return outcome,
            }
        }
        let placed = Placed {
            offset,
            bytes: fragment.bytes,
        };
        let frame = PlacedFrame::new(*header, placed).to_bytes();
        let posted = channel(workers, at).map(|channel| channel.post_inline(Operation::Send, &frame));
        match posted.map(posted_now) {
            Some(Posted::Done(ticket)) => Posted::Done(ticket),
            _ => Posted::InDoubt,
        }
    }

    /// Notes that a device refused the WRITE of a fragment.
    pub(in crate::link) fn denied_placed(&mut self) {
        if !self.placing.denied() {
            let violation = doorbell_core::session::Violation::LetGo;
            self.session
                .fail(doorbell_core::session::FinalReason::Violation(violation));
        }
    }

    /// Requests memory for placed messages, and announces the lent memory to the peer.
    pub(in crate::link) fn go_on_with_placing(
        &mut self,
        workers: &mut [Worker<P>],
        makers: &Makers,
        moment: Moment,
    ) {
        let is_known = self.session.is_connected() && self.transfers.version() >= VERSION_PLACED;
        let whom = self.whom();
        let now = moment.now;
        self.placing.go_on(workers, makers, (whom, is_known), now);
        let Self { placing, session, .. } = self;
        placing.give_back(|sequence| session.kept(sequence).is_some(), now);
        if !self.placing.has_lent() {
            return;
        }
        for rail in 0..self.session.rails_end() {
            while let Some((at, epoch)) = self.open_rail(rail) {
                let Some(lend) = self.placing.unsent(rail, at.worker, epoch) else {
                    break;
                };
                let bytes = LendFrame::new(&lend).to_bytes();
                if !self.may_have_said((rail, at), &bytes, workers, moment) {
                    break;
                }
                if let Some(sent) = self.placing.sent.get_mut(usize::from(rail)) {
                    *sent = epoch;
                }
            }
        }
    }
}

/// The channel of a rail, if it exists.
fn channel<P: Provider>(workers: &mut [Worker<P>], at: At) -> Option<&mut Channel<P>> {
    workers.get_mut(at.worker)?.channel(at.channel)
}
