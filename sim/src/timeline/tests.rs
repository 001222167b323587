//! Tests of the text and the picture of a few moments.

use std::collections::BTreeMap;

use super::axis::{Axis, LINE};
use super::{Fate, LeftOut, Moment, Shot, Timeline, Tone, Unit, What};
use crate::packet::{Opcode, PacketKind};

fn shot(to: Option<usize>, fate: Fate) -> Shot {
    Shot {
        from: 0,
        to,
        kind: PacketKind::Send,
        opcode: Opcode::SendOnly,
        psn: 7,
        payload_bytes: 64,
        is_again: false,
        is_copy: false,
        fate,
    }
}

fn remark(lane: Option<usize>, text: &str) -> What {
    What::Remark {
        lane,
        text: text.into(),
        tone: Tone::Fault,
        times: 1,
    }
}

fn timeline(moments: Vec<(u64, What)>) -> Timeline {
    let moments = moments.into_iter().map(|(at_ns, what)| Moment { at_ns, what });
    Timeline {
        lanes: vec!["a".into(), "b".into()],
        moments: moments.collect(),
        left_out: LeftOut::default(),
    }
}

#[test]
fn times_are_exact_and_in_one_unit() {
    let [us, ms, s] = Unit::ALL;
    assert_eq!(us.say(1_234_567), "1234.567 us");
    assert_eq!(ms.say(1_234_567), "1.234567 ms");
    assert_eq!(s.say(1_000_000_001), "1.000000001 s");
    let ends = |at_ns| timeline(vec![(at_ns, remark(None, "x"))]).unit().name;
    assert_eq!(
        [99_999_999, 100_000_000, 99_999_999_999, 100_000_000_000].map(ends),
        ["us", "ms", "ms", "s"]
    );
}

#[test]
fn every_fate_says_its_name_and_no_loss_has_an_arrow_head() {
    let fates = [
        (Fate::Lost, "LOST"),
        (Fate::Stranded, "LOST: no way"),
        (Fate::Refused(9), "LOST: the port is down"),
        (Fate::Corrupt(9), "CORRUPT"),
        (Fate::Unheard(9), "UNHEARD"),
    ];
    for (fate, said) in fates {
        let timeline = timeline(vec![(5, What::Packet(shot(Some(1), fate)))]);
        let text = timeline.to_string();
        assert!(text.contains(&format!("psn 7 64 B, {said}")), "{text}");
        let svg = timeline.to_svg();
        assert!(svg.contains(&format!("64 B {said}</text>")), "{svg}");
        assert!(
            !svg.contains("<path") && svg.matches('\u{2715}').count() == 2,
            "{svg}"
        );
    }
    let arrived = timeline(vec![(5, What::Packet(shot(Some(1), Fate::Arrived(9))))]).to_svg();
    assert_eq!(
        [
            arrived.matches("<path").count(),
            arrived.matches('\u{2715}').count()
        ],
        [1, 1]
    );
}

#[test]
fn what_goes_to_itself_or_to_nobody_is_drawn() {
    let itself = shot(Some(0), Fate::Arrived(9));
    let nobody = shot(None, Fate::Unheard(9));
    let svg = timeline(vec![(5, What::Packet(itself)), (6, What::Packet(nobody))]).to_svg();
    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
}

#[test]
fn a_host_is_one_column_and_an_arrow_ends_where_its_packet_did() {
    let with = |from, to, fate| {
        What::Packet(Shot {
            from,
            ..shot(to, fate)
        })
    };
    let mut timeline = timeline(vec![
        (1, with(0, Some(2), Fate::Arrived(2))),
        (2, with(1, Some(0), Fate::Lost)),
        (3, with(2, Some(1), Fate::Corrupt(4))),
        (4, with(0, Some(3), Fate::Arrived(5))),
        (5, with(1, None, Fate::Unheard(6))),
        (6, remark(Some(1), "sleeps")),
        (7, remark(None, "calm")),
    ]);
    timeline.lanes = ["h2/d qp 1", "h10", "h9/d qp 2", "h2/d qp 3"]
        .map(str::to_owned)
        .into();
    let text = timeline.to_string();
    let drawn = |line: &str| line.get(18..54).or(line.get(18..)).map(str::to_owned);
    let drawn: Vec<_> = text.lines().skip(1).filter_map(drawn).collect();
    assert_eq!(
        drawn,
        [
            "h2          h9          h10",
            "o---------->|           |           ",
            "|           x-----------o           ",
            "|           o----------x|           ",
            "@           |           |           ",
            "|           |           x           ",
            "|           |           *           ",
            "====================================",
        ],
        "\n{text}"
    );
    assert!(text.contains("comes 0.002 us (d qp 1 to d qp 2)"), "{text}");
}

#[test]
fn what_was_left_out_is_reported_in_both() {
    let mut timeline = timeline(vec![(5, remark(None, "a<b> & c"))]);
    assert!(!timeline.to_string().contains("CUT"));
    timeline.left_out = LeftOut {
        packets: 3,
        others: 2,
        until_ns: 1500,
    };
    let text = "CUT HERE: 3 more packets and 2 more moments, up to 1.500 us, are not shown";
    assert!(timeline.to_string().ends_with(&format!("{text}\n")));
    let svg = timeline.to_svg();
    assert!(svg.contains(text) && svg.contains("a&lt;b&gt; &amp; c"));
}

#[test]
fn instants_never_lie_on_each_other_and_long_waits_are_cut_out() {
    let lines = BTreeMap::from([(0, 1), (10, 3), (11, 1), (20, 1), (1_000_000, 1)]);
    let axis = Axis::new(&lines, 0.0);
    let ticks: Vec<_> = axis.ticks().collect();
    let gaps: Vec<f64> = ticks.windows(2).map(|pair| pair[1].1.y - pair[0].1.y).collect();
    assert!(gaps.iter().all(|gap| *gap >= LINE), "{gaps:?}");
    // Three lines stand at the second.
    assert!(gaps[1] >= 3.0 * LINE, "{gaps:?}");
    let cuts: Vec<_> = ticks.iter().map(|(_, tick)| tick.cut_ns).collect();
    assert_eq!(cuts, [None, None, None, None, Some(999_980)]);
    assert!(axis.ends() > axis.y(1_000_000));
}

#[test]
fn what_was_noted_elsewhere_finds_its_time_and_its_lane() {
    let mut timeline = timeline(vec![(5, remark(Some(0), "x")), (9, remark(Some(1), "y"))]);
    let remarks = || [(7, "b", "one"), (5, "c", "two"), (10, "b", "three")];
    let remarks = || remarks().map(|(at_ns, host, text)| (at_ns, Some(host.to_owned()), text.to_owned()));
    let mut cut = timeline.clone();
    timeline.extend(remarks());
    let text = timeline.to_string();
    let order: Vec<_> = text
        .lines()
        .skip(2)
        .filter_map(|line| line.split_whitespace().last())
        .collect();
    assert_eq!(order, ["x", "two", "one", "y", "three"], "{text}");
    assert_eq!(timeline.lanes, ["a", "b", "c"]);
    cut.left_out.packets = 1;
    cut.extend(remarks());
    let text = cut.to_string();
    assert!(
        !text.contains("three") && text.contains("1 more packets and 1 more moments, up to 0.010 us"),
        "{text}"
    );
}
