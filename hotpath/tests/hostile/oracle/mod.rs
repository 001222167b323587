//! Invariants that hold for any bytes that a peer writes. Property tests, corpora and the fuzzer all check them.

#[path = "../../../../core/tests/wire/oracle/choices.rs"]
mod choices;
pub(crate) mod credits;
mod memory;
pub(crate) mod rings;

/// The count that eight bytes announce, by `docs/wire-format.md`: a count, and its complement.
fn announced(word: [u8; 8]) -> Option<u32> {
    let number = |half: &[u8]| {
        half.iter()
            .fold(0_u32, |number, byte| number << 8 | u32::from(*byte))
    };
    let (count, check) = (number(&word[..4]), number(&word[4..]));
    (count ^ check == u32::MAX).then_some(count)
}

/// The count that is believed of what was announced, where `sent` went out and the peer has `depth` places:
/// as many messages as `sent` or up to `depth` more. All counted from zero and never round.
fn believed(announced: u32, start: u32, sent: u64, depth: u64) -> Option<u64> {
    (sent..=sent + depth).find(|count| (u64::from(start) + count) % (1 << 32) == u64::from(announced))
}
