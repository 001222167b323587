//! The report of a ping-pong: the figures of the stock program, in its format and as JSON.

use core::fmt::Write as _;
use core::time::Duration;

use serde::Serialize;

use super::engine::{Plan, Role};
use super::source::Source;
use super::wire::Destination;

/// The report of `doorbell pingpong`.
#[derive(Serialize)]
pub(super) struct Report {
    role: &'static str,
    device: String,
    port: u8,
    gid_index: u8,
    gid_kind: String,
    gid_reason: String,
    local_end: End,
    peer_end: End,
    message_bytes: u32,
    iterations: u32,
    receive_depth: u32,
    path_mtu_bytes: u32,
    inline: bool,
    events: bool,
    /// Both directions together, as the stock program counts.
    total_bytes: u64,
    duration_s: f64,
    bytes_per_second: f64,
    iteration_ns: f64,
    /// Whether every byte of the last message was checked. The length of every message is always checked.
    content_checked: bool,
}

/// One end.
#[derive(Serialize)]
struct End {
    lid: u16,
    qpn: u32,
    psn: u32,
    gid: String,
}

impl From<&Destination> for End {
    fn from(destination: &Destination) -> Self {
        Self {
            lid: destination.lid,
            qpn: destination.qpn.to_u32(),
            psn: destination.psn.to_u32(),
            gid: destination.gid.to_string(),
        }
    }
}

/// The results of a finished ping-pong.
#[derive(Debug)]
pub(super) struct RunResult<'a> {
    pub(super) role: Role,
    pub(super) source: &'a Source,
    pub(super) local: Destination,
    pub(super) remote: Destination,
    pub(super) plan: Plan,
    pub(super) inline: bool,
    pub(super) took: Duration,
}

impl Report {
    pub(super) fn new(done: &RunResult<'_>) -> Self {
        let RunResult { source, plan, .. } = done;
        let total_bytes = u64::from(plan.message_bytes)
            .saturating_mul(plan.iterations.into())
            .saturating_mul(2);
        let duration_s = done.took.as_secs_f64();
        Self {
            role: match done.role {
                Role::Server => "server",
                Role::Client => "client",
            },
            device: source.device.clone(),
            port: source.port,
            gid_index: source.gid_index,
            gid_kind: source.kind.to_string(),
            gid_reason: source.why.to_string(),
            local_end: (&done.local).into(),
            peer_end: (&done.remote).into(),
            message_bytes: plan.message_bytes,
            iterations: plan.iterations,
            receive_depth: plan.receive_depth,
            path_mtu_bytes: plan.mtu.bytes(),
            inline: done.inline,
            events: plan.events,
            total_bytes,
            duration_s,
            bytes_per_second: figure(total_bytes) / duration_s,
            iteration_ns: duration_s * 1e9 / f64::from(plan.iterations),
            content_checked: done.role == Role::Client || plan.page_bytes.is_some(),
        }
    }

    /// The lines of the stock program, then the checks that were made.
    pub(super) fn to_text(&self) -> String {
        let mut text = String::new();
        let checked = if self.content_checked {
            ", and of the last every byte is right"
        } else {
            ""
        };
        // Writing to a string does not fail.
        let _ = write!(
            text,
            "  {} port {}, GID index {} ({}): {}\n  local address:  {}\n  remote address: {}\n\
             {} bytes in {:.2} seconds = {:.2} Mbit/sec\n{} iters in {:.2} seconds = {:.2} usec/iter\n\
             every message had {} bytes{checked}\n",
            self.device,
            self.port,
            self.gid_index,
            self.gid_kind,
            self.gid_reason,
            self.local_end.to_text(),
            self.peer_end.to_text(),
            self.total_bytes,
            self.duration_s,
            self.bytes_per_second * 8.0 / 1e6,
            self.iterations,
            self.duration_s,
            self.iteration_ns / 1e3,
            self.message_bytes,
        );
        text
    }
}

impl End {
    fn to_text(&self) -> String {
        let Self { lid, qpn, psn, gid } = self;
        format!("LID {lid:#06x}, QPN {qpn:#08x}, PSN {psn:#08x}, GID {gid}")
    }
}

#[expect(clippy::cast_precision_loss, reason = "a figure to read: 53 bits are enough")]
fn figure(bytes: u64) -> f64 {
    bytes as f64
}

#[cfg(test)]
mod tests {
    use super::{Report, RunResult};
    use crate::pingpong::engine::{Plan, Role};
    use crate::pingpong::source::{GidReason, Source};
    use crate::pingpong::wire::Destination;
    use core::time::Duration;
    use doorbell::provider::{Gid, GidKind, Mtu, Psn, Qpn};

    fn end(qpn: u32, address: &str) -> Destination {
        Destination {
            lid: 0,
            qpn: Qpn::new(qpn).unwrap(),
            psn: Psn::from_low_bits(0xabc),
            gid: Gid::from_ip(address.parse().unwrap()),
        }
    }

    fn report(role: Role) -> Report {
        let source = Source {
            device: "rxe0".into(),
            port: 1,
            gid_index: 1,
            gid: Gid::from_ip("10.0.0.1".parse().unwrap()),
            kind: GidKind::RoceV2Ipv4,
            why: GidReason::Named,
        };
        Report::new(&RunResult {
            role,
            source: &source,
            local: end(0x11, "10.0.0.1"),
            remote: end(0x12, "10.0.0.2"),
            plan: Plan {
                message_bytes: 4096,
                iterations: 1000,
                receive_depth: 500,
                mtu: Mtu::B1024,
                service_level: 0,
                page_bytes: None,
                events: false,
                stall: Duration::from_secs(10),
            },
            inline: false,
            took: Duration::from_millis(500),
        })
    }

    #[test]
    fn the_figures_are_those_of_the_stock_program() {
        assert_eq!(
            report(Role::Client).to_text(),
            "  rxe0 port 1, GID index 1 (RoCEv2/IPv4): named on the command line\n\
             \x20 local address:  LID 0x0000, QPN 0x000011, PSN 0x000abc, GID ::ffff:10.0.0.1\n\
             \x20 remote address: LID 0x0000, QPN 0x000012, PSN 0x000abc, GID ::ffff:10.0.0.2\n\
             8192000 bytes in 0.50 seconds = 131.07 Mbit/sec\n\
             1000 iters in 0.50 seconds = 500.00 usec/iter\n\
             every message had 4096 bytes, and of the last every byte is right\n"
        );
    }

    #[test]
    fn json_has_the_figures_and_what_was_checked() {
        let json = serde_json::to_value(report(Role::Server)).unwrap();
        crate::schema::check(&json, &mut Default::default());
        assert_eq!(json["role"], "server");
        assert_eq!(json["total_bytes"], 8_192_000);
        assert_eq!(json["iteration_ns"], 500_000.0);
        assert_eq!(json["peer_end"]["qpn"], 0x12);
        assert_eq!(json["content_checked"], false);
    }
}
