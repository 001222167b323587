//! Channels that the peer closes, or whose peer dies: each end is reported once, and gives back its resources.

use core::time::Duration;

use crate::fabric::{End, LONG, pair_on, pair_with};
use doorbell::provider::{ArenaConfig, Instant, Window as _};
use doorbell::worker::CloseProgress;
use doorbell::{
    ChannelConfig, ChannelState, Deadline, Event, Notify, Operation, RemoteAccess, RemoteAddress,
    SendErrorKind, Wait, WcStatus, WindowConfig, Worker, WorkerConfig,
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
struct Told {
    received: u32,
    closed: Vec<bool>,
    failed: Vec<WcStatus>,
    requests_failed: u32,
}

impl Told {
    fn note(&mut self, event: &Event<'_, Host>) {
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

fn poll(worker: &mut Worker<Host>, told: &mut Told) {
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
fn until_gone(end: &mut End, told: &mut Told) {
    let (id, deadline) = (end.id(), std::time::Instant::now() + crate::fabric::SOON);
    while end.worker().close_progress(id) != CloseProgress::Closed(Ok(())) {
        assert!(std::time::Instant::now() < deadline, "{told:?}");
        poll(end.worker(), told);
    }
    assert!(end.worker().channel(id).is_none());
    assert_eq!(end.worker().channels().count(), 0);
}

fn send(end: &mut End, messages: u32) {
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
    let mut told = Told::default();
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
    let (mut told, long) = (Told::default(), b.worker().within(LONG));
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
    let mut told = Told::default();
    until_gone(&mut a, &mut told);
    assert_eq!((told.received, &told.closed[..]), (3, &[true][..]), "{told:?}");
}

#[test]
fn both_may_close_at_once() {
    for polls_first in [false, true] {
        let (mut a, mut b) = pair();
        let (a_id, b_id) = (a.id(), b.id());
        let long = a.worker().within(LONG);
        a.worker().begin_close(a_id, long).unwrap();
        b.worker().begin_close(b_id, long).unwrap();
        let (mut told_a, mut told_b) = (Told::default(), Told::default());
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
        let mut told = Told::default();
        if comes_late {
            assert_eq!(b.worker().close(b_id, soon, |_, _| {}), Ok(()));
        } else {
            b.worker().begin_close(b_id, soon).unwrap();
            for _ in 0..20 {
                poll(b.worker(), &mut Told::default());
            }
            assert_eq!(b.worker().close_progress(b_id), CloseProgress::UnderWay);
            while b.worker().close_progress(b_id) == CloseProgress::UnderWay {
                poll(b.worker(), &mut Told::default());
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
fn cut(config: ChannelConfig) -> (Fabric, End, End) {
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

#[test]
fn a_dead_peer_is_found_by_a_side_that_only_receives() {
    for how in [Wait::Busy, Wait::SpinThenSleep { spins: 4 }] {
        let mut config = small();
        config.probe_after = Some(Duration::from_secs(1));
        (config.timeout, config.retry_count) = (10, 3);
        let (fabric, mut a, b) = cut(config);
        let began = fabric.now();
        let mut told = Told::default();
        while told.failed.is_empty() {
            let long = a.worker().within(LONG);
            a.worker()
                .wait_tending(how, long, |_, event| told.note(&event))
                .unwrap();
            assert!(passed(&fabric, began) < LONG, "{told:?}");
        }
        let took = passed(&fabric, began);
        // Four tries of 4.2 ms behind a second, and what a device and a look take beside.
        assert!(took > Duration::from_millis(900), "{took:?}");
        assert!(took < Duration::from_millis(1200), "{took:?} by {how:?}");
        assert_eq!(told.failed, [WcStatus::RETRY_EXC_ERR]);
        assert_eq!(told.requests_failed, 0, "a probe is none of the application's");
        until_gone(&mut a, &mut told);
        drop(b);
    }
}

#[test]
fn a_dead_peer_is_found_by_a_loop_that_polls_rarely() {
    for nap in [
        Duration::from_micros(50),
        Duration::from_millis(1),
        Duration::from_millis(20),
    ] {
        let mut config = small();
        config.probe_after = Some(Duration::from_secs(1));
        (config.timeout, config.retry_count) = (10, 3);
        let (fabric, mut a, b) = cut(config);
        let began = fabric.now();
        let mut told = Told::default();
        while told.failed.is_empty() {
            fabric.run_for(nap);
            poll(a.worker(), &mut told);
            assert!(passed(&fabric, began) < LONG, "{told:?}");
        }
        let took = passed(&fabric, began);
        assert!(took > Duration::from_millis(900), "{took:?} with {nap:?}");
        assert!(took < Duration::from_millis(1200), "{took:?} with {nap:?}");
        drop(b);
    }
}

/// The silence of a peer begins with the message, and not with the next look at the channel a second later.
#[test]
fn a_message_without_completion_puts_a_probe_off_by_a_look_at_most() {
    let mut config = small();
    config.probe_after = Some(Duration::from_secs(1));
    (config.timeout, config.retry_count, config.unsignaled_max) = (10, 3, 8);
    let fabric = Fabric::new();
    let (mut a, _b) = pair_on(&fabric, config, config, Notify::Every);
    let mut told = Told::default();
    assert!(a.worker().ready_to_sleep(|_, event| told.note(&event)).is_ok());
    send(&mut a, 1);
    fabric.run_for(Duration::from_millis(1));
    fabric.follow(&"at 0s link a/simA-b/simB down".parse().unwrap());
    let began = fabric.now();
    while told.failed.is_empty() {
        fabric.run_for(Duration::from_millis(5));
        assert!(passed(&fabric, began) < Duration::from_millis(1200), "{told:?}");
        assert!(a.worker().ready_to_sleep(|_, event| told.note(&event)).is_ok());
    }
    assert!(passed(&fabric, began) > Duration::from_millis(900));
    assert_eq!(told.failed, [WcStatus::RETRY_EXC_ERR]);
}

/// A pair whose cable is cut, on a fabric whose time passes as the test says.
fn cut_in_time(config: ChannelConfig) -> (Fabric, End, End) {
    let fabric = Fabric::builder().driven().build();
    let (a, b) = pair_on(&fabric, config, config, Notify::Every);
    fabric.follow(&"at 0s link a/simA-b/simB down".parse().unwrap());
    (fabric, a, b)
}

/// Seven tries of 268 ms would take two seconds. With a timeout of 50 ms the peer is found within 200 ms of the interval.
#[test]
fn a_probe_with_a_timeout_finds_a_dead_peer_soon() {
    for nap_us in [100, 1_000, 20_000] {
        let mut config = small();
        config.probe_after = Some(Duration::from_secs(1));
        config.probe_timeout = Some(Duration::from_millis(50));
        let (fabric, mut a, _b) = cut_in_time(config);
        let (began, id) = (fabric.now(), a.id());
        let mut told = Told::default();
        let mut took = None;
        while a.worker().close_progress(id) != CloseProgress::Closed(Ok(())) {
            fabric.run_for(Duration::from_micros(nap_us));
            poll(a.worker(), &mut told);
            let passed = passed(&fabric, began);
            assert!(passed < Duration::from_secs(5), "{told:?}");
            took = took.or(Some(passed).filter(|_| !told.failed.is_empty()));
        }
        let took = took.unwrap();
        assert!(took > Duration::from_millis(1000), "{took:?} with {nap_us} us");
        assert!(took < Duration::from_millis(1200), "{took:?} with {nap_us} us");
        assert_eq!(told.failed, [WcStatus::RESP_TIMEOUT_ERR]);
        assert_eq!(told.requests_failed, 0, "a probe is none of the application's");
        let state = a.worker().state(id).unwrap().to_string();
        assert!(state.contains("response timeout"), "{state}");
    }
}

#[test]
fn a_worker_that_sleeps_wakes_for_the_timeout_of_a_probe() {
    let mut config = small();
    config.probe_after = Some(Duration::from_secs(1));
    config.probe_timeout = Some(Duration::from_millis(50));
    let (fabric, mut a, _b) = cut_in_time(config);
    let began = fabric.now();
    let mut told = Told::default();
    while told.failed.is_empty() {
        let long = a.worker().within(LONG);
        a.worker()
            .wait_tending(Wait::SpinThenSleep { spins: 4 }, long, |_, event| {
                told.note(&event)
            })
            .unwrap();
        assert!(passed(&fabric, began) < LONG, "{told:?}");
    }
    let took = passed(&fabric, began);
    assert!(took < Duration::from_millis(1200), "{took:?}");
    assert_eq!(told.failed, [WcStatus::RESP_TIMEOUT_ERR]);
}

/// Each poll takes a message that is done, so none finds the completion queue empty.
#[test]
fn a_worker_that_is_busy_gives_up_a_peer_that_leaves_a_probe_unanswered() {
    let mut config = small();
    config.probe_after = Some(Duration::from_millis(100));
    config.probe_timeout = Some(Duration::from_millis(10));
    // The retries take half a minute.
    config.timeout = 20;
    let mut own = WorkerConfig::default();
    own.completion_depth = 256;
    // Time passes as the test says.
    let fabric = Fabric::builder().driven().build();
    let mut many = Many::on(fabric, &own, &config, &own);
    (0..2).for_each(|_| many.connect(&config).unwrap());
    let [[dead, _], [_, busy]] = [many.channels[0], many.channels[1]];
    many.hub[0].channel(dead).unwrap().shut().unwrap();
    let mut told = Told::default();
    let mut polls = 0;
    while told.failed.is_empty() {
        many.peer[0].send(busy, b"more").unwrap();
        many.fabric.run_for(Duration::from_micros(20));
        while many.hub[0].poll(|_, _| {}).unwrap() > 0 {}
        many.fabric.run_for(Duration::from_micros(20));
        let taken = many.peer[0].poll_tending(|_, event| told.note(&event)).unwrap();
        polls += 1;
        assert!(
            taken > 0 && polls < 50_000,
            "a poll found nothing, or polls no end"
        );
    }
    assert_eq!(told.failed, [WcStatus::RESP_TIMEOUT_ERR]);
    assert_eq!(told.requests_failed, 0, "a probe is none of the application's");
}

/// A device that refuses a probe may have it. The announcement behind it shows that, or finds the peer dead.
#[test]
fn a_probe_that_a_device_refuses_and_may_have_is_followed_by_an_announcement() {
    for probe_timeout in [None, Some(Duration::from_millis(50))] {
        for is_cut in [false, true] {
            let mut config = small();
            (config.probe_after, config.probe_timeout) = (Some(Duration::from_secs(1)), probe_timeout);
            (config.timeout, config.retry_count) = (10, 3);
            let fabric = Fabric::builder().driven().build();
            let (mut a, _b) = pair_on(&fabric, config, config, Notify::Every);
            fabric.follow(&"fail 1st unclear-post of a with 5".parse().unwrap());
            if is_cut {
                fabric.follow(&"at 0s link a/simA-b/simB down".parse().unwrap());
            }
            let (began, before) = (fabric.now(), a.worker().statistics().snapshot());
            let mut told = Told::default();
            while passed(&fabric, began) < Duration::from_millis(1500) {
                fabric.run_for(Duration::from_millis(1));
                poll(a.worker(), &mut told);
            }
            let counts = a.worker().statistics().snapshot().since(&before);
            // A probe that is answered by the next poll needs no announcement.
            let requests = 1 + u64::from(is_cut);
            assert_eq!((counts.requests, counts.refused), (requests, 1), "{is_cut}");
            let failures = usize::from(is_cut);
            assert_eq!(told.failed, vec![WcStatus::RETRY_EXC_ERR; failures]);
        }
    }
}

/// Without a timeout an idle channel survives what the device's retries survive.
#[test]
fn an_outage_ends_an_idle_channel_by_a_timeout_alone() {
    for (probe_timeout, ends) in [
        (None, false),
        (Some(Duration::from_millis(50)), true),
        (Some(Duration::from_millis(900)), false),
    ] {
        let mut config = small();
        (config.probe_after, config.probe_timeout) = (Some(Duration::from_secs(1)), probe_timeout);
        let (fabric, mut a, _b) = cut_in_time(config);
        fabric.follow(&"at 1300ms link a/simA-b/simB up".parse().unwrap());
        let began = fabric.now();
        let mut told = Told::default();
        while passed(&fabric, began) < Duration::from_secs(4) {
            fabric.run_for(Duration::from_millis(1));
            poll(a.worker(), &mut told);
        }
        let failures = usize::from(ends);
        assert_eq!(
            told.failed,
            vec![WcStatus::RESP_TIMEOUT_ERR; failures],
            "{probe_timeout:?}"
        );
    }
}

/// A request that is posted while the peer is probed has the device's retries, of which its channel survives an outage.
#[test]
fn a_request_behind_a_probe_is_not_ended_by_its_timeout() {
    let mut config = small();
    config.probe_after = Some(Duration::from_secs(1));
    config.probe_timeout = Some(Duration::from_millis(50));
    config.remote = RemoteAccess::ALL;
    let (fabric, mut a, mut b) = cut_in_time(config);
    fabric.follow(&"at 1300ms link a/simA-b/simB up".parse().unwrap());
    let window = b.worker().window(&WindowConfig::new(64, RemoteAccess::WRITE));
    let window = window.unwrap();
    let target = RemoteAddress::within(&window.remote(), 0, 8).unwrap();
    let (began, id) = (fabric.now(), a.id());
    let mut told = Told::default();
    let mut is_posted = false;
    while passed(&fabric, began) < Duration::from_secs(4) {
        fabric.run_for(Duration::from_millis(1));
        poll(a.worker(), &mut told);
        if !is_posted && passed(&fabric, began) > Duration::from_millis(1020) {
            is_posted = true;
            let channel = a.worker().channel(id).unwrap();
            channel
                .post_inline(Operation::Write(target), b"in probe")
                .unwrap();
        }
    }
    assert!(is_posted && told.failed.is_empty(), "{told:?}");
    assert_eq!(told.requests_failed, 0, "{told:?}");
}

/// A loop that was away tends before it polls, and finds the answer to a probe behind more completions than a poll takes.
#[test]
fn an_answer_that_waits_in_the_queue_came_in_time() {
    let mut config = small();
    (config.send_depth, config.receive_depth) = (64, 64);
    config.probe_after = Some(Duration::from_millis(100));
    config.probe_timeout = Some(Duration::from_millis(10));
    let own = WorkerConfig::default();
    let mut many = Many::new(&own, &config, &own);
    (0..2).for_each(|_| many.connect(&config).unwrap());
    let [_, busy] = many.channels[1];
    let away = |many: &mut Many| {
        many.fabric.run_for(Duration::from_millis(200));
        (0..3000).for_each(|_| many.peer[0].tend());
    };
    let before = many.peer[0].statistics().snapshot();
    let mut told = Told::default();
    for _ in 0..10 {
        for _ in 0..40 {
            many.peer[0].send(busy, b"more").unwrap();
        }
        away(&mut many);
        away(&mut many);
        (0..100).for_each(|_| poll(&mut many.peer[0], &mut told));
        while many.hub[0].poll(|_, _| {}).unwrap() > 0 {}
        away(&mut many);
        (0..100).for_each(|_| poll(&mut many.peer[0], &mut told));
    }
    assert!(told.failed.is_empty(), "{told:?}");
    assert_eq!(many.peer[0].channels().count(), 2);
    let requests = many.peer[0].statistics().snapshot().since(&before).requests;
    assert!(requests >= 410, "{requests}: there were probes");
}

/// Time passes by the fabric. A sleep that lasts so long gives other threads 64 turns in each millisecond of it, which takes
/// minutes beside busy processes.
#[test]
fn without_probes_nobody_asks() {
    let mut config = small();
    config.probe_after = None;
    let (fabric, mut a, _b) = cut(config);
    let before = a.worker().statistics().snapshot();
    let mut told = Told::default();
    for _ in 0..10 {
        fabric.run_for(Duration::from_secs(10));
        let soon = a.worker().within(Duration::from_millis(1));
        a.worker()
            .wait_tending(Wait::SpinThenSleep { spins: 4 }, soon, |_, event| {
                told.note(&event)
            })
            .unwrap();
        let sleep = a.worker().ready_to_sleep(|_, event| told.note(&event)).unwrap();
        assert_eq!(sleep.unwrap().at_most(), None, "nothing is to be looked at");
    }
    let requests = a.worker().statistics().snapshot().since(&before).requests;
    assert_eq!(requests, 0, "nothing was asked");
    assert!(told.failed.is_empty());
    assert_eq!(a.worker().channels().count(), 1);
}

#[test]
fn a_peer_that_is_alive_and_silent_stays() {
    let mut config = small();
    config.probe_after = Some(Duration::from_millis(100));
    let fabric = Fabric::new();
    let (mut a, mut b) = pair_on(&fabric, config, config, Notify::Every);
    let mut told = Told::default();
    let before = a.worker().statistics().snapshot();
    for _ in 0..10 {
        let deadline = a.worker().within(Duration::from_millis(200));
        for end in [&mut a, &mut b] {
            end.worker()
                .wait_tending(Wait::SpinThenSleep { spins: 4 }, deadline, |_, event| {
                    told.note(&event)
                })
                .unwrap();
        }
    }
    let probes = a.worker().statistics().snapshot().since(&before).requests;
    assert!((5..=40).contains(&probes), "{probes}");
    assert_eq!((told.failed.len(), told.closed.len()), (0, 0));
    assert_eq!(
        (a.worker().channels().count(), b.worker().channels().count()),
        (1, 1)
    );
}

#[test]
fn one_failure_tells_one_cause_and_each_request_its_error() {
    let mut config = small();
    (config.timeout, config.retry_count) = (10, 1);
    let (_fabric, mut a, _b) = cut(config);
    send(&mut a, 7);
    let mut told = Told::default();
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
    let mut told = Told::default();
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
    let mut told = Told::default();
    for _ in 0..100_000 {
        poll(&mut worker, &mut told);
        if worker.close_progress(at.channel) != CloseProgress::UnderWay && worker.channels().count() == 0 {
            break;
        }
    }
    assert_eq!(worker.close_progress(at.channel), CloseProgress::Closed(Ok(())));
    assert!(told.closed.is_empty() && told.failed.is_empty(), "{told:?}");
}
