//! The rows: figures, rivals, goals and commands.

use super::goal::Goal;
use super::sources::Source;
use crate::programs::Rival;

/// A figure with a goal.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) what: &'static str,
    pub(super) unit: &'static str,
    /// Owner of the figure that ours is compared with.
    pub(super) whose: Option<&'static str>,
    pub(super) goal: Goal,
    /// Source that measures it, with other rows or alone.
    pub(super) source: Source,
    /// Its figure among those of the source.
    pub(super) figure: &'static str,
    /// The command that measures it.
    pub(super) command: &'static str,
}

const NO_WRITE: Source = Source::Missing("the crate ibverbs has no WRITE");

/// Instructions of one message posted and polled through the stub provider, more than the hand-written loop takes.
const fn posting(name: &'static str, what: &'static str, figure: &'static str, most: f64) -> Row {
    Row {
        name,
        what,
        unit: "instructions/message",
        whose: Some("a loop on the raw bindings"),
        goal: Goal::DifferenceAtMost(most),
        source: Source::Posting,
        figure,
        command: "cargo lab bench posting",
    }
}

/// Instructions of one message on rxe, beside a rival program.
const fn instructions(
    name: &'static str,
    what: &'static str,
    whose: &'static str,
    source: Source,
    figure: &'static str,
) -> Row {
    Row {
        name,
        what,
        unit: "instructions/message",
        whose: Some(whose),
        goal: Goal::RatioBelow(1.0),
        source,
        figure,
        command: "cargo lab bench instructions",
    }
}

/// A ratio that a scenario's `[[compare]]` gives; `figure` is `METRIC/TO`.
const fn compared(
    name: &'static str,
    what: &'static str,
    unit: &'static str,
    whose: &'static str,
    goal: Goal,
    (scenario, figure, command): (&'static str, &'static str, &'static str),
) -> Row {
    Row {
        name,
        what,
        unit,
        whose: Some(whose),
        goal,
        source: Source::Scenario(scenario),
        figure,
        command,
    }
}

const fn ring(name: &'static str, what: &'static str, whose: &'static str, figure: &'static str) -> Row {
    Row {
        name,
        what,
        unit: "descriptors/s",
        whose: Some(whose),
        goal: Goal::RatioAtLeast(1.0),
        source: Source::Rings,
        figure,
        command: "cargo bench -p doorbell-benches --bench ring",
    }
}

/// Instructions of one poll with 1,024 channels beside one with a single channel.
const fn idle(name: &'static str, what: &'static str, figure: &'static str) -> Row {
    Row {
        name,
        what,
        unit: "instructions/poll",
        whose: Some("a Worker of one channel"),
        // Less than a look at one more channel takes: of 1,023 idle ones, none is looked at.
        goal: Goal::DifferenceAtMost(8.0),
        source: Source::Idle,
        figure,
        command: "cargo lab bench idle",
    }
}

/// Instructions of one poll of two links that have nothing to do, at one of their sides.
const fn idle_links(name: &'static str, what: &'static str, figure: &'static str) -> Row {
    Row {
        name,
        what,
        unit: "instructions/poll",
        whose: None,
        goal: Goal::AtMost(400.0),
        source: Source::IdleLinks,
        figure,
        command: "cargo lab bench idle-links",
    }
}

/// Instructions of a message of 64 bytes between two processes of a node daemon.
const fn daemon(name: &'static str, what: &'static str, figure: &'static str, most: f64) -> Row {
    Row {
        name,
        what,
        unit: "instructions/message",
        whose: None,
        goal: Goal::AtMost(most),
        source: Source::Daemon,
        figure,
        command: "cargo lab bench daemon",
    }
}

/// Instructions of one call of the plugin for NCCL, of a message of 8 bytes.
const fn nccl(name: &'static str, what: &'static str, figure: &'static str) -> Row {
    Row {
        name,
        what,
        unit: "instructions/call",
        whose: None,
        goal: Goal::AtMost(250.0),
        source: Source::Nccl,
        figure,
        command: "cargo lab bench nccl",
    }
}

/// Instructions of a MiB that a transfer moves, at one of its sides.
const fn transfer(name: &'static str, what: &'static str, figure: &'static str) -> Row {
    Row {
        name,
        what,
        unit: "instructions/MiB",
        whose: None,
        goal: Goal::AtMost(2000.0),
        source: Source::Transfer,
        figure,
        command: "cargo lab bench transfer",
    }
}

/// Instructions of a use of a registration cache.
const fn cache(name: &'static str, what: &'static str, figure: &'static str, most: f64) -> Row {
    Row {
        name,
        what,
        unit: "instructions/use",
        whose: None,
        goal: Goal::AtMost(most),
        source: Source::Cache,
        figure,
        command: "cargo lab bench cache",
    }
}

/// Memory of ours for each of so many peers of one hub; `figure` is how many.
const fn memory(name: &'static str, what: &'static str, figure: &'static str) -> Row {
    Row {
        name,
        what,
        unit: "bytes/peer",
        whose: None,
        // Half a page: 16,384 of them are 32 MiB.
        goal: Goal::AtMost(2048.0),
        source: Source::Memory,
        figure,
        command: "cargo lab bench memory",
    }
}

const fn handle(name: &'static str, what: &'static str, figure: &'static str, most: f64) -> Row {
    Row {
        name,
        what,
        unit: "instructions",
        whose: None,
        goal: Goal::AtMost(most),
        source: Source::Handle,
        figure,
        command: "cargo lab bench handle",
    }
}

const LATENCY: Goal = Goal::Interval {
    reaches: 1.0,
    ends: 1.03,
};

const INSTRUCTIONS: Source = Source::Instructions;
const SIDEWAY: Source = Source::Rival(Rival::Sideway);
const IBVERBS: Source = Source::Rival(Rival::Ibverbs);

/// Every row, in the order of the table.
pub(super) static ROWS: [Row; 63] = [
    posting(
        "posting-cells-1",
        "64 B message from a cell of `ffi`, 1 a doorbell",
        "cells/1",
        25.0,
    ),
    posting(
        "posting-cells-16",
        "64 B message from a cell of `ffi`, 16 a doorbell",
        "cells/16",
        0.0,
    ),
    posting(
        "posting-cells-32",
        "64 B message from a cell of `ffi`, 32 a doorbell",
        "cells/32",
        0.0,
    ),
    posting(
        "posting-channel-1",
        "64 B message from a cell of the public Channel, 1 a doorbell",
        "channel/1",
        130.0,
    ),
    posting(
        "posting-channel-1-seldom",
        "the same, one message of 64 signaled",
        "channel-seldom/1",
        35.0,
    ),
    posting(
        "posting-channel-16",
        "64 B message from a cell of the public Channel, 16 a doorbell",
        "channel/16",
        6.0,
    ),
    posting(
        "posting-channel-32",
        "64 B message from a cell of the public Channel, 32 a doorbell",
        "channel/32",
        2.0,
    ),
    posting(
        "posting-leases-1",
        "64 B message from a lease of the public Channel, 1 a doorbell",
        "leases/1",
        220.0,
    ),
    posting(
        "posting-leases-16",
        "64 B message from a lease of the public Channel, 16 a doorbell",
        "leases/16",
        70.0,
    ),
    posting(
        "posting-leases-32",
        "64 B message from a lease of the public Channel, 32 a doorbell",
        "leases/32",
        60.0,
    ),
    posting(
        "receiving-channel-1",
        "64 B message received through the public Channel and read, by itself",
        "receiving/1",
        60.0,
    ),
    posting(
        "receiving-channel-16",
        "64 B message received through the public Channel and read, of 16 that came",
        "receiving/16",
        6.0,
    ),
    posting(
        "receiving-channel-32",
        "64 B message received through the public Channel and read, of 32 that came",
        "receiving/32",
        4.0,
    ),
    instructions(
        "instructions-send-1",
        "64 B SEND on rxe, one a call",
        "ib_send_bw",
        INSTRUCTIONS,
        "send-1",
    ),
    instructions(
        "instructions-send-32",
        "64 B SEND on rxe, 32 a call",
        "ib_send_bw -l 32",
        INSTRUCTIONS,
        "send-32",
    ),
    instructions(
        "instructions-write-1",
        "64 B WRITE on rxe, one a call",
        "ib_write_bw",
        INSTRUCTIONS,
        "write-1",
    ),
    instructions(
        "instructions-write-32",
        "64 B WRITE on rxe, 32 a call",
        "ib_write_bw -l 32",
        INSTRUCTIONS,
        "write-32",
    ),
    instructions(
        "instructions-send-1-sideway",
        "64 B SEND on rxe, one a call",
        "sideway",
        SIDEWAY,
        "send-1",
    ),
    instructions(
        "instructions-send-32-sideway",
        "64 B SEND on rxe, 32 a call",
        "sideway",
        SIDEWAY,
        "send-32",
    ),
    instructions(
        "instructions-write-1-sideway",
        "64 B WRITE on rxe, one a call",
        "sideway",
        SIDEWAY,
        "write-1",
    ),
    instructions(
        "instructions-write-32-sideway",
        "64 B WRITE on rxe, 32 a call",
        "sideway",
        SIDEWAY,
        "write-32",
    ),
    instructions(
        "instructions-send-1-ibverbs",
        "64 B SEND on rxe, one a call",
        "ibverbs",
        IBVERBS,
        "send-1",
    ),
    instructions(
        "instructions-send-32-ibverbs",
        "64 B SEND on rxe, 32 a call",
        "ibverbs",
        IBVERBS,
        "send-32",
    ),
    instructions(
        "instructions-write-1-ibverbs",
        "64 B WRITE on rxe, one a call",
        "ibverbs",
        NO_WRITE,
        "write-1",
    ),
    instructions(
        "instructions-write-32-ibverbs",
        "64 B WRITE on rxe, 32 a call",
        "ibverbs",
        NO_WRITE,
        "write-32",
    ),
    compared(
        "syscalls",
        "system calls of the posting thread at depth 32",
        "calls/message",
        "ib_send_bw",
        Goal::RatioAtMost(1.0 / 32.0),
        (
            "bench-syscalls",
            "doorbell/perftest",
            "cargo lab run bench-syscalls",
        ),
    ),
    compared(
        "rate",
        "64 B messages from one thread on rxe",
        "messages/s",
        "ib_send_bw",
        Goal::RatioAbove(1.0),
        ("bench-rate", "doorbell/perftest", "cargo lab run bench-rate"),
    ),
    compared(
        "rate-32",
        "64 B messages from one thread on rxe",
        "messages/s",
        "ib_send_bw -l 32",
        Goal::RatioAbove(1.0),
        ("bench-rate", "doorbell/perftest-32", "cargo lab run bench-rate"),
    ),
    compared(
        "latency-send",
        "p50 of a 64 B SEND, one way",
        "us",
        "ib_send_lat",
        LATENCY,
        ("latency", "doorbell/perftest", "cargo lab run latency"),
    ),
    compared(
        "latency-ring",
        "p50 of a 64 B message through the one-sided ring, one way",
        "us",
        "ib_write_lat",
        LATENCY,
        (
            "bench-latency-ring",
            "doorbell/perftest",
            "cargo lab run bench-latency-ring",
        ),
    ),
    compared(
        "bandwidth-64k",
        "WRITE of 64 KiB from 64 buffers, theirs from one",
        "MB/s",
        "ib_write_bw",
        Goal::RatioAtLeast(1.0),
        (
            "bench-bandwidth",
            "doorbell-64k/perftest-64k",
            "cargo lab run bench-bandwidth",
        ),
    ),
    compared(
        "bandwidth-1m",
        "WRITE of 1 MiB from 16 buffers, theirs from one",
        "MB/s",
        "ib_write_bw",
        Goal::RatioAtLeast(1.0),
        (
            "bench-bandwidth",
            "doorbell-1m/perftest-1m",
            "cargo lab run bench-bandwidth",
        ),
    ),
    compared(
        "transfer-256m",
        "a transfer of 256 MiB over one rail, in pieces of 256 KiB",
        "MB/s",
        "ib_write_bw of 1 MiB",
        Goal::RatioAtLeast(1.0),
        (
            "bench-transfer",
            "doorbell/perftest",
            "cargo lab run bench-transfer",
        ),
    ),
    compared(
        "transfer-rails",
        "a transfer over two rails of 20 Mbit/s each",
        "MB/s",
        "the same over one of them",
        Goal::RatioAtLeast(1.95),
        (
            "bench-transfer-rails",
            "both/one",
            "cargo lab run bench-transfer-rails",
        ),
    ),
    compared(
        "all-to-all",
        "p50 of an all-to-all of three hosts, 64 B, by a mesh",
        "us",
        "Open MPI over TCP",
        Goal::RatioBelow(1.0),
        (
            "bench-all-to-all",
            "doorbell/openmpi",
            "cargo lab run bench-all-to-all",
        ),
    ),
    ring(
        "ring-1",
        "one descriptor at a time, two threads",
        "the best of rtrb, heapless, crossbeam",
        "SpscRing one",
    ),
    ring(
        "ring-16",
        "sixteen descriptors at a time, two threads",
        "the best of rtrb, heapless, crossbeam",
        "SpscRing sixteen",
    ),
    ring(
        "ring-many-1",
        "one descriptor at a time, the ring of many producers, two threads",
        "the best of heapless and crossbeam",
        "MpscRing one",
    ),
    ring(
        "ring-many-16",
        "sixteen descriptors at a time, the ring of many producers, two threads",
        "the best of heapless and crossbeam",
        "MpscRing sixteen",
    ),
    memory(
        "memory-64",
        "a peer of a hub with 64, with shared receives at least depth",
        "64",
    ),
    memory("memory-1024", "the same with 1,024", "1024"),
    memory("memory-16384", "the same with 16,384", "16384"),
    idle(
        "idle-empty",
        "a poll that finds nothing, with 1,024 channels",
        "empty",
    ),
    idle(
        "idle-send",
        "a 64 B message sent and known done, with 1,024 channels",
        "send",
    ),
    idle(
        "idle-receive",
        "a 64 B message received and its memory posted again, with 1,024 channels",
        "receive",
    ),
    idle(
        "idle-shared",
        "the same where 1,024 channels share their receives",
        "shared",
    ),
    idle(
        "idle-refused",
        "a send refused for want of credit and a wait of 256 polls in vain, with 1,024 channels",
        "refused",
    ),
    idle_links(
        "idle-links-connecting",
        "an idle `Links::poll` of two links, the side that connects",
        "connecting",
    ),
    idle_links(
        "idle-links-listening",
        "an idle `Links::poll` of two links, the side that accepts peers",
        "listening",
    ),
    daemon(
        "daemon-send-16",
        "64 B message taken and published by a process, 16 at a time",
        "send",
        80.0,
    ),
    daemon(
        "daemon-receive-16",
        "64 B message polled by a process, 16 at a time",
        "receive",
        80.0,
    ),
    daemon(
        "daemon-route-16",
        "64 B message moved by the daemon, 16 at a time",
        "route",
        300.0,
    ),
    nccl(
        "nccl-isend-8",
        "`isend` of 8 bytes whose receive is known, the link's part included",
        "isend",
    ),
    nccl(
        "nccl-irecv-8",
        "`irecv` of 8 bytes, the link's part included",
        "irecv",
    ),
    nccl(
        "nccl-test-8",
        "`test` of a receive of 8 bytes that have come",
        "test",
    ),
    transfer(
        "transfer-giver",
        "a MiB of a transfer at default settings, the side that gives",
        "giver",
    ),
    transfer(
        "transfer-taker",
        "a MiB of a transfer at default settings, the side that takes",
        "taker",
    ),
    Row {
        name: "cache-hit-watched",
        what: "use of a kept registration of memory whose mappings are watched, its probe in",
        unit: "instructions/use",
        whose: None,
        goal: Goal::AtMost(150.0),
        source: Source::Missing("valgrind has no userfaultfd(2), by which mappings are watched"),
        figure: "watched",
        command: "cargo lab bench cache",
    },
    cache(
        "cache-hit-kept",
        "use of a kept registration of memory that is promised to stay",
        "kept",
        60.0,
    ),
    cache(
        "cache-miss",
        "use of memory that is promised to stay and is not registered yet, without `ibv_reg_mr`",
        "missed",
        1500.0,
    ),
    handle(
        "handle-header",
        "parse and check a handle of its own length, less its rails",
        "header",
        50.0,
    ),
    handle(
        "handle-rail-ipv4",
        "parse and check one more IPv4 rail",
        "rail-ipv4",
        15.0,
    ),
    handle(
        "handle-rail-ipv6",
        "parse and check one more IPv6 rail",
        "rail-ipv6",
        15.0,
    ),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;
    use crate::scenario;

    #[test]
    fn every_row_has_a_name_of_its_own() {
        let names: BTreeSet<&str> = ROWS.iter().map(|row| row.name).collect();
        assert_eq!(names.len(), ROWS.len());
    }

    #[test]
    fn what_a_row_takes_from_a_scenario_is_there() {
        for row in &ROWS {
            if let Source::Scenario(name) = row.source {
                let scenario = scenario::load(Path::new(name)).unwrap();
                let compared = scenario.compared();
                assert!(
                    compared
                        .iter()
                        .any(|(metric, to)| format!("{metric}/{to}") == row.figure),
                    "{}: {name} compares {compared:?}",
                    row.name
                );
            }
        }
    }
}
