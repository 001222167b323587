//! Oracles: conditions that must hold in every run, checked all the while.
//!
//! Everything that is conserved is counted where it changes hands, and the counts must add up
//! at any moment ([`crate::Fabric::audit`]). Bytes are sealed when they change hands: what is
//! sent when it is posted, what arrived when its receive ends; the seals must hold when the
//! slots come back.

use core::fmt;

use doorbell_core::Qpn;
use doorbell_core::provider::Slot as _;

use crate::gather::Gather;
use crate::requester::Request;

/// Something that must never be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Violation {
    /// The bytes of a request of this queue pair changed while the device had them.
    RequestChanged(Qpn),
    /// The bytes of a receive of this queue pair changed between its end and its retirement.
    ReceiveChanged(Qpn),
    /// Requests were lost or made up: posted, and accounted for.
    Requests(u64, u64),
    /// Receives were lost or made up: posted, and accounted for.
    Receives(u64, u64),
    /// Packets were lost or made up: sent, and accounted for.
    Packets(u64, u64),
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unequal = |f: &mut fmt::Formatter<'_>, what, began, known| {
            write!(f, "{began} {what} began, {known} are accounted for")
        };
        match self {
            Self::RequestChanged(qpn) => write!(f, "bytes of a request of {qpn} changed under the device"),
            Self::ReceiveChanged(qpn) => write!(f, "bytes of a receive of {qpn} changed after its end"),
            Self::Requests(began, known) => unequal(f, "requests", began, known),
            Self::Receives(began, known) => unequal(f, "receives", began, known),
            Self::Packets(began, known) => unequal(f, "packets", began, known),
        }
    }
}

impl core::error::Error for Violation {}

/// Requests or receives, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// How many were posted.
    pub posted: u64,
    /// How many came back to their owner.
    pub retired: u64,
    /// How many went with their queue before they came back.
    pub destroyed: u64,
}

impl Work {
    pub(crate) fn posted_more(&mut self, count: usize) {
        self.posted = self.posted.wrapping_add(count as u64);
    }

    pub(crate) fn retired_more(&mut self, count: usize) {
        self.retired = self.retired.wrapping_add(count as u64);
    }

    pub(crate) fn destroyed_more(&mut self, count: usize) {
        self.destroyed = self.destroyed.wrapping_add(count as u64);
    }

    /// Returns the requests posted, and the requests accounted for if queues hold so many.
    pub(crate) fn balance(&self, held: usize) -> (u64, u64) {
        let gone = self.retired.wrapping_add(self.destroyed);
        (self.posted, gone.wrapping_add(held as u64))
    }
}

/// Packets, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Packets {
    /// How many were sent, copies that a fault made included.
    pub sent: u64,
    /// How many came in and were looked at.
    pub delivered: u64,
    /// How many were lost on the way.
    pub lost: u64,
    /// How many came in with a wrong checksum, and were not looked at.
    pub corrupt: u64,
    /// How many came in where nobody listened to them.
    pub unheard: u64,
}

/// Counts since the fabric was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tally {
    /// Requests of all send queues.
    pub requests: Work,
    /// Receives of all queues.
    pub receives: Work,
    /// Packets.
    pub packets: Packets,
    /// How often a message found no receive. Each time it is tried counts.
    pub receivers_not_ready: u64,
    /// The first thing that must never be, and was.
    pub violation: Option<Violation>,
}

impl Tally {
    /// Notes a violation where something does not hold. The first is kept.
    pub(crate) fn check(&mut self, holds: bool, violation: Violation) {
        if !holds && self.violation.is_none() {
            self.violation = Some(violation);
        }
    }
}

/// Bytes, as one word that hardly another's equals.
fn seal<'b>(parts: impl Iterator<Item = &'b [u8]>) -> u64 {
    let mut seal = 0xcbf2_9ce4_8422_2325_u64;
    for part in parts {
        let mut words = part.chunks_exact(8);
        for word in words.by_ref() {
            let word = word.first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
            seal = (seal ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        }
        for byte in words.remainder() {
            seal = (seal ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    seal
}

/// The bytes a request sends; those it brings back are to change.
pub(crate) fn seal_of_request(request: &Request) -> u64 {
    if request.operation.writes_slots() {
        return 0;
    }
    match &request.inline {
        Some(inline) => seal(core::iter::once(&inline[..])),
        None => seal(request.slots.iter().map(|slot| slot.payload())),
    }
}

/// The first bytes that these slots hold, as a message was scattered over them.
pub(crate) fn seal_of_message(slots: &Gather, bytes: usize) -> u64 {
    let mut left = bytes;
    seal(slots.iter().map(|slot| {
        let buffer = slot.buffer();
        let part = buffer.get(..left.min(buffer.len())).unwrap_or_default();
        left = left.saturating_sub(part.len());
        part
    }))
}

#[cfg(test)]
mod tests {
    use super::{Gather, seal, seal_of_message};
    use crate::id::Id;
    use crate::memory::Arena as OurArena;
    use doorbell_core::provider::{Arena, ArenaConfig, Slot};
    use std::sync::Arc;

    #[test]
    fn a_message_is_sealed_as_far_as_it_goes() {
        let mut arena = OurArena::new(Id::fresh(), Arc::default(), &ArenaConfig::new(2, 8)).unwrap();
        let slots = [arena.lease().unwrap(), arena.lease().unwrap()];
        let mut gather = Gather::of(slots);
        let sealed = seal_of_message(&gather, 11);
        let mut change = |slot: usize, byte: usize| {
            let taken = core::mem::take(&mut gather);
            let mut slots: Vec<_> = taken.into_slots().collect();
            slots[slot].buffer_mut()[byte] ^= 1;
            let [second, first] = [slots.pop(), slots.pop()].map(Option::unwrap);
            gather = Gather::of([first, second]);
            seal_of_message(&gather, 11)
        };
        assert_eq!(change(1, 3), sealed, "behind the message");
        assert_ne!(change(1, 2), sealed);
        assert_eq!(change(1, 2), sealed);
        assert_ne!(change(0, 0), sealed);
    }

    #[test]
    fn each_byte_and_its_place_count() {
        let of = |bytes: &[u8]| seal(core::iter::once(bytes));
        let bytes: Vec<u8> = (0..20).collect();
        let whole = of(&bytes);
        for place in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[place] ^= 1;
            assert_ne!(of(&changed), whole, "byte {place}");
        }
        assert_ne!(of(&bytes[..19]), whole);
    }
}
