//! The text of plans, by the fuzzer's seeds.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod oracle;

use std::fs;
use std::path::Path;

fn replay(target: &str, check: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../fuzz/corpus")
        .join(target);
    let mut replayed = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let seed = fs::read(entry.unwrap().path()).unwrap();
        check(&seed);
        // Cut anywhere, and with any character another.
        for at in 0..seed.len() {
            check(&seed[..at]);
            for instead in *b"0;#%>-:/. \x00\xff9s" {
                let mut changed = seed.clone();
                changed[at] = instead;
                check(&changed);
            }
        }
        replayed += 1;
    }
    assert!(replayed > 0, "no seed of {target}");
}

#[test]
fn plans_read_back() {
    replay("plan", oracle::check);
}
