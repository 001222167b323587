//! Circles between files: two files of a package that import each other, neither of which is the parent of the other. Their number only falls.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::{code_before_tests, is_of_tests, members, root, sources};

/// Pairs of files that import each other. To be lowered whenever there are fewer.
const CIRCLES_LEFT: usize = 102;

/// The path of a file as a module of its package: `["link", "table"]`, and none for the root.
fn module_of(src: &Path, path: &Path) -> Vec<String> {
    let name = path.strip_prefix(src).unwrap().with_extension("");
    let mut parts: Vec<_> = name
        .iter()
        .map(|part| part.to_str().unwrap().to_owned())
        .collect();
    let is_of_folder = parts
        .last()
        .is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str()));
    if is_of_folder {
        parts.pop();
    }
    parts
}

/// The paths that a file imports, as modules or items of its package. Lists in braces are taken apart.
fn imported(module: &[String], code: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for import in code.split("use ").skip(1) {
        let import = import.split(';').next().unwrap_or_default();
        let mut words = import
            .split("::")
            .map(|word| word.trim_matches(|c: char| c.is_whitespace()));
        let mut base = match words.next() {
            Some("crate") => Vec::new(),
            Some("super") => module[..module.len().saturating_sub(1)].to_vec(),
            Some("self") => module.to_vec(),
            _ => continue,
        };
        let rest: Vec<_> = words.collect();
        let mut rest = rest.join("::");
        while let Some(further) = rest.strip_prefix("super::") {
            base.pop();
            rest = further.to_owned();
        }
        let (front, list) = rest.split_once('{').unwrap_or((&rest, ""));
        base.extend(
            front
                .split("::")
                .filter(|word| !word.is_empty())
                .map(str::to_owned),
        );
        let items = list.split([',', '{', '}']).map(str::trim);
        let mut items: Vec<_> = items.filter(|item| !item.is_empty()).collect();
        if items.is_empty() {
            items.push("");
        }
        for item in items {
            let words = item
                .split("::")
                .filter(|word| !word.is_empty())
                .map(str::to_owned);
            found.push(base.iter().cloned().chain(words).collect());
        }
    }
    found
}

/// Pairs of files of a package that import each other.
fn circles(src: &Path) -> Vec<String> {
    let files: BTreeMap<Vec<String>, String> = sources(src)
        .iter()
        .filter(|path| {
            let name = path.strip_prefix(src).unwrap().to_str().unwrap();
            // Packages inside this one have their own.
            !is_of_tests(name)
                && !path
                    .ancestors()
                    .any(|above| above != src && above.starts_with(src) && above.join("Cargo.toml").exists())
        })
        .map(|path| {
            let lines = code_before_tests(path);
            let lines: Vec<_> = lines.into_iter().map(|(_, line)| line).collect();
            (module_of(src, path), lines.join("\n"))
        })
        .collect();
    let file_of = |path: Vec<String>| {
        let mut lengths = (1..=path.len()).rev();
        let length = lengths.find(|length| files.contains_key(&path[..*length]))?;
        Some(path[..length].to_vec())
    };
    let arrows: BTreeSet<_> = files
        .iter()
        .flat_map(|(module, code)| {
            let to = imported(module, code);
            let to = to.into_iter().filter_map(file_of);
            to.map(|to| (module.clone(), to)).collect::<Vec<_>>()
        })
        .filter(|(from, to)| !from.starts_with(to) && !to.starts_with(from))
        .collect();
    let both = arrows
        .iter()
        .filter(|(from, to)| from < to && arrows.contains(&(to.clone(), from.clone())));
    both.map(|(from, to)| {
        let package = src.strip_prefix(root()).unwrap().display();
        format!("{package}: {} and {}", from.join("::"), to.join("::"))
    })
    .collect()
}

#[test]
fn circles_between_files_only_fall() {
    let packages = members()
        .into_iter()
        .map(|member| root().join(member).join("src"));
    let found: Vec<_> = packages
        .filter(|src| src.is_dir())
        .flat_map(|src| circles(&src))
        .collect();
    assert!(
        found.len() <= CIRCLES_LEFT,
        "{} circles, and CIRCLES_LEFT is {CIRCLES_LEFT}: {found:#?}",
        found.len()
    );
}

#[test]
fn imports_are_found_in_every_form() {
    let module = ["link".to_owned(), "table".to_owned()];
    let code = "use super::event::LinkId;\npub(crate) use crate::worker::{Worker, event::Event};\nuse std::fmt;\nuse self::row::Row;\n\
                use super::super::mesh::Mesh;\n";
    let found = imported(&module, code);
    let found: Vec<_> = found.iter().map(|path| path.join("::")).collect();
    assert_eq!(
        found,
        [
            "link::event::LinkId",
            "worker::Worker",
            "worker::event::Event",
            "link::table::row::Row",
            "mesh::Mesh",
        ]
    );
}
