//! The result of a measurement, as a table and as JSON.

use core::fmt::Write;
use core::time::Duration;

use doorbell::provider::Provider;
use serde::Serialize;

use super::bandwidth::Bandwidth;
use super::control::Control;
use super::error::PerfError;
use super::latency::Latency;
use super::link::Tally;
use super::pattern::Mismatch;
use super::test::{Kind, Role, Test};
use crate::columns::{Align, aligned};

/// All results of a measurement on one side.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    /// Set if no RDMA device was used.
    pub(crate) simulated: bool,
    pub(crate) kind: Kind,
    pub(crate) role: Role,
    #[serde(flatten)]
    pub(crate) between: Option<MeasuredEnds>,
    /// The receives of the shared receive queue in addition to the connection's own, if this side
    /// used one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) shared_receives: Option<u32>,
    pub(crate) tests: Vec<Row>,
    #[serde(skip)]
    pub(crate) error: Option<String>,
}

/// The two ends of a measurement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct MeasuredEnds {
    pub(crate) device: String,
    /// The address of the peer's RDMA port.
    pub(crate) peer: String,
    /// The path MTU in use, which both ports and the settings limit.
    pub(crate) path_mtu_bytes: u32,
}

/// One test.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Row {
    #[serde(flatten)]
    pub(crate) test: Test,
    /// Whether the messages were sent inline.
    pub(crate) inline: bool,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub(crate) figures: Option<Figures>,
    /// Messages that this side checked.
    pub(crate) checked_messages: u64,
    pub(crate) checked_bytes: u64,
    /// Messages that the peer reported as checked.
    pub(crate) checked_messages_by_peer: Option<u64>,
    pub(crate) corrupt_messages: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) first_corruption: Option<Mismatch>,
}

/// The measured figures.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Figures {
    Latency(Latency),
    Bandwidth(Bandwidth),
}

impl Figures {
    /// The total duration of the timed sections.
    pub(super) fn timed(&self) -> Duration {
        match self {
            Self::Latency(latency) => {
                let round_trips = if latency.is_one_way { 2.0 } else { 1.0 };
                #[expect(clippy::cast_precision_loss, reason = "an estimate")]
                let ns = latency.mean_ns * round_trips * latency.count as f64;
                Duration::try_from_secs_f64(ns / 1e9).unwrap_or(Duration::MAX)
            }
            Self::Bandwidth(bandwidth) => Duration::from_nanos(bandwidth.elapsed_ns),
        }
    }
}

impl MeasuredEnds {
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
        if let Some(MeasuredEnds {
            device,
            peer,
            path_mtu_bytes,
        }) = &self.between
        {
            let version = env!("CARGO_PKG_VERSION");
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

/// The tests as tables: first latency, then bandwidth, then tests that this side only served.
pub(crate) fn table(rows: &[Row]) -> String {
    let mut text = String::new();
    latencies(&mut text, rows);
    bandwidths(&mut text, rows);
    served(&mut text, rows);
    text
}

fn latencies(text: &mut String, rows: &[Row]) {
    let latencies: Vec<_> = rows
        .iter()
        .filter_map(|row| match row.figures {
            Some(Figures::Latency(latency)) => Some((row, latency)),
            _ => None,
        })
        .collect();
    let head = [
        "latency", "bytes", "count", "min", "p50", "p99", "p99.9", "max", "mean", "us",
    ];
    write_table(
        text,
        head,
        latencies.iter().map(|(row, latency)| {
            let way = if latency.is_one_way {
                "one way"
            } else {
                "round trip"
            };
            [
                row.test.op.to_string(),
                row.test.message_bytes.to_string(),
                latency.count.to_string(),
                micros(latency.min_ns),
                micros(latency.p50_ns),
                micros(latency.p99_ns),
                micros(latency.p99_9_ns),
                micros(latency.max_ns),
                micros(latency.mean_ns),
                format!("{way}{}", if row.inline { ", inline" } else { "" }),
            ]
        }),
    );
    let late = latencies.iter().map(|(_, latency)| latency.late);
    let late = late.fold(0, u64::saturating_add);
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
    let head = [
        "bandwidth",
        "bytes",
        "count",
        "depth",
        "batch",
        "doorbells",
        "messages/s",
        "MB/s",
        "MiB/s",
        "",
    ];
    write_table(
        text,
        head,
        bandwidths.map(|(row, bandwidth)| {
            [
                row.test.op.to_string(),
                row.test.message_bytes.to_string(),
                bandwidth.messages.to_string(),
                row.test.depth.to_string(),
                row.test.batch.to_string(),
                bandwidth.doorbells.to_string(),
                format!("{:.0}", bandwidth.messages_per_second),
                format!("{:.2}", bandwidth.bytes_per_second / 1e6),
                format!("{:.2}", bandwidth.bytes_per_second / 1_048_576.0),
                if row.inline { "inline" } else { "" }.to_owned(),
            ]
        }),
    );
}

fn served(text: &mut String, rows: &[Row]) {
    let served = rows.iter().filter(|row| row.figures.is_none());
    let head = ["served", "bytes", "checked", "checked by peer", "corrupt", ""];
    write_table(
        text,
        head,
        served.map(|row| {
            [
                row.test.op.to_string(),
                row.test.message_bytes.to_string(),
                row.checked_messages.to_string(),
                row.checked_messages_by_peer.unwrap_or(0).to_string(),
                row.corrupt_messages.to_string(),
                String::new(),
            ]
        }),
    );
}

/// A table with a header. Empty if there are no rows.
fn write_table<const COLUMNS: usize>(
    text: &mut String,
    head: [&str; COLUMNS],
    rows: impl Iterator<Item = [String; COLUMNS]>,
) {
    let mut rows = rows.peekable();
    if rows.peek().is_some() {
        let head = core::iter::once(head.map(str::to_owned));
        text.push_str(&aligned("", Align::Figures, head.chain(rows)));
    }
}

fn micros(ns: f64) -> String {
    format!("{:.2}", ns / 1e3)
}

fn push(text: &mut String, arguments: core::fmt::Arguments<'_>) {
    // Writing to a String does not fail.
    let _always = text.write_fmt(arguments);
}
