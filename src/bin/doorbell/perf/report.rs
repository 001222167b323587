//! What a measurement found, as a table for people and as JSON.

use core::fmt::Write;

use doorbell::vocabulary::provider::Provider;
use serde::Serialize;

use super::bandwidth::Bandwidth;
use super::control::Control;
use super::error::PerfError;
use super::latency::Latency;
use super::link::Tally;
use super::pattern::Mismatch;
use super::test::{Kind, Role, Test};

/// Everything a measurement found on one side.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) version: &'static str,
    pub(crate) kind: Kind,
    pub(crate) role: Role,
    #[serde(flatten)]
    pub(crate) between: Option<Between>,
    /// Where this side received in a shared receive queue, how many receives it had beyond a share.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) shared_receives: Option<u32>,
    pub(crate) tests: Vec<Row>,
    pub(crate) passed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
}

/// Who measured with whom.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Between {
    pub(crate) device: String,
    /// The address of the peer's RDMA port.
    pub(crate) peer: String,
    /// What the two ports and the settings agreed on.
    pub(crate) path_mtu_bytes: u32,
}

/// One test.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Row {
    #[serde(flatten)]
    pub(crate) test: Test,
    /// Whether the messages went inline.
    pub(crate) inline: bool,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub(crate) figures: Option<Figures>,
    /// What this side checked.
    pub(crate) checked_messages: u64,
    pub(crate) checked_bytes: u64,
    /// What the peer says it checked.
    pub(crate) checked_messages_by_peer: Option<u64>,
    pub(crate) corrupt_messages: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) first_corruption: Option<Mismatch>,
}

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Figures {
    Latency(Latency),
    Bandwidth(Bandwidth),
}

impl Between {
    pub(super) fn of<P: Provider>(control: &mut Control<P>) -> Result<Self, PerfError> {
        let device = control.device();
        let peer = *control.channel()?.peer();
        Ok(Self {
            device,
            peer: peer.address().to_string(),
            path_mtu_bytes: peer.path_mtu().bytes(),
        })
    }
}

impl Row {
    pub(super) fn new(
        test: &Test,
        figures: Option<Figures>,
        tally: &Tally,
        checked_messages_by_peer: Option<u64>,
    ) -> Self {
        Self {
            test: *test,
            inline: test.is_inline(),
            figures,
            checked_messages: tally.messages,
            checked_bytes: tally.bytes,
            checked_messages_by_peer,
            corrupt_messages: tally.faults,
            first_corruption: tally.first_fault,
        }
    }
}

impl Report {
    /// The report as text.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        if let Some(Between {
            device,
            peer,
            path_mtu_bytes,
        }) = &self.between
        {
            let version = self.version;
            push(
                &mut text,
                format_args!("{device} to {peer}, path MTU {path_mtu_bytes} bytes, doorbell {version}\n"),
            );
        }
        push(&mut text, format_args!("{}", table(&self.tests)));
        if let Some(error) = &self.error {
            push(&mut text, format_args!("FAILED: {error}\n"));
        } else {
            let checked = |row: &Row| {
                let by_peer = row.checked_messages_by_peer.unwrap_or(0);
                row.checked_messages.max(by_peer)
            };
            let messages = self.tests.iter().map(checked).fold(0, u64::saturating_add);
            push(
                &mut text,
                format_args!("every byte of {messages} messages checked: all as sent\n"),
            );
        }
        text
    }
}

/// The tests as tables: those of latency, then those of bandwidth, then those only served.
pub(crate) fn table(rows: &[Row]) -> String {
    let mut text = String::new();
    latencies(&mut text, rows);
    bandwidths(&mut text, rows);
    served(&mut text, rows);
    text
}

fn latencies(text: &mut String, rows: &[Row]) {
    let mut late = 0_u64;
    let latencies = rows.iter().filter_map(|row| match row.figures {
        Some(Figures::Latency(latency)) => Some((row, latency)),
        _ => None,
    });
    for (index, (row, latency)) in latencies.enumerate() {
        if index == 0 {
            push(
                text,
                format_args!(
                    "{:<12} {:>9} {:>9} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}  us\n",
                    "latency", "bytes", "count", "min", "p50", "p99", "p99.9", "max", "mean"
                ),
            );
        }
        let Latency {
            count,
            is_one_way,
            min_ns,
            p50_ns,
            p99_ns,
            p99_9_ns,
            max_ns,
            mean_ns,
            ..
        } = latency;
        let [min, p50, p99, p99_9, max, mean] =
            [min_ns, p50_ns, p99_ns, p99_9_ns, max_ns, mean_ns].map(micros);
        late = late.saturating_add(latency.late);
        push(
            text,
            format_args!(
                "{:<12} {:>9} {count:>9} {min:>10} {p50:>10} {p99:>10} {p99_9:>10} {max:>10} {mean:>10}  {}{}\n",
                row.test.op,
                row.test.message_bytes,
                if is_one_way { "one way" } else { "round trip" },
                if row.inline { ", inline" } else { "" },
            ),
        );
    }
    if late > 0 {
        push(
            text,
            format_args!(
                "{late} polled messages had their last byte before others: this device does not write in order\n"
            ),
        );
    }
}

fn bandwidths(text: &mut String, rows: &[Row]) {
    let bandwidths = rows.iter().filter_map(|row| match row.figures {
        Some(Figures::Bandwidth(bandwidth)) => Some((row, bandwidth)),
        _ => None,
    });
    for (index, (row, bandwidth)) in bandwidths.enumerate() {
        if index == 0 {
            push(
                text,
                format_args!(
                    "{:<12} {:>9} {:>9} {:>6} {:>6} {:>9} {:>12} {:>11} {:>11}\n",
                    "bandwidth",
                    "bytes",
                    "count",
                    "depth",
                    "batch",
                    "doorbells",
                    "messages/s",
                    "MB/s",
                    "MiB/s"
                ),
            );
        }
        let Bandwidth {
            messages,
            doorbells,
            messages_per_second,
            bytes_per_second,
            ..
        } = bandwidth;
        push(
            text,
            format_args!(
                "{:<12} {:>9} {messages:>9} {:>6} {:>6} {doorbells:>9} {messages_per_second:>12.0} {:>11.2} {:>11.2}{}\n",
                row.test.op,
                row.test.message_bytes,
                row.test.depth,
                row.test.batch,
                bytes_per_second / 1e6,
                bytes_per_second / 1_048_576.0,
                if row.inline { "  inline" } else { "" },
            ),
        );
    }
}

fn served(text: &mut String, rows: &[Row]) {
    let served = rows.iter().filter(|row| row.figures.is_none());
    for (index, row) in served.enumerate() {
        if index == 0 {
            push(
                text,
                format_args!(
                    "{:<12} {:>9} {:>12} {:>15} {:>8}\n",
                    "served", "bytes", "checked", "checked by peer", "corrupt"
                ),
            );
        }
        push(
            text,
            format_args!(
                "{:<12} {:>9} {:>12} {:>15} {:>8}\n",
                row.test.op,
                row.test.message_bytes,
                row.checked_messages,
                row.checked_messages_by_peer.unwrap_or(0),
                row.corrupt_messages,
            ),
        );
    }
}

fn micros(ns: f64) -> String {
    format!("{:.2}", ns / 1e3)
}

fn push(text: &mut String, arguments: core::fmt::Arguments<'_>) {
    // A String takes everything.
    let _always = text.write_fmt(arguments);
}
