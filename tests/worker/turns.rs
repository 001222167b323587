//! Turns of a poll that reach the Worker's other channels, and messages sent from bytes.

use doorbell::provider::ArenaConfig;
use doorbell::worker::SubmitterConfig;
use doorbell::{
    ChannelId, ChannelState, Event, Operation, PostFlags, SendErrorKind, Wait, Woken, Worker, WorkerConfig,
};
use doorbell_sim::Host;

use crate::fabric::{LONG, small};
use crate::many::Many;

/// A hub with so many channels.
fn hub(channels: usize) -> Many {
    let mut own = WorkerConfig::default();
    (own.slots, own.slot_bytes) = (256, 1024);
    let mut many = Many::new(&own, &small(), &own);
    for _ in 0..channels {
        many.connect(&small()).unwrap();
    }
    many
}

/// Polls the peers until so many messages came: for each the place of its channel, and its bytes.
fn take(many: &mut Many, count: usize) -> Vec<(usize, Vec<u8>)> {
    let mut taken = Vec::new();
    while taken.len() < count {
        many.peer[0]
            .poll(|turn, event| match event {
                Event::Received { message, .. } => {
                    let at = many
                        .channels
                        .iter()
                        .position(|[_, there]| *there == turn.channel.id());
                    taken.push((at.unwrap(), message.payload().to_vec()));
                }
                Event::Done { .. } => {}
                other => panic!("{other:?}"),
            })
            .unwrap();
        many.hub[0].poll(|_, _| {}).unwrap();
    }
    taken
}

#[test]
fn a_message_is_forwarded_within_the_poll_that_brought_it() {
    let mut many = hub(3);
    let names: Vec<_> = many.channels.iter().map(|[here, _]| *here).collect();
    for bytes in [1, 64, 300, 1024] {
        for from in 0..3 {
            many.peer[0]
                .send(many.channels[from][1], &vec![from as u8; bytes])
                .unwrap();
        }
        let mut forwarded = 0;
        while forwarded < 3 {
            many.hub[0]
                .poll(|mut turn, event| {
                    if let Event::Received { message, .. } = event {
                        let at = names.iter().position(|name| *name == turn.channel.id()).unwrap();
                        let next = names[(at + 1) % 3];
                        turn.other(next).unwrap().send_lease(message.keep()).unwrap();
                        forwarded += 1;
                    }
                })
                .unwrap();
        }
        let mut taken = take(&mut many, 3);
        taken.sort();
        let expected = [(0, 2), (1, 0), (2, 1)].map(|(at, byte)| (at, vec![byte; bytes]));
        assert_eq!(taken, expected, "{bytes}");
    }
}

#[test]
fn a_message_is_fanned_out_within_the_poll_that_brought_it() {
    let mut many = hub(5);
    for bytes in [8, 700] {
        many.peer[0].send(many.channels[2][1], &vec![7; bytes]).unwrap();
        let mut is_out = false;
        while !is_out {
            many.hub[0]
                .poll(|mut turn, event| {
                    if let Event::Received { message, .. } = event {
                        assert_eq!(turn.others().count(), 4);
                        assert_eq!(turn.send_to_others(message.payload()), 0);
                        let own = turn.channel.id();
                        turn.send_to(own, b"to its own").unwrap();
                        turn.send(b"the same").unwrap();
                        is_out = true;
                    }
                })
                .unwrap();
        }
        let mut taken = take(&mut many, 6);
        taken.sort();
        let all = vec![7; bytes];
        let expected = [
            (0, all.clone()),
            (1, all.clone()),
            (2, b"the same".to_vec()),
            (2, b"to its own".to_vec()),
            (3, all.clone()),
            (4, all),
        ];
        assert_eq!(taken, expected);
    }
}

/// Each of the channels of a hub passes messages on to the next, with full use of the hub's lists. There are more messages than
/// credits, receives are posted and announced in small numbers, and memory runs out.
#[test]
fn a_proxy_within_polls_loses_nothing_however_scarce_credits_and_memory_are() {
    const CHANNELS: usize = 4;
    const MESSAGES: u32 = 1500;
    for is_submitting in [false, true] {
        let mut own = WorkerConfig::default();
        (own.slots, own.slot_bytes) = (40, 256);
        let mut config = small();
        (config.send_depth, config.receive_depth, config.repost_batch) = (3, 5, 2);
        let mut many = Many::new(&own, &config, &own);
        for _ in 0..CHANNELS {
            many.connect(&config).unwrap();
        }
        let names: Vec<_> = many.channels.iter().map(|[here, _]| *here).collect();
        let mut submitting = SubmitterConfig::default();
        submitting.slots = 4;
        let _submitter = is_submitting.then(|| many.hub[0].submitter(&submitting).unwrap());
        // Messages that could not be passed on at once wait, each channel's in order.
        let mut waiting: Vec<std::collections::VecDeque<_>> =
            (0..CHANNELS).map(|_| Default::default()).collect();
        let (mut sent, mut came) = ([0_u32; CHANNELS], [0_u32; CHANNELS]);
        while came.iter().sum::<u32>() < MESSAGES * CHANNELS as u32 {
            for (at, [_, there]) in many.channels.iter().enumerate() {
                while sent[at] < MESSAGES {
                    let bytes = [sent[at].to_be_bytes(), [at as u8; 4]].concat();
                    let length = if sent[at] % 3 == 0 { 8 } else { 240 };
                    let mut message = [0; 240];
                    message[..8].copy_from_slice(&bytes);
                    match many.peer[0].send(*there, &message[..length]) {
                        Ok(_) => sent[at] += 1,
                        Err(error) if error.is_temporary() => break,
                        Err(error) => panic!("{error}"),
                    }
                }
            }
            many.hub[0]
                .poll(|mut turn, event| {
                    if let Event::Received { message, .. } = event {
                        let from = turn.channel.id();
                        let to = (names.iter().position(|name| *name == from).unwrap() + 1) % CHANNELS;
                        waiting[to].push_back(message.keep());
                    }
                    // Any event may have made room on any channel.
                    for (to, queue) in waiting.iter_mut().enumerate() {
                        let other = turn.other(names[to]).unwrap();
                        while let Some(message) = queue.pop_front() {
                            let refused = if is_submitting {
                                other.submit(Operation::Send, message, PostFlags::empty()).err()
                            } else {
                                other.send_lease(message).err()
                            };
                            if let Some(error) = refused {
                                assert_eq!(error.kind, SendErrorKind::WouldBlock);
                                queue.push_front(error.item.unwrap());
                                break;
                            }
                        }
                    }
                })
                .unwrap();
            for (to, queue) in waiting.iter_mut().enumerate() {
                while let Some(message) = queue.pop_front() {
                    if let Err(error) = many.hub[0].channel(names[to]).unwrap().send_lease(message) {
                        queue.push_front(error.item.unwrap());
                        break;
                    }
                }
            }
            many.peer[0]
                .poll(|turn, event| match event {
                    Event::Received { message, .. } => {
                        let id = turn.channel.id();
                        let at = many.channels.iter().position(|[_, there]| *there == id).unwrap();
                        let from = (at + CHANNELS - 1) % CHANNELS;
                        let expected = [came[at].to_be_bytes(), [from as u8; 4]].concat();
                        assert_eq!(message.payload()[..8], expected, "{at}");
                        assert_eq!(message.len_bytes(), if came[at] % 3 == 0 { 8 } else { 240 });
                        came[at] += 1;
                    }
                    Event::Done { .. } => {}
                    other => panic!("{other:?}"),
                })
                .unwrap();
        }
        drop(waiting);
        many.fabric.audit().unwrap();
    }
}

#[test]
fn names_have_an_index_and_channels_a_word_of_the_applications() {
    let mut many = hub(3);
    let mut seen = [false; 3];
    for (at, [here, there]) in many.channels.clone().into_iter().enumerate() {
        seen[here.index()] = true;
        let channel = many.hub[0].channel(here).unwrap();
        assert_eq!(channel.user(), 0);
        channel.set_user(1 << 40 | at as u64);
        many.peer[0].send(there, &[at as u8]).unwrap();
    }
    assert_eq!(seen, [true; 3]);
    let mut told = 0;
    while told < 3 {
        many.hub[0]
            .poll(|turn, event| {
                if let Event::Received { message, .. } = event {
                    assert_eq!(turn.channel.user(), 1 << 40 | u64::from(message.payload()[0]));
                    told += 1;
                }
            })
            .unwrap();
    }
    let here = many.channels[1][0];
    let worker = many.hub.remove(0);
    let (mut sending, mut receiving) = worker.split(&ArenaConfig::new(4, 1024)).unwrap();
    assert_eq!(sending.channel(here).unwrap().user(), 1 << 40 | 1);
    assert_eq!(receiving.channel(here).unwrap().user(), 1 << 40 | 1);
    // Each of two halves is one thread's, and so is its word.
    sending.channel(here).unwrap().set_user(5);
    assert_eq!(receiving.channel(here).unwrap().user(), 1 << 40 | 1);
    // The half that sends sends bytes, too.
    sending.send(here, b"of a half").unwrap();
    let lease = sending.lease_for(here).unwrap();
    sending.channel(here).unwrap().send_lease(lease).unwrap();
}

#[test]
fn a_closed_channel_is_no_other_and_nothing_is_sent_on_it() {
    let mut many = hub(2);
    let [gone, _] = many.channels[0];
    let [left, other] = many.channels[1];
    let deadline = many.hub[0].within(LONG);
    many.hub[0].close(gone, deadline, |_, _| {}).unwrap();
    assert_eq!(
        many.hub[0].send(gone, b"late").unwrap_err(),
        SendErrorKind::Closed
    );
    assert!(matches!(many.hub[0].lease_for(gone), Err(SendErrorKind::Closed)));
    // One in the same place has another name.
    many.connect(&small()).unwrap();
    let again = many.channels[2][0];
    assert_eq!(again.index(), gone.index());
    many.peer[0].send(other, b"from the one that is left").unwrap();
    let mut is_told = false;
    while !is_told {
        many.hub[0]
            .poll(|mut turn, event| {
                if let Event::Received { .. } = event {
                    assert_eq!(turn.channel.id(), left);
                    assert!(turn.other(gone).is_none());
                    assert_eq!(turn.send_to(gone, b"late"), Err(SendErrorKind::Closed));
                    assert_eq!(turn.other(left).unwrap().id(), left);
                    assert_eq!(turn.other(again).unwrap().id(), again);
                    assert_eq!(turn.others().map(|other| other.id()).collect::<Vec<_>>(), [again]);
                    is_told = true;
                }
            })
            .unwrap();
    }
}

/// Sends until it is refused; says how often it was not, and why in the end.
fn flood(worker: &mut Worker<Host>, id: ChannelId, bytes: usize) -> (u32, SendErrorKind) {
    let mut sent = 0;
    loop {
        match worker.send(id, &vec![1; bytes]) {
            Ok(_) => sent += 1,
            Err(error) => return (sent, error),
        }
    }
}

#[test]
fn sending_bytes_says_what_failed() {
    let mut many = hub(1);
    let [_, there] = many.channels[0];
    let worker = &mut many.peer[0];
    assert_eq!(
        worker.send(there, &[0; 1025]).unwrap_err(),
        SendErrorKind::TooLong {
            bytes: 1025,
            bytes_max: 1024
        }
    );
    assert!(!SendErrorKind::Closed.is_temporary());
    // All memory is held: short messages go all the same, inline.
    let mut held: Vec<_> = core::iter::from_fn(|| worker.lease()).collect();
    assert_eq!(
        worker.send(there, &[0; 500]).unwrap_err(),
        SendErrorKind::NoMemory
    );
    assert!(matches!(worker.lease_for(there), Err(SendErrorKind::NoMemory)));
    assert!(SendErrorKind::NoMemory.is_temporary());
    worker.send(there, &[0; 200]).unwrap();
    worker.release(held.pop().unwrap());
    drop(worker.lease_for(there).unwrap());
    drop(held);
    // The peer has sixteen receives, and the refusal comes before a lease is filled.
    let (sent, why) = flood(worker, there, 600);
    assert_eq!((sent, why), (15, SendErrorKind::WouldBlock));
    assert!(matches!(worker.lease_for(there), Err(SendErrorKind::WouldBlock)));
    while worker.poll(|_, _| {}).unwrap() > 0 {}
    // There is room again, and no credit.
    assert!(matches!(worker.lease_for(there), Err(SendErrorKind::WouldBlock)));
    // Refused for want of credit, it is woken by credit.
    let mut taken = 0;
    while taken < 16 {
        many.hub[0]
            .poll(|_, event| {
                if let Event::Received { .. } = event {
                    taken += 1;
                }
            })
            .unwrap();
    }
    let deadline = many.peer[0].within(LONG);
    let woken = many.peer[0].wait(Wait::Busy, deadline, |_, _| {}).unwrap();
    assert_ne!(woken, Woken::Deadline);
    drop(many.peer[0].lease_for(there).unwrap());
    // A failed channel has nothing to lease for.
    many.peer[0].send(there, b"flushed").unwrap();
    many.peer[0].channel(there).unwrap().shut().unwrap();
    while many.peer[0].channel(there).unwrap().state() == ChannelState::Open {
        many.peer[0].poll(|_, _| {}).unwrap();
    }
    for kind in [
        many.peer[0].send(there, &[0; 600]).unwrap_err(),
        many.peer[0].send(there, b"short").unwrap_err(),
        many.peer[0].lease_for(there).unwrap_err(),
    ] {
        assert!(
            matches!(kind, SendErrorKind::Refused(_)) && !kind.is_temporary(),
            "{kind}"
        );
    }
}

#[test]
fn errors_of_sending_go_through_the_question_mark() {
    fn boxed(many: &mut Many, id: ChannelId) -> Result<(), Box<dyn core::error::Error + Send + Sync>> {
        let lease = many.hub[0].lease_for(id)?;
        many.hub[0]
            .channel(id)
            .ok_or(SendErrorKind::Closed)?
            .send_lease(lease)?;
        many.hub[0].send(id, b"bytes")?;
        Ok(())
    }
    fn kind(many: &mut Many, id: ChannelId) -> Result<(), SendErrorKind> {
        let lease = many.hub[0].lease_for(id)?;
        many.hub[0]
            .channel(id)
            .ok_or(SendErrorKind::Closed)?
            .send_lease(lease)?;
        Ok(())
    }
    let mut many = hub(1);
    let id = many.channels[0][0];
    for _ in 0..5 {
        boxed(&mut many, id).unwrap();
        kind(&mut many, id).unwrap();
    }
    let error = boxed(&mut many, id)
        .and_then(|()| boxed(&mut many, id))
        .unwrap_err();
    assert_eq!(error.to_string(), SendErrorKind::WouldBlock.to_string());
    assert_eq!(kind(&mut many, id).unwrap_err(), SendErrorKind::WouldBlock);
}
