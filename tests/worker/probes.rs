//! Probes: a peer that is silent and dead is found by them, in the time that the settings say, and no other.

use core::time::Duration;

use crate::ending::{EventCounts, cut, passed, poll, send, small, until_gone};
use crate::fabric::{End, LONG, pair_on};
use crate::many::Many;
use doorbell::provider::Window as _;
use doorbell::worker::CloseProgress;
use doorbell::{
    ChannelConfig, Notify, Operation, RemoteAccess, RemoteAddress, Wait, WcStatus, WindowConfig, WorkerConfig,
};
use doorbell_sim::Fabric;

#[test]
fn a_dead_peer_is_found_by_a_side_that_only_receives() {
    for how in [Wait::Busy, Wait::SpinThenSleep { spins: 4 }] {
        let mut config = small();
        config.probe_after = Some(Duration::from_secs(1));
        (config.timeout, config.retry_count) = (10, 3);
        let (fabric, mut a, b) = cut(config);
        let began = fabric.now();
        let mut told = EventCounts::default();
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
        let mut told = EventCounts::default();
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
    let mut told = EventCounts::default();
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
        let mut told = EventCounts::default();
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
    let mut told = EventCounts::default();
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
    let mut told = EventCounts::default();
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
            let mut told = EventCounts::default();
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
        let mut told = EventCounts::default();
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
    let mut told = EventCounts::default();
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
    let mut told = EventCounts::default();
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
    let mut told = EventCounts::default();
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
    let mut told = EventCounts::default();
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
