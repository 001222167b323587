//! The public API of the packages that an engine or an operator builds on, one line an item: each change of it shows in a diff.
//!
//! `unreachable_pub` is an error in the gate, so that what is `pub` in a source file is public.

use core::fmt::Write as _;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::{code, code_before_tests, is_of_tests, root, sources};

/// Names at the root of `doorbell`: those of a first program and of a serious one. Others stand in the module of their subject.
const ROOT_NAMES_MAX: usize = 45;

/// Folders of sources, and what of them is a package of its own.
const PACKAGES: [(&str, &[&str]); 11] = [
    (
        "src",
        &["src/operation", "src/daemon", "src/broker", "src/program"],
    ),
    ("src/operation/src", &[]),
    ("src/daemon/src", &[]),
    ("src/broker/src", &[]),
    ("core/src", &[]),
    ("hotpath/src", &[]),
    ("ffi/src", &[]),
    (
        "ffi/sys/src",
        &["ffi/sys/src/bindings.rs", "ffi/sys/src/layout_table.rs"],
    ),
    ("ffi/tokio/src", &[]),
    ("ffi/sandbox/src", &[]),
    ("sim/src", &[]),
];

/// The declaration that begins with this line, in one line and without its body.
fn declaration(lines: &[(usize, String)], at: usize) -> String {
    let (mut text, mut depth) = (String::new(), 0_i32);
    for (_, line) in &lines[at..] {
        let line = line.trim();
        text += if text.is_empty() { "" } else { " " };
        text += line;
        depth += line
            .chars()
            .map(|c| i32::from("([".contains(c)) - i32::from(")]".contains(c)))
            .sum::<i32>();
        let is_use = text.starts_with("pub use");
        if line.ends_with(';') || (depth <= 0 && !is_use && line.ends_with(['{', ',', '}'])) {
            break;
        }
    }
    text.trim_end_matches(['{', ',', ' '])
        .replace("( ", "(")
        .replace(", )", ")")
}

/// The items of the enumeration or the trait that begins with this line: variants with their fields, methods, constants and types.
fn items(lines: &[(usize, String)], at: usize) -> Vec<String> {
    let head = lines[at].1.trim_start();
    let is_trait = head.starts_with("pub trait ") || head.starts_with("pub unsafe trait ");
    if !is_trait && !head.starts_with("pub enum ") {
        return Vec::new();
    }
    let deepest = if is_trait { 1 } else { 2 };
    // Braces, and parentheses: a parameter on a line of its own is no item.
    let (mut found, mut depth, mut round, mut has_begun) = (Vec::new(), 0, 0, false);
    for (index, (_, line)) in lines.iter().enumerate().skip(at) {
        let line = line.trim();
        let is_item = line.starts_with(|c: char| c.is_alphabetic() || c == '_');
        if has_begun && round == 0 && (1..=deepest).contains(&depth) && is_item {
            let item = if is_trait {
                declaration(lines, index)
            } else {
                line.trim_end_matches(['{', ',', ' ']).to_owned()
            };
            found.push(format!("{}{item}", "  ".repeat(depth)));
        }
        for c in line.chars() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                '(' => round += 1,
                ')' => round -= 1,
                _ => {}
            }
            has_begun |= depth > 0;
        }
        if has_begun && depth == 0 {
            break;
        }
    }
    found
}

/// All public declarations, sorted by file.
fn listed() -> String {
    let mut text = String::new();
    for (folder, apart) in PACKAGES {
        let mut paths = sources(&root().join(folder));
        paths.sort();
        for path in paths {
            let name = path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
            if is_of_tests(&name) || apart.iter().any(|apart| Path::new(&name).starts_with(apart)) {
                continue;
            }
            let lines = code_before_tests(&path);
            // Checks that the fuzzer alone reaches are no API.
            let is_hidden = |at: usize| at > 0 && lines[at - 1].1.contains("fuzzing");
            let public = (0..lines.len())
                .filter(|at| lines[*at].1.trim_start().starts_with("pub ") && !is_hidden(*at));
            let with_items = |at| core::iter::once(declaration(&lines, at)).chain(items(&lines, at));
            let public: Vec<_> = public.flat_map(with_items).collect();
            if !public.is_empty() {
                writeln!(text, "{name}\n  {}", public.join("\n  ")).unwrap();
            }
        }
    }
    text
}

#[test]
fn the_public_api_is_the_one_that_is_listed() {
    let (path, found) = (root().join("tests/house/api.txt"), listed());
    if std::env::var_os("DOORBELL_WRITE_API").is_some() {
        fs::write(&path, &found).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    let lines = |text: &str| -> BTreeSet<String> { text.lines().map(str::to_owned).collect() };
    let (found_lines, expected_lines) = (lines(&found), lines(&expected));
    let new: Vec<_> = found_lines.difference(&expected_lines).collect();
    let gone: Vec<_> = expected_lines.difference(&found_lines).collect();
    assert!(
        found == expected,
        "the public API is another: write it down by DOORBELL_WRITE_API=1 cargo test -p doorbell --test house, and say so in CHANGELOG.md\nnew: \
         {new:#?}\ngone: {gone:#?}"
    );
}

#[test]
fn the_root_exports_few_names() {
    let lines = code(&root().join("src/lib.rs"));
    let uses = (0..lines.len()).filter(|at| lines[*at].1.starts_with("pub use"));
    let uses: Vec<_> = uses.map(|at| declaration(&lines, at)).collect();
    let names = |text: &String| {
        text.split(['{', ','])
            .filter(|name| !name.trim_matches([' ', '}', ';']).is_empty())
            .count()
    };
    let count: usize = uses
        .iter()
        .map(|text| if text.contains('{') { names(text) - 1 } else { 1 })
        .sum();
    println!("{count} names at the root");
    assert!((40..=ROOT_NAMES_MAX).contains(&count), "{count}: {uses:#?}");
}
