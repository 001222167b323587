//! The repository's own files: which of them are tests on several kernels.

use super::check;
use crate::programs;

/// The documentation's statements about kernels other than the newest one rest on these.
const OF_SEVERAL_KERNELS: [&str; 14] = [
    "clients",
    "handshake-flood",
    "link-detection",
    "link-ends",
    "link-faults",
    "link-gone",
    "link-rails",
    "mesh-line",
    "mesh-ring",
    "mesh-triangle",
    "netdev-moved-plain",
    "shared-subnet",
    "shared-subnet-unhardened",
    "topology",
];

#[test]
fn what_is_promised_of_several_kernels_is_tested_on_them() {
    let folder = programs::workspace().unwrap().join("sim/scenarios");
    for name in OF_SEVERAL_KERNELS {
        let scenario = check::load(&folder.join(format!("{name}.toml"))).unwrap();
        let mut kernels = scenario.test_on;
        kernels.extend(scenario.all_on);
        assert!(kernels.len() >= 2, "{name} is tested on {kernels:?} alone");
    }
}
