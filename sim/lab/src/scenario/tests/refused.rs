//! Every way in which a file can be no scenario, each with its whole message.

use std::path::Path;

use super::check;

/// A file that is good but for `text`, which stands from line 4 on.
fn refused(text: &str) -> String {
    whole(&format!(
        "name = \"t\"\nabout = \"a test\"\nhosts = [\"a\", \"b\"]\n{text}"
    ))
}

fn whole(text: &str) -> String {
    format!("{:#}", check::parse(Path::new("t.toml"), text).unwrap_err())
}

const STEP: &str = "[[steps]]\nid = \"one\"\nhost = \"a\"\ncommand = \"true\"\n";

#[test]
fn a_file_without_end() {
    let error = check::load(Path::new("/dev/zero")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "/dev/zero: a scenario has 1048576 bytes at most"
    );
}

#[test]
fn a_long_file_with_a_character_at_the_limit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.toml");
    std::fs::write(&path, "#".repeat(1 << 20) + "\u{20ac}").unwrap();
    let error = check::load(&path).unwrap_err().to_string();
    assert!(
        error.ends_with(": a scenario has 1048576 bytes at most"),
        "{error}"
    );
}

#[test]
fn an_unknown_field() {
    assert_eq!(
        refused(&format!("{STEP}exit = 1")),
        "t.toml:8: unknown field `exit`, expected one of `id`, `for_each`, `host`, `command`, `env`, `group`, `rounds`, \
         `background`, `at_end`, `expect_exit`, `deadline_s`, `wait_for`, `ready`, `expect_output`, `fails_if`, \
         `files`, `tests`\n  8 | exit = 1"
    );
}

#[test]
fn a_missing_field() {
    assert_eq!(
        refused("[[steps]]\nid = \"one\"\nhost = \"a\""),
        "t.toml:4: missing field `command`\n  4 | [[steps]]"
    );
}

#[test]
fn text_that_is_not_toml() {
    assert!(
        refused("steps = [").starts_with("t.toml:4: "),
        "{}",
        refused("steps = [")
    );
}

#[test]
fn values_of_the_wrong_kind() {
    for (line, message) in [
        (
            "deadline_s = 0",
            "invalid value: integer `0`, expected seconds, more than 0 and at most 86400",
        ),
        (
            "expect_exit = 256",
            "invalid value: integer `256`, expected an exit code from 0 to 255, \"nonzero\" or \"any\"",
        ),
        (
            "at_end = \"leave\"",
            "unknown variant `leave`, expected `stop` or `wait`",
        ),
        ("background = 1", "invalid type: integer `1`, expected a boolean"),
    ] {
        assert_eq!(
            refused(&format!("{STEP}{line}")),
            format!("t.toml:8: {message}\n  8 | {line}")
        );
    }
    let command = refused("[[steps]]\nid = \"one\"\nhost = \"a\"\ncommand = []");
    assert_eq!(command, "t.toml:7: command names no program\n  7 | command = []");
}

#[test]
fn two_steps_of_one_id() {
    assert_eq!(
        refused(&format!("{STEP}{STEP}")),
        "t.toml:9: steps: two have the id `one`\n  9 | id = \"one\""
    );
}

#[test]
fn an_unknown_host() {
    assert_eq!(
        refused("[[steps]]\nid = \"one\"\nhost = \"c\"\ncommand = \"true\""),
        "t.toml:6: step `one`, host: no host `c`; the hosts are `a` and `b`\n  6 | host = \"c\""
    );
}

#[test]
fn an_unknown_step_to_wait_for() {
    assert_eq!(
        refused(&format!(
            "{STEP}wait_for = [\"two\"]\n{}",
            STEP.replace("one", "three")
        )),
        "t.toml:8: step `one`, wait_for: no step `two`; the others are `three`\n  8 | wait_for = [\"two\"]"
    );
}

#[test]
fn waiting_for_what_never_says_it_is_ready() {
    let server = STEP.replace("one", "server");
    assert_eq!(
        refused(&format!(
            "{server}background = true\n{STEP}wait_for = [\"server\"]"
        )),
        "t.toml:13: step `one`, wait_for: step `server` does not say when it is ready; give it `ready`, or wait for \
         `server:exit`\n  13 | wait_for = [\"server\"]"
    );
    assert!(
        refused(&format!("{server}{STEP}wait_for = [\"server:end\"]"))
            .contains("`:end` is neither `:ready` nor `:exit`")
    );
}

#[test]
fn waits_that_go_round_in_a_circle() {
    let two = STEP.replace("one", "two");
    assert_eq!(
        refused(&format!(
            "{STEP}background = true\nwait_for = [\"two\"]\n{two}wait_for = [\"one:exit\"]"
        )),
        "t.toml:5: wait_for goes round in a circle: `one` waits for `two`, `two` waits for `one`\n  5 | id = \"one\""
    );
    // The order of the file is a wait too.
    assert_eq!(
        refused(&format!("{STEP}wait_for = [\"two\"]\n{two}")),
        "t.toml:5: wait_for goes round in a circle: `one` waits for `two`, `two` comes after `one`\n  5 | id = \"one\""
    );
    assert!(refused(&format!("{STEP}wait_for = [\"one\"]")).contains("`one` waits for `one`"));
}

#[test]
fn waiting_for_another_group() {
    let text = format!(
        "{STEP}group = \"x\"\n{}group = \"y\"\nwait_for = [\"one\"]",
        STEP.replace("one", "two")
    );
    assert_eq!(
        refused(&text),
        "t.toml:14: step `two`, wait_for: `one` is never run at the same time; a step can wait for those of its own \
         group, and for those outside all groups that stand before it\n  14 | wait_for = [\"one\"]"
    );
}

#[test]
fn groups_that_are_torn_or_unknown() {
    let (two, three) = (STEP.replace("one", "two"), STEP.replace("one", "three"));
    assert_eq!(
        refused(&format!("{STEP}group = \"x\"\n{two}{three}group = \"x\"")),
        "t.toml:17: step `three`: the steps of group `x` (and of the groups it alternates with) must stand together\
         \n  17 | group = \"x\""
    );
    assert_eq!(
        refused(&format!(
            "{STEP}group = \"x\"\n[[alternate]]\ngroups = [\"x\", \"y\"]"
        )),
        "t.toml:10: alternate, groups: no step is in group `y`; the groups of steps are: `x`\
         \n  10 | groups = [\"x\", \"y\"]"
    );
    assert!(
        refused(&format!("{STEP}group = \"x\"\n[[alternate]]\ngroups = [\"x\"]"))
            .contains("two or more are needed")
    );
    assert!(refused(&format!("{STEP}group = \"x\"\nrounds = 3")).contains("its group says how often"));
    assert!(
        refused(&format!("{STEP}background = true\nrounds = 3")).contains("not repeated; give it a group")
    );
}

#[test]
fn rounds_have_a_limit() {
    let good = format!("name = \"t\"\nabout = \"x\"\nhosts = [\"a\"]\nrounds = 10000\n{STEP}");
    assert!(check::parse(Path::new("t.toml"), &good).is_ok());
    assert!(refused(&format!("rounds = 10001\n{STEP}")).contains("10001 rounds; at most 10000"));
    assert!(refused(&format!("rounds = 0\n{STEP}")).starts_with("t.toml:4: "));
}

#[test]
fn patterns_that_are_none() {
    assert_eq!(
        refused(&format!("{STEP}fails_if = [\"a(\"]")),
        "t.toml:8: step `one`, fails_if: `a(` is no pattern: unclosed group\n  8 | fails_if = [\"a(\"]"
    );
    assert!(
        refused(&format!("{STEP}expect_output = [\"\"]")).contains("an empty pattern matches everything")
    );
    assert!(
        refused(&format!("{STEP}ready = {{ within_s = 1 }}"))
            .contains("step `one`, ready: say pattern or port")
    );
    assert!(refused(&format!("{STEP}ready = {{ port = 1, pattern = \"x\" }}")).contains("not both"));
    assert!(refused(&format!("{STEP}ready = {{ port = 0 }}")).contains("port 0 is never listened on"));
}

#[test]
fn metrics_without_exactly_one_capture() {
    let metric = "[[metrics]]\nname = \"m\"\nstep = \"one\"\nunit = \"us\"\n";
    assert_eq!(
        refused(&format!("{STEP}{metric}pattern = 'p50 \\d+'")),
        "t.toml:12: metric `m`, pattern: 0 captures; put ( ) round the figure and (?: ) round everything else\
         \n  12 | pattern = 'p50 \\d+'"
    );
    assert!(refused(&format!("{STEP}{metric}pattern = '(a)(b)'")).contains("2 captures"));
    assert!(refused(&format!("{STEP}{metric}pointer = 'p50'")).contains("a JSON pointer begins with /"));
    assert!(refused(&format!("{STEP}{metric}")).contains("metric `m`: say either pattern or pointer"));
    assert!(
        refused(&format!("{STEP}{metric}pointer = '/a'\nscale = 0.0")).contains("scale: must be above 0")
    );
    assert!(
        refused(&format!(
            "{STEP}{metric}pointer = '/a'\nat_least = 2\nat_most = 1"
        ))
        .contains("at_least not above at_most")
    );
    let stranger = metric.replace("\"one\"", "\"two\"");
    assert!(refused(&format!("{STEP}{stranger}pointer = '/a'")).contains("metric `m`, step: no step `two`"));
}

#[test]
fn comparisons_of_what_cannot_be_compared() {
    let metric = |name: &str, unit: &str| {
        format!("[[metrics]]\nname = \"{name}\"\nstep = \"one\"\nunit = \"{unit}\"\npointer = \"/a\"\n")
    };
    let compare = |to: &str| {
        refused(&format!(
            "{STEP}{}{}[[compare]]\nmetric = \"m\"\nto = \"{to}\"",
            metric("m", "us"),
            metric("n", "ns")
        ))
    };
    assert!(
        compare("x").contains("compare, to: no metric `x`; there are `m` and `n`"),
        "{}",
        compare("x")
    );
    assert!(compare("m").contains("they are the same metric"));
    assert!(compare("n").contains("one is in us, the other in ns"));
    let bounds = format!("{STEP}{}{}", metric("m", "us"), metric("n", "us"));
    let bounds = refused(&format!(
        "{bounds}[[compare]]\nmetric = \"m\"\nto = \"n\"\nmin = 2.0\nmax = 1.0"
    ));
    assert!(bounds.contains("min not above max"));
}

#[test]
fn metrics_of_different_blocks_have_no_rounds_in_common() {
    let text = "[[steps]]\nid = \"x\"\nhost = \"a\"\ngroup = \"g\"\ncommand = \"true\"\n\
                [[steps]]\nid = \"y\"\nhost = \"a\"\ngroup = \"h\"\ncommand = \"true\"\n\
                [[metrics]]\nname = \"m\"\nstep = \"x\"\nunit = \"us\"\npointer = \"/a\"\n\
                [[metrics]]\nname = \"n\"\nstep = \"y\"\nunit = \"us\"\npointer = \"/a\"\n\
                [[compare]]\nmetric = \"m\"\nto = \"n\"";
    assert!(
        refused(text)
            .contains("their steps are not run in the same rounds; put their groups into one alternate")
    );
}

#[test]
fn topologies_that_cannot_be() {
    let link = "[[links]]\nhosts = [\"a\", \"b\"]\nsubnet = \"10.1.2.0/24\"\n";
    assert_eq!(
        refused(&format!("{STEP}{}", link.replace("\"b\"", "\"z\""))),
        "t.toml:8: links: link `a-z` ends at `z`, which is not a host\n  8 | [[links]]"
    );
    assert!(
        refused(&format!("{STEP}{}", link.replace(".0/24", ".1/24"))).starts_with("t.toml:10: links: subnet")
    );
    assert!(
        refused(&format!("{STEP}{link}mtu = 100")).contains("has MTU 100; from 1280 to 9000 are possible")
    );
    assert_eq!(
        refused(&format!("{STEP}{link}delay = \"5\"")),
        "t.toml:11: delay `5`: write a number and us, ms or s, as in 50us\n  11 | delay = \"5\""
    );
    assert!(refused(&format!("require_rdma_traffic = true\n{STEP}")).contains("without links there is none"));
    let hosts = whole(&format!(
        "name = \"t\"\nabout = \"x\"\nhosts = [\"a\", \"a\"]\n{STEP}"
    ));
    assert_eq!(
        hosts,
        "t.toml:3: hosts: host `a` is named twice\n  3 | hosts = [\"a\", \"a\"]"
    );
}

#[test]
fn substitutions_that_mean_nothing() {
    let step = |command: &str| {
        refused(&format!(
            "[[steps]]\nid = \"one\"\nhost = \"a\"\ncommand = \"{command}\""
        ))
    };
    assert!(step("x {adr.b}").starts_with("t.toml:7: step `one`, command: `{adr.b}` is no substitution"));
    assert!(step("x {addr.b}").contains("`{addr.b}` needs a link: host `b` is on none"));
}

#[test]
fn names_that_cannot_be_names_of_files() {
    assert!(
        whole(&format!(
            "name = \"../x\"\nabout = \"x\"\nhosts = [\"a\"]\n{STEP}"
        ))
        .starts_with("t.toml:1: name `../x`")
    );
    assert!(refused(&STEP.replace("one", "o/e")).contains("steps: id `o/e`"));
    assert!(refused("steps = []").contains("a scenario without steps shows nothing"));
}

#[test]
fn a_step_in_front_has_no_end_of_scope() {
    assert!(refused(&format!("{STEP}at_end = \"wait\"")).contains("only a step in the background has one"));
}

#[test]
fn a_kernel_nobody_knows() {
    let text = format!("kernel = \"5.4\"\n{STEP}");
    assert!(
        refused(&text).starts_with("t.toml:4: kernel: `5.4` is no kernel: 6.1, 6.12, newest"),
        "{}",
        refused(&text)
    );
}

#[test]
fn what_cannot_be_for_each_link() {
    let each = format!("{STEP}for_each = \"link\"\n");
    assert_eq!(
        refused(&each),
        "t.toml:8: for_each: there are no links\n  8 | for_each = \"link\""
    );
    let link = "[[links]]\nhosts = [\"a\", \"b\"]\nsubnet = \"10.1.2.0/24\"\n";
    assert_eq!(
        refused(&format!("{link}{each}group = \"g\"")),
        "t.toml:11: step `one`, for_each: a step for each link has no group and no rounds\n  11 | for_each = \"link\""
    );
    assert!(
        refused(&format!("{link}{each}").replace("\"link\"", "\"host\"")).contains("unknown variant `host`")
    );
    let first = "name = \"t\"\nabout = \"x\"\nhosts = [\"first\", \"b\"]\n";
    let text = format!("{first}{link}{each}").replace("\"a\"", "\"first\"");
    assert!(
        whole(&text).contains("for_each: `first` means an end of the link here"),
        "{}",
        whole(&text)
    );
    // Outside of it these are hosts like any other, and there are none of these names.
    assert!(
        refused(&format!(
            "{link}{}",
            STEP.replace("\"true\"", "\"echo {addr.first}\"")
        ))
        .contains("names host `first`; the hosts are `a` and `b`")
    );
}

#[test]
fn tables_that_do_not_fit() {
    let metric = "[[metrics]]\nname = \"m\"\nstep = \"one\"\npattern = \"(1)\"\nunit = \"us\"\n";
    let table = |columns: &str, row: &str| {
        let table = format!("[[tables]]\ntitle = \"T\"\ncolumns = [{columns}]\nrows = [[{row}]]\n");
        refused(&format!("{STEP}{metric}{table}"))
    };
    assert!(table("", "").starts_with("t.toml:15: table `T`, columns: there are none"));
    assert!(
        table("\"x\"", "\"1\", \"2\"").starts_with("t.toml:16: table `T`, rows: 2 cells under 1 columns")
    );
    assert!(table("\"x\"", "{ metric = \"n\" }").starts_with("t.toml:16: table `T`, rows: no metric `n`"));
    assert!(
        table("\"x\"", "{ metrik = \"m\" }").contains("a cell is a text, { metric = NAME } or"),
        "{}",
        table("\"x\"", "{ metrik = \"m\" }")
    );
}

#[test]
fn tests_on_what_is_no_kernel() {
    assert!(
        refused(&format!("test_on = [\"newest\", \"9\"]\n{STEP}"))
            .starts_with("t.toml:4: test_on: `9` is no kernel")
    );
    assert!(
        refused(&format!("test_on = [\"6.1\", \"6.1\"]\n{STEP}"))
            .starts_with("t.toml:4: test_on: `6.1` is named twice")
    );
    assert!(
        refused(&format!(
            "test_on = [\"6.1\"]\nall_on = [\"6.12\", \"6.1\"]\n{STEP}"
        ))
        .starts_with("t.toml:5: all_on: `6.1` is named twice")
    );
    for flag in ["quick", "beside_others"] {
        let message = refused(&format!("{flag} = true\n{STEP}"));
        assert!(
            message.starts_with(&format!("t.toml:4: {flag}: the scenario is no part of")),
            "{message}"
        );
    }
    // A guest of `--quick` is one of the gate's.
    assert!(
        refused(&format!("all_on = [\"6.1\"]\nquick = true\n{STEP}"))
            .contains("quick: the scenario is no part")
    );
}
