//! Tests of parsing, writing and applying rules.

use super::{FilterSubject, FilterVerdict, RailFilter, RuleFault};

fn filter(text: &str) -> RailFilter {
    text.parse().unwrap()
}

fn subject<'a>(device: &'a str, port: u8, netdev: &'a str, address: &str) -> FilterSubject<'a> {
    FilterSubject {
        device,
        port,
        netdev: Some(netdev),
        address: Some(address.parse().unwrap()),
    }
}

fn verdict(text: &str) -> FilterVerdict {
    filter(text).verdict(&subject("mlx5_1", 2, "ens1f1", "10.1.2.3"))
}

#[test]
fn each_kind_of_rule_names_its_own() {
    for named in [
        "mlx5_1",
        "mlx5_*",
        "mlx5_?:2",
        "*:2",
        "netdev=ens1f1",
        "netdev=ens*",
        "10.1.0.0/16",
        "10.1.2.3",
        "0.0.0.0/0",
    ] {
        assert_eq!(verdict(named), FilterVerdict::Used, "{named}");
        assert_eq!(verdict(&format!("^{named}")), FilterVerdict::Denied(1), "{named}");
    }
    for other in [
        "mlx5_10",
        "mlx5",
        "mlx5_1:1",
        "netdev=ens1f",
        "10.2.0.0/16",
        "10.1.2.4",
        "::/0",
    ] {
        assert_eq!(verdict(other), FilterVerdict::NotNamed, "{other}");
        assert_eq!(verdict(&format!("^{other}")), FilterVerdict::Used, "{other}");
    }
}

#[test]
fn leaving_out_goes_before_using_in_whatever_order() {
    assert_eq!(verdict(""), FilterVerdict::Used);
    assert_eq!(verdict("mlx5_1,^10.1.0.0/16"), FilterVerdict::Denied(2));
    assert_eq!(verdict("^10.1.0.0/16,mlx5_1"), FilterVerdict::Denied(1));
    assert_eq!(verdict("mlx5_1,mlx5_1:2,^netdev=*"), FilterVerdict::Denied(3));
    // One rule that names it is enough, and `^` applies only to its own rule.
    assert_eq!(verdict("mlx5_0,mlx5_1"), FilterVerdict::Used);
    assert_eq!(verdict("^mlx5_0,mlx5_1"), FilterVerdict::Used);
    assert_eq!(verdict("^mlx5_0"), FilterVerdict::Used);
    assert_eq!(verdict("^mlx5_0,mlx5_2"), FilterVerdict::NotNamed);
}

#[test]
fn what_is_not_known_is_not_named() {
    let bare = FilterSubject {
        device: "mlx5_1",
        port: 1,
        netdev: None,
        address: None,
    };
    for text in ["netdev=*", "0.0.0.0/0", "::/0"] {
        assert_eq!(filter(text).verdict(&bare), FilterVerdict::NotNamed, "{text}");
        assert_eq!(
            filter(&format!("^{text}")).verdict(&bare),
            FilterVerdict::Used,
            "{text}"
        );
    }
}

#[test]
fn it_is_written_as_it_is_read() {
    for (text, written) in [
        ("", ""),
        ("  ", ""),
        (" mlx5_0 , ^ mlx5_1:1 ", "mlx5_0,^mlx5_1:1"),
        (
            "netdev=a*,^10.0.0.0/8,fd00::/64",
            "netdev=a*,^10.0.0.0/8,fd00::/64",
        ),
        ("10.0.0.1,fd00::1", "10.0.0.1/32,fd00::1/128"),
    ] {
        assert_eq!(filter(text).to_string(), written);
        assert_eq!(filter(written), filter(text));
    }
}

#[test]
fn what_is_no_rule_says_which_where_and_why() {
    let parsed = |text: &str| text.parse::<RailFilter>().unwrap_err();
    let error = parsed("mlx5_0,  mlx5_1:x");
    assert_eq!(
        error.to_string(),
        "rule 2 of the rail filter, `mlx5_1:x` at byte 9: behind the `:` stands no port from 1 to 255"
    );
    for (text, rule, offset, fault) in [
        ("a,,b", 2, 2, RuleFault::Empty),
        ("a,", 2, 2, RuleFault::Empty),
        ("^", 1, 0, RuleFault::NoName),
        (":1", 1, 0, RuleFault::NoName),
        ("netdev=", 1, 0, RuleFault::NoName),
        ("a b", 1, 0, RuleFault::Character(' ')),
        ("^^a", 1, 0, RuleFault::Character('^')),
        ("a:0", 1, 0, RuleFault::Port),
        ("a:256", 1, 0, RuleFault::Port),
        ("a:+1", 1, 0, RuleFault::Port),
        ("a:", 1, 0, RuleFault::Port),
        ("=mlx5_0", 1, 0, RuleFault::Key),
        ("device=mlx5_0", 1, 0, RuleFault::Key),
        ("fd00:::1", 1, 0, RuleFault::Address),
        ("10.0.0/24", 1, 0, RuleFault::Address),
        ("a/24", 1, 0, RuleFault::Address),
        ("10.0.0.0/33", 1, 0, RuleFault::PrefixLength),
        ("10.0.0.0/", 1, 0, RuleFault::PrefixLength),
        (
            "10.0.0.1/24",
            1,
            0,
            RuleFault::HostBits("10.0.0.0/24".parse().unwrap()),
        ),
    ] {
        let error = parsed(text);
        assert_eq!(
            (error.rule, error.offset, error.fault),
            (rule, offset, fault),
            "{text}"
        );
    }
}

#[test]
fn a_rule_that_names_nothing_is_found() {
    let here = [subject("mlx5_1", 2, "ens1f1", "10.1.2.3")];
    let idle: Vec<_> = filter("mlx5_1,manual,^mlx5_9,10.1.0.0/16").idle(&here).collect();
    assert_eq!(idle, [(2, "manual".to_owned()), (3, "^mlx5_9".to_owned())]);
}

#[test]
fn an_error_about_a_rule_moves_nothing_on_a_terminal_and_is_short() {
    let rule = format!("^ml\u{1b}[2J{}=ens*", "x".repeat(4096));
    let text = rule.parse::<RailFilter>().unwrap_err().to_string();
    assert!(text.contains(r"`^ml\u{1b}[2Jxx"), "{text}");
    assert!(!text.contains(char::is_control) && text.len() < 256, "{text}");
}

#[test]
fn the_largest_number_of_rules_is_used_to_the_last() {
    let most = vec!["other"; usize::from(u16::MAX) - 1].join(",") + ",^mlx5_1";
    assert_eq!(verdict(&most), FilterVerdict::Denied(u16::MAX));
    assert_eq!(verdict(&most.replace('^', "")), FilterVerdict::Used);
    let subject = subject("mlx5_1", 1, "ens1f1", "10.1.2.3");
    let idle: Vec<_> = filter(&most).idle(&[subject]).map(|(number, _)| number).collect();
    assert_eq!(idle.last(), Some(&(u16::MAX - 1)));
    let error = (most + ",other").parse::<RailFilter>().unwrap_err();
    assert_eq!(error.fault, RuleFault::TooMany);
}
