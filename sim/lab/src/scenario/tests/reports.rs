//! Tests of the reports of a run: metrics, comparisons, traffic, the JSON document and the table.

use std::path::Path;

use super::super::model::Folders;
use super::super::report::Verdict;
use super::super::table::{self, Colour, Detail};
use super::super::{check, cli};
use super::{run, run_scenario, scenario};

/// Two variants over nine rounds; the figure of a round is the number of its lines in the log.
const COMPARED: &str = r#"
rounds = 9

[[steps]]
id = "ours"
host = "a"
group = "ours"
command = 'echo x >> {out}/ours; echo "{ \"p50\": $(($(wc -l < {out}/ours) * 3000)) }"'

[[steps]]
id = "theirs"
host = "b"
group = "theirs"
command = 'echo x >> {out}/theirs; echo "typical $(($(wc -l < {out}/theirs) * 2)) us"'

[[alternate]]
groups = ["ours", "theirs"]

[[metrics]]
name = "ours"
step = "ours"
pointer = "/p50"
scale = 0.001
unit = "us"

[[metrics]]
name = "theirs"
step = "theirs"
pattern = '^typical (\d+) us$'
unit = "us"

[[compare]]
metric = "ours"
to = "theirs"
"#;

#[test]
fn metrics_are_compared_round_by_round() {
    let (report, _folder) = run(COMPARED);
    assert_eq!(report.verdict, Verdict::Passed, "{:?}", report.failures);
    assert_eq!(
        report.metrics[0].rounds,
        [3.0, 6.0, 9.0, 12.0, 15.0, 18.0, 21.0, 24.0, 27.0]
    );
    assert_eq!(report.metrics[1].summary.unwrap().median, 10.0);
    let result = report.comparisons[0].result.unwrap();
    assert_eq!(result.ratio, 1.5);
    let interval = result.interval.unwrap();
    assert_eq!((interval.low, interval.high), (1.5, 1.5));
    assert_eq!(report.comparisons[0].within_bounds, None);
    assert!(report.comparisons[0].to_command.contains("echo \"typical"));
}

#[test]
fn a_goal_is_reported_as_met_or_missed_and_fails_nothing() {
    let with = |metric: &str, compare: &str| {
        let text = COMPARED.replacen("scale = 0.001", &format!("scale = 0.001\n{metric}"), 1);
        let (report, _folder) = run(&format!("{text}{compare}"));
        assert_eq!(report.verdict, Verdict::Passed, "{:?}", report.failures);
        let text = table::render(&report, Detail::Whole, Colour::Plain);
        (report.metrics[0].met, report.comparisons[0].within_bounds, text)
    };
    let (met, within, text) = with("at_most = 15", "max = 1.5\ngoal = true");
    assert_eq!((met, within), (Some(true), Some(true)));
    assert!(
        text.contains("at most 15  met") && text.contains("goal at most 1.5: met"),
        "{text}"
    );
    let (met, within, text) = with("at_most = 14.9", "max = 1.49\ngoal = true");
    assert_eq!((met, within), (Some(false), Some(false)));
    assert!(
        text.contains("at most 14.9  MISSED") && text.contains("goal at most 1.49: MISSED"),
        "{text}"
    );
    let (met, _, text) = with("at_least = 15.1", "");
    assert_eq!(met, Some(false));
    assert!(text.contains("at least 15.1  MISSED"), "{text}");
}

#[test]
fn a_ratio_at_its_bound_passes_and_one_past_it_fails() {
    let (report, _folder) = run(&format!("{COMPARED}max = 1.5"));
    assert_eq!(report.verdict, Verdict::Passed, "{:?}", report.failures);
    let (report, _folder) = run(&format!("{COMPARED}max = 1.49"));
    assert_eq!(
        report.failures,
        ["compare `ours / theirs`: the ratio is 1.500, but should be at most 1.49"]
    );
    let (report, _folder) = run(&format!("{COMPARED}min = 1.51\nmax = 2.0"));
    assert_eq!(
        report.failures,
        ["compare `ours / theirs`: the ratio is 1.500, but should be at least 1.51 and at most 2"]
    );
}

#[test]
fn warm_up_rounds_are_not_measured() {
    let (report, _folder) = run(&COMPARED.replace("rounds = 9", "rounds = 2\nwarmup_rounds = 3"));
    assert_eq!(report.metrics[0].rounds, [12.0, 15.0]);
    assert_eq!(report.comparisons[0].result.unwrap().interval, None);
}

#[test]
fn a_metric_that_is_not_in_the_output_fails_its_step() {
    let (report, _folder) = run(&COMPARED.replace("typical $", "about $"));
    assert_eq!(report.verdict, Verdict::Failed);
    assert!(
        report.failures[0].starts_with(
            "step `theirs` on host `b`, round 1: metric `theirs`: the pattern `^typical (\\d+) us$` matches nothing"
        ),
        "{}",
        report.failures[0]
    );
}

#[test]
fn a_run_that_should_cross_rxe_and_does_not_fails() {
    let text = "[[links]]\nhosts = ['a', 'b']\nsubnet = '10.1.2.0/24'\n\
                [[steps]]\nid = 'one'\nhost = 'a'\ncommand = 'echo {addr.b}'\n";
    let (report, _folder) = run(text);
    assert_eq!(
        report.failures,
        ["no byte crossed rxe: its devices sent 0 packets and received 0"]
    );
    assert!(report.rdma.required);
    let (report, _folder) = run(&format!("require_rdma_traffic = false\n{text}"));
    assert_eq!(report.verdict, Verdict::Passed, "{:?}", report.failures);
}

#[test]
fn the_json_document_has_everything() {
    let (report, _folder) = run(COMPARED);
    let json = serde_json::to_value(&report).unwrap();
    let mut keys: Vec<&String> = json.as_object().unwrap().keys().collect();
    keys.sort();
    assert_eq!(
        keys,
        [
            "before",
            "comparisons",
            "duration_s",
            "failures",
            "hosts",
            "kernel",
            "links",
            "metrics",
            "notes",
            "out",
            "rdma",
            "scenario",
            "shape",
            "steps",
            "tables",
            "tests",
            "verdict"
        ]
    );
    assert_eq!(json["verdict"], "passed");
    assert_eq!(json["scenario"]["name"], "t");
    assert!(!json["kernel"].as_str().unwrap().is_empty());
    assert_eq!(json["steps"].as_array().unwrap().len(), 18);
    let first = &json["steps"][0];
    assert_eq!(first["id"], "ours");
    assert_eq!(first["round"], 1);
    assert_eq!(first["command"][0], "sh");
    assert_eq!(first["exit"]["code"], 0);
    assert_eq!(first["outcome"], "passed");
    assert!(Path::new(first["stdout"].as_str().unwrap()).ends_with("round-01/ours.stdout"));
    assert_eq!(json["metrics"][1]["rounds"].as_array().unwrap().len(), 9);
    assert_eq!(json["metrics"][1]["summary"]["median"], 10.0);
    assert_eq!(json["comparisons"][0]["result"]["interval"]["low"], 1.5);
    assert_eq!(json["rdma"]["required"], false);
}

#[test]
fn the_table_is_aligned_and_ends_with_the_verdict() {
    let (mut report, _folder) = run(&format!("{COMPARED}max = 1.4"));
    report.out = "OUT".into();
    report.kernel = "K".to_owned();
    report.duration_s = 1.25;
    for step in &mut report.steps {
        step.duration_s = 0.5;
    }
    let expected = "\
t: a test
kernel K, local processes, 2 hosts, 0 links

step    host  group   runs  outcome  last exit    median s
ours    a     ours       9  passed   exit code 0      0.50
theirs  b     theirs     9  passed   exit code 0      0.50

metric  unit  rounds   min    q1  median     q3    max
ours    us         9  3.00  9.00   15.00  21.00  27.00
theirs  us         9  2.00  6.00   10.00  14.00  18.00

compare ours / theirs: ratio of medians 1.500, 95 % interval 1.500 to 1.500, 9 pairs of rounds
  ours    15.00 us  echo x >> OUT/ours; echo \"{ \\\"p50\\\": $(($(wc -l < OUT/ours) * 3000)) }\"
  theirs  10.00 us  echo x >> OUT/theirs; echo \"typical $(($(wc -l < OUT/theirs) * 2)) us\"
  should be at most 1.4: it is NOT

failed: compare `ours / theirs`: the ratio is 1.500, but should be at most 1.4
output: OUT
FAILED in 1.2 s
";
    let got = table::render(&report, Detail::Whole, Colour::Plain);
    assert_eq!(
        got.replace(&_folder.path().display().to_string(), "OUT"),
        expected
    );
    assert!(table::render(&report, Detail::Whole, Colour::Ansi).contains("\u{1b}[1;31mFAILED\u{1b}[0m"));
}

#[test]
fn the_count_of_tests_is_the_last_line() {
    let (report, _folder) = run("[[steps]]\nid = 'one'\nhost = 'a'\ntests = true\n\
                                 command = 'echo test result: ok. 2 passed, 0 failed, 1 ignored,'\n");
    assert_eq!(report.verdict, Verdict::Passed, "{:?}", report.failures);
    assert_eq!(
        table::render(&report, Detail::Whole, Colour::Plain)
            .lines()
            .last(),
        Some("2 passed, 0 failed, 1 skipped")
    );
}

#[test]
fn the_plan_shows_commands_without_running_them() {
    let text = "[[links]]\nhosts = ['a', 'b']\nsubnet = '10.1.2.0/24'\nloss = '5%'\n\
                [[steps]]\nid = 'server'\nhost = 'a'\ncommand = ['x', '-d', '{dev.a}', 'two words']\n\
                background = true\nready = { port = 5 }\n\
                [[steps]]\nid = 'client'\nhost = 'b'\ncommand = '{bin}/y {addr.a}'\nwait_for = ['server']\n";
    assert_eq!(
        cli::plan(&scenario(text), &"newest".parse().unwrap()),
        "t: a test\nkernel newest\nhosts a b\nlink a-b 10.1.2.0/24 mtu 4200 loss 5 %\n  \
         server on a, in the background: x -d {dev.a.a-b} 'two words'\n  \
         client on b, once server is ready, within 120 s: {bin}/y 10.1.2.1\n"
    );
}

/// Two links, a pair of steps for each, and a table over them.
const EACH: &str = r#"
require_rdma_traffic = false

[[links]]
hosts = ["a", "b"]
subnet = "10.1.1.0/24"

[[links]]
name = "back"
hosts = ["b", "a"]
subnet = "10.1.2.0/24"

[[steps]]
id = "server"
for_each = "link"
host = "first"
command = 'echo server {link} {addr.first} >> {out}/log; echo ready; sleep 60'
background = true
ready = { pattern = "ready" }

[[steps]]
id = "client"
for_each = "link"
host = "second"
command = 'echo client {link} {first} {second} {addr.first} {prefix.second} >> {out}/log; wc -l < {out}/log'
wait_for = ["server:ready"]

[[steps]]
id = "last"
host = "a"
command = 'echo last {addr.a.back} >> {out}/log; echo 8'
wait_for = ["client.back"]

[[metrics]]
name = "lines"
step = "client"
pattern = '^(\d+)$'
unit = "lines"

[[metrics]]
name = "eight"
step = "last"
pattern = '^(\d+)$'
unit = "lines"

[[tables]]
title = "Lines"
for_each = "link"
columns = ["link", "to", "lines", "of eight"]
rows = [["{link}", "{second}", { metric = "lines" }, { ratio = "lines", to = "eight" }]]
"#;

#[test]
fn steps_for_each_link_run_link_by_link_and_fill_tables() {
    let (report, folder) = run(EACH);
    assert_eq!(report.verdict, Verdict::Passed, "{:?}", report.failures);
    assert_eq!(
        std::fs::read_to_string(folder.path().join("log")).unwrap(),
        "server a-b 10.1.1.1\nclient a-b a b 10.1.1.1 24\nserver back 10.1.2.1\nclient back b a 10.1.2.1 24\n\
         last 10.1.2.2\n"
    );
    let hosts: Vec<(&str, &str)> = report
        .steps
        .iter()
        .map(|step| (step.id.as_str(), step.host.as_str()))
        .collect();
    assert_eq!(hosts[..2], [("server.a-b", "a"), ("client.a-b", "b")]);
    assert_eq!(
        hosts[2..],
        [("server.back", "b"), ("client.back", "a"), ("last", "a")]
    );
    assert_eq!(report.tables[0].rows[0], ["a-b", "b", "2.00", "0.25"]);
    assert_eq!(report.tables[0].rows[1], ["back", "a", "4.00", "0.50"]);
    let shown = table::render(&report, Detail::Tables, Colour::Plain);
    assert!(
        shown.contains(
            "\n\nLines\nlink  to  lines  of eight\na-b   b    2.00      0.25\nback  a    4.00      0.50\n"
        ),
        "{shown}"
    );
    assert!(!shown.contains("client.a-b"), "{shown}");
    // Metrics in the table are not listed again.
    let whole = table::render(&report, Detail::Whole, Colour::Plain);
    assert!(
        whole.contains("client.a-b") && !whole.contains("lines.a-b"),
        "{whole}"
    );
}

#[test]
fn a_table_of_a_run_that_failed_says_what_it_lacks() {
    let (report, _folder) = run(&EACH.replace("wc -l <", "false;"));
    assert_eq!(report.verdict, Verdict::Failed);
    assert_eq!(report.tables[0].rows[1], ["back", "a", "-", "-"]);
}

#[test]
fn a_scenario_says_what_it_needs() {
    let needs = |command: &str| {
        let scenario = scenario(&format!(
            "[[steps]]\nid = 'one'\nhost = 'a'\ncommand = {command}\n"
        ));
        let needs = scenario.needs();
        (
            needs.bin,
            needs.examples,
            needs.tests,
            scenario.mentions("ib_send_lat"),
        )
    };
    assert_eq!(needs("'{bin}/x'"), (true, false, false, false));
    assert_eq!(
        needs("['{tests}/x', 'ib_send_lat.txt']"),
        (false, false, true, false)
    );
    assert_eq!(needs("'{examples}/x'"), (false, true, false, false));
    assert_eq!(needs("'exec ib_send_lat -F'"), (false, false, false, true));
}

#[test]
fn every_scenario_of_the_repository_is_one() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            let scenario = check::load(&path).unwrap();
            assert_eq!(
                Some(scenario.name.as_str()),
                path.file_stem().and_then(|stem| stem.to_str())
            );
            count += 1;
        }
    }
    assert!(count > 0);
}

#[test]
fn the_output_must_lie_where_hosts_can_write() {
    let scenario = scenario("[[steps]]\nid = 'one'\nhost = 'a'\ncommand = 'true'\n");
    let (shared, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let cluster = crate::cluster::LocalCluster::new(&["a"], shared.path());
    let settings = super::super::runner::Settings {
        programs: &Folders::default(),
        out: elsewhere.path(),
    };
    let mut progress = super::super::progress::Progress::silent();
    let error = super::super::runner::run(&scenario, &cluster, settings, &mut progress).unwrap_err();
    assert!(error.to_string().contains("is not in the folder the hosts share"));
    // The same scenario is fine where it belongs.
    assert_eq!(run_scenario(&scenario).0.verdict, Verdict::Passed);
}
