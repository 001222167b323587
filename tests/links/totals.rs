//! Counters of all links together: they only grow, whichever link ends.

use core::time::Duration;
use std::collections::BTreeMap;

use doorbell_operation::{Labels, Metrics};

use crate::processes::{A, B, Process, Two, ms};

/// Every counter of a process's links, by its series.
fn counters(two: &Two, at: usize) -> BTreeMap<String, u64> {
    let mut metrics = Metrics::default();
    metrics.links(&Labels::default(), &two.process(at).links);
    let text = metrics.to_string();
    let samples = text.lines().filter_map(|line| {
        let (series, value) = line.rsplit_once(' ')?;
        let is_counter = series.split('{').next()?.ends_with("_total") && !line.starts_with('#');
        is_counter.then(|| (series.to_owned(), value.parse().unwrap()))
    });
    samples.collect()
}

/// Lets time pass; reports of links do not matter.
fn pass(two: &mut Two, span: Duration) {
    let until = two.fabric.now().after(span);
    while two.fabric.now() < until {
        for process in two.processes.iter_mut().flatten() {
            let Process {
                links, workers, node, ..
            } = process;
            links.poll(node, workers, |_, _| {}).unwrap();
        }
        let next = two.fabric.now().after(Duration::from_micros(50));
        two.fabric.run_until(next);
    }
}

#[test]
fn what_two_links_to_one_peer_counted_does_not_fall_when_one_ends() {
    let mut two = Two::waiting(1, "");
    let handle = two.process(B).handle.unwrap();
    let a = two.process_mut(A);
    let links = [(); 2].map(|()| a.links.connect(&a.node, &a.workers, &handle).unwrap());
    pass(&mut two, ms(20));
    for _ in 0..10 {
        for link in links {
            two.process_mut(A).links.send(link, b"a message").unwrap();
        }
        pass(&mut two, ms(1));
    }
    let before = [A, B].map(|at| counters(&two, at));
    let series = "doorbell_link_rail_connections_total{rail=\"sim0\",peer=\"10.0.0.2\"}";
    assert_eq!(before[A][series], 2);
    let deadline = two.deadline(ms(100));
    two.process_mut(A).links.close(links[0], deadline);
    pass(&mut two, ms(200));
    assert_eq!(two.process(A).links.ids().collect::<Vec<_>>(), [links[1]]);
    for (at, before) in [A, B].into_iter().zip(before) {
        let after = counters(&two, at);
        for (series, value) in before {
            assert!(
                after.get(&series).is_some_and(|now| *now >= value),
                "{series} {value}"
            );
        }
        // To close is not to fail.
        let failed = after
            .iter()
            .filter(|(series, _)| series.contains("rail_failures"));
        assert_eq!(failed.map(|(_, count)| count).sum::<u64>(), 0);
    }
    // Rails that nobody has any more are not reported; the totals of all links stay.
    let deadline = two.deadline(ms(100));
    let before = counters(&two, A);
    two.process_mut(A).links.close(links[1], deadline);
    pass(&mut two, ms(200));
    let after = counters(&two, A);
    assert!(!after.keys().any(|series| series.contains("link_rail")));
    let sent = "doorbell_link_sent_fragments_total";
    assert!(after[sent] >= before[sent] && before[sent] >= 20, "{after:?}");
}
