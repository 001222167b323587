//! The repository's own files with changes by the thousand: each is a scenario, or refused with a line of it.
//!
//! Drawn from a seed, the same each time: the user writes the file, so this needs no fuzzer.

use std::fs;
use std::path::Path;

use super::check;
use crate::programs;

const CHANGED_FILES: u32 = 800;

/// Replacements for a value, or a line.
const INSTEAD: [&str; 24] = [
    "0",
    "-1",
    "1",
    "10000",
    "18446744073709551615",
    "1e999",
    "nan",
    "true",
    "\"\"",
    "\"a\"",
    "\"a:ready\"",
    "\"(\"",
    "\"(a)(b)\"",
    "\"(?:a{1000}){1000}\"",
    "\"{addr.a}\"",
    "\"{\"",
    "\"\u{1f514}\\u0000\"",
    "\"10.0.0.0/33\"",
    "\"fd00::/64\"",
    "\"5us\"",
    "[]",
    "[\"a\", \"a\"]",
    "{ metric = \"m\" }",
    "[[steps]]",
];

/// Numbers from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % limit.max(1)
    }

    fn change(&mut self, lines: &mut Vec<String>, others: &[String]) {
        let at = self.below(lines.len());
        let instead = INSTEAD[self.below(INSTEAD.len())];
        match self.below(8) {
            0 => drop(lines.remove(at)),
            1 => lines.insert(at, lines[at].clone()),
            2 => lines.insert(at, others[self.below(others.len())].clone()),
            3 => lines.insert(at, instead.to_owned()),
            4 => {
                let other = self.below(lines.len());
                lines.swap(at, other);
            }
            5 => {
                let characters = lines[at].chars().count();
                lines[at] = lines[at].chars().take(self.below(characters + 1)).collect();
            }
            _ => {
                if let Some((key, _)) = lines[at].split_once('=') {
                    lines[at] = format!("{key}= {instead}");
                }
            }
        }
        if lines.is_empty() {
            lines.push(String::new());
        }
    }
}

#[test]
fn a_changed_file_is_a_scenario_or_refused_with_a_line() {
    let folder = programs::workspace().unwrap().join("sim/scenarios");
    let mut files: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "toml"))
        .collect();
    files.sort();
    let files: Vec<Vec<String>> = files
        .iter()
        .map(|path| {
            fs::read_to_string(path)
                .unwrap()
                .lines()
                .map(str::to_owned)
                .collect()
        })
        .collect();
    let others = files.concat();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let (mut taken, mut refused) = (0, 0);
    for _ in 0..CHANGED_FILES {
        let mut lines = files[random.below(files.len())].clone();
        for _ in 0..=random.below(4) {
            random.change(&mut lines, &others);
        }
        let text = lines.join("\n");
        match check::parse(Path::new("t.toml"), &text) {
            Ok(_) => taken += 1,
            Err(error) => {
                let said = format!("{error:#}");
                let line = said
                    .strip_prefix("t.toml:")
                    .and_then(|rest| rest.split_once(':'))
                    .and_then(|(line, _)| line.parse::<usize>().ok());
                let line = line.unwrap_or_else(|| panic!("no line is named: {said}\n{text}"));
                assert!((1..=lines.len() + 1).contains(&line), "{said}\n{text}");
                refused += 1;
            }
        }
    }
    // How many depends on the files there are; both kinds must come.
    assert!(taken > 20 && refused > 100, "{taken} taken, {refused} refused");
}
