//! Trouble: hosts that vanish, stand still or are slow, ports and addresses that go, and posts that fail. The
//! tests cover the reports, and the differences between devices.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests"
)]

#[expect(dead_code, reason = "the suite's tests run elsewhere")]
mod suite;

use core::time::Duration;

use doorbell_core::network::{Network, Waited};
use doorbell_core::provider::{
    Arena, AsyncEvent, CompletionQueue, Context, LentCompletion as _, Operation, PostError, PostFlags,
    ProtectionDomain, Provider, QueuePair, ReceiveBatch, ReceiveQueue, SendBatch, SendQueue,
    SharedReceiveQueue, SharedReceiveQueueConfig,
};
use doorbell_core::{Clock, Deadline, Instant, IpPrefix, Mtu, PortState, QpState, Qpn, WcStatus};
use doorbell_sim::plan::{Action, Name};
use doorbell_sim::{Fabric, Host, PortConfig, Quirks, Stream};
use suite::{End, Rig, SLOTS, Side, USUAL, Wish, connected_as, hosts, poll_nothing};

const ENOMEM: i32 = 12;

struct On(Fabric);

impl On {
    fn new(plan: &str) -> Self {
        Self::with(Quirks::IBA, plan)
    }

    fn with(quirks: Quirks, plan: &str) -> Self {
        let builder = Fabric::builder().quirks(quirks);
        Self(builder.plan(plan.parse().unwrap()).build())
    }

    fn sides(&self) -> [Side<Host>; 2] {
        connected_as(&self.0, [PATIENT; 2])
    }

    fn perform(&self, action: Action) {
        self.0.perform(&action).unwrap();
    }

    fn run_for(&self, micros: u64) {
        self.0.run_for(Duration::from_micros(micros));
    }
}

/// Tries long enough for what is meant to pass.
const PATIENT: Wish = Wish {
    retry_count: 5,
    ..USUAL
};

fn host(name: &str) -> Name {
    Name::new(name).unwrap()
}

fn events(side: &Side<Host>) -> Vec<AsyncEvent> {
    core::iter::from_fn(|| side.context.next_event().unwrap()).collect()
}

#[test]
fn s30_a_port_that_goes_and_comes_is_reported_and_outlived() {
    let on = On::new("at 10us port b/sim0:1 down for 5ms");
    let [mut near, far] = on.sides();
    on.run_for(20);
    assert_eq!(events(&far), [AsyncEvent::PortError(1)]);
    assert_eq!(far.context.port(1).unwrap().state, PortState::DOWN);
    near.post(Operation::Write(far.at(0)), b"x");
    assert!(
        near.status().is_success(),
        "it is tried again until the port is there"
    );
    assert_eq!(events(&far), [AsyncEvent::PortActive(1)]);
    assert_eq!(events(&near), []);
    assert!(on.0.audit().unwrap().packets.lost > 0);
}

#[test]
fn s30_an_address_that_changes_is_reported_and_cuts_connections() {
    let on = On::new("at 10us gid b 10.0.0.2 becomes 10.0.0.9");
    let [mut near, far] = on.sides();
    near.post(Operation::Write(far.at(0)), b"x");
    assert!(near.status().is_success());
    on.run_for(20);
    assert_eq!(events(&far), [AsyncEvent::GidChange(1)]);
    let address = far.context.port(1).unwrap().gids[0].address.unwrap();
    assert_eq!(address.address().to_string(), "10.0.0.9");
    assert_eq!(address.prefix_bits(), 24);
    near.post(Operation::Write(far.at(0)), b"x");
    assert_eq!(near.status(), WcStatus::RETRY_EXC_ERR);
    // The old address is free for others.
    let prefix = IpPrefix::new("10.0.0.2".parse().unwrap(), 24).unwrap();
    on.0.host("c", vec![PortConfig::new("sim0", &[prefix])]).unwrap();
}

#[test]
fn a_host_that_vanishes_is_silent_and_comes_back_without_its_queue_pairs() {
    let on = On::new("");
    let [mut near, mut far] = on.sides();
    far.post_receives(2);
    on.perform(Action::Kill(host("b")));
    assert_eq!(events(&far), [AsyncEvent::DeviceFatal]);
    assert_eq!(far.state(), QpState::Error);
    near.post(Operation::Send, b"x");
    assert_eq!(near.status(), WcStatus::RETRY_EXC_ERR);
    assert_eq!(on.0.audit().unwrap().packets.delivered, 0);
    on.perform(Action::Restart(host("b")));
    let [mut near, mut far] = connected_as(&Fresh(on.0.clone()), [USUAL; 2]);
    far.post_receives(1);
    near.post(Operation::Send, b"x");
    assert!(near.status().is_success());
}

/// Other hosts of the same fabric, one of them of the name that vanished.
struct Fresh(Fabric);

impl Rig for Fresh {
    type P = Host;

    fn ends(&self) -> [End<Host>; 2] {
        [("b", "10.0.1.1"), ("g", "10.0.1.2")]
            .map(|(name, address)| hosts::end(&self.0, name, address, Mtu::B1024))
    }
}

#[test]
fn a_host_that_stands_still_goes_on_with_what_came_in() {
    let on = On::new("");
    let [mut near, mut far] = on.sides();
    far.post_receives(1);
    on.perform(Action::Pause(host("b"), true));
    near.post(Operation::Send, b"wait");
    on.run_for(3000);
    assert_eq!(on.0.audit().unwrap().packets.delivered, 0);
    on.perform(Action::Pause(host("b"), false));
    assert!(near.status().is_success());
    assert_eq!(far.received(1)[0].payload, b"wait");
    poll_nothing(&mut far.receive_completions);
}

#[test]
fn a_slow_host_takes_its_time_for_each_packet() {
    let on = On::new("at 0ns slow b by 100us for 1s");
    let [mut near, far] = on.sides();
    on.run_for(1);
    let begin = on.0.now().to_ns();
    for _ in 0..4 {
        near.post(Operation::Write(far.at(0)), b"x");
    }
    near.sent(4);
    let passed = on.0.now().to_ns() - begin;
    assert!((400_000..500_000).contains(&passed), "{passed} ns");
}

#[test]
fn a_post_that_fails_hands_back_what_was_not_taken() {
    let on = On::new("fail 2nd post of a with 12; seed 3");
    let [mut near, far] = on.sides();
    near.post(Operation::Write(far.at(0)), b"x");
    let slots = [0_u8; 4].map(|byte| near.slot(&[byte]));
    let mut batch = near.send.stage();
    for slot in slots {
        let pushed = batch.push(Operation::Write(far.at(0)), [slot], PostFlags::SIGNALED);
        pushed.map_err(|refused| refused.reason).unwrap();
    }
    let mut back = 0;
    let error = batch.ring_returning(|_, slot| {
        back += 1;
        drop(slot);
    });
    let error = error.unwrap_err();
    assert_eq!(error.cause.errno, ENOMEM);
    assert_eq!((error.posted + error.unposted, back), (4, error.unposted));
    assert!(error.unposted > 0);
    near.sent(1 + error.posted as usize);
    assert_eq!((near.send.in_flight(), near.slots_home()), (0, SLOTS));
    near.post(Operation::Write(far.at(0)), b"y");
    assert!(near.status().is_success(), "and then it works");
    on.0.audit().unwrap();
}

/// Stages so many receives and posts them.
fn post_receives<R: ReceiveBatch<Slot = doorbell_sim::Slot>>(
    mut batch: R,
    slots: impl IntoIterator<Item = doorbell_sim::Slot>,
) -> Result<u32, PostError> {
    for slot in slots {
        batch.push([slot]).map_err(|refused| refused.reason).unwrap();
    }
    batch.ring()
}

#[test]
fn a_post_of_receives_that_fails_takes_the_first_of_them_and_the_slots_of_the_rest_go_home() {
    let on = On::new("fail 1st receive-post of a with 12; seed 3");
    let [mut near, mut far] = on.sides();
    // Requests are counted apart, and so are other hosts.
    far.post_receives(1);
    near.post(Operation::Send, b"x");
    assert!(near.status().is_success());
    let slots = [0_u8; 4].map(|byte| near.slot(&[byte]));
    let error = post_receives(near.receive.stage(), slots).unwrap_err();
    assert_eq!((error.cause.call, error.cause.errno), ("post_recv", ENOMEM));
    assert_eq!(
        (error.posted + error.unposted, error.posted),
        (4, near.receive.in_flight())
    );
    assert!(error.posted > 0 && error.unposted > 0, "{error:?}");
    assert_eq!(near.slots_home() + error.posted, SLOTS);
    let slots = [0_u8; 4].map(|byte| near.slot(&[byte]));
    assert_eq!(
        post_receives(near.receive.stage(), slots),
        Ok(4),
        "and then it works"
    );
    let due = error.posted + 4;
    for _ in 0..due {
        far.post(Operation::Send, b"came");
    }
    far.sent(due as usize);
    let received = near.received(due as usize);
    assert!(received.iter().all(|received| received.payload == b"came"));
    assert_eq!((near.receive.in_flight(), near.slots_home()), (0, SLOTS));
    on.0.audit().unwrap();
}

#[test]
fn a_post_to_a_shared_receive_queue_fails_alike() {
    let on = On::new("fail every 2nd receive-post of b with 12; seed 3");
    let [_near, mut far] = on.sides();
    let config = SharedReceiveQueueConfig {
        depth: 6,
        scatter_max: 1,
    };
    let queue = far.domain.shared_receive_queue(&far.receive_completions, &config);
    let mut queue = queue.unwrap();
    let slots = [0_u8; 2].map(|byte| far.slot(&[byte]));
    assert_eq!(post_receives(queue.stage(), slots), Ok(2));
    let slots = [0_u8; 4].map(|byte| far.slot(&[byte]));
    let error = post_receives(queue.stage(), slots).unwrap_err();
    assert_eq!((error.cause.call, error.cause.errno), ("post_srq_recv", ENOMEM));
    assert_eq!(
        (error.posted + error.unposted, 2 + error.posted),
        (4, queue.in_flight())
    );
    assert!(error.unposted > 0);
    assert_eq!(far.slots_home() + queue.in_flight(), SLOTS);
    let missing = queue.room();
    let slots: Vec<_> = (0..missing).map(|_| far.slot(&[0])).collect();
    assert_eq!(
        post_receives(queue.stage(), slots),
        Ok(missing),
        "and then it works"
    );
    on.0.audit().unwrap();
    drop(queue);
    assert_eq!(far.slots_home(), SLOTS);
}

#[test]
fn what_was_followed_before_it_is_calm_is_over_and_what_is_followed_then_begins() {
    let plan = "drop every 1st write of any->any; fail every 1st post of a with 12";
    let on = On::new(&format!("{plan}; at 1ms calm"));
    let [mut near, far] = on.sides();
    let post = |near: &mut Side<Host>| {
        let slot = near.slot(b"x");
        let mut batch = near.send.stage();
        let pushed = batch.push(Operation::Write(far.at(0)), [slot], PostFlags::SIGNALED);
        pushed.map_err(|refused| refused.reason).unwrap();
        batch.ring()
    };
    assert_eq!(post(&mut near).unwrap_err().cause.errno, ENOMEM);
    on.run_for(1001);
    post(&mut near).unwrap();
    assert!(near.status().is_success());
    assert_eq!(on.0.audit().unwrap().packets.lost, 0);
    // Counted anew.
    on.0.follow(
        &"drop 2nd write of a->b; fail 3rd post of a with 12"
            .parse()
            .unwrap(),
    );
    for lost in [0, 1] {
        post(&mut near).unwrap();
        assert!(near.status().is_success());
        assert_eq!(on.0.audit().unwrap().packets.lost, lost);
    }
    assert_eq!(post(&mut near).unwrap_err().cause.errno, ENOMEM);
}

#[test]
fn s21_an_overrun_ends_the_queue_or_loses_one_completion() {
    for (quirks, works_on) in [(Quirks::IBA, false), (Quirks::RXE_6_1, true)] {
        let on = On::with(quirks, "");
        let [mut near, mut far] = on.sides();
        on.perform(Action::Overrun(host("a")));
        far.post(Operation::Write(near.at(0)), b"of another host");
        assert!(far.status().is_success());
        near.post(Operation::Write(far.at(0)), b"lost");
        near.post(Operation::Write(far.at(0)), b"kept");
        let raised = events(&near);
        assert_eq!(raised[0], AsyncEvent::CompletionQueueError);
        if works_on {
            assert_eq!(raised.len(), 1);
            assert_eq!(near.sent(1)[0].retired.count(), 2, "a later one covers it");
            assert_eq!(near.state(), QpState::ReadyToSend);
        } else {
            assert_eq!(raised[1], AsyncEvent::QueuePairFatal(near.control.qpn()));
            assert!(near.send_completions.poll(|_| ()).is_err());
            assert_eq!(near.state(), QpState::Error);
        }
    }
}

#[test]
fn quirks_differ_where_they_say() {
    for quirks in [Quirks::IBA, Quirks::RXE_6_1, Quirks::RXE_7, Quirks::MLX5] {
        // A receive that is too small (S10).
        let on = On::with(quirks, "");
        let [mut near, mut far] = on.sides();
        far.post_receives(1);
        let slots = [near.slot(&[1; 256]), near.slot(b"x")];
        near.post_slots(Operation::Send, slots, PostFlags::empty());
        assert_eq!(near.status(), quirks.short_receive_reported);
        assert_eq!(far.received(1)[0].arrival.status, quirks.short_receive);
        assert_eq!(events(&far), []);
        // Late requests and receives (S3).
        far.post_receives(1);
        far.received_if(quirks.late_receives_are_flushed);
        near.post(Operation::Send, b"late");
        if quirks.late_requests_vanish {
            poll_nothing(&mut near.send_completions);
        } else {
            assert_eq!(near.status(), WcStatus::WR_FLUSH_ERR);
        }
        // Refused access, with and without an event (S9).
        let [mut near, mut far] = On::with(quirks, "").sides();
        far.post_receives(1);
        let beyond = far.at(suite::WINDOW_BYTES as u64);
        near.post(Operation::WriteWithImmediate(beyond, 1), b"x");
        assert_eq!(near.status(), WcStatus::REM_ACCESS_ERR);
        assert_eq!(far.received(1)[0].arrival.status, quirks.refused_immediate);
        let [mut near, far] = On::with(quirks, "").sides();
        near.post(Operation::Write(far.at(suite::WINDOW_BYTES as u64)), b"x");
        assert_eq!(near.status(), WcStatus::REM_ACCESS_ERR);
        let raised = AsyncEvent::QueuePairAccess(far.control.qpn());
        let expected = if quirks.refused_access_is_reported {
            vec![raised]
        } else {
            vec![]
        };
        assert_eq!(events(&far), expected);
    }
    assert_ne!(Quirks::RXE_6_1, Quirks::RXE_7);
}

trait Late {
    fn received_if(&mut self, flushed: bool);
}

impl Late for Side<Host> {
    /// A receive that came late is flushed, or comes once something else is asked.
    fn received_if(&mut self, flushed: bool) {
        if !flushed {
            poll_nothing(&mut self.receive_completions);
            self.post_with(Operation::Send, b"", PostFlags::empty());
        }
        assert_eq!(self.received(1)[0].arrival.status, WcStatus::WR_FLUSH_ERR);
    }
}

#[test]
fn hosts_may_differ() {
    let fabric = Fabric::new();
    let port = |address: &str| {
        let prefix = IpPrefix::new(address.parse().unwrap(), 24).unwrap();
        [PortConfig::new("sim0", &[prefix])]
    };
    let soft = fabric
        .host_with("soft", &port("10.0.0.1"), Quirks::RXE_7)
        .unwrap();
    let hard = fabric.host_with("hard", &port("10.0.0.2"), Quirks::MLX5).unwrap();
    assert!(soft.open("sim0").is_ok() && hard.open("sim0").is_ok());
}

/// A fabric that is driven, so that what happens at one moment is in the test's hands.
fn driven(quirks: Quirks, plan: &str) -> On {
    let builder = Fabric::builder().quirks(quirks).plan(plan.parse().unwrap());
    On(builder.driven().build())
}

/// Lets one SEND come to `far`, and nothing after it.
fn let_one_come(on: &On, near: &mut Side<Host>, far: &mut Side<Host>) {
    near.post(Operation::Send, b"once");
    let mut came = 0;
    while came == 0 {
        assert!(on.0.step());
        let mut taken = None;
        came = far
            .receive_completions
            .poll(|completion| taken = Some(completion.keep()))
            .unwrap();
        if let Some(completion) = taken {
            assert_eq!(far.retire_receive(completion).payload, b"once");
        }
    }
}

#[test]
fn a_device_that_repeats_delivers_the_last_message_into_every_receive_as_it_fails() {
    for (quirks, late_ns) in [
        (Quirks::RXE_REPEATING, 1000),
        (Quirks::RXE_REPEATING, 1001),
        (Quirks::RXE_7, 0),
    ] {
        let on = driven(quirks, "");
        let [mut near, mut far] = on.sides();
        far.post_receives(4);
        let_one_come(&on, &mut near, &mut far);
        on.0.run_for(Duration::from_nanos(late_ns));
        far.control.fail().unwrap();
        let repeats = quirks.repeats_failing_ns > 0 && late_ns <= quirks.repeats_failing_ns;
        for received in far.received(3) {
            if repeats {
                assert_eq!(received.arrival.status, WcStatus::SUCCESS);
                assert_eq!(received.payload, b"once");
            } else {
                assert_eq!(received.arrival.status, WcStatus::WR_FLUSH_ERR);
            }
        }
        assert_eq!(far.state(), QpState::Error);
        on.0.audit().unwrap();
        // The fabric distinguishes messages that came from repeated ones.
        let again = if repeats { 3 } else { 0 };
        let of = |host, qpn| on.0.repeated(host, "sim0", qpn);
        assert_eq!([of("b", Some(far.control.qpn())), of("b", None)], [again; 2]);
        assert_eq!([of("a", None), of("b", Some(Qpn::from_low_bits(1)))], [0; 2]);
        // The sender has no report of it.
        near.control.fail().unwrap();
        assert_eq!(near.status(), WcStatus::WR_FLUSH_ERR);
    }
}

#[test]
fn what_a_device_repeats_is_what_came_last_and_fits() {
    let on = driven(Quirks::RXE_REPEATING, "");
    let [mut near, mut far] = on.sides();
    far.post_receives(3);
    let_one_come(&on, &mut near, &mut far);
    // A WRITE with immediate is the last now; it touched no receive, and its repetitions do not either.
    near.post(Operation::WriteWithImmediate(far.at(0), 7), b"other");
    while far.window_bytes(0, 5) != b"other" {
        assert!(on.0.step());
    }
    far.control.fail().unwrap();
    for received in far.received(2) {
        assert_eq!(received.arrival.status, WcStatus::SUCCESS);
        assert_eq!(
            (received.arrival.immediate, received.arrival.payload_bytes),
            (Some(7), 5)
        );
        assert_eq!(received.payload, []);
    }
    on.0.audit().unwrap();
}

#[test]
fn what_came_is_not_repeated_once_another_message_has_begun_to_come() {
    let quirks = Quirks {
        repeats_failing_ns: u64::MAX,
        ..Quirks::RXE_REPEATING
    };
    // The last packet of the second message is lost.
    let on = driven(quirks, "drop 3rd send of a->b");
    let wish = Wish {
        path_mtu: Mtu::B256,
        ..PATIENT
    };
    let [mut near, mut far] = connected_as(&on.0, [wish; 2]);
    for _ in 0..3 {
        let mut batch = far.receive.stage();
        let slots = [(); 2].map(|()| far.arena.lease().unwrap());
        batch.push(slots).map_err(|refused| refused.reason).unwrap();
        batch.ring().unwrap();
    }
    near.post(Operation::Send, b"once");
    let slots = [near.slot(&[1; 256]), near.slot(b"x")];
    near.post_slots(Operation::Send, slots, PostFlags::empty());
    on.0.run_for(Duration::from_micros(10));
    far.control.fail().unwrap();
    // In order (S6): the one that was begun, and the one that was not.
    let received = far.received(3);
    let statuses: Vec<_> = received.iter().map(|received| received.arrival.status).collect();
    assert_eq!(
        statuses,
        [WcStatus::SUCCESS, WcStatus::WR_FLUSH_ERR, WcStatus::WR_FLUSH_ERR]
    );
    assert_eq!(on.0.repeated("b", "sim0", None), 0);
    on.0.audit().unwrap();
}

#[test]
fn a_device_that_waits_for_failed_peers_does_so_while_they_are_there_but_for_no_link() {
    let silent = Quirks::MLX5;
    for (quirks, plan, ends) in [
        (silent, "", None),
        (silent, "at 0ns link a-b down", Some(WcStatus::RETRY_EXC_ERR)),
        (Quirks::IBA, "", Some(WcStatus::RETRY_EXC_ERR)),
    ] {
        let on = driven(quirks, plan);
        let [mut near, far] = on.sides();
        let mut far = far;
        far.control.fail().unwrap();
        near.post(Operation::Write(far.at(0)), b"x");
        on.0.run_for(Duration::from_secs(60));
        match ends {
            Some(status) => assert_eq!(near.status(), status),
            None => {
                poll_nothing(&mut near.send_completions);
                assert_eq!(near.state(), QpState::ReadyToSend);
                near.control.fail().unwrap();
                assert_eq!(near.status(), WcStatus::WR_FLUSH_ERR);
            }
        }
    }
    let on = driven(silent, "");
    let [mut near, mut far] = on.sides();
    far.control.fail().unwrap();
    near.post(Operation::Write(far.at(0)), b"x");
    on.0.run_for(Duration::from_secs(60));
    poll_nothing(&mut near.send_completions);
    drop(far);
    on.0.run_for(Duration::from_secs(60));
    assert_eq!(near.status(), WcStatus::RETRY_EXC_ERR);
}

#[test]
fn a_clock_that_jumps_is_its_hosts_alone_and_ends_what_waits_for_it() {
    let fabric = Fabric::builder()
        .plan("at 4ms clock a ahead 3s".parse().unwrap())
        .driven()
        .build();
    let [a, b] = hosts::pair(&fabric).map(|end| end.provider);
    let wait = |host: &Host, until_ns| {
        let nothing = core::iter::empty::<Waited<'_, Stream>>();
        host.wait(None, nothing, Deadline::at(Instant::from_ns(until_ns)))
            .unwrap();
    };
    wait(&a, 3_000_000);
    assert_eq!(
        [a.now(), b.now(), fabric.now()].map(Instant::to_ns),
        [3_000_000; 3]
    );
    // It would have waited for two seconds: the jump ends it, at its time.
    wait(&a, 2_000_000_000);
    assert_eq!(fabric.now().to_ns(), 4_000_000);
    assert_eq!([a.now(), b.now()].map(Instant::to_ns), [3_004_000_000, 4_000_000]);
    // Objects open on its devices follow the same clock.
    let open = [&a, &b].map(|host| host.open("sim0").unwrap());
    assert_eq!(
        open.map(|context| context.now().to_ns()),
        [3_004_000_000, 4_000_000]
    );
    // From then on its deadlines are by the clock that jumped.
    wait(&a, 3_005_000_000);
    assert_eq!(fabric.now().to_ns(), 5_000_000);
    wait(&b, 6_000_000);
    assert_eq!(fabric.now().to_ns(), 6_000_000);
}
