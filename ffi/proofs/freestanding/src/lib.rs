//! `core` and `hotpath` without std and without an allocator: messages through a sender and a receiver,
//! over a device that is a few words of memory.
//!
//! As an ordinary library it is checked with the workspace. The tests of `doorbell-proofs` build it
//! as a static library with the feature `freestanding`, link that with nothing but libc, which has
//! `memcpy` and what calls `main`, and run it.
#![no_std]

mod device;
mod memory;
#[cfg(feature = "freestanding")]
mod program;
mod queues;

use core::num::NonZeroU16;

use doorbell_core::provider::{Arena as _, DomainId, Operation, PostFlags, RemoteAddress};
use doorbell_core::wire::{AdvertisedRail, Fit, Handle, InstanceId, SpeedClass};
use doorbell_core::{Gid, IpPrefix, Rkey};
use doorbell_hotpath::{
    Announcer, Credits, Flow, Grants, Receiver, ReceiverConfig, RequestLimits, Sender, SenderConfig,
    Statistics, WindowWord, marks_for,
};

use device::DEVICE;
use memory::{Bytes, Memory, Word};
use queues::{DEPTH, Receives, Sends};

/// Doorbells of [`run`], and messages for each.
const DOORBELLS: u64 = 1000;
const MESSAGES: u64 = 2;

/// Words for the sender's marks.
const MARKS: usize = marks_for(DEPTH);

/// Sends messages to itself, and parses a handle. Says whether all went as it should.
#[must_use]
pub fn run() -> bool {
    messages() == Some(true) && handle() == Some(true)
}

fn messages() -> Option<bool> {
    let grants = Grants::new(0, DEPTH);
    let statistics = Statistics::default();
    let mut arena = Memory::default();
    let word = RemoteAddress::new(0, Rkey(0));
    let flow = Flow {
        credits: Credits::new(0, DEPTH),
        word: WindowWord::new(&Word, 0)?,
        announcer: Announcer::new(&grants, DEPTH, word),
    };
    let config = SenderConfig {
        unsignaled_max: 4,
        limits: RequestLimits::of_memory(DomainId(0)),
    };
    let mut sender = Sender::new(Sends::new()?, [0_u8; MARKS], flow, &statistics, &config).ok()?;
    let config = ReceiverConfig { repost_batch: 2 };
    let mut receiver = Receiver::new(Receives::new()?, &grants, &statistics, &config);
    receiver.fill(&mut arena).ok()?;
    let mut received = 0_u64;
    for number in 0..DOORBELLS {
        let bytes = number.to_le_bytes();
        let mut batch = sender.stage();
        let slot = Bytes::holding(arena.lease()?, &bytes);
        batch.push(Operation::Send, [slot], PostFlags::empty()).ok()?;
        batch
            .push_inline(Operation::Send, &bytes, PostFlags::empty())
            .ok()?;
        batch.ring().ok()?;
        while let Some(done) = DEVICE.take_arrived() {
            let (slot, _) = receiver.retire_message(&&done)?;
            received = received.wrapping_add(1);
            if receiver.put_back(Some(slot), &mut arena) {
                receiver.repost(&mut arena).ok()?;
            }
        }
        if let Some(done) = DEVICE.take_sent() {
            sender.retire(&done, |_, _| (), |slot| arena.release(slot)).ok()?;
        }
    }
    let counted = statistics.snapshot();
    Some(
        received == DOORBELLS.wrapping_mul(MESSAGES)
            && counted.received == received
            && counted.doorbells == DOORBELLS
            && counted.announcements > 0
            && sender.cause().is_none(),
    )
}

fn handle() -> Option<bool> {
    let mut builder = Handle::builder(NonZeroU16::new(18_515)?, InstanceId::new(7)?);
    let address = core::net::IpAddr::V4(core::net::Ipv4Addr::new(10, 0, 0, 1));
    let prefix = IpPrefix::new(address, 24).ok()?;
    let rail = AdvertisedRail::new(prefix, Gid::from_ip(address), SpeedClass::from_mbps(100_000)).ok()?;
    if builder.push(&rail) == Fit::LeftOut {
        return None;
    }
    let handle = builder.finish().ok()?;
    let parsed = Handle::parse(handle.as_bytes()).ok()?;
    Some(parsed.rails().iter().count() == 1)
}
