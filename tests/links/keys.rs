//! Links whose keys are changed while they carry messages.

use doorbell::link::{HealthState, SessionEvent};
use doorbell::{KeyRing, Trust};

use crate::fabric::key;
use crate::processes::{A, B, SECRET, Two, ms};

const OLD: (u32, &str) = (1, SECRET);
const NEW: (u32, &str) = (2, "another");

/// From now on a process has this key alone.
fn trusts(two: &Two, at: usize, (id, name): (u32, &str)) {
    let ring = KeyRing::new(key(id, name));
    two.process(at).node.set_trust(Trust::keys(ring));
}

/// By which keys a process has the connections of its rails, each on a device of its own.
fn keys(two: &mut Two, at: usize) -> Vec<Vec<u32>> {
    let workers = two.process_mut(at).workers.iter_mut();
    let of_worker = workers.map(|worker| {
        let ids: Vec<_> = worker.channels().collect();
        let key = |id| worker.channel(id).unwrap().peer().key().unwrap().to_u32();
        ids.into_iter().map(key).collect()
    });
    of_worker.collect()
}

fn state(two: &Two, at: usize, rail: u8) -> HealthState {
    let process = two.process(at);
    process.links.rail_state(process.link.unwrap(), rail)
}

#[test]
fn a_rail_that_comes_back_has_the_new_key_and_by_the_old_one_it_does_not() {
    let plan = "at 50ms link a/sim0-b/sim0 down for 200ms; at 5s link a/sim0-b/sim0 down for 200ms";
    let mut two = Two::new(2, plan);
    two.connected(2);
    two.sends_every = [Some(ms(5)), Some(ms(5))];
    two.run(ms(40), |_| false);
    for at in [A, B] {
        trusts(&two, at, NEW);
        assert_eq!(keys(&mut two, at), [[OLD.0], [OLD.0]]);
    }
    // Connections stay; the rail that is lost comes back by the new key.
    let is_up = |two: &Two| [A, B].iter().all(|at| state(two, *at, 0) == HealthState::Up);
    assert!(two.run(ms(300), |two| state(two, A, 0) == HealthState::Down));
    assert!(two.run(ms(4500), is_up), "{:?}", two.process(A).events);
    for at in [A, B] {
        assert_eq!(keys(&mut two, at), [[NEW.0], [OLD.0]]);
    }
    assert_eq!(two.process(B).links.handshakes().untrusted.unknown_key, 0);

    // One that goes by the old key still is refused as often as it tries, and has its other rail.
    two.run(ms(4900), |_| false);
    trusts(&two, A, OLD);
    assert!(two.run(ms(5500), |two| state(two, A, 0) == HealthState::Down));
    two.run(ms(9000), |_| false);
    for at in [A, B] {
        assert_ne!(state(&two, at, 0), HealthState::Up);
        assert_eq!(keys(&mut two, at), [vec![], vec![OLD.0]]);
        assert_eq!(two.process(at).saw(SessionEvent::Recovering), None);
    }
    assert!(two.process(B).links.handshakes().untrusted.unknown_key > 0);

    // With the new one it is let in again.
    trusts(&two, A, NEW);
    assert!(two.run(ms(14_000), is_up), "{:?}", two.process(A).events);
    for at in [A, B] {
        assert_eq!(keys(&mut two, at), [[NEW.0], [OLD.0]]);
    }
    assert!(two.settle(ms(15_000)), "{:?} {:?}", two.counts(A), two.counts(B));
    two.fabric.audit().unwrap();
}
