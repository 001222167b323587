//! The goal of a metric.

use core::fmt;

use serde::{Deserialize, Serialize};

/// Bounds that a figure should keep. A figure that misses them is reported and fails nothing: on a kernel under emulation,
/// time is the machine's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Goal {
    pub(crate) at_least: Option<f64>,
    pub(crate) at_most: Option<f64>,
}

impl Goal {
    /// Whether a figure keeps the bounds.
    pub(crate) fn is_met(self, figure: f64) -> bool {
        self.at_least.is_none_or(|bound| figure >= bound) && self.at_most.is_none_or(|bound| figure <= bound)
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.at_least, self.at_most) {
            (Some(least), Some(most)) => write!(f, "{least} to {most}"),
            (Some(least), None) => write!(f, "at least {least}"),
            (None, Some(most)) => write!(f, "at most {most}"),
            (None, None) => f.write_str("-"),
        }
    }
}
