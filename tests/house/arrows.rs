//! Arrows between the modules of `core`: ground types stand below frames, frames below machines.

use std::collections::BTreeMap;

use super::{code_before_tests, is_of_tests, named_paths, root, sources};

/// The modules of `core` above its ground, each with those of them that it imports. All others are the ground.
const CORE_ARROWS: &[(&str, &[&str])] = &[
    ("port", &[]),
    ("rail", &["port"]),
    ("provider", &[]),
    ("ledger", &["provider"]),
    ("in_flight", &["provider"]),
    ("shared_in_flight", &["in_flight", "provider"]),
    ("wire", &[]),
    ("route", &["wire"]),
    ("collective", &["wire"]),
    ("handshake", &["wire"]),
    ("network", &["handshake"]),
    ("session", &["wire"]),
    ("transfer", &["session", "wire"]),
];

/// Modules that a line names behind `crate::`, in braces too.
fn modules_of_core(line: &str) -> impl Iterator<Item = &str> {
    let lists = line.split("crate::{").skip(1);
    let in_braces = lists.flat_map(|list| {
        list.split([',', '{', '}', ' '])
            .filter(|path| path.contains("::"))
    });
    named_paths(line)
        .chain(in_braces)
        .filter_map(|path| path.split(':').next())
}

#[test]
fn modules_of_core_are_found_in_braces() {
    let found = |line| modules_of_core(line).collect::<Vec<_>>();
    assert!(
        found("use crate::{Gid, wire::Frame, session::{Epoch, Sequence}};").ends_with(&["wire", "session"])
    );
    assert_eq!(found("use crate::wire::Frame;"), ["wire"]);
}

#[test]
fn arrows_inside_core_point_one_way() {
    let arrows = BTreeMap::from_iter(CORE_ARROWS.iter().copied());
    let src = root().join("core/src");
    for path in sources(&src) {
        let name = path.strip_prefix(&src).unwrap().with_extension("");
        let name = name.to_str().unwrap();
        if name == "lib" || is_of_tests(name) {
            continue;
        }
        let own = name.split('/').next().unwrap();
        for (number, line) in code_before_tests(&path) {
            for imported in modules_of_core(&line) {
                let is_allowed = imported == own || !arrows.contains_key(imported);
                let is_listed = arrows.get(own).is_some_and(|list| list.contains(&imported));
                assert!(
                    is_allowed || is_listed,
                    "{name}:{number}: {own} imports {imported}"
                );
            }
        }
    }
}
