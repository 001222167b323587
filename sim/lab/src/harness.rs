//! The output of test programs: which tests skipped themselves, passed or failed, and their last lines.

use core::fmt::Write as _;
use std::collections::VecDeque;

/// So many last lines of a failed test are shown: its panic is at their end.
const LAST_LINES: usize = 30;

/// The names of tests that said `SKIPPED:`, where the output has them under a test's name.
pub(crate) fn skipped(lines: &str) -> Vec<String> {
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
pub(crate) fn passed(lines: &str) -> Vec<String> {
    lines.lines().filter_map(passed_test).map(str::to_owned).collect()
}

/// Each test that failed, with the last lines of its output.
pub(crate) fn failed(lines: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let (mut is_of_failed, mut current) = (false, None);
    let mut last = Last::default();
    for line in lines.lines() {
        let ends = section(line).is_some() || line == "failures:" || is_result(line);
        if let Some(name) = current.take_if(|_| ends) {
            found.push((name, last.tell("")));
        }
        match line {
            "successes:" => is_of_failed = false,
            "failures:" => is_of_failed = true,
            _ if is_result(line) => is_of_failed = false,
            _ => {}
        }
        if let Some(name) = section(line).filter(|_| is_of_failed) {
            current = Some(name.to_owned());
            last = Last::default();
        } else {
            last.take(line);
        }
    }
    found
}

/// The tests that ran for over a minute and had no result.
pub(crate) fn unfinished(lines: &str) -> Vec<&str> {
    let name = |line: &'_ str| -> Option<String> {
        let name = line.strip_prefix("test ")?.split_once(" ... ")?.0;
        Some(name.to_owned())
    };
    let finished: Vec<String> = lines.lines().filter_map(name).collect();
    let long = lines.lines().filter_map(|line| {
        let name = line.strip_prefix("test ")?;
        name.strip_suffix(" has been running for over 60 seconds")
    });
    long.filter(|name| !finished.iter().any(|finished| finished == name))
        .collect()
}

/// The last lines of an output under a title, without the tests that passed and their output.
pub(crate) fn ending(title: &str, lines: &str) -> String {
    let (mut last, mut is_of_passed) = (Last::default(), false);
    for line in lines.lines() {
        match line {
            "successes:" => is_of_passed = true,
            "failures:" => is_of_passed = false,
            _ if is_result(line) => is_of_passed = false,
            _ => {}
        }
        if !is_of_passed && passed_test(line).is_none() {
            last.take(line);
        }
    }
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
        assert!(failed(lines).is_empty());
    }

    /// A test fails beside one that passes and prints the same words; then the program of another package says its own.
    const FAILING: &str = "running 2 tests\ntest a::bad ... FAILED\ntest a::good ... ok\n\nsuccesses:\n\n\
        ---- a::good stdout ----\ntest of another ... FAILED\n\nsuccesses:\n    a::good\n\nfailures:\n\n\
        ---- a::bad stdout ----\n\nthread 'a::bad' panicked at src/lib.rs:1:2:\nno\n\n\nfailures:\n    a::bad\n\n\
        test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s\n\n";

    #[test]
    fn what_failed_is_told_with_its_last_words() {
        let last = "\n  | thread 'a::bad' panicked at src/lib.rs:1:2:\n  | no";
        assert_eq!(failed(FAILING), [("a::bad".to_owned(), last.to_owned())]);
        assert_eq!(failed(&FAILING.repeat(2)).len(), 2);
    }

    #[test]
    fn a_test_without_a_result_is_unfinished() {
        let lines = "test a has been running for over 60 seconds\ntest b has been running for over 60 seconds\n\
                     test b ... FAILED\ntest c ... ok\n";
        assert_eq!(unfinished(lines), ["a"]);
    }

    #[test]
    fn an_ending_is_bounded_and_without_those_that_passed() {
        assert_eq!(ending("all", "1\n\ntest x ... ok\n2\n"), "all\n  | 1\n  | 2");
        assert_eq!(
            ending("all", &"said\n".repeat(40)).lines().count(),
            LAST_LINES + 1
        );
        let text = ending("all", FAILING);
        assert!(!text.contains("another") && !text.contains("a::good"), "{text}");
        assert!(text.contains("test a::bad ... FAILED"), "{text}");
    }
}
