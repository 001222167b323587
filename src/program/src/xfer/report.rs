//! The result of one end.

use core::fmt::Write as _;

use doorbell::provider::{Network, Provider};
use serde::Serialize;

use super::end::{End, Part};
use super::line::Rail;
use super::wire::hexadecimal;
use crate::link::{bytes_per_second, span};

#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) simulated: bool,
    role: &'static str,
    file: String,
    peer: Option<String>,
    bytes: u64,
    /// Number of bytes that the receiver had at the end.
    landed_bytes: u64,
    elapsed_ns: u64,
    bytes_per_second: f64,
    chunks: u64,
    chunk_bytes: u64,
    piece_bytes: Option<u32>,
    memory_bytes: u64,
    /// Number of bytes that were sent again after the connection that carried them failed.
    repeated_bytes: u64,
    sha256: Option<String>,
    sha256_by_peer: Option<String>,
    rails: Vec<Rail>,
    failovers: u32,
    reconnects: u32,
    end: Option<String>,
    #[serde(skip)]
    pub(super) error: Option<String>,
}

impl Report {
    pub(super) fn of<P: Provider, N: Network>(end: &End<P, N>, file: String, piece_bytes: u32) -> Self {
        let (line, watch) = (&end.line, &end.line.watch);
        let landed_bytes = match end.done_at {
            Some(_) => end.bytes().unwrap_or(0),
            None => end.landed,
        };
        let until = end.done_at.unwrap_or_else(|| line.now());
        let took = watch.connected_at.map(|since| span(since, until));
        let took = took.unwrap_or_default();
        let (plan, repeated_bytes) = match &end.part {
            Part::Send(sender) => (Some(sender.plan), sender.repeated_bytes),
            Part::Receive(receiver) => (receiver.plan, 0),
        };
        let plan = plan.unwrap_or_default();
        let (ours, theirs) = match &end.part {
            Part::Send(sender) => (sender.sum, sender.answer),
            Part::Receive(receiver) => (receiver.sum, receiver.sum_by_peer()),
        };
        Self {
            simulated: false,
            role: match end.part {
                Part::Send(_) => "sender",
                Part::Receive(_) => "receiver",
            },
            file,
            peer: line.peer.map(|peer| peer.to_string()),
            bytes: plan.bytes,
            landed_bytes,
            elapsed_ns: u64::try_from(took.as_nanos()).unwrap_or(u64::MAX),
            bytes_per_second: bytes_per_second(landed_bytes, took),
            chunks: plan.chunks(),
            chunk_bytes: plan.chunk_bytes,
            piece_bytes: matches!(end.part, Part::Send(_)).then_some(piece_bytes),
            memory_bytes: u64::try_from(plan.memory_bytes()).unwrap_or(u64::MAX),
            repeated_bytes,
            sha256: ours.filter(|_| plan.has_checksum).as_ref().map(hexadecimal),
            sha256_by_peer: theirs.filter(|_| plan.has_checksum).as_ref().map(hexadecimal),
            rails: watch.rails.clone(),
            failovers: watch.failovers,
            reconnects: watch.reconnects,
            end: watch.over.map(|reason| reason.to_string()),
            error: end.failure.clone(),
        }
    }

    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a String does not fail.
        let _ = self.write(&mut text);
        text
    }

    fn write(&self, to: &mut String) -> core::fmt::Result {
        let sent = match self.role {
            "sender" => "sent",
            _ => "received",
        };
        let seconds = core::time::Duration::from_nanos(self.elapsed_ns).as_secs_f64();
        writeln!(
            to,
            "{sent} {} of {} bytes of {}, {seconds:.2} s, {:.2} MB/s",
            self.landed_bytes,
            self.bytes,
            self.file,
            self.bytes_per_second / 1e6
        )?;
        writeln!(
            to,
            "{} of {} bytes in {} bytes of memory; {} bytes sent again",
            count(self.chunks, "chunk"),
            self.chunk_bytes,
            self.memory_bytes,
            self.repeated_bytes
        )?;
        for rail in &self.rails {
            writeln!(
                to,
                "rail {}: {} to {}, up {}, down {}, {} bytes sent",
                rail.rail,
                rail.device,
                rail.peer.as_deref().unwrap_or("-"),
                count(rail.ups, "time"),
                count(rail.downs, "time"),
                rail.bytes
            )?;
        }
        let (failovers, reconnects) = (
            count(self.failovers, "failover"),
            count(self.reconnects, "reconnect"),
        );
        writeln!(to, "{failovers}, {reconnects}")?;
        if let Some(end) = &self.end {
            writeln!(to, "the link ended: {end}")?;
        }
        match (&self.error, &self.sha256) {
            (Some(error), _) => writeln!(to, "FAILED: {error}"),
            (None, Some(sum)) => writeln!(to, "sha256 {sum}, the same on both sides"),
            (None, None) => writeln!(to, "no checksums were compared"),
        }
    }
}

/// A number, and the noun that it counts.
fn count(number: impl Into<u64>, what: &str) -> String {
    let number = number.into();
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}
