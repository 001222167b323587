//! The scenario file as it is written: one struct for each table, one field for each key.
//!
//! This module decides the form of each single value; [`super::check`] decides whether values fit each other,
//! so names carry their place in the file.

use core::fmt;
use core::num::NonZeroU32;
use core::time::Duration;
use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};
use toml::Spanned;

/// A whole file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    pub(super) name: Spanned<String>,
    pub(super) about: Spanned<String>,
    pub(super) kernel: Option<Spanned<String>>,
    pub(super) hosts: Spanned<Vec<String>>,
    #[serde(default)]
    pub(super) links: Vec<Spanned<Link>>,
    #[serde(default)]
    pub(super) vars: BTreeMap<String, String>,
    pub(super) arp_hardening: Option<bool>,
    pub(super) rounds: Option<NonZeroU32>,
    #[serde(default)]
    pub(super) warmup_rounds: u32,
    pub(super) require_rdma_traffic: Option<Spanned<bool>>,
    #[serde(default)]
    pub(super) alternate: Vec<Spanned<Alternate>>,
    pub(super) steps: Vec<Spanned<Step>>,
    #[serde(default)]
    pub(super) metrics: Vec<Spanned<Metric>>,
    #[serde(default)]
    pub(super) compare: Vec<Spanned<Compare>>,
    #[serde(default)]
    pub(super) tables: Vec<Spanned<Table>>,
    #[serde(default)]
    pub(super) test_on: Vec<Spanned<String>>,
    #[serde(default)]
    pub(super) all_on: Vec<Spanned<String>>,
    pub(super) quick: Option<Spanned<bool>>,
    pub(super) beside_others: Option<Spanned<bool>>,
    #[serde(default)]
    pub(super) profile: Profile,
}

/// `[[links]]`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Link {
    pub(super) name: Option<String>,
    pub(super) hosts: [String; 2],
    pub(super) subnet: Spanned<String>,
    pub(super) rate: Option<Rate>,
    #[serde(default)]
    pub(super) delay: Delay,
    #[serde(default)]
    pub(super) loss: Loss,
    pub(super) mtu: Option<u32>,
}

impl Link {
    /// Its name, given or made of its hosts'.
    pub(super) fn name(&self) -> String {
        let [first, second] = &self.hosts;
        self.name.clone().unwrap_or_else(|| format!("{first}-{second}"))
    }
}

/// `[[alternate]]`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Alternate {
    pub(super) groups: Vec<Spanned<String>>,
    pub(super) rounds: Option<NonZeroU32>,
    pub(super) warmup_rounds: Option<u32>,
}

/// `[[steps]]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Step {
    pub(super) id: Spanned<String>,
    pub(super) for_each: Option<Spanned<ForEach>>,
    pub(super) host: Spanned<String>,
    pub(super) command: Spanned<Command>,
    #[serde(default)]
    pub(super) env: BTreeMap<String, Spanned<String>>,
    pub(super) group: Option<Spanned<String>>,
    pub(super) rounds: Option<Spanned<NonZeroU32>>,
    #[serde(default)]
    pub(super) background: bool,
    pub(super) at_end: Option<Spanned<AtEnd>>,
    #[serde(default)]
    pub(super) expect_exit: ExpectExit,
    pub(super) deadline_s: Option<Seconds>,
    #[serde(default)]
    pub(super) wait_for: Vec<Spanned<String>>,
    pub(super) ready: Option<Ready>,
    #[serde(default)]
    pub(super) expect_output: Vec<Spanned<String>>,
    #[serde(default)]
    pub(super) fails_if: Vec<Spanned<String>>,
    #[serde(default)]
    pub(super) files: Vec<Spanned<String>>,
    #[serde(default)]
    pub(super) tests: bool,
}

/// `ready = { … }`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Ready {
    pub(super) pattern: Option<Spanned<String>>,
    pub(super) port: Option<Spanned<u16>>,
    pub(super) within_s: Option<Seconds>,
}

/// `[[metrics]]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Metric {
    pub(super) name: Spanned<String>,
    pub(super) step: Spanned<String>,
    pub(super) pattern: Option<Spanned<String>>,
    pub(super) pointer: Option<Spanned<String>>,
    pub(super) unit: String,
    pub(super) scale: Option<Spanned<f64>>,
    pub(super) at_least: Option<Spanned<f64>>,
    pub(super) at_most: Option<Spanned<f64>>,
}

/// `[[compare]]`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Compare {
    pub(super) name: Option<String>,
    pub(super) metric: Spanned<String>,
    pub(super) to: Spanned<String>,
    pub(super) min: Option<Spanned<f64>>,
    pub(super) max: Option<Spanned<f64>>,
    #[serde(default)]
    pub(super) goal: bool,
}

/// `[[tables]]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Table {
    pub(super) title: Spanned<String>,
    pub(super) for_each: Option<Spanned<ForEach>>,
    pub(super) columns: Spanned<Vec<String>>,
    pub(super) rows: Vec<Spanned<Vec<Cell>>>,
}

/// Cell of a table: a text, or a figure of the run.
#[derive(Clone, Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "a cell is a text, { metric = NAME } or { ratio = NAME, to = NAME }"
)]
pub(super) enum Cell {
    Text(String),
    Metric(MetricCell),
    Ratio(RatioCell),
}

/// The median of a metric.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MetricCell {
    pub(super) metric: String,
}

/// The ratio of two metrics' medians.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RatioCell {
    pub(super) ratio: String,
    pub(super) to: String,
}

/// Set over which a step or a table is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ForEach {
    /// Once for each link of the file, in its order.
    Link,
}

/// A program with its arguments, or a line for `sh -e -c`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Argv(Vec<String>),
    Shell(String),
}

/// Which exit is the right one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ExpectExit {
    #[default]
    Zero,
    Code(i32),
    /// Any code but 0; an end by a signal is not one.
    Nonzero,
    Any,
}

/// How our own programs are built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Profile {
    /// Optimised, but quick to build.
    #[default]
    Lab,
    /// As an engine builds what it ships: for what counts instructions or compares speeds.
    Release,
}

impl Profile {
    /// Cargo's name of it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Lab => "lab",
            Self::Release => "release",
        }
    }
}

/// End of a background step when its scope ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum AtEnd {
    /// The runner ends it (TERM, then KILL).
    #[default]
    Stop,
    /// It must end by itself, before its deadline, with the expected exit.
    Wait,
}

/// Seconds, whole or not, more than none and at most a day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seconds(pub(super) Duration);

/// Bits per second, written with tc's units.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Rate(pub(super) u64);

/// A delay, written with its unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Delay(pub(super) Duration);

/// A share of packets in percent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Loss(pub(super) f64);

impl TryFrom<String> for Rate {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let units = [("kbit", 1e3), ("mbit", 1e6), ("gbit", 1e9), ("bit", 1.0)];
        match with_unit(&text, &units) {
            // Above 2^53 a float no longer counts single bits; no link is that fast.
            Some(bits) if (1.0..=1e15).contains(&bits) => {
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "between 1 and 1e15, checked on the line above"
                )]
                let bits = bits.round() as u64;
                Ok(Self(bits))
            }
            _ => Err(format!(
                "rate `{text}`: write a number and bit, kbit, mbit or gbit, as in 10gbit"
            )),
        }
    }
}

impl TryFrom<String> for Delay {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        with_unit(&text, &[("us", 1e-6), ("ms", 1e-3), ("s", 1.0)])
            .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
            .map(Self)
            .ok_or_else(|| format!("delay `{text}`: write a number and us, ms or s, as in 50us"))
    }
}

impl TryFrom<String> for Loss {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match with_unit(&text, &[("%", 1.0)]) {
            Some(percent) if (0.0..=100.0).contains(&percent) => Ok(Self(percent)),
            _ => Err(format!(
                "loss `{text}`: write a share from 0% to 100%, as in 0.5%"
            )),
        }
    }
}

/// A number before one of `units` (the first that fits), times that unit's factor.
fn with_unit(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    units.iter().find_map(|&(unit, factor)| {
        let number = text.trim().strip_suffix(unit)?.trim_end();
        // `parse` takes `inf`, `nan` and signs too; none of them is a figure here.
        let plain = number.chars().all(|c| c.is_ascii_digit() || c == '.');
        plain
            .then(|| number.parse::<f64>().ok())
            .flatten()
            .map(|number| number * factor)
    })
}

impl<'de> Deserialize<'de> for Command {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Form;
        impl<'de> Visitor<'de> for Form {
            type Value = Command;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array of a program and its arguments, or a string for the shell")
            }

            fn visit_str<E: de::Error>(self, line: &str) -> Result<Command, E> {
                if line.trim().is_empty() {
                    return Err(E::custom("command is empty"));
                }
                Ok(Command::Shell(line.to_owned()))
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, mut seq: A) -> Result<Command, A::Error> {
                let mut argv = Vec::new();
                while let Some(word) = seq.next_element::<String>()? {
                    argv.push(word);
                }
                if argv.first().is_none_or(String::is_empty) {
                    return Err(de::Error::custom("command names no program"));
                }
                Ok(Command::Argv(argv))
            }
        }
        deserializer.deserialize_any(Form)
    }
}

impl<'de> Deserialize<'de> for ExpectExit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Form;
        impl Visitor<'_> for Form {
            type Value = ExpectExit;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an exit code from 0 to 255, \"nonzero\" or \"any\"")
            }

            fn visit_i64<E: de::Error>(self, code: i64) -> Result<ExpectExit, E> {
                match u8::try_from(code) {
                    Ok(0) => Ok(ExpectExit::Zero),
                    Ok(code) => Ok(ExpectExit::Code(i32::from(code))),
                    Err(_) => Err(E::invalid_value(de::Unexpected::Signed(code), &self)),
                }
            }

            fn visit_str<E: de::Error>(self, word: &str) -> Result<ExpectExit, E> {
                match word {
                    "nonzero" => Ok(ExpectExit::Nonzero),
                    "any" => Ok(ExpectExit::Any),
                    _ => Err(E::invalid_value(de::Unexpected::Str(word), &self)),
                }
            }
        }
        deserializer.deserialize_any(Form)
    }
}

impl fmt::Display for ExpectExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zero => f.write_str("exit code 0"),
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Nonzero => f.write_str("an exit code other than 0"),
            Self::Any => f.write_str("any exit"),
        }
    }
}

impl<'de> Deserialize<'de> for Seconds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Form;
        impl Visitor<'_> for Form {
            type Value = Seconds;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("seconds, more than 0 and at most 86400")
            }

            fn visit_i64<E: de::Error>(self, seconds: i64) -> Result<Seconds, E> {
                match u32::try_from(seconds) {
                    Ok(whole @ 1..=86_400) => Ok(Seconds(Duration::from_secs(u64::from(whole)))),
                    _ => Err(E::invalid_value(de::Unexpected::Signed(seconds), &self)),
                }
            }

            fn visit_f64<E: de::Error>(self, seconds: f64) -> Result<Seconds, E> {
                let fits = seconds > 0.0 && seconds <= 86_400.0;
                match Duration::try_from_secs_f64(seconds) {
                    Ok(duration) if fits && !duration.is_zero() => Ok(Seconds(duration)),
                    _ => Err(E::invalid_value(de::Unexpected::Float(seconds), &self)),
                }
            }
        }
        deserializer.deserialize_any(Form)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_delays_and_losses_are_read_with_their_units() {
        let rate = |text: &str| Rate::try_from(text.to_owned()).map(|rate| rate.0);
        assert_eq!(rate("10gbit"), Ok(10_000_000_000));
        assert_eq!(rate("1.5 mbit"), Ok(1_500_000));
        assert_eq!(rate("8000bit"), Ok(8_000));
        for bad in ["10", "gbit", "-1gbit", "infgbit", "0bit", "10Gb"] {
            assert!(rate(bad).is_err(), "{bad}");
        }
        let delay = |text: &str| Delay::try_from(text.to_owned()).map(|delay| delay.0);
        assert_eq!(delay("50us"), Ok(Duration::from_micros(50)));
        assert_eq!(delay("0.5ms"), Ok(Duration::from_micros(500)));
        assert_eq!(delay("2s"), Ok(Duration::from_secs(2)));
        assert!(delay("50").is_err());
        let loss = |text: &str| Loss::try_from(text.to_owned()).map(|loss| loss.0);
        assert_eq!(loss("5%"), Ok(5.0));
        assert_eq!(loss("100%"), Ok(100.0));
        assert!(loss("100.1%").is_err());
        assert!(loss("5").is_err());
    }
}
