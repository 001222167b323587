//! Operations one after the other against a plain model, by the fuzzer's seeds and by made-up bytes.
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

use doorbell_sim::Random;
use replay::replay;

#[test]
fn operations() {
    replay("operations", |bytes| {
        let _ = oracle::check(bytes);
    });
}

/// Bytes by the thousand; and they come to everything that the model judges.
#[test]
fn any_operations_end_as_the_model_says() {
    let mut random = Random::new(1);
    let (mut arrived, mut failed, mut lost) = (0, 0, 0);
    for _ in 0..400 {
        let bytes: Vec<u8> = (0..random.below(500))
            .map(|_| random.draw().to_le_bytes()[0])
            .collect();
        let ended = oracle::check(&bytes);
        arrived += ended.arrived;
        failed += ended.failed;
        lost += ended.lost;
    }
    assert!(
        arrived > 300 && failed > 50 && lost > 100,
        "{arrived} arrived, {failed} failed, {lost} lost"
    );
}
