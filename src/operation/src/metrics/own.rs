//! Metric families that the caller defines.

use super::exposition::{Description, Kind};
use super::{Labels, Metrics};

/// A counter or a gauge of the caller, with the names of its labels. It is a static, so that its names are checked at compile time.
///
/// ```
/// use doorbell_operation::{MetricFamily, Metrics};
///
/// static ORDERS: MetricFamily<1> = MetricFamily::counter("engine_orders_total", "Orders by venue.", &["venue"]);
/// let mut metrics = Metrics::default();
/// metrics.own(&ORDERS, ["XETR"], 3);
/// assert!(metrics.to_string().ends_with("engine_orders_total{venue=\"XETR\"} 3\n"));
/// ```
#[derive(Debug)]
pub struct MetricFamily<const LABELS: usize> {
    description: Description,
    labels: &'static [&'static str; LABELS],
}

impl<const LABELS: usize> MetricFamily<LABELS> {
    /// A counter, which only increases.
    ///
    /// # Panics
    /// A name has other characters than letters, digits and `_`, or does not end with `_total`, or the help has a line feed or a backslash.
    /// Such a static does not compile.
    #[must_use]
    pub const fn counter(
        name: &'static str,
        help: &'static str,
        labels: &'static [&'static str; LABELS],
    ) -> Self {
        let is_total = matches!(name.as_bytes(), [.., b'_', b't', b'o', b't', b'a', b'l']);
        assert!(is_total, "the name of a counter ends with _total");
        Self::new(name, Kind::Counter, help, labels)
    }

    /// A gauge, which can increase and decrease.
    ///
    /// # Panics
    /// As for [`MetricFamily::counter`], except that the name may have any end.
    #[must_use]
    pub const fn gauge(
        name: &'static str,
        help: &'static str,
        labels: &'static [&'static str; LABELS],
    ) -> Self {
        Self::new(name, Kind::Gauge, help, labels)
    }

    const fn new(
        name: &'static str,
        kind: Kind,
        help: &'static str,
        labels: &'static [&'static str; LABELS],
    ) -> Self {
        assert!(is_word(name.as_bytes()), "a name is letters, digits and _");
        let mut rest: &[&str] = labels;
        while let [label, others @ ..] = rest {
            assert!(is_word(label.as_bytes()), "a label is letters, digits and _");
            rest = others;
        }
        let mut rest = help.as_bytes();
        while let [byte, others @ ..] = rest {
            assert!(
                *byte != b'\n' && *byte != b'\\',
                "a help is one line without backslashes"
            );
            rest = others;
        }
        let description = Description { name, kind, help };
        Self { description, labels }
    }
}

/// Whether a name begins with a letter, and has only letters, digits and `_`.
const fn is_word(name: &[u8]) -> bool {
    let [first, rest @ ..] = name else { return false };
    let mut rest = rest;
    while let [byte, others @ ..] = rest {
        if !byte.is_ascii_alphanumeric() && *byte != b'_' {
            return false;
        }
        rest = others;
    }
    first.is_ascii_alphabetic()
}

impl Metrics {
    /// Adds to a series of the caller, identified by the values of its labels. A value may be any text.
    pub fn own<const LABELS: usize>(
        &mut self,
        family: &'static MetricFamily<LABELS>,
        values: [&str; LABELS],
        value: u64,
    ) {
        let named = family.labels.iter().zip(values);
        let labels = named.fold(Labels::NONE, |labels, (name, value)| labels.and(name, value));
        self.families.add(&family.description, &labels, value);
    }
}
