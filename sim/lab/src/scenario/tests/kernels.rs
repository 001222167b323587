//! The repository's own files: each test runs on two kernels.

use crate::scenario::repository;

/// Tests of what one kernel alone does: from Linux 7.1 on a network device takes its Soft-RoCE device along, and before it may not move.
const OF_ONE_KERNEL: [&str; 2] = ["netdev-moved", "netdev-refused"];

#[test]
fn each_test_runs_on_two_kernels() {
    let scenarios = repository().unwrap();
    let tests = scenarios.iter().filter(|scenario| !scenario.test_on.is_empty());
    for scenario in tests.filter(|scenario| !OF_ONE_KERNEL.contains(&&*scenario.name)) {
        let kernels = scenario.test_on.len() + scenario.all_on.len();
        assert!(
            kernels >= 2,
            "{} is tested on {:?} alone",
            scenario.name,
            scenario.test_on
        );
    }
}
