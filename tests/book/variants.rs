//! The page of errors has an entry for each variant of the enums that an application meets.

use std::fs;
use std::path::Path;

use crate::ERRORS;

/// Names of the variants of a public enum, wherever it is in `src` or `core`.
fn variants(name: &str) -> Vec<String> {
    let headings = ["", "<E>"].map(|parameters| format!("pub enum {name}{parameters} {{\n"));
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    // The last one is searched first.
    let mut folders = vec![root.join("core/src"), root.join("src")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = fs::read_to_string(&path).unwrap_or_default();
            let found = headings.iter().find_map(|heading| text.split_once(heading));
            let Some((_, rest)) = found else {
                continue;
            };
            let body = rest.split("\n}").next().unwrap();
            // A variant is indented once, and begins with a capital.
            let names = body.lines().filter_map(|line| line.strip_prefix("    "));
            let names = names.filter(|line| line.starts_with(|c: char| c.is_ascii_uppercase()));
            let ends = |c: char| !c.is_ascii_alphanumeric();
            return names
                .map(|line| line.split(ends).next().unwrap().to_owned())
                .collect();
        }
    }
    panic!("there is no enum {name} in src or core");
}

#[test]
fn every_variant_has_an_entry() {
    let names = [
        "NodeError",
        "ConnectError",
        "SendErrorKind",
        "WaitError",
        "CloseError",
        "LinkError",
        "MeshError",
        "NotSentKind",
    ];
    for name in names {
        let heading = format!("\n## `{name}`\n");
        let (_, rest) = ERRORS.split_once(&heading).unwrap();
        let body = rest.split("\n## ").next().unwrap();
        let variants = variants(name);
        assert!(variants.len() > 1, "{name}: {variants:?}");
        for variant in variants {
            assert!(
                body.contains(&format!("(`{variant}`)")),
                "section {name} has no entry for {variant}"
            );
        }
    }
}

/// Entries that name their enum, in sections of several enums.
#[test]
fn every_variant_has_an_entry_of_its_full_name() {
    let names = [
        "BrokerError",
        "ClientError",
        "CollectiveError",
        "GroupError",
        "LimitsError",
        "PoliciesError",
        "PolicyError",
        "RegistrationError",
        "RevokeError",
        "ServerError",
        "SettingsFault",
        "StatusError",
        "TopologyError",
        "TransferRefusal",
    ];
    for name in names {
        let variants = variants(name);
        assert!(variants.len() > 1, "{name}: {variants:?}");
        for variant in variants {
            let full = format!("`{name}::{variant}`");
            assert!(ERRORS.contains(&full), "no entry for {full}");
        }
    }
}

/// The variants that a line of the page names in brackets: `` (`Enum::Variant`) ``.
fn named(line: &str) -> impl Iterator<Item = &str> {
    let quoted = line
        .split("(`")
        .skip(1)
        .filter_map(|behind| behind.split_once("`)"));
    quoted.map(|(name, _)| name).filter(|name| {
        name.split_once("::")
            .is_some_and(|(_, of)| of.starts_with(char::is_uppercase))
    })
}

/// A line of the page that names a variant, and is not the only one of its item that does, at its end.
fn glued(page: &str) -> Option<&str> {
    // Variants of the item so far; none may stand outside of items.
    let mut variants = None;
    page.lines().find(|line| {
        if line.starts_with("- ") {
            variants = Some(0);
        } else if line.starts_with("  - ") || !(line.is_empty() || line.starts_with("  ")) {
            variants = None;
        }
        named(line).any(|name| {
            let before = variants.replace(1);
            before != Some(0) || !line.ends_with(&format!("(`{name}`)"))
        })
    })
}

#[test]
fn each_variant_ends_the_text_of_an_item() {
    assert_eq!(glued(ERRORS), None);
}

#[test]
fn a_variant_within_the_item_of_another_would_be_found() {
    let page = "- `a` (`Error::A`)\n  - Cause: (`b::c`)\n- ```text\n  b\n  ```\n  (`Error::B`)\n";
    assert_eq!(glued(page), None);
    for line in [
        "  x `c` (`Error::C`)",
        "  - Cause: (`Error::C`)",
        "(`Error::C`)",
        "- (`Error::C`) c",
    ] {
        assert_eq!(glued(&format!("{page}{line}\n")), Some(line));
    }
}
