//! Channels that the peer closes, or whose peer dies: each end is reported once, and gives back its resources.

use core::time::Duration;

use crate::fabric::{End, LONG, pair_on, pair_with};
use doorbell::provider::{ArenaConfig, Instant, Window as _};
use doorbell::worker::CloseProgress;
use doorbell::{
    ChannelConfig, ChannelState, Deadline, Event, Notify, Operation, RemoteAccess, RemoteAddress,
    SendErrorKind, WcStatus, WindowConfig, Worker, WorkerConfig,
};
use doorbell_sim::{Fabric, Host, Plan};

use crate::many::Many;

/// Channels that end as by default.
pub(crate) fn small() -> ChannelConfig {
    let (mut config, default) = (crate::fabric::small(), ChannelConfig::default());
    (config.close_when_lost, config.probe_after) = (default.close_when_lost, default.probe_after);
    config
}

fn pair() -> (End, End) {
    pair_with(small(), small())
}

/// The events that a Worker reported of its channels.
#[derive(Debug, Default)]
pub(crate) struct EventCounts {
    pub(crate) received: u32,
    pub(crate) closed: Vec<bool>,
    pub(crate) failed: Vec<WcStatus>,
    pub(crate) requests_failed: u32,
}

impl EventCounts {
    pub(crate) fn note(&mut self, event: &Event<'_, Host>) {
        match event {
            Event::Received { .. } => self.received += 1,
            Event::PeerClosed { all_arrived } => self.closed.push(*all_arrived),
            Event::ChannelFailed { cause } => self.failed.push(cause.status),
            Event::Failed { .. } => self.requests_failed += 1,
            Event::Done { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

pub(crate) fn poll(worker: &mut Worker<Host>, told: &mut EventCounts) {
    worker.poll_tending(|_, event| told.note(&event)).unwrap();
}

/// How many leases can be had now, and receives are posted that channels share; all go back.
pub(crate) fn leasable(worker: &mut Worker<Host>) -> usize {
    let leases: Vec<_> = core::iter::from_fn(|| worker.lease()).collect();
    let count = leases.len();
    leases.into_iter().for_each(|lease| worker.release(lease));
    let shared = worker.shared_receives().map_or(0, |shared| shared.posted);
    count + shared as usize
}

/// Polls until the Worker has closed the channel by itself.
pub(crate) fn until_gone(end: &mut End, told: &mut EventCounts) {
    let (id, deadline) = (end.id(), std::time::Instant::now() + crate::fabric::SOON);
    while end.worker().close_progress(id) != CloseProgress::Closed(Ok(())) {
        assert!(std::time::Instant::now() < deadline, "{told:?}");
        poll(end.worker(), told);
    }
    assert!(end.worker().channel(id).is_none());
    assert_eq!(end.worker().channels().count(), 0);
}

pub(crate) fn send(end: &mut End, messages: u32) {
    let id = end.id();
    for number in 0..messages {
        let bytes = number.to_be_bytes();
        let channel = end.worker().channel(id).unwrap();
        channel.post_inline(Operation::Send, &bytes).unwrap();
    }
}

#[test]
fn a_peer_that_closes_is_told_behind_its_messages() {
    let (mut a, mut b) = pair();
    let before = leasable(a.worker());
    let (a_id, b_id) = (a.id(), b.id());
    send(&mut b, 5);
    let long = b.worker().within(LONG);
    assert_eq!(b.worker().close(b_id, long, |_, _| {}), Ok(()));
    assert_eq!(
        b.worker().state(b_id),
        Some(ChannelState::Open),
        "it was not lost"
    );
    let mut told = EventCounts::default();
    let mut refused = Vec::new();
    while told.closed.is_empty() {
        a.worker()
            .poll_tending(|mut turn, event| {
                told.note(&event);
                if let Event::PeerClosed { .. } = event {
                    let lease = turn.lease().unwrap();
                    refused.push(turn.channel.send_lease(lease).unwrap_err());
                    let inline = turn.channel.post_inline(Operation::Send, b"x");
                    assert_eq!(inline, Err(SendErrorKind::PeerClosed));
                    assert_eq!(
                        turn.channel.state(),
                        ChannelState::PeerClosed { all_arrived: true }
                    );
                }
            })
            .unwrap();
    }
    assert_eq!((told.received, &told.closed[..]), (5, &[true][..]));
    let refused = refused.pop().unwrap();
    assert_eq!(refused.kind, SendErrorKind::PeerClosed);
    drop(refused.item.expect("the lease is handed back"));
    until_gone(&mut a, &mut told);
    assert_eq!(told.closed.len(), 1, "told once");
    assert_eq!((told.failed.len(), told.requests_failed), (0, 0));
    assert_eq!(
        a.worker().state(a_id),
        Some(ChannelState::PeerClosed { all_arrived: true })
    );
    assert_eq!(leasable(a.worker()), before + 16, "its receives came back");
    // To close it, too, is no mistake, once.
    let long = a.worker().within(LONG);
    assert_eq!(a.worker().close(a_id, long, |_, _| {}), Ok(()));
    assert!(a.worker().close(a_id, long, |_, _| {}).is_err());
}

#[test]
fn a_channel_that_is_lost_is_closed_by_tending_alone() {
    let (mut a, mut b) = pair();
    let before = leasable(a.worker());
    let (a_id, b_id) = (a.id(), b.id());
    let soon = std::time::Instant::now() + crate::fabric::SOON;
    let (mut told, long) = (EventCounts::default(), b.worker().within(LONG));
    b.worker().begin_close(b_id, long).unwrap();
    while told.closed.is_empty() {
        assert!(std::time::Instant::now() < soon, "{told:?}");
        poll(b.worker(), &mut told);
        a.worker().poll(|_, event| told.note(&event)).unwrap();
    }
    for _ in 0..2000 {
        a.worker().poll(|_, event| told.note(&event)).unwrap();
    }
    assert_eq!(a.worker().close_progress(a_id), CloseProgress::Unknown);
    a.worker().tend();
    assert_eq!(a.worker().close_progress(a_id), CloseProgress::UnderWay);
    while a.worker().close_progress(a_id) != CloseProgress::Closed(Ok(())) {
        assert!(std::time::Instant::now() < soon, "{told:?}");
        for _ in 0..7 {
            a.worker().poll(|_, event| told.note(&event)).unwrap();
        }
        a.worker().tend();
    }
    assert_eq!(a.worker().channels().count(), 0);
    assert_eq!(leasable(a.worker()), before + 16, "its receives came back");
}

#[test]
fn a_worker_that_is_dropped_says_farewell_behind_what_was_sent() {
    let (mut a, mut b) = pair();
    send(&mut b, 3);
    drop(b);
    let mut told = EventCounts::default();
    until_gone(&mut a, &mut told);
    assert_eq!((told.received, &told.closed[..]), (3, &[true][..]), "{told:?}");
}

#[test]
fn messages_of_a_closing_channel_arrive_before_its_notice_or_are_refused() {
    let (mut a, mut b) = pair();
    let (id, long) = (b.id(), b.worker().within(LONG));
    b.worker().begin_close(id, long).unwrap();
    let soon = std::time::Instant::now() + crate::fabric::SOON;
    let (mut own, mut told) = (EventCounts::default(), EventCounts::default());
    let mut sent = 0;
    while told.closed.is_empty() {
        assert!(std::time::Instant::now() < soon, "{told:?}");
        if let Some(channel) = b.worker().channel(id).filter(|_| sent < 8) {
            match channel.post_inline(Operation::Send, b"late") {
                Ok(_) => sent += 1,
                Err(reason) => assert_eq!(reason, SendErrorKind::WouldBlock),
            }
        }
        poll(b.worker(), &mut own);
        poll(a.worker(), &mut told);
    }
    assert_eq!((told.received, &told.closed[..]), (sent, &[true][..]));
    if let Some(channel) = b.worker().channel(id) {
        let later = channel.post_inline(Operation::Send, b"later");
        assert_eq!(later, Err(SendErrorKind::WouldBlock));
    }
    let mut events = EventCounts::default();
    until_gone(&mut b, &mut events);
    assert_eq!(
        (events.failed.len(), events.requests_failed),
        (0, 0),
        "{events:?}"
    );
}

#[test]
fn both_may_close_at_once() {
    for polls_first in [false, true] {
        let (mut a, mut b) = pair();
        let (a_id, b_id) = (a.id(), b.id());
        let long = a.worker().within(LONG);
        a.worker().begin_close(a_id, long).unwrap();
        b.worker().begin_close(b_id, long).unwrap();
        let (mut told_a, mut told_b) = (EventCounts::default(), EventCounts::default());
        let mut rounds = 0;
        let is_under_way = |end: &mut End, id| end.worker().close_progress(id) == CloseProgress::UnderWay;
        while is_under_way(&mut a, a_id) || is_under_way(&mut b, b_id) {
            rounds += 1;
            assert!(rounds < 100_000, "{told_a:?} {told_b:?}");
            if !polls_first || rounds > 20 {
                poll(a.worker(), &mut told_a);
            }
            poll(b.worker(), &mut told_b);
        }
        for (end, id) in [(&mut a, a_id), (&mut b, b_id)] {
            assert_eq!(end.worker().close_progress(id), CloseProgress::Closed(Ok(())));
        }
        assert!(
            told_a.failed.is_empty() && told_b.failed.is_empty(),
            "{told_a:?} {told_b:?}"
        );
    }
}

#[test]
fn a_farewell_waits_for_a_receive_and_is_left_where_there_is_none() {
    for comes_late in [false, true] {
        let (mut a, mut b) = pair();
        let b_id = b.id();
        // All that the peer has receives for.
        send(&mut b, 16);
        let soon = b.worker().within(Duration::from_millis(200));
        let mut told = EventCounts::default();
        if comes_late {
            assert_eq!(b.worker().close(b_id, soon, |_, _| {}), Ok(()));
        } else {
            b.worker().begin_close(b_id, soon).unwrap();
            for _ in 0..20 {
                poll(b.worker(), &mut EventCounts::default());
            }
            assert_eq!(b.worker().close_progress(b_id), CloseProgress::UnderWay);
            while b.worker().close_progress(b_id) == CloseProgress::UnderWay {
                poll(b.worker(), &mut EventCounts::default());
                poll(a.worker(), &mut told);
            }
        }
        // Receives are announced, and that finds nobody: then the word says why.
        until_gone(&mut a, &mut told);
        assert_eq!((told.received, &told.closed[..]), (16, &[true][..]), "{told:?}");
        assert!(told.failed.is_empty());
    }
}

#[test]
fn what_looks_like_a_farewell_is_a_message() {
    let mut listening = small();
    listening.remote = RemoteAccess::ALL;
    let (mut a, mut b) = pair_with(listening, small());
    let window = a
        .worker()
        .window(&WindowConfig::new(64, RemoteAccess::WRITE))
        .unwrap();
    let target = RemoteAddress::within(&window.remote(), 0, 8).unwrap();
    let id = b.id();
    let word = u32::from_be_bytes(*b"fare");
    for _ in 0..3 {
        let operation = Operation::WriteWithImmediate(target, word);
        let channel = b.worker().channel(id).unwrap();
        channel.post_inline(operation, b"farewell").unwrap();
    }
    let long = b.worker().within(LONG);
    b.worker().close(id, long, |_, _| {}).unwrap();
    let (mut written, mut closed) = (0, 0);
    while closed == 0 {
        a.worker()
            .poll_tending(|_, event| match event {
                Event::Written { immediate, .. } => {
                    assert_eq!(immediate, word);
                    written += 1;
                }
                Event::PeerClosed { all_arrived: true } => closed += 1,
                other => panic!("{other:?}"),
            })
            .unwrap();
    }
    assert_eq!((written, closed), (3, 1));
}

/// A pair whose cable is cut, after the first message.
pub(crate) fn cut(config: ChannelConfig) -> (Fabric, End, End) {
    let fabric = Fabric::new();
    let (mut a, mut b) = pair_on(&fabric, config, config, Notify::Every);
    send(&mut b, 1);
    a.until(|event| matches!(event, Event::Received { .. }).then_some(()));
    b.until(|event| matches!(event, Event::Done { .. }).then_some(()));
    let plan: Plan = "at 0s link a/simA-b/simB down".parse().unwrap();
    fabric.follow(&plan);
    (fabric, a, b)
}

pub(crate) fn passed(fabric: &Fabric, began: Instant) -> Duration {
    Deadline::at(fabric.now()).remaining(began)
}

/// More ends than there are places for the events of one poll: the others are reported by the polls behind it. One poll takes so many
/// farewells and so many failures.
#[test]
fn each_of_many_channels_that_end_at_once_is_reported() {
    let mut config = small();
    (config.send_depth, config.receive_depth, config.repost_batch) = (1, 2, 1);
    (config.timeout, config.retry_count) = (10, 1);
    let own = WorkerConfig::default();
    let fabric = Fabric::builder().driven().build();
    let mut many = Many::on(fabric, &own, &config, &own);
    (0..60).for_each(|_| many.connect(&config).unwrap());
    let (closed, cut) = many.channels.split_at(30);
    for [here, _] in closed {
        let long = many.hub[0].within(LONG);
        many.hub[0].begin_close(*here, long).unwrap();
    }
    for _ in 0..100 {
        many.hub[0].poll_tending(|_, _| {}).unwrap();
        many.fabric.run_for(Duration::from_micros(10));
    }
    let plan: Plan = "at 0s link a-b down".parse().unwrap();
    many.fabric.follow(&plan);
    for [_, there] in cut {
        let channel = many.peer[0].channel(*there).unwrap();
        channel.post_inline(Operation::Send, b"x").unwrap();
    }
    many.fabric.run_for(Duration::from_millis(100));
    let mut told = EventCounts::default();
    for _ in 0..100 {
        poll(&mut many.peer[0], &mut told);
        many.fabric.run_for(Duration::from_micros(10));
    }
    assert_eq!(told.closed, [true; 30]);
    assert_eq!(told.failed, [WcStatus::RETRY_EXC_ERR; 30]);
}

#[test]
fn one_failure_tells_one_cause_and_each_request_its_error() {
    let mut config = small();
    (config.timeout, config.retry_count) = (10, 1);
    let (_fabric, mut a, _b) = cut(config);
    send(&mut a, 7);
    let mut told = EventCounts::default();
    until_gone(&mut a, &mut told);
    assert_eq!(told.failed, [WcStatus::RETRY_EXC_ERR]);
    assert_eq!(told.requests_failed, 7);
    let id = a.id();
    let state = a.worker().state(id).unwrap();
    assert!(matches!(state, ChannelState::Failed { .. }), "{state:?}");
    assert!(state.to_string().starts_with("failed: request"), "{state}");
}

#[test]
fn a_channel_that_is_to_stay_stays_until_it_is_closed() {
    let mut config = small();
    config.close_when_lost = false;
    let (mut a, b) = pair_with(config, small());
    drop(b);
    let mut told = EventCounts::default();
    while told.closed.is_empty() {
        poll(a.worker(), &mut told);
    }
    for _ in 0..1000 {
        poll(a.worker(), &mut told);
    }
    let (id, long) = (a.id(), a.worker().within(LONG));
    let channel = a.worker().channel(id).unwrap();
    assert_eq!(channel.state(), ChannelState::PeerClosed { all_arrived: true });
    assert_eq!(a.worker().close(id, long, |_, _| {}), Ok(()));
    assert_eq!(told.closed, [true]);
}

#[test]
fn halves_are_told_and_the_whole_closes_it() {
    let (a, mut b) = pair();
    let End {
        node: _node,
        mut workers,
        at,
        ..
    } = a;
    let (mut sending, mut receiving) = workers
        .swap_remove(at.worker)
        .split(&ArenaConfig::new(8, 64))
        .unwrap();
    send(&mut b, 2);
    drop(b);
    let (mut received, mut closed) = (0, 0);
    while closed == 0 {
        receiving
            .poll(|_, event| match event {
                Event::Received { .. } => received += 1,
                Event::PeerClosed { all_arrived: true } => closed += 1,
                other => panic!("{other:?}"),
            })
            .unwrap();
    }
    assert_eq!(received, 2);
    sending.poll(|_, event| panic!("{event:?}")).unwrap();
    let half = sending.channel(at.channel).unwrap();
    assert_eq!(
        half.post_inline(Operation::Send, b"x"),
        Err(SendErrorKind::PeerClosed)
    );
    assert_eq!(half.state(), ChannelState::PeerClosed { all_arrived: true });
    let mut worker = sending.join(receiving).unwrap();
    let mut told = EventCounts::default();
    for _ in 0..100_000 {
        poll(&mut worker, &mut told);
        if worker.close_progress(at.channel) != CloseProgress::UnderWay && worker.channels().count() == 0 {
            break;
        }
    }
    assert_eq!(worker.close_progress(at.channel), CloseProgress::Closed(Ok(())));
    assert!(told.closed.is_empty() && told.failed.is_empty(), "{told:?}");
}
