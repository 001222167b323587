//! Tests of memory that a peer may write, credit words and rings, by the fuzzer's seeds and by made-up bytes.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "a test fails by panicking"
)]

mod oracle;
#[path = "../../../fuzz/replay.rs"]
mod replay;

use proptest::collection::vec;
use proptest::prelude::{any, proptest};
use replay::replay;

#[test]
fn credits() {
    replay("credits", oracle::credits::check);
}

#[test]
fn rings() {
    replay("rings", |bytes| {
        let _ = oracle::rings::check(bytes);
    });
}

/// Two halves of any kind: each is none, all, one bit or all but one, or next to it, with each.
#[test]
fn halves_of_every_kind_announce_what_they_do() {
    let bits = (0..32).map(|bit| 1_u32 << bit);
    let kinds = bits.flat_map(|bit| [bit, bit - 1, bit | 1, !bit, !bit ^ 1]);
    let mut kinds: Vec<u32> = kinds.collect();
    kinds.sort_unstable();
    kinds.dedup();
    for count in &kinds {
        for check in &kinds {
            // A word of depth 7, counted from 0: its two halves are written, then read.
            let first = [[13].as_slice(), &count.to_be_bytes(), &[0]].concat();
            let second = [[13].as_slice(), &check.to_be_bytes(), &[1, 4]].concat();
            let bytes = [[5, 0, 0, 0, 0].as_slice(), &first, &second].concat();
            oracle::credits::check(&bytes);
        }
    }
}

/// Many messages both ways round, and nobody lies: the check does not live on lies alone.
#[test]
fn an_honest_ring_is_one() {
    for how in 0..16 {
        let rounds = (0..200_u8).flat_map(|round| [0, round % 50, round, 5, 60, 9]);
        let bytes: Vec<u8> = [how].into_iter().chain(rounds).collect();
        assert!(oracle::rings::check(&bytes));
    }
    assert!(!oracle::rings::check(&[0, 11, 0, 0, 0]));
}

proptest! {
    #[test]
    fn any_bytes_keep_every_promise(bytes in vec(any::<u8>(), 0..600)) {
        oracle::credits::check(&bytes);
        let _ = oracle::rings::check(&bytes);
    }
}
