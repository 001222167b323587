//! The report on a node from two samples, as a document and as a table.

use core::fmt::Write as _;

use serde::Serialize;

use super::numbers::{count, number, numbers, optional_number};
use super::ports::Port;
use super::scrape::{Labels, Sample, plain, total};
use crate::columns::{Align, aligned};

/// A node over one interval. Parts that the node does not report are absent.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// Set if no RDMA device was used.
    pub(super) simulated: bool,
    interval_s: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    mesh: Option<Mesh>,
    #[serde(skip_serializing_if = "Option::is_none")]
    links: Option<Links>,
    members: Vec<Member>,
    rails: Vec<Rail>,
    workers: Vec<Worker>,
    channels: Vec<Channels>,
    ports: Vec<Port>,
}

#[derive(Debug, Serialize)]
struct Mesh {
    #[serde(serialize_with = "count", rename = "ranks")]
    members: f64,
    #[serde(serialize_with = "count")]
    reached: f64,
    relayed_per_second: Option<f64>,
    #[serde(serialize_with = "count")]
    relayed: f64,
    #[serde(serialize_with = "count")]
    dropped: f64,
    #[serde(serialize_with = "count")]
    sent_again: f64,
}

#[derive(Debug, Serialize)]
struct Links {
    #[serde(serialize_with = "count")]
    connected: f64,
    #[serde(serialize_with = "count")]
    without_rail: f64,
    #[serde(serialize_with = "count")]
    sent_again: f64,
    #[serde(serialize_with = "count")]
    dead_rails: f64,
    #[serde(serialize_with = "count")]
    recoveries: f64,
}

#[derive(Debug, Serialize)]
struct Member {
    #[serde(serialize_with = "number", rename = "rank")]
    member: String,
    /// Hops of the shortest route; 0 if there is none.
    #[serde(serialize_with = "count")]
    hops: f64,
    /// The ranks of the relaying members, in order.
    #[serde(serialize_with = "numbers")]
    by: String,
    sent_per_second: Option<f64>,
    received_per_second: Option<f64>,
    #[serde(serialize_with = "count")]
    waiting: f64,
    #[serde(serialize_with = "count")]
    sent_again: f64,
}

#[derive(Debug, Serialize)]
struct Rail {
    #[serde(rename = "device")]
    rail: String,
    peer: String,
    #[serde(serialize_with = "optional_number", rename = "rank")]
    member: Option<String>,
    state: String,
    sent_per_second: Option<f64>,
    sent_bytes_per_second: Option<f64>,
    received_bytes_per_second: Option<f64>,
    #[serde(serialize_with = "count")]
    connections: f64,
    #[serde(serialize_with = "count", rename = "connections_lost")]
    failures: f64,
}

#[derive(Debug, Serialize)]
struct Worker {
    /// The labels that identify it.
    labels: Labels,
    requests_per_second: Option<f64>,
    sent_bytes_per_second: Option<f64>,
    received_per_second: Option<f64>,
    received_bytes_per_second: Option<f64>,
    would_block_per_second: Option<f64>,
    #[serde(serialize_with = "count")]
    rejected: f64,
}

#[derive(Debug, Serialize)]
struct Channels {
    peer: String,
    #[serde(serialize_with = "count")]
    open: f64,
    #[serde(serialize_with = "count")]
    failed: f64,
}

/// Two samples, the earlier first.
struct SamplePair<'s> {
    before: &'s Sample,
    now: &'s Sample,
    seconds: f64,
}

impl SamplePair<'_> {
    /// Returns the rate of a counter, or `None` if it was reset.
    fn rate(&self, name: &str, labels: &Labels) -> Option<f64> {
        self.grown(self.before.get(name, labels)?, self.now.get(name, labels)?)
    }

    fn rate_of_all(&self, name: &str) -> Option<f64> {
        self.grown(self.before.sum(name)?, self.now.sum(name)?)
    }

    fn grown(&self, before: f64, now: f64) -> Option<f64> {
        (now >= before && self.seconds > 0.0).then(|| (now - before) / self.seconds)
    }

    fn value(&self, name: &str, labels: &Labels) -> f64 {
        self.now.get(name, labels).unwrap_or_default()
    }

    fn total(&self, name: &str) -> f64 {
        self.now.sum(name).unwrap_or_default()
    }

    /// Returns the sum of the series with a name that have this label.
    fn with(&self, name: &str, label: &str, value: &str) -> f64 {
        let of = self.now.all(name);
        let these = of.filter(|(labels, _)| labels.get(label).is_some_and(|is| is == value));
        total(these.map(|(_, count)| count))
    }

    fn mesh(&self) -> Option<Mesh> {
        Some(Mesh {
            members: self.now.sum("doorbell_mesh_members")?,
            reached: self.total("doorbell_mesh_reached_members"),
            relayed_per_second: self.rate_of_all("doorbell_mesh_relayed_frames_total"),
            relayed: self.total("doorbell_mesh_relayed_frames_total"),
            dropped: self.total("doorbell_mesh_dropped_frames_total"),
            sent_again: self.total("doorbell_mesh_sent_again_messages_total"),
        })
    }

    fn links(&self) -> Option<Links> {
        self.now.sum("doorbell_links")?;
        Some(Links {
            connected: self.with("doorbell_links", "state", "connected"),
            without_rail: self.with("doorbell_links", "state", "without_rail"),
            sent_again: self.total("doorbell_link_sent_again_fragments_total"),
            dead_rails: self.total("doorbell_link_dead_rails_total"),
            recoveries: self.total("doorbell_link_recoveries_total"),
        })
    }

    fn members(&self) -> Vec<Member> {
        let routes = self.now.all("doorbell_mesh_route_hops");
        let mut members: Vec<Member> = routes
            .map(|(labels, hops)| {
                let mut of = labels.clone();
                let by = of.remove("by").unwrap_or_default();
                Member {
                    member: of.get("member").cloned().unwrap_or_default(),
                    hops,
                    by,
                    sent_per_second: self.rate("doorbell_mesh_member_sent_messages_total", &of),
                    received_per_second: self.rate("doorbell_mesh_member_received_messages_total", &of),
                    waiting: self.value("doorbell_mesh_member_waiting_messages", &of),
                    sent_again: self.value("doorbell_mesh_member_sent_again_messages_total", &of),
                }
            })
            .collect();
        members.sort_by_key(|member| member.member.parse::<u32>().unwrap_or(u32::MAX));
        members
    }

    fn rails(&self) -> Vec<Rail> {
        // There is one series for each state. The series of the current state is 1.
        let states = self
            .now
            .all("doorbell_link_rails")
            .filter(|(_, is_so)| *is_so > 0.0);
        let rails = states.map(|(labels, _)| {
            let mut of = labels.clone();
            let state = of.remove("state").unwrap_or_default();
            Rail {
                rail: of.get("rail").cloned().unwrap_or_default(),
                peer: of.get("peer").cloned().unwrap_or_default(),
                member: of.get("member").cloned(),
                state,
                sent_per_second: self.rate("doorbell_link_rail_sent_requests_total", &of),
                sent_bytes_per_second: self.rate("doorbell_link_rail_sent_bytes_total", &of),
                received_bytes_per_second: self.rate("doorbell_link_rail_received_bytes_total", &of),
                connections: self.value("doorbell_link_rail_connections_total", &of),
                failures: self.value("doorbell_link_rail_failures_total", &of),
            }
        });
        rails.collect()
    }

    fn workers(&self) -> Vec<Worker> {
        let all = self.now.all("doorbell_worker_requests_total");
        let workers = all.map(|(labels, _)| Worker {
            labels: labels.clone(),
            requests_per_second: self.rate("doorbell_worker_requests_total", labels),
            sent_bytes_per_second: self.rate("doorbell_worker_sent_bytes_total", labels),
            received_per_second: self.rate("doorbell_worker_received_messages_total", labels),
            received_bytes_per_second: self.rate("doorbell_worker_received_bytes_total", labels),
            would_block_per_second: self.rate("doorbell_worker_would_block_total", labels),
            rejected: self.value("doorbell_worker_rejected_completions_total", labels),
        });
        workers.collect()
    }

    fn channels(&self) -> Vec<Channels> {
        let all = self.now.all("doorbell_channels");
        let mut peers: Vec<&str> = all
            .filter_map(|(labels, _)| Some(labels.get("peer")?.as_str()))
            .collect();
        peers.sort_unstable();
        peers.dedup();
        let of = |peer: &str, state: &str| -> f64 {
            let all = self.now.all("doorbell_channels");
            let is = |labels: &Labels, name, value| labels.get(name).is_some_and(|is| is == value);
            let these = all.filter(|(labels, _)| is(labels, "peer", peer) && is(labels, "state", state));
            total(these.map(|(_, count)| count))
        };
        let channels = peers.into_iter().map(|peer| Channels {
            peer: peer.to_owned(),
            open: of(peer, "open"),
            failed: of(peer, "failed"),
        });
        channels.collect()
    }
}

impl Report {
    pub(super) fn new(before: &Sample, now: &Sample) -> Self {
        let between = SamplePair {
            before,
            now,
            seconds: now.at.saturating_duration_since(before.at).as_secs_f64(),
        };
        Self {
            simulated: false,
            interval_s: between.seconds,
            mesh: between.mesh(),
            links: between.links(),
            members: between.members(),
            rails: between.rails(),
            workers: between.workers(),
            channels: between.channels(),
            ports: Port::all(now, |name, labels| between.rate(name, labels)),
        }
    }

    /// The report as tables.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a String does not fail.
        if let Some(mesh) = &self.mesh {
            let _ = writeln!(
                text,
                "mesh: {} of {} members reached; passed on {} ({}/s), dropped {}, sent again {}",
                mesh.reached,
                mesh.members,
                mesh.relayed,
                rate(mesh.relayed_per_second),
                mesh.dropped,
                mesh.sent_again
            );
        }
        if let Some(links) = &self.links {
            let _ = writeln!(
                text,
                "links: {} connected, {} without a rail; sent again {}, rails given up {}, without any rail {} times",
                links.connected, links.without_rail, links.sent_again, links.dead_rails, links.recoveries
            );
        }
        for port in &self.ports {
            port.write(&mut text);
        }
        if text.is_empty() && self.workers.is_empty() && self.channels.is_empty() {
            return "the node serves no metrics of members, links, rails, Workers or channels, or none yet; a node daemon is shown by --socket\n".into();
        }
        self.write_members(&mut text);
        self.write_rails(&mut text);
        self.write_workers(&mut text);
        let rows = self.channels.iter().map(|channels| {
            [
                plain(&channels.peer),
                channels.open.to_string(),
                channels.failed.to_string(),
            ]
        });
        write_rows(&mut text, ["channels to", "open", "failed"], rows);
        text
    }

    fn write_members(&self, text: &mut String) {
        let rows = self.members.iter().map(|member| {
            let way = match member.hops {
                none if none <= 0.0 => "none".to_owned(),
                one if one <= 1.0 => "direct".to_owned(),
                hops => format!("{hops} hops, by {}", plain(&member.by)),
            };
            [
                plain(&member.member),
                way,
                rate(member.sent_per_second),
                rate(member.received_per_second),
                member.waiting.to_string(),
                member.sent_again.to_string(),
            ]
        });
        let head = ["member", "way", "sent/s", "received/s", "waiting", "sent again"];
        write_rows(text, head, rows);
    }

    fn write_rails(&self, text: &mut String) {
        let rows = self.rails.iter().map(|rail| {
            [
                plain(&rail.rail),
                rail.member.as_deref().map_or_else(|| "-".to_owned(), plain),
                plain(&rail.peer),
                plain(&rail.state).replace('_', " "),
                rate(rail.sent_per_second),
                megabytes(rail.sent_bytes_per_second),
                megabytes(rail.received_bytes_per_second),
                rail.connections.to_string(),
                rail.failures.to_string(),
            ]
        });
        let head = [
            "rail",
            "member",
            "peer",
            "state",
            "sent/s",
            "MB/s out",
            "MB/s in",
            "connected",
            "lost",
        ];
        write_rows(text, head, rows);
    }

    fn write_workers(&self, text: &mut String) {
        let rows = self.workers.iter().map(|worker| {
            let labels = worker.labels.iter().map(|(name, value)| match name.as_str() {
                "device" => plain(value),
                name => format!("{}={}", plain(name), plain(value)),
            });
            [
                labels.collect::<Vec<_>>().join(" "),
                rate(worker.requests_per_second),
                megabytes(worker.sent_bytes_per_second),
                rate(worker.received_per_second),
                megabytes(worker.received_bytes_per_second),
                rate(worker.would_block_per_second),
                worker.rejected.to_string(),
            ]
        });
        let head = [
            "worker",
            "requests/s",
            "MB/s out",
            "received/s",
            "MB/s in",
            "blocked/s",
            "rejected",
        ];
        write_rows(text, head, rows);
    }
}

pub(super) fn rate(per_s: Option<f64>) -> String {
    per_s.map_or_else(|| "-".into(), |per_s| format!("{per_s:.0}"))
}

pub(super) fn megabytes(bytes_per_s: Option<f64>) -> String {
    bytes_per_s.map_or_else(|| "-".into(), |bytes| format!("{:.2}", bytes / 1e6))
}

/// Aligned columns with a header. Empty if there are no rows.
pub(super) fn write_rows<const COLUMNS: usize>(
    text: &mut String,
    head: [&str; COLUMNS],
    rows: impl Iterator<Item = [String; COLUMNS]>,
) {
    let mut rows = rows.peekable();
    if rows.peek().is_some() {
        text.push('\n');
        let head = head.map(str::to_owned);
        text.push_str(&aligned("", Align::Left, core::iter::once(head).chain(rows)));
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;
    use std::time::Instant;

    use super::{Report, Sample};

    const BEFORE: &str = r#"
doorbell_links{state="connected"} 2
doorbell_links{state="without_rail"} 0
doorbell_link_rails{member="1",rail="rxe0",peer="10.0.0.2",state="up"} 1
doorbell_link_rails{member="1",rail="rxe0",peer="10.0.0.2",state="down"} 0
doorbell_link_rail_sent_requests_total{member="1",rail="rxe0",peer="10.0.0.2"} 100
doorbell_link_rail_sent_bytes_total{member="1",rail="rxe0",peer="10.0.0.2"} 1000000
doorbell_mesh_members 3
doorbell_mesh_reached_members 3
doorbell_mesh_relayed_frames_total 0
doorbell_mesh_route_hops{member="10",by="1, 7"} 3
doorbell_mesh_route_hops{member="2",by=""} 0
doorbell_mesh_route_hops{member="1",by=""} 1
doorbell_mesh_member_sent_messages_total{member="1"} 50
doorbell_worker_requests_total{device="rxe0"} 1000
doorbell_port_hw_counter_total{device="rxe0",port="1",counter="rcvd_rnr_err"} 4
doorbell_port_hw_counter_total{device="rxe0",port="1",counter="send_rnr_err"} 0
doorbell_channels{device="rxe0",peer="10.0.0.2",state="open"} 1
doorbell_channels{device="rxe0",peer="10.0.0.2",state="failed"} 0
"#;

    fn report(before: &str, now: &str) -> Report {
        let at = Instant::now();
        let before = Sample::read(before, at).unwrap();
        let now = Sample::read(now, at + Duration::from_secs(2)).unwrap();
        Report::new(&before, &now)
    }

    #[test]
    fn rates_ways_and_states_stand_in_the_table() {
        let now = BEFORE
            .replace("10.0.0.2\"} 100\n", "10.0.0.2\"} 300\n")
            .replace("\"} 1000000\n", "\"} 9000000\n")
            .replace("{member=\"1\"} 50", "{member=\"1\"} 90")
            .replace("\"rcvd_rnr_err\"} 4", "\"rcvd_rnr_err\"} 10")
            .replace(
                "requests_total{device=\"rxe0\"} 1000",
                "requests_total{device=\"rxe0\"} 7",
            );
        let report = report(BEFORE, &now);
        let expected = "mesh: 3 of 3 members reached; passed on 0 (0/s), dropped 0, sent again 0\n\
             links: 2 connected, 0 without a rail; sent again 0, rails given up 0, without any rail 0 times\n\
             retries at rxe0 port 1: rcvd_rnr_err 10 (3/s)\n\
             \n\
             member  way              sent/s  received/s  waiting  sent again\n\
             1       direct           20      -           0        0\n\
             2       none             -       -           0        0\n\
             10      3 hops, by 1, 7  -       -           0        0\n\
             \n\
             rail  member  peer      state  sent/s  MB/s out  MB/s in  connected  lost\n\
             rxe0  1       10.0.0.2  up     100     4.00      -        0          0\n\
             \n\
             worker  requests/s  MB/s out  received/s  MB/s in  blocked/s  rejected\n\
             rxe0    -           -         -           -        -          0\n\
             \n\
             channels to  open  failed\n\
             10.0.0.2     1     0\n";
        assert_eq!(report.text(), expected);
        let json = serde_json::to_value(&report).unwrap();
        crate::schema::check(&json, &mut Default::default());
        assert_eq!(json["interval_s"], 2.0);
        assert_eq!(json["rails"][0]["sent_bytes_per_second"], 4_000_000.0);
        assert_eq!(json["members"][2]["by"], serde_json::json!([1, 7]));
        // A counter that was reset has no rate.
        assert!(json["workers"][0]["requests_per_second"].is_null());
    }

    #[test]
    fn what_a_node_does_not_tell_is_not_there() {
        assert_eq!(
            report("", "").text(),
            "the node serves no metrics of members, links, rails, Workers or channels, or none yet; a node daemon is shown by --socket\n"
        );
        let json = serde_json::to_value(report("", "")).unwrap();
        assert!(json.get("mesh").is_none());
        let connected = "doorbell_links{state=\"connected\"} 1\n";
        let text = report(connected, connected).text();
        assert!(
            text.starts_with("links: 1 connected, 0 without a rail; sent again 0,"),
            "{text}"
        );
    }

    #[test]
    fn nothing_that_is_told_moves_the_cursor() {
        let text = BEFORE.replace("rxe0", "\u{1b}[2J\\n");
        let shown = report(&text, &text).text();
        assert!(
            !shown.contains('\u{1b}') && shown.contains("\u{fffd}[2J\u{fffd}"),
            "{shown}"
        );
    }
}
