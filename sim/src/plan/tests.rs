//! Plans and their text.

use super::{Action, Clause, Effect, Name, Plan, Step, Which};
use crate::{PacketKind, Random};

const ALL: &str = "seed 42; at 3ms link a-b/sim0 down for 1s; at 1001us port b/sim0:1 up; \
    at 0ns gid b/sim0:1 10.0.0.2 becomes fd00::9; at 7ms pause a for 20us; at 7ms resume a; \
    at 8ms kill b for 1ns; at 9ms restart b; at 1us slow b by 5us for 1ms; at 2us overrun any; at 4ms clock a ahead 3s; \
    at 30ms calm; drop 3rd stream of a->b; delay every 2nd stream of any->b by 1s; \
    drop 2nd ack of a->b; corrupt every 10th packet of any->b; duplicate 0.5% send of a->b; \
    reorder 3rd write of a->b; delay 11th read of a->b by 10us; drop 100% response of b->a:2; \
    drop 21st result of a->b; drop 12th nak of a->b; drop 0.0001% rnr of a->b; \
    drop 1st atomic of a->b; fail 3rd post of a with 12; fail every 1st post of any with 11; \
    fail every 1st read post of a with 22; fail 2nd atomic post of any with 95; \
    fail 2nd unclear-post of a with 5; fail every 4th receive-post of a with 12; fail 1st shut of a with 5; \
    fail 2nd registration of a with 12; fail 1st deregistration of a with 16";

#[test]
fn every_clause_reads_back_as_it_was_written() {
    let plan: Plan = ALL.parse().unwrap();
    assert_eq!(plan.to_string(), ALL);
    assert_eq!(plan.clauses.len(), ALL.split(';').count() - 1);
    let lines = ALL.replace("; ", "\n # a remark; and more\n  ");
    assert_eq!(lines.parse(), Ok(plan.clone()));
    assert_eq!(plan.seed, Some(42));
    let Some(Clause::At(Step { action, lasts_ns, .. })) = plan.clauses.first() else {
        unreachable!()
    };
    assert_eq!(*lasts_ns, Some(1_000_000_000));
    assert!(matches!(action.opposite(), Some(Action::Link(_, _, true))));
}

#[test]
fn an_action_is_read_without_a_time() {
    let action = |text: &str| text.parse::<Action>();
    assert_eq!(action("kill b"), Ok(Action::Kill(Name::new("b").unwrap())));
    assert!(matches!(action("link a-b down"), Ok(Action::Link(_, _, false))));
    let late = action("kill b for 1s").unwrap_err();
    assert_eq!(
        (late.expected, late.found.as_str()),
        ("the end of the clause", "for")
    );
    assert_eq!(action("at 1ms kill b").unwrap_err().found, "at");
}

#[test]
fn a_text_that_is_no_plan_is_reported_with_its_clause() {
    for (text, expected, found) in [
        ("drop", "which, as 2nd, every 2nd or 1%", ""),
        ("drop 0th ack of a->b", "which, as 2nd, every 2nd or 1%", "0th"),
        ("drop 101% ack of a->b", "which, as 2nd, every 2nd or 1%", "101%"),
        ("drop 2nd ack of a-b", "two ends with a -> between", "a-b"),
        ("drop 2nd ack of a->b by 3ns", "the end of the clause", "by"),
        ("delay 2nd ack of a->b", "by", ""),
        ("drop 2nd letter of a->b", "a kind of packets", "letter"),
        ("at 3 link a-b down", "a time", "3"),
        ("at 3ms link a-b sideways", "up or down", "sideways"),
        ("at 3ms link a-b down while 3ms", "for", "while"),
        ("at 99999999999999s kill a", "a time", "99999999999999s"),
        ("at 3ms kill a-b", "a host", "a-b"),
        ("at 3ms clock a back 3s", "ahead", "back"),
        ("at 3ms calm a", "for", "a"),
        ("drop 1st streams of a->b", "a kind of packets", "streams"),
        (
            "fail 1st ack post of a with 12",
            "post, unclear-post, receive-post, shut, registration, deregistration, or of which kind",
            "ack",
        ),
        (
            "fail 1st packet post of a with 12",
            "post, unclear-post, receive-post, shut, registration, deregistration, or of which kind",
            "packet",
        ),
        ("fail 1st read of a with 12", "post", "of"),
        ("seed -1", "a number", "-1"),
        (
            "seed 1; dance",
            "seed, at, fail, drop, duplicate, reorder, corrupt or delay",
            "dance",
        ),
    ] {
        let error = text.parse::<Plan>().unwrap_err();
        assert_eq!(
            (error.expected, error.found.as_str()),
            (expected, found),
            "{text}"
        );
        assert!(error.to_string().contains(expected), "{error}");
    }
    assert_eq!(Name::new("a b"), None);
    assert_eq!(Name::new(""), None);
}

#[test]
fn which_are_struck() {
    let mut random = Random::new(3);
    let mut struck = |which: Which| {
        (1..=7)
            .filter(|n| which.strikes(*n, &mut random))
            .collect::<Vec<_>>()
    };
    assert_eq!(struck(Which::Nth(3)), [3]);
    assert_eq!(struck(Which::Every(3)), [3, 6]);
    assert_eq!(struck(Which::Every(0)), []);
    assert_eq!(struck(Which::Chance(0)), []);
    assert_eq!(struck(Which::Chance(1_000_000)).len(), 7);
}

/// A random plan, with clauses of every kind.
fn random_plan(random: &mut Random) -> Plan {
    let plan: Plan = ALL.parse().unwrap();
    let mut made = Plan {
        seed: random.happens(500_000).then(|| random.draw()),
        clauses: Vec::new(),
    };
    for _ in 0..random.below(6) {
        let chosen = usize::try_from(random.below(plan.clauses.len() as u64)).unwrap();
        let mut clause = plan.clauses[chosen].clone();
        let which = match random.below(3) {
            0 => Which::Nth(1 + random.below(1000)),
            1 => Which::Every(1 + random.draw() / 2),
            _ => Which::Chance(u32::try_from(random.below(1_000_001)).unwrap()),
        };
        match &mut clause {
            Clause::At(step) => {
                step.at_ns = random.draw() >> random.below(64);
                if step.action.opposite().is_some() {
                    step.lasts_ns = random.happens(500_000).then(|| random.draw() >> random.below(64));
                }
            }
            Clause::Packets(rule) => {
                rule.which = which;
                rule.kind = PacketKind::NAMES
                    .get(usize::try_from(random.below(12)).unwrap())
                    .map(|(kind, _)| *kind);
                rule.effect = match random.below(2) {
                    0 => Effect::Delay(random.draw() >> random.below(64)),
                    _ => Effect::Drop,
                };
            }
            Clause::Calls(rule) => rule.which = which,
        }
        made.clauses.push(clause);
    }
    made
}

#[test]
fn any_plan_reads_back() {
    let mut random = Random::new(1);
    for _ in 0..2000 {
        let plan = random_plan(&mut random);
        assert_eq!(plan.to_string().parse(), Ok(plan.clone()), "{plan}");
    }
}

mod names {
    use core::time::Duration;

    use doorbell_core::IpPrefix;

    use crate::plan::{Action, Clause, Plan, UnknownName};
    use crate::{Fabric, PortConfig};

    /// Hosts a, with two devices of which the first has two ports, and b.
    fn add_hosts(fabric: &Fabric) {
        let port = |device, address: &str| {
            let prefix = IpPrefix::new(address.parse().unwrap(), 24).unwrap();
            PortConfig::new(device, &[prefix])
        };
        let of_a = [
            port("sim0", "10.0.0.1"),
            port("sim0", "10.0.1.1"),
            port("sim1", "10.0.2.1"),
        ];
        fabric.host("a", of_a.into()).unwrap();
        fabric.host("b", vec![port("sim0", "10.0.0.2")]).unwrap();
    }

    fn fabric(plan: &str) -> Fabric {
        Fabric::builder().plan(plan.parse().unwrap()).driven().build()
    }

    /// The first unknown name of a plan once all hosts are there.
    fn unknown(plan: &str) -> Option<UnknownName> {
        let fabric = fabric(plan);
        add_hosts(&fabric);
        fabric.check_plan().err()
    }

    fn action(text: &str) -> Action {
        let plan: Plan = format!("at 0s {text}").parse().unwrap();
        match &plan.clauses[..] {
            [Clause::At(step)] => step.action.clone(),
            _ => panic!("{text}"),
        }
    }

    #[test]
    fn every_clause_reports_each_of_its_names() {
        for (clause, name) in [
            ("at 1ms link a-c down", "c"),
            ("at 1ms link c-a up", "c"),
            ("at 1ms port c up", "c"),
            ("at 1ms gid c 10.0.0.2 becomes 10.0.0.9", "c"),
            ("at 1ms kill c", "c"),
            ("at 1ms restart c", "c"),
            ("at 1ms pause c", "c"),
            ("at 1ms resume c", "c"),
            ("at 1ms slow c by 1us", "c"),
            ("at 1ms overrun c", "c"),
            ("at 1ms clock c ahead 1s", "c"),
            ("drop 1st ack of a->c", "c"),
            ("delay 1st packet of c->any by 1us", "c"),
            ("fail 1st post of c with 12", "c"),
        ] {
            let found = unknown(clause).unwrap_or_else(|| panic!("{clause}"));
            assert_eq!((found.clause.as_str(), found.name.as_str()), (clause, name));
            assert_eq!(found.known, ["a", "b"]);
        }
    }

    #[test]
    fn devices_and_ports_are_names_too() {
        for (end, name, known) in [
            ("a/sim7", "a/sim7", vec!["a/sim0", "a/sim1"]),
            ("b/sim1:1", "b/sim1", vec!["b/sim0"]),
            ("any/sim7", "any/sim7", vec!["a/sim0", "a/sim1", "b/sim0"]),
            ("a/sim0:3", "a/sim0:3", vec!["a/sim0:1", "a/sim0:2"]),
            ("b:2", "b:2", vec!["b/sim0:1"]),
            ("c/sim0:1", "c", vec!["a", "b"]),
        ] {
            let found = unknown(&format!("at 1ms port {end} down")).unwrap_or_else(|| panic!("{end}"));
            assert_eq!(
                (found.name.as_str(), found.known),
                (name, known.iter().map(ToString::to_string).collect())
            );
        }
        for end in [
            "any", "any/sim1", "any:2", "a", "a:2", "a/any", "a/sim0", "a/sim0:2", "b/sim0:1",
        ] {
            assert_eq!(unknown(&format!("at 1ms port {end} down")), None, "{end}");
        }
    }

    #[test]
    fn a_text_has_the_name_and_those_that_there_are() {
        let text = |plan| unknown(plan).map(|unknown| unknown.to_string());
        assert_eq!(
            text("at 8ms kill c").unwrap(),
            "in \"at 8ms kill c\": the fabric has no c, but a and b"
        );
        assert_eq!(
            text("at 8ms port b/sim2 down").unwrap(),
            "in \"at 8ms port b/sim2 down\": the fabric has no b/sim2, but b/sim0"
        );
        let alone = fabric("at 8ms kill c");
        let error = alone.check_plan().unwrap_err();
        assert_eq!(
            error.to_string(),
            "in \"at 8ms kill c\": the fabric has no c, and no host"
        );
        add_hosts(&alone);
    }

    #[test]
    fn hosts_may_be_added_after_the_plan_and_before_its_time() {
        let fabric = fabric("at 1ms kill b; drop 1st ack of a->b");
        assert!(fabric.check_plan().is_err());
        add_hosts(&fabric);
        fabric.run_for(Duration::from_millis(2));
        assert_eq!(fabric.check_plan(), Ok(()));
    }

    #[test]
    fn a_step_that_was_due_too_early_stays_reported() {
        let fabric = fabric("at 1ms kill b");
        fabric.run_for(Duration::from_millis(2));
        add_hosts(&fabric);
        let error = fabric.check_plan().unwrap_err();
        assert_eq!((error.name.as_str(), error.known.len()), ("b", 0));
    }

    #[test]
    fn a_cut_strikes_hosts_that_are_added_later() {
        let fabric = fabric("at 1ms link a-b down");
        fabric.run_for(Duration::from_millis(2));
        assert!(fabric.check_plan().is_err(), "for now");
        add_hosts(&fabric);
        assert_eq!(fabric.check_plan(), Ok(()));
    }

    #[test]
    fn rules_that_are_calmed_stay_reported() {
        let fabric = fabric("at 1ms calm; fail 1st post of c with 12");
        add_hosts(&fabric);
        fabric.run_for(Duration::from_millis(2));
        assert_eq!(
            fabric.check_plan().unwrap_err().clause,
            "fail 1st post of c with 12"
        );
    }

    #[test]
    fn what_is_followed_later_is_checked_too() {
        let fabric = Fabric::new();
        add_hosts(&fabric);
        fabric.follow(&"drop 1st send of b->d".parse().unwrap());
        assert_eq!(fabric.check_plan().unwrap_err().name, "d");
    }

    #[test]
    fn nothing_happens_where_an_action_has_an_unknown_name() {
        let fabric = Fabric::new();
        add_hosts(&fabric);
        for (text, name) in [
            ("kill c", "c"),
            ("link a-b/sim3 down", "b/sim3"),
            ("port a:4 down", "a:4"),
        ] {
            assert_eq!(fabric.perform(&action(text)).unwrap_err().name, name);
        }
        assert_eq!(fabric.perform(&action("link a-b/sim0 down")), Ok(()));
        assert_eq!(fabric.perform(&action("calm")), Ok(()));
        assert_eq!(fabric.check_plan(), Ok(()));
    }
}
