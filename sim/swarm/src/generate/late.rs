//! Links one rail of which carries WRITEs so late that it was given up before, while the process that they come to stands still. A place in
//! memory that it lent is not used again until then.

use doorbell_sim::Random;

use crate::case::{Case, Operation, What};
use crate::generate::links::port;
use crate::generate::quick::{one_of, pick};

/// A process stands still for longer than a WRITE comes behind the loss of its rail.
const STOPS_NS: u64 = 60_000_000;

/// Has the first line of a case of links be such one.
pub(super) fn aim(case: &mut Case, random: &mut Random) {
    let (Some(links), Some(line)) = (&mut case.links, case.lines.first_mut()) else {
        return;
    };
    // Slow rails, and processes that poll soon: one has a fragment, and has not yet heard that its first rail is fenced.
    (links.retained, links.ahead, links.polls_every_ns) = (64, 64, 5_000);
    links.places = one_of(random, &[2, 3]);
    case.bandwidth_mbps = one_of(random, &[100, 1000]);
    (case.classes, case.panics_every) = (None, 0);
    line.timeout = line.timeout.min(11);
    for host in line.hosts {
        let host = &mut case.hosts[host];
        (host.subnets, host.links, host.transfers) = (3, None, None);
    }
    let given_up_ns = (u64::from(line.retry_count) + 1) * (4096 << line.timeout);
    let late_ns = given_up_ns + 2_000_000 + random.below(given_up_ns.min(STOPS_NS / 2));
    let port = port(pick(random, 2), links.is_one_device);
    // It strikes nothing before it strikes all: a rail has to be up first.
    case.plan = format!(
        "delay 1000000000th write of h{}/{port}->any by {late_ns}ns",
        line.hosts[0]
    );
    let mut operations = Vec::new();
    let mut add = |end, what| operations.push(Operation { line: 0, end, what });
    let long = What::Send {
        count: 1,
        bytes: 3000,
    };
    add(0, What::Connect);
    add(0, What::Pass { ns: 10_000_000 });
    add(0, long);
    add(1, long);
    add(0, What::Pass { ns: 10_000_000 });
    add(0, What::StrikeAll);
    for _ in 0..2 + pick(random, 4) {
        let bytes = 2001 + random.below(2000) as u16;
        add(0, What::Send { count: 2, bytes });
        let ns = random.below(given_up_ns);
        add(0, What::Pass { ns });
        add(1, What::StopOnceHeard { ns: STOPS_NS });
        let step_ns = given_up_ns.max(STOPS_NS) / 20;
        for _ in 0..30 {
            add(0, What::Pass { ns: step_ns });
            add(0, What::Send { count: 2, bytes });
        }
        add(0, What::Pass { ns: 200_000_000 });
    }
    case.operations = operations;
}
