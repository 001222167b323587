//! Links whose peer stops, dies, or is another.

use doorbell::vocabulary::session::{FinalReason, SessionEvent};

use crate::processes::{A, B, Process, Two, config, ms};

#[test]
fn a_process_that_is_stopped_is_stalled_and_goes_on() {
    for stopped in [A, B] {
        let mut two = Two::new(2, "");
        two.connected(2);
        two.sends_every = [Some(ms(1)), Some(ms(1))];
        two.run(ms(50), |_| false);
        // As SIGSTOP does: the device goes on.
        two.process_mut(stopped).is_stopped = true;
        two.run(ms(3050), |_| false);
        two.process_mut(stopped).is_stopped = false;
        two.run(ms(3200), |_| false);
        assert!(two.settle(ms(4000)), "{:?} {:?}", two.counts(A), two.counts(B));
        let other = two.process(1 - stopped);
        let since = |event| other.saw(event).map(|at| at.to_ns() / 1_000_000);
        assert!(
            (140..200).contains(&since(SessionEvent::Stalled).unwrap()),
            "{:?}",
            other.events
        );
        assert!(
            (3050..3060).contains(&since(SessionEvent::Resumed).unwrap()),
            "{:?}",
            other.events
        );
        for at in [A, B] {
            let process = two.process(at);
            let down = |(_, event): &(_, SessionEvent)| matches!(event, SessionEvent::RailDown { .. });
            assert!(!process.events.iter().any(down), "{:?}", process.events);
        }
        assert_eq!(two.counts(1 - stopped).rails_dead, 0);
        two.fabric.audit().unwrap();
    }
}

#[test]
fn a_process_that_is_replaced_ends_the_link_and_each_message() {
    let mut two = Two::new(2, "");
    two.connected(2);
    two.sends_every = [Some(ms(1)), None];
    two.run(ms(50), |_| false);
    two.processes[B] = None;
    two.run(ms(80), |_| false);
    two.processes[B] = Some(Process::on(&two.hosts[B], &config(), true));
    assert!(two.run(ms(3000), |two| two.process(A).over.is_some()));
    let a = two.process(A);
    assert_eq!(a.over, Some(FinalReason::PeerRestarted));
    assert_eq!(a.done + a.unknown, a.sent);
    assert!(a.unknown > 0 && a.done > 0);
    // Another link to the new one begins with nothing of the old.
    let handle = two.process(B).handle.unwrap();
    two.sends_every = [None; 2];
    let mut again = Process::on(&two.hosts[A], &config(), false);
    again.connect(&handle);
    two.processes[A] = Some(again);
    two.sends_every = [Some(ms(1)), None];
    let until = ms(two.fabric.now().to_ns() / 1_000_000 + 500);
    two.run(until, |two| two.process(A).sent >= 50);
    assert!(two.settle(until));
    two.fabric.audit().unwrap();
}

#[test]
fn a_process_that_connected_and_dies_ends_the_link_of_its_peer() {
    let mut two = Two::new(2, "");
    two.connected(2);
    two.sends_every = [None, Some(ms(1))];
    two.run(ms(50), |_| false);
    two.processes[A] = None;
    assert!(two.run(ms(12_000), |two| two.process(B).over.is_some()));
    let b = two.process(B);
    assert_eq!(b.over, Some(FinalReason::Unreachable));
    assert_eq!(b.done + b.unknown, b.sent);
    let lost = b.saw(SessionEvent::Recovering).unwrap();
    assert!(lost.to_ns() < 250_000_000, "{lost:?}");
    two.fabric.audit().unwrap();
}
