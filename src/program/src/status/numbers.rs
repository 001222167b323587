//! Serializes values of the metrics as JSON: there each value is a float or a text, but here counts
//! are integers.

use serde::Serializer;

/// A count. A number that is not a count, such as NaN, becomes null.
pub(super) fn count<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    match whole(*value) {
        Some(count) => serializer.serialize_u64(count),
        None => serializer.serialize_none(),
    }
}

/// Counts by name.
pub(super) fn counts<S: Serializer>(
    values: &std::collections::BTreeMap<String, f64>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(values.iter().map(|(name, value)| (name, whole(*value))))
}

/// The number of a rank or a port from the text of a label; null if it is not a number.
pub(super) fn number<S: Serializer>(text: &str, serializer: S) -> Result<S::Ok, S::Error> {
    match text.parse::<u64>() {
        Ok(number) => serializer.serialize_u64(number),
        Err(_) => serializer.serialize_none(),
    }
}

/// Serializes like [`number`], or as null.
pub(super) fn optional_number<S: Serializer>(
    text: &Option<String>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    number(text.as_deref().unwrap_or_default(), serializer)
}

/// Ranks, separated by commas in the text.
pub(super) fn numbers<S: Serializer>(text: &str, serializer: S) -> Result<S::Ok, S::Error> {
    let ranks = text.split(',').filter_map(|rank| rank.trim().parse::<u64>().ok());
    serializer.collect_seq(ranks)
}

fn whole(value: f64) -> Option<u64> {
    /// 2^53: floats represent all counts below it exactly.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is within 0 and 2^53"
    )]
    (0.0..=EXACT).contains(&value).then_some(value as u64)
}
