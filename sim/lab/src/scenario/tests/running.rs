//! Runs on local processes: order, readiness, deadlines, backgrounds, rounds.

use core::time::Duration;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::path::Path;
use std::thread;
use std::time::Instant;

use super::super::model::Folders;
use super::super::progress::Progress;
use super::super::report::{Outcome, Verdict};
use super::super::runner::{self, Settings};
use super::{failures, run, run_scenario, scenario, step};
use crate::cluster::{Cluster, CommandSpec, Exit, Host, LocalCluster, Process, ProcessEvent, Shape, Signal};

fn read(folder: &tempfile::TempDir, name: &str) -> String {
    std::fs::read_to_string(folder.path().join(name)).unwrap()
}

fn steps(steps: &[(&str, &str)]) -> String {
    steps
        .iter()
        .map(|(id, rest)| format!("[[steps]]\nid = \"{id}\"\nhost = \"a\"\n{rest}\n"))
        .collect()
}

#[test]
fn foreground_steps_run_one_after_the_other() {
    let (report, folder) = run(&steps(&[
        ("one", "command = 'sleep 0.2; echo one >> {out}/log'"),
        ("two", "command = 'echo two >> {out}/log'"),
        (
            "three",
            "command = ['sh', '-c', 'echo three >> {out}/log; echo said; echo muttered >&2']",
        ),
    ]));
    assert_eq!(report.verdict, Verdict::Passed, "{:?}", report.failures);
    assert_eq!(read(&folder, "log"), "one\ntwo\nthree\n");
    assert_eq!(read(&folder, "three.stdout"), "said\n");
    assert_eq!(read(&folder, "three.stderr"), "muttered\n");
}

#[test]
fn a_script_ends_at_the_first_command_that_fails() {
    let (report, folder) = run(&steps(&[(
        "script",
        "command = 'for code in 0 3 0; do echo $code; (exit $code); done; echo over'",
    )]));
    assert_eq!(report.verdict, Verdict::Failed);
    assert_eq!(step(&report, "script").exit, Some(Exit::Code(3)));
    assert_eq!(read(&folder, "script.stdout"), "0\n3\n");
}

#[test]
fn a_step_waits_until_a_pattern_says_that_another_is_ready() {
    let (report, folder) = run(&steps(&[
        (
            "server",
            "command = 'sleep 0.3; echo up >> {out}/log; printf \"listening> \"; sleep 60'\nbackground = true\n\
             ready = { pattern = 'listening> $' }",
        ),
        (
            "client",
            "command = 'echo client >> {out}/log'\nwait_for = ['server']",
        ),
    ]));
    assert_eq!(report.verdict, Verdict::Passed, "{:?}", report.failures);
    assert_eq!(read(&folder, "log"), "up\nclient\n");
    assert_eq!(step(&report, "server").outcome, Outcome::Stopped);
    assert_eq!(step(&report, "server").exit, Some(Exit::Signal(15)));
}

#[test]
fn a_step_waits_until_another_listens_on_its_port_without_taking_its_connection() {
    // A simple server listens after a while, and takes the first connection for its client's.
    let any = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let place = any.local_addr().unwrap();
    drop(any);
    let marks = tempfile::tempdir().unwrap();
    let mark = marks.path().join("about to listen");
    let server = {
        let mark = mark.clone();
        thread::spawn(move || {
            thread::sleep(Duration::from_millis(400));
            std::fs::write(mark, "").unwrap();
            TcpListener::bind(place).unwrap()
        })
    };
    let (report, _folder) = run(&steps(&[
        (
            "server",
            &format!(
                "command = 'sleep 60'\nbackground = true\nready = {{ port = {} }}",
                place.port()
            ),
        ),
        (
            "client",
            &format!(
                "command = ['test', '-e', '{}']\nwait_for = ['server:ready']",
                mark.display()
            ),
        ),
    ]));
    assert_eq!(report.verdict, Verdict::Passed, "{:?}", report.failures);
    let listener = server.join().unwrap();
    listener.set_nonblocking(true).unwrap();
    let nobody = listener.accept().expect_err("who waits has connected");
    assert_eq!(nobody.kind(), ErrorKind::WouldBlock);
}

#[test]
fn a_background_step_may_wait_for_a_later_one() {
    let (report, folder) = run(&steps(&[
        (
            "late",
            "command = 'echo late >> {out}/log'\nbackground = true\nat_end = 'wait'\nwait_for = ['first']",
        ),
        ("first", "command = 'sleep 0.2; echo first >> {out}/log'"),
    ]));
    assert_eq!(report.verdict, Verdict::Passed, "{:?}", report.failures);
    assert_eq!(read(&folder, "log"), "first\nlate\n");
}

#[test]
fn a_failing_step_ends_the_run_and_is_shown() {
    let (report, _folder) = run(&steps(&[
        (
            "one",
            "command = 'echo first; echo second >&2; sleep 0.1; exit 3'",
        ),
        ("two", "command = 'true'"),
    ]));
    assert_eq!(report.verdict, Verdict::Failed);
    let [failure] = &failures(&report)[..] else {
        panic!("{:?}", report.failures)
    };
    let (seconds, rest) = (failure.find("after ").unwrap(), failure.find(" s\n").unwrap());
    let failure = format!("{}N{}", &failure[..seconds + 6], &failure[rest..]);
    // Lines of two streams, written at once, come in either order.
    let expected = |one, other| {
        format!(
            "step `one` on host `a`: exit code 3, expected exit code 0\n  \
             command: echo first; echo second >&2; sleep 0.1; exit 3\n  \
             ended with exit code 3 after N s\n  \
             its last lines:\n  | {one}\n  | {other}\n  \
             all of it: OUT/one.stdout and .stderr"
        )
    };
    let either = [expected("first", "second"), expected("second", "first")];
    assert!(either.contains(&failure), "{failure}");
    assert!(report.steps.iter().all(|step| step.id != "two"));
}

#[test]
fn an_exit_that_is_expected_is_none_that_fails() {
    let (report, _folder) = run(&steps(&[
        ("one", "command = 'exit 3'\nexpect_exit = 3"),
        ("two", "command = 'exit 4'\nexpect_exit = 'nonzero'"),
        ("three", "command = 'kill -9 $$'\nexpect_exit = 'any'"),
    ]));
    assert_eq!(report.verdict, Verdict::Passed, "{:?}", report.failures);
    let (report, _folder) = run(&steps(&[(
        "one",
        "command = 'kill -9 $$'\nexpect_exit = 'nonzero'",
    )]));
    assert!(report.failures[0].contains("signal 9, expected an exit code other than 0"));
}

#[test]
fn a_step_past_its_deadline_is_killed_with_what_it_started() {
    let start = Instant::now();
    // Unique to this run.
    let sleep = format!("sleep 61.{}", std::process::id());
    let (report, _folder) = run(&steps(&[(
        "one",
        &format!("command = 'echo before; {sleep} & {sleep}'\ndeadline_s = 3"),
    )]));
    assert!(start.elapsed() < Duration::from_secs(30));
    assert_eq!(report.verdict, Verdict::Failed);
    assert!(
        report.failures[0].contains("ran past its deadline of 3 s and was killed"),
        "{}",
        report.failures[0]
    );
    assert!(report.failures[0].contains("  | before\n"));
    // One that was killed may be there for a moment.
    let killed = Instant::now();
    loop {
        let left = std::process::Command::new("pgrep")
            .args(["-fx", &sleep])
            .output()
            .unwrap();
        if left.stdout.is_empty() {
            break;
        }
        assert!(
            killed.elapsed() < Duration::from_secs(10),
            "{}",
            String::from_utf8_lossy(&left.stdout)
        );
    }
}

#[test]
fn a_step_that_ignores_term_is_killed_and_noted() {
    let (report, _folder) = run(&steps(&[
        (
            "deaf",
            "command = 'trap \"\" TERM; echo up; while :; do sleep 0.1; done'\nbackground = true\nready = { pattern = 'up' }",
        ),
        ("one", "command = 'true'\nwait_for = ['deaf']"),
    ]));
    assert_eq!(report.verdict, Verdict::Passed, "{:?}", report.failures);
    assert_eq!(
        report.notes,
        ["step `deaf` did not end 3 s after TERM and was killed"]
    );
    assert_eq!(step(&report, "deaf").exit, Some(Exit::Signal(9)));
}

#[test]
fn a_background_step_that_fails_ends_the_run_while_others_still_run() {
    let start = Instant::now();
    let (report, _folder) = run(&steps(&[
        (
            "server",
            "command = 'until test -e {out}/here; do sleep 0.01; done; echo cannot bind; exit 7'\nbackground = true",
        ),
        ("client", "command = 'echo here; touch {out}/here; exec sleep 30'"),
    ]));
    assert!(start.elapsed() < Duration::from_secs(10));
    assert_eq!(report.failures.len(), 1, "{:?}", report.failures);
    assert!(report.failures[0].starts_with("step `server` on host `a`: exit code 7, expected exit code 0"));
    assert!(report.failures[0].contains("  | cannot bind\n"));
    assert_eq!(step(&report, "client").outcome, Outcome::Stopped);
    assert!(
        report
            .notes
            .contains(&"beside it, step `client` on host `a` said:\n  | here".to_owned()),
        "{:?}",
        report.notes
    );
}

#[test]
fn a_step_that_never_becomes_ready_fails_by_the_clock_or_by_its_end() {
    let (report, _folder) = run(&steps(&[
        (
            "server",
            "command = 'sleep 30'\nbackground = true\nready = { pattern = 'up', within_s = 0.3 }",
        ),
        ("client", "command = 'true'\nwait_for = ['server']"),
    ]));
    assert!(report.failures[0].contains("step `server` on host `a`: was not ready after 0.3 s"));
    let (report, _folder) = run(&steps(&[
        (
            "server",
            "command = 'echo down'\nbackground = true\nready = { pattern = 'up' }",
        ),
        ("client", "command = 'true'\nwait_for = ['server']"),
    ]));
    assert!(report.failures[0].contains("ended before it was ready"));
}

#[test]
fn what_must_end_by_itself_fails_when_it_does_not() {
    let (report, _folder) = run(&steps(&[
        (
            "server",
            "command = 'sleep 30'\nbackground = true\nat_end = 'wait'\ndeadline_s = 0.5",
        ),
        ("one", "command = 'true'"),
    ]));
    assert!(report.failures[0].contains("ran past its deadline of 0.5 s"));
    let (report, _folder) = run(&steps(&[
        (
            "server",
            "command = 'sleep 0.4; exit 2'\nbackground = true\nat_end = 'wait'",
        ),
        ("one", "command = 'true'"),
    ]));
    assert!(
        report.failures[0].contains("exit code 2, expected exit code 0"),
        "{:?}",
        report.failures
    );
}

#[test]
fn what_others_wait_for_without_end_fails() {
    let (report, _folder) = run(&steps(&[
        ("server", "command = 'sleep 300'\nbackground = true"),
        ("first", "command = 'sleep 1'"),
        ("second", "command = 'true'\nwait_for = ['server:exit']"),
        ("third", "command = 'true'"),
    ]));
    let expected =
        "step `server` on host `a`: had not ended by itself 10 s after all others, which wait for it";
    assert_eq!(report.failures.len(), 1, "{:?}", report.failures);
    assert!(report.failures[0].starts_with(expected), "{:?}", report.failures);
}

#[test]
fn what_others_wait_for_has_the_time_of_whom_it_may_wait_for() {
    let (report, _folder) = run(&steps(&[
        (
            "client",
            "command = 'sleep 11; touch {out}/over'\nbackground = true\nat_end = 'wait'\ndeadline_s = 60",
        ),
        (
            "server",
            "command = 'until test -e {out}/over; do sleep 0.1; done'\nbackground = true",
        ),
        ("one", "command = 'true'\nwait_for = ['server:exit']"),
    ]));
    assert_eq!(report.verdict, Verdict::Passed, "{:?}", report.failures);
}

#[test]
fn output_is_asked_for_and_forbidden() {
    let (report, _folder) = run(&steps(&[(
        "one",
        "command = 'echo abc'\nexpect_output = ['^abc$', 'b']",
    )]));
    assert_eq!(report.verdict, Verdict::Passed);
    let (report, _folder) = run(&steps(&[("one", "command = 'echo abc'\nexpect_output = ['x']")]));
    assert!(report.failures[0].contains("its output lacks expect_output `x`"));
    let (report, _folder) = run(&steps(&[(
        "one",
        "command = 'echo ERROR 5 >&2; sleep 30'\nfails_if = ['ERROR [0-9]']",
    )]));
    assert!(report.failures[0].contains("its output matches fails_if `ERROR [0-9]`: ERROR 5"));
}

#[test]
fn groups_alternate_and_the_rest_runs_once() {
    let (report, folder) = run(&format!(
        "rounds = 3\nwarmup_rounds = 1\n{}[[alternate]]\ngroups = ['B', 'A']\n",
        steps(&[
            (
                "setup",
                "command = 'echo setup >> {out}/log; sleep 60'\nbackground = true"
            ),
            ("a", "group = 'A'\ncommand = 'echo A >> {out}/log'\n"),
            ("b1", "group = 'B'\ncommand = 'echo B1 >> {out}/log'\n"),
            ("b2", "group = 'B'\ncommand = 'echo B2 >> {out}/log'\n"),
            ("end", "command = 'echo end >> {out}/log'"),
        ])
    ));
    assert_eq!(report.verdict, Verdict::Passed, "{:?}", report.failures);
    assert_eq!(
        read(&folder, "log").replace('\n', " "),
        format!("setup {}end ", "B1 B2 A ".repeat(4))
    );
    assert!(folder.path().join("warmup-01/a.stdout").exists());
    assert!(folder.path().join("round-03/b2.stdout").exists());
    assert_eq!(step(&report, "setup").outcome, Outcome::Stopped);
    assert_eq!(
        report
            .steps
            .iter()
            .filter(|step| step.id == "a" && !step.warmup)
            .count(),
        3
    );
}

#[test]
fn background_steps_of_a_group_end_with_every_round() {
    let (report, _folder) = run(&format!(
        "rounds = 3\n{}",
        steps(&[
            // A lock that a survivor of the round before would still hold.
            (
                "server",
                "command = 'flock -n {out}/lock sh -c \"echo up; sleep 60\"'\nbackground = true\nready = { pattern = 'up' }"
            ),
            ("client", "command = 'true'\nwait_for = ['server']"),
        ])
    ));
    assert_eq!(report.verdict, Verdict::Passed, "{:?}", report.failures);
    assert_eq!(report.steps.len(), 6);
}

#[test]
fn one_step_may_be_repeated_alone_and_rounds_overridden() {
    let mut scenario = scenario(&steps(&[
        ("one", "command = 'echo 1 >> {out}/log'"),
        ("two", "command = 'echo 2 >> {out}/log'\nrounds = 2"),
    ]));
    let (_report, folder) = run_scenario(&scenario);
    assert_eq!(read(&folder, "log"), "1\n2\n2\n");
    scenario.set_rounds(4);
    let (_report, folder) = run_scenario(&scenario);
    assert_eq!(read(&folder, "log"), "1\n2\n2\n2\n2\n");
}

#[test]
fn files_are_brought_back() {
    let (report, folder) = run(&steps(&[(
        "one",
        "command = 'mkdir -p {out}/elsewhere; echo kept > {out}/elsewhere/trace.txt'\nfiles = ['{out}/elsewhere/trace.txt']",
    )]));
    assert_eq!(report.verdict, Verdict::Passed, "{:?}", report.failures);
    assert_eq!(read(&folder, "one.files/trace.txt"), "kept\n");
    let (report, _folder) = run(&steps(&[("one", "command = 'true'\nfiles = ['/not/there']")]));
    assert!(
        report.failures[0].contains("a file cannot be brought back: exit code 1: cp: "),
        "{:?}",
        report.failures
    );
}

#[test]
fn a_program_that_is_not_there_is_a_failed_step() {
    let (report, _folder) = run(&steps(&[("one", "command = ['/no/such/program', '-x']")]));
    let [failure] = &failures(&report)[..] else {
        panic!("{:?}", report.failures)
    };
    assert!(
        failure.contains("step `one` on host `a`: cannot be started"),
        "{failure}"
    );
    assert!(failure.contains("command: /no/such/program -x"), "{failure}");
}

#[test]
fn hosts_answer_for_their_own_addresses_unless_a_scenario_says_otherwise() {
    let steps = steps(&[("one", "command = 'true'")]);
    for (field, unhardened) in [
        ("", false),
        ("arp_hardening = true\n", false),
        ("arp_hardening = false\n", true),
    ] {
        let scenario = super::scenario(&format!("{field}{steps}"));
        assert_eq!(scenario.topology.unhardened, unhardened, "{field}");
    }
}

#[test]
fn variables_and_the_environment_reach_the_command() {
    let (report, folder) = run(&format!(
        "vars = {{ size = '64' }}\n{}",
        steps(&[(
            "one",
            "command = 'echo {var.size} $WHERE {{literal}}'\nenv = { WHERE = '{out}' }"
        )])
    ));
    assert_eq!(report.verdict, Verdict::Passed, "{:?}", report.failures);
    let expected = format!("64 {} {{literal}}\n", folder.path().display());
    assert_eq!(read(&folder, "one.stdout"), expected);
}

#[test]
fn skipped_tests_fail_and_counts_add_up() {
    let result = |passed: u32, failed: u32| {
        format!("test result: ok. {passed} passed; {failed} failed; 0 ignored; 0 measured; 0 filtered out")
    };
    let good = format!("command = 'echo \"{}\"'\ntests = true", result(3, 0));
    let (report, _folder) = run(&steps(&[("one", &good), ("two", &good)]));
    assert_eq!(report.verdict, Verdict::Passed, "{:?}", report.failures);
    assert_eq!(report.tests.unwrap().to_string(), "6 passed, 0 failed, 0 skipped");
    let skipping = format!(
        "command = 'echo SKIPPED: no device; echo \"{}\"'\ntests = true",
        result(3, 0)
    );
    let (report, _folder) = run(&steps(&[("one", &skipping)]));
    assert!(report.failures[0].contains("1 of its tests skipped themselves, which is a failure in the lab"));
    assert_eq!(report.tests.unwrap().to_string(), "2 passed, 0 failed, 1 skipped");
}

#[test]
fn tests_that_fail_crash_or_hang_are_never_a_sum_without_failures() {
    let failing =
        "command = 'echo \"test result: FAILED. 2 passed; 1 failed; 0 ignored\"; exit 101'\ntests = true";
    let (report, _folder) = run(&steps(&[("one", failing)]));
    assert!(
        report.failures[0].contains("`a`: 1 of its tests failed"),
        "{:?}",
        report.failures
    );
    assert_eq!(report.tests.unwrap().to_string(), "2 passed, 1 failed, 0 skipped");

    let (report, _folder) = run(&steps(&[("one", "command = 'true'\ntests = true")]));
    assert!(report.failures[0].contains("no line `test result: …`"));
    assert_eq!(report.tests.unwrap().to_string(), "0 passed, 1 failed, 0 skipped");

    let crashing =
        "command = 'echo \"test result: ok. 2 passed; 0 failed; 0 ignored\"; kill -11 $$'\ntests = true";
    let (report, _folder) = run(&steps(&[("one", crashing)]));
    assert!(
        report.failures[0].contains("signal 11, expected exit code 0"),
        "{:?}",
        report.failures
    );
    assert_eq!(report.tests.unwrap().to_string(), "2 passed, 1 failed, 0 skipped");

    let (report, _folder) = run(&steps(&[(
        "one",
        "command = 'sleep 30'\ntests = true\ndeadline_s = 0.3",
    )]));
    assert!(
        report.failures[0].contains("ran past its deadline"),
        "{:?}",
        report.failures
    );
    assert_eq!(report.tests.unwrap().to_string(), "0 passed, 1 failed, 0 skipped");
}

/// A cluster whose machines go away: every process writes a line, and then is heard of no more.
struct Vanishing(LocalCluster);

impl Cluster for Vanishing {
    fn hosts(&self) -> &[Host] {
        self.0.hosts()
    }

    fn kernel_release(&self) -> &str {
        "gone"
    }

    fn shape(&self) -> Shape {
        Shape::Local
    }

    fn shared_dir(&self) -> &Path {
        self.0.shared_dir()
    }

    fn spawn(&self, _host: &str, _spec: &CommandSpec) -> anyhow::Result<Box<dyn Process>> {
        Ok(Box::new(Lost(false)))
    }
}

struct Lost(bool);

impl Process for Lost {
    fn next_event(&mut self, _deadline: Instant) -> anyhow::Result<Option<ProcessEvent>> {
        if core::mem::replace(&mut self.0, true) {
            anyhow::bail!("machine `lab` is gone; its console ends with: Kernel panic");
        }
        Ok(Some(ProcessEvent::Stdout(b"last words".to_vec())))
    }

    fn write(&mut self, _bytes: &[u8]) -> anyhow::Result<()> {
        anyhow::bail!("gone")
    }

    fn close_input(&mut self) -> anyhow::Result<()> {
        anyhow::bail!("gone")
    }

    fn resize(&mut self, _rows: u16, _columns: u16) -> anyhow::Result<()> {
        anyhow::bail!("gone")
    }

    fn signal(&mut self, _signal: Signal) -> anyhow::Result<()> {
        anyhow::bail!("gone")
    }
}

#[test]
fn a_machine_that_goes_away_ends_the_run_at_once_and_is_the_reason() {
    let start = Instant::now();
    let folder = tempfile::tempdir().unwrap();
    let cluster = Vanishing(LocalCluster::new(&["a", "b"], folder.path()));
    let scenario = scenario(&steps(&[
        ("server", "command = 'x'\nbackground = true\nready = { port = 5 }"),
        ("client", "command = 'y'"),
    ]));
    let settings = Settings {
        programs: &Folders::default(),
        out: folder.path(),
    };
    let report = runner::run(&scenario, &cluster, settings, &mut Progress::silent()).unwrap();
    assert!(start.elapsed() < Duration::from_secs(10));
    assert_eq!(report.verdict, Verdict::Failed);
    assert!(
        report.failures[0].starts_with(
            "step `server` on host `a`: machine `lab` is gone; its console ends with: Kernel panic"
        ),
        "{}",
        report.failures[0]
    );
    assert!(report.failures[0].contains("  | last words\n"));
    assert!(report.notes.is_empty(), "{:?}", report.notes);
}
