//! Workers sized for many channels, and memory that is kept for leases beside their receives.

use doorbell::provider::{ArenaConfig, MemoryError};
use doorbell::worker::{SharedReceivesConfig, SplitError};
use doorbell::{ChannelConfig, ConnectError, Event, SendErrorKind, WorkerConfig};
use doorbell_sim::Fabric;

use crate::fabric::{SOON, port, small};
use crate::many::Many;

#[test]
fn as_many_channels_as_were_asked_for_work_from_the_defaults_of_one_call() {
    for channels in [100, 1000, 10_000] {
        all_echo(channels);
    }
}

/// Up to 2,048 messages at once are on their way, on all of so many channels, and come back.
fn all_echo(channels: u32) {
    let (own, channel) = (
        WorkerConfig::for_channels(channels, 256),
        ChannelConfig::for_channels(channels),
    );
    let at_once = channel.send_depth.min(2048 / channels).max(1);
    let mut two = Many::new(&own, &channel, &own);
    for _ in 0..channels {
        two.connect(&channel).unwrap();
    }
    let refused = two.connect(&channel).unwrap_err();
    assert!(
        matches!(refused, ConnectError::TooManyChannels { .. }),
        "{refused}"
    );
    for some in two.channels.chunks(2048) {
        for [_, there] in some {
            for number in 0..at_once {
                let mut lease = two.peer[0].lease().expect("memory is kept");
                lease.fill(&[number as u8; 200]).unwrap();
                two.peer[0].channel(*there).unwrap().send_lease(lease).unwrap();
            }
        }
        // Until all came back, and each completion is taken, which brings the memory home.
        let (mut missing, mut idle) = (some.len() as u32 * at_once, 0);
        while missing > 0 || idle < 10 {
            let echoed = two.hub[0].poll(|turn, event| match event {
                Event::Received { message, .. } => drop(turn.channel.send_lease(message.keep()).unwrap()),
                Event::Done { .. } => {}
                other => panic!("{other:?}"),
            });
            let received = two.peer[0].poll(|_, event| match event {
                Event::Received { message, .. } => missing -= u32::from(message.len_bytes() == 200),
                Event::Done { .. } => {}
                other => panic!("{other:?}"),
            });
            let is_idle = echoed.unwrap() + received.unwrap() == 0;
            idle = if is_idle { idle + 1 } else { 0 };
            assert!(idle < 100_000, "{missing} of {channels} channels are missing");
        }
    }
    assert!(two.hub[0].lease().is_some());
    two.fabric.audit().unwrap();
}

#[test]
fn a_channel_that_would_take_the_memory_for_leases_is_refused_with_what_would_fit() {
    let mut own = WorkerConfig::default();
    (own.slots, own.slot_bytes, own.lease_share_percent) = (64, 256, 25);
    let mut more = own;
    more.slots = 256;
    // The side without room reports the number of receives that fit: once it listens, once it connects.
    let mut two = Many::new(&own, &small(), &more);
    for _ in 0..3 {
        two.connect(&small()).unwrap();
    }
    let told = two.connect(&small()).unwrap_err().to_string();
    assert!(told.contains("busy") || told.contains("room"), "{told}");
    let why = two.failure.take();
    assert!(
        matches!(
            why,
            Some(ConnectError::NoSlots {
                receives_left: 0,
                slots: 64,
                leases_kept: 16
            })
        ),
        "{why:?}"
    );
    let mut two = Many::new(&more, &small(), &own);
    for _ in 0..2 {
        two.connect(&small()).unwrap();
    }
    let mut large = small();
    large.receive_depth = 17;
    let why = two.connect(&large).unwrap_err();
    assert_eq!(
        why.to_string(),
        "the Worker's slots have room for 16 more receives, of 64 slots with 16 kept for leases: give the Worker \
         more slots, or the channel a smaller receive_depth"
    );
    large.receive_depth = 16;
    two.connect(&large).unwrap();
    assert_eq!(two.peer[0].leases_kept(), 16);
}

#[test]
fn there_is_a_lease_again_however_many_channels_are_admitted() {
    let mut own = WorkerConfig::default();
    (own.slots, own.slot_bytes) = (40, 256);
    let mut more = own;
    more.slots = 256;
    let mut two = Many::new(&own, &small(), &more);
    while two.connect(&small()).is_ok() {}
    assert_eq!(two.channels.len(), 2, "two receive depths fit beside the share");
    let held: Vec<_> = core::iter::from_fn(|| two.hub[0].lease()).collect();
    assert_eq!(held.len(), 8);
    assert!(held.len() >= two.hub[0].leases_kept() as usize);
    // None now is not none ever: what was sent comes home.
    let [here, _] = two.channels[0];
    for mut lease in held {
        lease.set_len_bytes(200);
        two.hub[0].channel(here).unwrap().send_lease(lease).unwrap();
    }
    assert!(two.hub[0].lease().is_none());
    while two.hub[0].poll(|_, _| {}).unwrap() == 0 {}
    assert!(two.hub[0].lease().is_some());
}

#[test]
fn a_share_of_nothing_lets_receives_take_every_slot() {
    let fabric = Fabric::new();
    let a = crate::fabric::node(&fabric, "a", vec![port("simA", "127.0.0.1/24")]);
    let mut own = WorkerConfig::default();
    (own.slots, own.lease_share_percent) = (32, 0);
    assert_eq!(a.workers(&own).unwrap()[0].leases_kept(), 0);
    own.lease_share_percent = 1;
    assert_eq!(a.workers(&own).unwrap()[0].leases_kept(), 1, "rounded up");
    own.lease_share_percent = 100;
    assert_eq!(a.workers(&own).unwrap()[0].leases_kept(), 32, "all there are");
    // The hub has nothing left to lease, as was asked for.
    own.lease_share_percent = 0;
    let mut two = Many::new(&own, &small(), &WorkerConfig::default());
    two.connect(&small()).unwrap();
    two.connect(&small()).unwrap();
    assert!(two.hub[0].lease().is_none());
}

#[test]
fn no_lease_now_and_no_lease_ever_are_told_apart() {
    let mut own = WorkerConfig::default();
    (own.slots, own.lease_share_percent) = (32, 0);
    let mut two = Many::new(&own, &small(), &WorkerConfig::default());
    two.connect(&small()).unwrap();
    let [here, there] = two.channels[0];
    assert_eq!(two.hub[0].leases_max(), 16);
    let held: Vec<_> = core::iter::from_fn(|| two.hub[0].lease()).collect();
    let long = [7; 300];
    let refused = two.hub[0].send(here, &long).unwrap_err();
    assert_eq!(refused, SendErrorKind::NoMemory, "leases come back");
    assert!(refused.is_temporary());
    held.into_iter().for_each(|lease| two.hub[0].release(lease));
    two.hub[0].send(here, &long).unwrap();
    while two.hub[0].poll(|_, _| {}).unwrap() == 0 {}
    // Another one, and the receives take every slot.
    two.connect(&small()).unwrap();
    assert_eq!(two.hub[0].leases_max(), 0);
    let refused = two.hub[0].send(here, &long).unwrap_err();
    assert_eq!(refused, SendErrorKind::NoLeases);
    assert!(!refused.is_temporary());
    assert_eq!(two.hub[0].lease_for(here).map(drop), Err(SendErrorKind::NoLeases));
    two.hub[0].send(here, &[7; 200]).unwrap();
    // The same within a poll.
    two.peer[0].send(there, b"ask").unwrap();
    let mut within = None;
    while within.is_none() {
        two.hub[0]
            .poll(|mut turn, event| {
                if let Event::Received { .. } = event {
                    within = Some(turn.send_to(here, &long).unwrap_err());
                }
            })
            .unwrap();
    }
    assert_eq!(within, Some(SendErrorKind::NoLeases));
    // Once one is gone, there is memory again.
    let [last, _] = two.channels[1];
    let soon = two.hub[0].within(SOON);
    two.hub[0].close(last, soon, |_, _| {}).unwrap();
    assert_eq!(two.hub[0].leases_max(), 16);
    two.hub[0].send(here, &long).unwrap();
}

#[test]
fn shared_receives_that_take_every_slot_leave_no_lease_ever() {
    let mut own = WorkerConfig::default();
    (own.slots, own.lease_share_percent) = (32, 0);
    let mut shared = SharedReceivesConfig::default();
    shared.depth = 32;
    own.shared_receives = Some(shared);
    let mut two = Many::new(&own, &small(), &WorkerConfig::default());
    two.connect(&small()).unwrap();
    let [here, _] = two.channels[0];
    assert_eq!(two.hub[0].leases_max(), 0);
    assert_eq!(two.hub[0].send(here, &[7; 300]), Err(SendErrorKind::NoLeases));
    // Memory without a byte is refused with the reason, and the Worker comes back.
    for (slots, slot_bytes) in [(0, 512), (1, 0)] {
        let refused = two.hub[0]
            .arena(&ArenaConfig::new(slots, slot_bytes))
            .unwrap_err();
        assert!(matches!(refused, MemoryError::Misuse(_)), "{refused}");
        let refused = two
            .hub
            .remove(0)
            .split(&ArenaConfig::new(slots, slot_bytes))
            .unwrap_err();
        assert!(
            matches!(refused.reason, SplitError::Memory(MemoryError::Misuse(_))),
            "{refused}"
        );
        two.hub.push(*refused.worker);
    }
    // Half of a Worker that is split leases from memory without receives.
    let (mut sending, receiving) = two.hub.remove(0).split(&ArenaConfig::new(1, 512)).unwrap();
    let held = sending.lease().unwrap();
    assert_eq!(
        sending.send(here, &[7; 300]),
        Err(SendErrorKind::NoMemory),
        "it comes back"
    );
    sending.release(held);
    let mut whole = sending.join(receiving).unwrap();
    assert_eq!(whole.send(here, &[7; 300]), Err(SendErrorKind::NoLeases));
}
