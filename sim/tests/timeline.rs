//! Timelines of runs that are known: every packet, loss, retransmission, completion and fault is in them.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests"
)]

#[expect(dead_code, reason = "the suite's tests run elsewhere")]
mod suite;

use core::time::Duration;

use doorbell_core::Mtu;
use doorbell_core::provider::{CompletionQueue, Operation, PostFlags};
use doorbell_sim::{Fabric, Host, LinkConfig};
use suite::{Side, USUAL, Wish, connected_as};

struct On(Fabric);

impl On {
    fn plan(plan: &str) -> Self {
        let link = LinkConfig {
            latency_ns: 1000,
            bandwidth_mbps: Some(100_000),
        };
        Self(
            Fabric::builder()
                .link(link)
                .plan(plan.parse().unwrap())
                .driven()
                .build(),
        )
    }

    fn sides(&self) -> [Side<Host>; 2] {
        let wish = Wish {
            path_mtu: Mtu::B256,
            ..USUAL
        };
        connected_as(&self.0, [wish; 2])
    }

    fn run_for(&self, ns: u64) {
        self.0.run_for(Duration::from_nanos(ns));
    }
}

/// A WRITE of two packets whose first is lost, a doubled SEND, a READ whose answer breaks, and a link that goes.
#[test]
fn a_run_reads_like_this() {
    let on = On::plan(
        "drop 1st write of a->b; duplicate 1st send of a->b; corrupt 1st response of b->a; at 20us link a-b down",
    );
    let [mut near, mut far] = on.sides();
    on.0.record(100);
    far.post_receives(3);
    let slots = [near.slot(&[1; 256]), near.slot(b"x")];
    near.post_slots(Operation::Write(far.at(0)), slots, PostFlags::SIGNALED);
    on.run_for(5_000);
    on.0.remark("a", "one more");
    near.post(Operation::Send, b"y");
    on.run_for(5_000);
    near.post(Operation::Read(far.at(0)), &[0; 200]);
    on.0.run_for(Duration::from_millis(5));
    near.post(Operation::Write(far.at(0)), b"z");
    on.0.run_for(Duration::from_millis(9));
    let timeline = on.0.take_timeline();
    let text = timeline.to_string();
    assert_eq!(text, EXPECTED, "\n{text}");
    // The picture has an arrow for each packet that came whole, a cross for each that did not, dashes for each that
    // was sent again, and says all that the text does.
    let svg = timeline.to_svg();
    assert_eq!(svg.matches("<path").count(), 10);
    assert_eq!(svg.matches(">\u{2715}</text>").count(), 4);
    assert_eq!(svg.matches("stroke-dasharray=\"6 3\"").count(), 3);
    for said in [
        "link a-b down",
        "one more",
        "8398.608 us",
        "a/sim0:1 qp 16",
        "read psn 1 AGAIN LOST",
    ] {
        assert!(svg.contains(&format!(">{said}</text>")), "{said}: {svg}");
    }
}

const EXPECTED: &str = "\
14 packets and 8 other moments; a packet stands where its last bit left, and is lost where its arrow ends in x
                  a           b
        0.029 us  o-----x     |           write first psn 16777214 256 B, LOST (sim0:1 qp 16 to sim0:1 qp 16)
        0.036 us  o---------->|           write last psn 16777215 1 B, comes 1.036 us (sim0:1 qp 16 to sim0:1 qp 16)
        1.043 us  |<----------o           nak psn 16777214, comes 2.043 us (sim0:1 qp 16 to sim0:1 qp 16)
        2.072 us  o---------->|           write first psn 16777214 256 B, AGAIN, comes 3.072 us (sim0:1 qp 16 to sim0:1 qp 16)
        2.079 us  o---------->|           write last psn 16777215 1 B, AGAIN, comes 3.079 us (sim0:1 qp 16 to sim0:1 qp 16)
        3.086 us  |<----------o           ack psn 16777215, comes 4.086 us (sim0:1 qp 16 to sim0:1 qp 16)
        4.086 us  *           |           request: success (sim0:1 qp 16)
        5.000 us  *           |           one more
        5.007 us  o---------->|           send psn 0 1 B, comes 6.007 us (sim0:1 qp 16 to sim0:1 qp 16)
        5.007 us  o---------->|           send psn 0 1 B, DOUBLED, comes 6.007 us (sim0:1 qp 16 to sim0:1 qp 16)
        6.007 us  |           *           receive: success, 1 B (sim0:1 qp 16)
        6.014 us  |<----------o           ack psn 0, comes 7.014 us (sim0:1 qp 16 to sim0:1 qp 16)
        6.021 us  |<----------o           ack psn 0, comes 7.021 us (sim0:1 qp 16 to sim0:1 qp 16)
        7.014 us  *           |           request: success (sim0:1 qp 16)
       10.008 us  o---------->|           read psn 1, comes 11.008 us (sim0:1 qp 16 to sim0:1 qp 16)
       11.031 us  |x----------o           response psn 1 200 B, CORRUPT, comes 12.031 us (sim0:1 qp 16 to sim0:1 qp 16)
       20.000 us  ======================== link a-b down
     4204.312 us  o-----x     |           read psn 1, AGAIN, LOST (sim0:1 qp 16 to sim0:1 qp 16)
     5010.008 us  o-----x     |           write psn 2 1 B, LOST (sim0:1 qp 16 to sim0:1 qp 16)
     8398.608 us  *           |           request: transport retries exceeded: the peer does not answer (sim0:1 qp 16)
     8398.608 us  *           |           FAILS (sim0:1 qp 16)
     8398.608 us  *           |           request: flushed: the queue pair failed or was closed; another completion has the cause (sim0:1 qp 16)
";

#[test]
fn beyond_its_length_it_is_cut_and_says_so() {
    let on = On::plan("");
    let [mut near, mut far] = on.sides();
    on.0.record(4);
    far.post_receives(8);
    for _ in 0..4 {
        near.post(Operation::Send, b"x");
        on.run_for(5_000);
    }
    near.send_completions.poll(|_| ()).unwrap();
    let text = on.0.take_timeline().to_string();
    // Each message has two packets and two completions.
    let end = "CUT HERE: 6 more packets and 6 more moments, up to";
    assert!(text.contains(end), "{text}");
    assert_eq!(
        text.lines().filter(|line| line.contains("o---------->|")).count(),
        1,
        "{text}"
    );
    // Nothing is noted once it is taken.
    near.post(Operation::Write(far.at(0)), b"x");
    on.run_for(5_000);
    assert_eq!(on.0.take_timeline(), doorbell_sim::Timeline::default());
}
