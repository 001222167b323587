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
