//! Memory that each peer costs one hub stays within its goal (`docs/performance.md`), as `memory_per_peer` counts
//! it.

use std::process::Command;

/// Goal for our own memory, for each peer.
const BYTES_MAX: u32 = 2048;

#[test]
fn a_peer_costs_no_more_than_the_goal() {
    for peers in ["64", "1024"] {
        let output = Command::new(env!("CARGO_BIN_EXE_memory_per_peer"))
            .arg(peers)
            .output()
            .unwrap();
        assert!(output.status.success());
        let printed = String::from_utf8(output.stdout).unwrap();
        let mut words = printed.split([' ', ',']).skip_while(|word| *word != "ours");
        let bytes: u32 = words.nth(1).unwrap().parse().unwrap();
        assert!((1..=BYTES_MAX).contains(&bytes), "{printed}");
    }
}
