//! Metric families, and their text format.
//!
//! Source: "Exposition formats" of the Prometheus documentation, text format 0.0.4.

use core::fmt;
use std::collections::BTreeMap;

use doorbell::worker::BATCH_BUCKETS;

use super::Labels;

/// Properties that all series of a family share.
#[derive(Debug)]
pub(super) struct Description {
    /// With the prefix, and with the unit at the end.
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// One line, without characters that need escaping.
    pub(super) help: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// Histogram with buckets by powers of two, as in
/// [`StatisticsSnapshot`](doorbell::worker::StatisticsSnapshot).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Buckets {
    counts: [u64; BATCH_BUCKETS],
    sum: u64,
}

#[derive(Clone, Debug)]
enum Series {
    Numbers(BTreeMap<Labels, u64>),
    Histograms(BTreeMap<Labels, Buckets>),
}

#[derive(Clone, Debug)]
struct Family {
    description: &'static Description,
    series: Series,
}

/// All families, sorted by name.
#[derive(Clone, Debug, Default)]
pub(super) struct Families {
    families: BTreeMap<&'static str, Family>,
}

impl Families {
    /// Adds to a counter or a gauge.
    pub(super) fn add(&mut self, description: &'static Description, labels: &Labels, value: u64) {
        let family = self.family(description, || Series::Numbers(BTreeMap::new()));
        if let Series::Numbers(series) = &mut family.series {
            let sum = series.entry(labels.clone()).or_default();
            *sum = sum.wrapping_add(value);
        }
    }

    /// Sets a counter that is kept elsewhere.
    pub(super) fn set(&mut self, description: &'static Description, labels: &Labels, value: u64) {
        let family = self.family(description, || Series::Numbers(BTreeMap::new()));
        if let Series::Numbers(series) = &mut family.series {
            series.insert(labels.clone(), value);
        }
    }

    /// Adds to a histogram.
    pub(super) fn add_buckets(
        &mut self,
        description: &'static Description,
        labels: &Labels,
        counts: &[u64; BATCH_BUCKETS],
        sum: u64,
    ) {
        let family = self.family(description, || Series::Histograms(BTreeMap::new()));
        if let Series::Histograms(series) = &mut family.series {
            let all = series.entry(labels.clone()).or_default();
            all.sum = all.sum.wrapping_add(sum);
            for (bucket, count) in all.counts.iter_mut().zip(counts) {
                *bucket = bucket.wrapping_add(*count);
            }
        }
    }

    fn family(&mut self, description: &'static Description, empty: impl FnOnce() -> Series) -> &mut Family {
        self.families.entry(description.name).or_insert_with(|| Family {
            description,
            series: empty(),
        })
    }
}

impl fmt::Display for Families {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Family { description, series } in self.families.values() {
            let Description { name, kind, help } = description;
            writeln!(f, "# HELP {name} {help}\n# TYPE {name} {kind}")?;
            match series {
                Series::Numbers(series) => {
                    for (labels, value) in series {
                        writeln!(f, "{name}{labels} {value}")?;
                    }
                }
                Series::Histograms(series) => {
                    for (labels, buckets) in series {
                        buckets.render(f, name, labels)?;
                    }
                }
            }
        }
        Ok(())
    }
}

impl Buckets {
    /// Buckets are cumulative: each includes the counts of all smaller ones.
    fn render(&self, f: &mut fmt::Formatter<'_>, name: &str, labels: &Labels) -> fmt::Result {
        let (mut up_to, mut through) = (1_u64, 0_u64);
        for count in &self.counts {
            through = through.wrapping_add(*count);
            let labels = labels.and("le", &up_to.to_string());
            writeln!(f, "{name}_bucket{labels} {through}")?;
            up_to = up_to.wrapping_mul(2);
        }
        let all = labels.and("le", "+Inf");
        writeln!(f, "{name}_bucket{all} {through}")?;
        writeln!(f, "{name}_sum{labels} {}", self.sum)?;
        writeln!(f, "{name}_count{labels} {through}")
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        })
    }
}
