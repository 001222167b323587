//! Links that one side ends by itself, and the reports at the other.

use doorbell::RemoteAccess;
use doorbell::link::{FinalReason, LinkConfig, PushRefusal, RequestRefusal, Violation};
use doorbell::wire::RefusalReason;

use crate::one_sided::granted;
use crate::processes::{A, B, Process, Two, config, ms};

/// Two that are linked over two rails, each with a configuration of its own.
fn linked(configs: [LinkConfig; 2], plan: &str) -> Two {
    let mut two = Two::waiting(2, plan);
    for (at, config) in configs.iter().enumerate() {
        two.processes[at] = None;
        two.processes[at] = Some(Process::on(&two.hosts[at], config, at == B));
    }
    two.begin();
    two.connected(2);
    two
}

/// Runs until both ends of the link are over; why each was.
fn ends(two: &mut Two, until_ms: u64) -> [Option<FinalReason>; 2] {
    two.run(ms(until_ms), |two| {
        two.processes
            .iter()
            .flatten()
            .all(|process| process.over.is_some())
    });
    [A, B].map(|at| two.process(at).over)
}

fn close(two: &mut Two, at: usize, within_ms: u64) {
    let deadline = two.deadline(ms(within_ms));
    let process = two.process_mut(at);
    process.links.close(process.link.unwrap(), deadline);
}

#[test]
fn who_sends_a_message_that_is_too_long_for_its_peer_learns_that() {
    for from in [A, B] {
        let to = 1 - from;
        let mut configs = [config(); 2];
        configs[to].message_bytes_max = 1000;
        let mut two = linked(configs, "");
        two.process_mut(from).message_bytes = 20_000;
        two.process_mut(from).send().unwrap();
        let ends = ends(&mut two, 500);
        assert_eq!(ends[to], Some(FinalReason::Violation(Violation::TooLong)));
        assert_eq!(
            ends[from],
            Some(FinalReason::EndedByPeer(RefusalReason::TOO_LONG))
        );
        assert_eq!(two.process(from).unknown, 1);
        two.fabric.audit().unwrap();
    }
}

#[test]
fn a_long_fragment_that_comes_early_is_named_as_the_reason() {
    let mut configs = [config(); 2];
    configs[A].session.fragment_bytes = 4000;
    let mut two = linked(configs, "");
    // Each message is one fragment. In order they are delivered, whatever their length.
    two.process_mut(A).message_bytes = 4000;
    two.sends_every = [Some(ms(1)), None];
    two.run(ms(95), |_| false);
    assert!(two.process(B).delivered > 10, "{:?}", two.process(B).over);
    // The fragments of a message go over both rails, so one of them comes early.
    two.process_mut(A).message_bytes = 12_000;
    let ends = ends(&mut two, 500);
    let reason = FinalReason::Violation(Violation::FragmentTooLong);
    let told = FinalReason::EndedByPeer(RefusalReason::TOO_LONG);
    assert_eq!(ends, [Some(told), Some(reason)]);
}

#[test]
fn whose_peer_closes_with_something_open_learns_that_it_was_closed() {
    for closing in [A, B] {
        let mut two = linked([config(); 2], "");
        let links = [A, B].map(|at| two.process(at).link.unwrap());
        // As SIGSTOP does: nothing is acknowledged.
        two.process_mut(1 - closing).is_stopped = true;
        two.process_mut(closing).send().unwrap();
        close(&mut two, closing, 100);
        assert!(two.run(ms(500), |two| two.process(closing).over.is_some()));
        two.process_mut(1 - closing).is_stopped = false;
        let ends = ends(&mut two, 1000);
        assert_eq!(ends[closing], Some(FinalReason::Closed));
        assert_eq!(ends[1 - closing], Some(FinalReason::PeerClosed));
        for at in [A, B] {
            let over = ends[at].unwrap();
            assert_eq!(
                two.process_mut(at).refusals(links[at]),
                (PushRefusal::Over(over), RequestRefusal::Over(over))
            );
        }
        two.fabric.audit().unwrap();
    }
}

#[test]
fn why_a_link_is_over_is_said_to_who_sends_until_the_next_one_at_its_place_is() {
    let closed = (
        PushRefusal::Over(FinalReason::Closed),
        RequestRefusal::Over(FinalReason::Closed),
    );
    let never = (PushRefusal::Closing, RequestRefusal::Closing);
    let mut two = linked([config(); 2], "");
    let first = two.process(A).link.unwrap();
    close(&mut two, A, 100);
    assert_eq!(ends(&mut two, 500)[A], Some(FinalReason::Closed));
    for at in [A, B] {
        two.process_mut(at).over = None;
    }
    two.begin();
    let second = two.process(A).link.unwrap();
    assert!(two.run(ms(1000), |two| two.process(A).links.is_connected(second)));
    assert_eq!(two.process_mut(A).refusals(first), closed);
    close(&mut two, A, 100);
    assert_eq!(ends(&mut two, 2000)[A], Some(FinalReason::Closed));
    assert_eq!(two.process_mut(A).refusals(first), never);
    assert_eq!(two.process_mut(A).refusals(second), closed);
}

#[test]
fn whose_peer_ended_it_without_a_rail_learns_why_as_it_comes_back() {
    // It closes with nothing open.
    let mut two = linked([config(); 2], "at 50ms link a-b down for 1s");
    two.run(ms(300), |_| false);
    close(&mut two, B, 5000);
    let closed = [Some(FinalReason::PeerClosed), Some(FinalReason::Closed)];
    assert_eq!(ends(&mut two, 3000), closed);
    // It gives it up sooner.
    let mut hasty = config();
    hasty.session.recover_within = ms(500);
    let mut two = linked([config(), hasty], "at 50ms link a-b down for 1s");
    two.run(ms(45), |_| false);
    two.process_mut(A).send().unwrap();
    let given_up = FinalReason::EndedByPeer(RefusalReason::GIVEN_UP);
    assert_eq!(
        ends(&mut two, 3000),
        [Some(given_up), Some(FinalReason::Unreachable)]
    );
    two.fabric.audit().unwrap();
}

#[test]
fn who_was_let_reach_memory_learns_as_it_comes_back() {
    let (mut two, _memory, _) = granted("", RemoteAccess::ALL);
    two.process_mut(A).is_stopped = true;
    two.process_mut(B).send().unwrap();
    close(&mut two, B, 50);
    assert!(two.run(ms(500), |two| two.process(B).over.is_some()));
    two.process_mut(A).is_stopped = false;
    assert_eq!(ends(&mut two, 2000)[A], Some(FinalReason::PeerClosed));
    two.fabric.audit().unwrap();
}
