//! Links between ports of several addresses: one port is one rail.

use doorbell::vocabulary::session::{HealthState, SessionEvent};
use doorbell_sim::PortConfig;

use crate::fabric::prefix;
use crate::processes::{A, B, Two, ms};

fn port(device: &str, addresses: &[&str]) -> PortConfig {
    let addresses: Vec<_> = addresses.iter().map(|address| prefix(address)).collect();
    PortConfig::new(device, &addresses)
}

/// How many connections each process has.
fn channels(two: &Two) -> [usize; 2] {
    [A, B].map(|at| {
        let workers = &two.process(at).workers;
        workers.iter().map(|worker| worker.channels().count()).sum()
    })
}

#[test]
fn two_ports_of_two_families_are_one_rail() {
    let at = |host: u8| {
        vec![port(
            "sim0",
            &[&format!("10.0.0.{host}/24"), &format!("fd00::{host}/64")],
        )]
    };
    let mut two = Two::between([at(1), at(2)], "", None);
    two.connected(1);
    two.run(ms(300), |_| false);
    assert_eq!(channels(&two), [1, 1]);
    two.sends_every = [Some(ms(1)), Some(ms(1))];
    two.run(ms(400), |_| false);
    assert!(two.settle(ms(600)));
    two.fabric.audit().unwrap();
}

#[test]
fn a_port_that_two_lead_to_has_one_rail_and_the_other_once_that_is_lost() {
    let a = vec![port("sim0", &["10.0.0.1/24"]), port("sim1", &["10.0.1.1/24"])];
    let b = vec![port("sim0", &["10.0.0.2/24", "10.0.1.2/24"])];
    let mut two = Two::between([a, b], "at 100ms link a/sim0-b/sim0 down for 400ms", None);
    two.connected(1);
    two.sends_every = [Some(ms(1)), Some(ms(1))];
    two.run(ms(95), |_| false);
    let link = two.process(A).link.unwrap();
    let state = |two: &Two, rail| two.process(A).links.rail_state(link, rail);
    assert_eq!(
        (state(&two, 0), state(&two, 1)),
        (HealthState::Up, HealthState::Down)
    );
    assert_eq!(channels(&two), [1, 1]);
    assert_eq!(two.counts(A).rails_dead, 0);
    // The peer's port is reached from the other one, as soon as the first is known to be lost.
    assert!(
        two.run(ms(300), |two| state(two, 1) == HealthState::Up),
        "{:?}",
        two.process(A).events
    );
    // The first is back, and stands by in its turn.
    two.run(ms(2500), |_| false);
    assert_eq!(
        (state(&two, 0), state(&two, 1)),
        (HealthState::Down, HealthState::Up)
    );
    assert_eq!(channels(&two), [1, 1]);
    assert!(two.process(A).saw(SessionEvent::RailUp { rail: 0 }).is_some());
    assert!(two.settle(ms(3000)), "{:?} {:?}", two.counts(A), two.counts(B));
    two.fabric.audit().unwrap();
}

#[test]
fn where_one_rail_stays_dark_the_other_is_had_though_the_peer_noticed_later() {
    let a = vec![port("sim0", &["10.0.0.1/24"]), port("sim1", &["10.0.1.1/24"])];
    let b = vec![port("sim0", &["10.0.0.2/24", "10.0.1.2/24"])];
    for at_us in (100_000..160_000).step_by(9_500) {
        let plan = format!("at {at_us}us link a/sim0-b/sim0 down");
        let mut two = Two::between([a.clone(), b.clone()], &plan, None);
        two.connected(1);
        two.sends_every = [Some(ms(1)), None];
        two.run(ms(95), |_| false);
        let link = two.process(A).link.unwrap();
        let is_up = |two: &Two| two.process(A).links.rail_state(link, 1) == HealthState::Up;
        assert!(two.run(ms(3000), is_up), "{at_us}: {:?}", two.process(A).events);
        assert!(two.settle(ms(4000)), "{:?} {:?}", two.counts(A), two.counts(B));
        two.fabric.audit().unwrap();
    }
}
