//! Flushes: READs of a host to itself, by each of its devices.

use core::time::Duration;

use doorbell::connect::FlushError;
use doorbell::provider::{PlacementConfig, WcStatus};
use doorbell_sim::Host;

use crate::processes::{A, LATENCY, Two, ms};
use crate::transfers::region;

/// Time passes, and a flush is done or has failed.
fn after(two: &mut Two, flusher: &mut doorbell::connect::Flusher<Host>, wait: Duration) -> bool {
    let until = two.fabric.now().to_ns() + wait.as_nanos() as u64;
    two.run(Duration::from_nanos(until), |_| false);
    flusher.poll().is_ok()
}

#[test]
fn a_flush_is_done_once_each_device_has_read() {
    for rails in [1, 2] {
        let mut two = Two::new(rails, "");
        two.connected(rails as u8);
        let memory = region(two.process(A), 4096);
        let target = memory.flush_target().unwrap();
        let a = two.process(A);
        let mut flusher = a.node.flusher(&a.workers).unwrap();
        assert!(flusher.is_complete());
        let first = flusher.begin(&target).unwrap().unwrap();
        flusher.poll().unwrap();
        assert!(!flusher.is_done(first), "nothing was read yet");
        assert!(after(&mut two, &mut flusher, 4 * LATENCY));
        assert!(flusher.is_done(first));
        // As many as can be at once, and their ends in order.
        let mut begun = Vec::new();
        while let Some(flush) = flusher.begin(&target).unwrap() {
            begun.push(flush);
        }
        assert_eq!(begun.len(), 64);
        assert!(begun.is_sorted() && begun.iter().all(|flush| !flusher.is_done(*flush)));
        assert!(after(&mut two, &mut flusher, ms(5)));
        assert!(begun.iter().all(|flush| flusher.is_done(*flush)));
        assert!(flusher.begin(&target).unwrap().is_some());
        two.fabric.audit().unwrap();
    }
}

#[test]
fn a_flush_of_memory_that_is_gone_fails() {
    let mut two = Two::new(1, "");
    two.connected(1);
    let target = region(two.process(A), 4096).flush_target().unwrap();
    let a = two.process(A);
    let mut flusher = a.node.flusher(&a.workers).unwrap();
    let flush = flusher.begin(&target).unwrap().unwrap();
    // The one behind it is flushed, and is no cause.
    assert!(flusher.begin(&target).unwrap().is_some());
    drop(target);
    assert!(!after(&mut two, &mut flusher, ms(5)));
    assert!(!flusher.is_done(flush));
    assert_eq!(flusher.failure(), Some(WcStatus::REM_ACCESS_ERR));
    // Nor does a later one succeed.
    let target = region(two.process(A), 64).flush_target().unwrap();
    let flush = flusher.begin(&target);
    assert!(!after(&mut two, &mut flusher, ms(5)));
    assert!(!flush.is_ok_and(|flush| flush.is_some_and(|flush| flusher.is_done(flush))));
}

#[test]
fn a_flush_of_memory_of_other_workers_begins_no_read() {
    let mut two = Two::new(2, "");
    two.connected(2);
    let memory = region(two.process(A), 4096);
    let a = two.process(A);
    let foreign = a
        .node
        .region(&a.workers[..1], 4096, &PlacementConfig::DEFAULT)
        .unwrap();
    let foreign = foreign.flush_target().unwrap();
    let mut flusher = a.node.flusher(&a.workers).unwrap();
    for _ in 0..2 {
        assert_eq!(flusher.begin(&foreign), Err(FlushError::OtherWorkers));
    }
    // The first device has a key, and would have read.
    let target = memory.flush_target().unwrap();
    let begun: Vec<_> = core::iter::from_fn(|| flusher.begin(&target).unwrap()).collect();
    assert_eq!(begun.len(), 64);
    assert!(after(&mut two, &mut flusher, ms(5)));
    assert!(begun.iter().all(|flush| flusher.is_done(*flush)));
}
