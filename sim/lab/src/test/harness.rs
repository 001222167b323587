//! What programs of tests print, read: who skipped itself, who passed, who failed and with what last words.

use core::fmt::Write as _;
use std::collections::VecDeque;

/// So many lines of what a test printed are told where it failed: its panic is at their end.
const LAST_LINES: usize = 30;

/// So many failed tests are told in full: where more fail, they fail of one thing.
const TOLD_MAX: usize = 20;

/// Passes on what a person has to see while tests run: not who passes, nor what that one says.
#[derive(Debug, Default)]
pub(super) struct Shown {
    /// What has come since the last end of a line.
    partial: Vec<u8>,
    /// In the part where tests that passed say what they printed.
    is_of_passed: bool,
}

impl Shown {
    /// Takes in more of the output, and gives what of it is shown.
    pub(super) fn take(&mut self, bytes: &[u8]) -> String {
        self.partial.extend_from_slice(bytes);
        let Some(end) = self.partial.iter().rposition(|&byte| byte == b'\n') else {
            return String::new();
        };
        let rest = self.partial.split_off(end.saturating_add(1));
        let whole = core::mem::replace(&mut self.partial, rest);
        let mut shown = String::new();
        for line in String::from_utf8_lossy(&whole).lines() {
            match line {
                "successes:" => self.is_of_passed = true,
                "failures:" => self.is_of_passed = false,
                _ if is_result(line) => self.is_of_passed = false,
                _ => {}
            }
            if !self.is_of_passed && !line.is_empty() && passed_test(line).is_none() {
                shown.push_str(line);
                shown.push('\n');
            }
        }
        shown
    }
}

/// The names of tests that said `SKIPPED:`, where the output has them under a test's name.
pub(super) fn skipped(lines: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut current = None;
    for line in lines.lines() {
        if let Some(name) = section(line) {
            current = Some(name);
        } else if is_result(line) || line == "successes:" {
            current = None;
        } else if let Some(name) = current.filter(|_| line.contains("SKIPPED:")) {
            names.push(name.to_owned());
        }
    }
    names
}

/// The names of the tests that passed.
pub(super) fn passed(lines: &str) -> Vec<String> {
    lines.lines().filter_map(passed_test).map(str::to_owned).collect()
}

/// Each test that failed with the last lines of what it printed, and each program that died of its tests with its last lines.
pub(super) fn failed(lines: &str) -> Vec<String> {
    let mut told = Vec::new();
    let mut program = "";
    let mut is_of_failed = false;
    // The program had no result yet; and the test in whose output the line stands.
    let (mut is_running, mut current) = (false, None);
    let mut last = Last::default();
    for line in lines.lines() {
        let ends = section(line).is_some() || line == "failures:" || is_result(line);
        if let Some(name) = current.take_if(|_| ends) {
            told.push(last.tell(&format!("{program}: {name}")));
        }
        match line {
            "successes:" => is_of_failed = false,
            "failures:" => is_of_failed = true,
            _ if is_result(line) => (is_running, is_of_failed) = (false, false),
            _ => {}
        }
        if let Some(name) = started(line) {
            (program, is_running) = (name, true);
            last = Last::default();
        } else if let Some(name) = section(line).filter(|_| is_of_failed) {
            current = Some(name);
            last = Last::default();
        } else {
            last.take(line);
        }
        if is_running && line.contains("process didn't exit successfully") {
            is_running = false;
            told.push(last.tell(&format!("{program}: died")));
        }
    }
    let more = told.len().saturating_sub(TOLD_MAX);
    told.truncate(TOLD_MAX);
    if more > 0 {
        told.push(format!("and {more} more"));
    }
    told
}

/// The last lines of what is [`Shown`], under a title.
pub(super) fn ending(title: &str, lines: &str) -> String {
    let shown = Shown::default().take(lines.as_bytes());
    let mut last = Last::default();
    shown.lines().for_each(|line| last.take(line));
    last.tell(title)
}

/// The last lines so far that are not empty.
#[derive(Debug, Default)]
struct Last<'a>(VecDeque<&'a str>);

impl<'a> Last<'a> {
    fn take(&mut self, line: &'a str) {
        if line.is_empty() {
            return;
        }
        if self.0.len() == LAST_LINES {
            self.0.pop_front();
        }
        self.0.push_back(line);
    }

    fn tell(&mut self, title: &str) -> String {
        let mut text = title.to_owned();
        for line in self.0.drain(..) {
            // Writing to a string cannot fail.
            let _ = write!(text, "\n  | {line}");
        }
        text
    }
}

/// The program whose tests follow the line, as cargo names it.
fn started(line: &str) -> Option<&str> {
    let of_tests = line.strip_prefix("     Running ");
    let of_tests = of_tests.map(|rest| rest.split(" (").next().unwrap_or(rest));
    of_tests.or_else(|| line.starts_with("   Doc-tests ").then(|| line.trim_start()))
}

/// The test whose output follows the line.
fn section(line: &str) -> Option<&str> {
    line.strip_prefix("---- ")?.strip_suffix(" stdout ----")
}

fn passed_test(line: &str) -> Option<&str> {
    line.strip_prefix("test ")?.strip_suffix(" ... ok")
}

fn is_result(line: &str) -> bool {
    line.starts_with("test result: ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skipped_tests_are_named_by_the_section_they_speak_in() {
        let lines = "running 2 tests\ntest a::x ... ok\ntest a::y ... ok\n\nsuccesses:\n\n\
                     ---- a::x stdout ----\nSKIPPED: x: there is no RDMA device\n\n\
                     ---- a::y stdout ----\nall well\n\nsuccesses:\n    a::x\n    a::y\n\n\
                     test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\nSKIPPED: z\n";
        assert_eq!(skipped(lines), ["a::x"]);
        assert_eq!(passed(lines), ["a::x", "a::y"]);
        assert_eq!(failed(lines), [""; 0]);
    }

    /// Two programs: in the first a test fails beside one that passes and says so; the second dies.
    const FAILING: &str = "     Running unittests src/lib.rs (target/debug/deps/one-12)\n\n\
        running 2 tests\ntest a::bad ... FAILED\ntest a::good ... ok\n\nsuccesses:\n\n\
        ---- a::good stdout ----\ntest of another ... FAILED\n\nsuccesses:\n    a::good\n\nfailures:\n\n\
        ---- a::bad stdout ----\n\nthread 'a::bad' panicked at src/lib.rs:1:2:\nno\n\n\nfailures:\n    a::bad\n\n\
        test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s\n\n\
        error: test failed, to rerun pass `-p one --lib`\n     \
        Running tests/two.rs (target/debug/deps/two-34)\n\nrunning 1 test\nmemory is gone\n\
        error: test failed, to rerun pass `-p one --test two`\n\nCaused by:\n  \
        process didn't exit successfully: `two-34` (signal: 6, SIGABRT: process abort signal)\n\
        error: 2 targets failed:\n    `-p one --lib`\n    `-p one --test two`\n";

    #[test]
    fn what_failed_is_told_with_its_last_words() {
        assert_eq!(
            failed(FAILING),
            [
                "unittests src/lib.rs: a::bad\n  | thread 'a::bad' panicked at src/lib.rs:1:2:\n  | no",
                "tests/two.rs: died\n  | running 1 test\n  | memory is gone\n  \
                 | error: test failed, to rerun pass `-p one --test two`\n  | Caused by:\n  \
                 |   process didn't exit successfully: `two-34` (signal: 6, SIGABRT: process abort signal)",
            ]
        );
    }

    #[test]
    fn what_is_told_of_failures_is_bounded() {
        let mut lines = "     Running tests/many.rs (many-1)\nfailures:\n".to_owned();
        for test in 0..25 {
            let _ = write!(lines, "---- t{test} stdout ----\n{}", "said\n".repeat(40));
        }
        lines.push_str("failures:\n    t0\ntest result: FAILED. 0 passed; 25 failed; 0 ignored\n");
        let told = failed(&lines);
        assert_eq!(told.len(), TOLD_MAX + 1);
        assert_eq!(told[0].lines().count(), LAST_LINES + 1);
        assert_eq!(told[TOLD_MAX], "and 5 more");
        assert_eq!(ending("all", "1\n\ntest x ... ok\n2\n"), "all\n  | 1\n  | 2");
    }

    #[test]
    fn of_those_that_pass_nothing_is_shown() {
        let mut shown = Shown::default();
        // As it may come: torn.
        let text: String = FAILING
            .as_bytes()
            .chunks(7)
            .map(|chunk| shown.take(chunk))
            .collect();
        assert!(!text.contains("another") && !text.contains("a::good"), "{text}");
        assert!(text.starts_with("     Running unittests"), "{text}");
        for wanted in [
            "test a::bad ... FAILED\nfailures:\n---- a::bad",
            "memory is gone",
            "2 targets failed",
        ] {
            assert!(text.contains(wanted), "{wanted} is not in {text}");
        }
    }
}
