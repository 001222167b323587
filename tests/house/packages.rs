//! Packages that are published: each has its metadata, a README, and all files that it is built from.

use std::process::Command;

use toml::Value;

use crate::{manifest, members, root};

/// The folder of each, and its name.
const PUBLISHED: [(&str, &str); 9] = [
    (".", "doorbell"),
    ("core", "doorbell-core"),
    ("ffi", "doorbell-ffi"),
    ("ffi/sys", "doorbell-sys"),
    ("ffi/tokio", "doorbell-tokio"),
    ("hotpath", "doorbell-hotpath"),
    ("sim", "doorbell-sim"),
    ("src/operation", "doorbell-operation"),
    ("src/program", "doorbell-program"),
];

#[test]
fn published_packages_have_their_metadata() {
    for member in members() {
        let manifest = manifest(&member);
        let package = &manifest["package"];
        let Some((_, name)) = PUBLISHED.iter().find(|(folder, _)| *folder == member) else {
            assert_eq!(
                package.get("publish"),
                Some(&Value::Boolean(false)),
                "{member} is not published"
            );
            continue;
        };
        assert_eq!(package["name"].as_str(), Some(*name));
        assert!(
            package["description"]
                .as_str()
                .is_some_and(|text| text.len() > 20),
            "{name}"
        );
        for list in ["keywords", "categories"] {
            let length = package[list].as_array().map_or(0, Vec::len);
            assert!((1..=5).contains(&length), "{name} has {length} {list}");
        }
        assert!(
            root().join(&member).join("README.md").is_file(),
            "{name} has no README.md"
        );
        assert!(package.get("publish").is_none(), "{name} is published");
    }
}

/// A published package depends on published ones alone, each with its version.
#[test]
fn published_packages_depend_on_published_ones() {
    let workspace = manifest(".");
    let shared = &workspace["workspace"]["dependencies"];
    for (folder, name) in PUBLISHED {
        for (dependency, _) in crate::dependencies(&manifest(folder)) {
            let Some(entry) = shared
                .get(&dependency)
                .filter(|entry| entry.get("path").is_some())
            else {
                continue;
            };
            assert!(
                entry.get("version").is_some(),
                "{name} depends on {dependency} without a version"
            );
            let package = entry
                .get("package")
                .and_then(Value::as_str)
                .unwrap_or(&dependency);
            assert!(
                PUBLISHED.iter().any(|(_, name)| *name == package),
                "{name} depends on {dependency}"
            );
        }
    }
}

#[test]
fn a_package_lists_its_sources_and_its_readme() {
    for (folder, name) in PUBLISHED {
        let mut command = Command::new(env!("CARGO"));
        command.args(["package", "--list", "--allow-dirty", "--offline", "-p", name]);
        let output = command.current_dir(root()).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name}: {error}");
        let listed = String::from_utf8(output.stdout).unwrap();
        let has = |file: &str| listed.lines().any(|line| line == file);
        assert!(has("README.md") && has("Cargo.toml"), "{name}: {listed}");
        assert!(has("src/lib.rs") || has("src/main.rs"), "{name}: {listed}");
        // A file of another package would be missing from this one.
        let outside = listed
            .lines()
            .find(|line| line.starts_with("..") || line.starts_with("src/operation/"));
        assert!(outside.is_none() || folder != ".", "{name}: {outside:?}");
    }
}
