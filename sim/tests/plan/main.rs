//! The text of plans, by the fuzzer's seeds.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

mod oracle;
#[path = "../../../fuzz/replay.rs"]
mod replay;

use replay::replay;

#[test]
fn plans_read_back() {
    replay("plan", |seed| {
        oracle::check(seed);
        // Cut anywhere, and with any character another.
        for at in 0..seed.len() {
            oracle::check(&seed[..at]);
            for instead in *b"0;#%>-:/. \x00\xff9s" {
                let mut changed = seed.to_vec();
                changed[at] = instead;
                oracle::check(&changed);
            }
        }
    });
}
