//! Spans of time that verbs and packets express by codes.

use crate::quirks::Quirks;

/// How long a peer may be silent, by the code of the queue pair.
///
/// Source: InfiniBand Architecture volume 1, section 9.7.6.1.3.
pub(crate) fn ack_timeout_ns(code: u8, quirks: &Quirks) -> u64 {
    quirks.round_up(4096_u64 << (code & 0x1f))
}

/// How long a receiver that is not ready asks to wait, by its code.
pub(crate) fn not_ready_ns(code: u8, quirks: &Quirks) -> u64 {
    let hundredths_ms = NOT_READY_HUNDREDTHS_MS.get(usize::from(code & 0x1f));
    quirks.round_up(hundredths_ms.map_or(0, |span| u64::from(*span).saturating_mul(10_000)))
}

/// By code, in hundredths of a millisecond. Source: section 9.7.5.2.8, table 45.
const NOT_READY_HUNDREDTHS_MS: [u32; 32] = [
    65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1_024, 1_536, 2_048,
    3_072, 4_096, 6_144, 8_192, 12_288, 16_384, 24_576, 32_768, 49_152,
];

#[cfg(test)]
mod tests {
    use super::{ack_timeout_ns, not_ready_ns};
    use crate::Quirks;

    #[test]
    fn codes_are_spans() {
        let iba = Quirks::IBA;
        assert_eq!(ack_timeout_ns(1, &iba), 8_192);
        assert_eq!(ack_timeout_ns(14, &iba), 67_108_864);
        assert_eq!(not_ready_ns(1, &iba), 10_000);
        assert_eq!(not_ready_ns(12, &iba), 640_000);
        assert_eq!(not_ready_ns(0, &iba), 655_360_000);
        assert_eq!(not_ready_ns(31, &iba), 491_520_000);
    }
}
