//! Packages that are published: each has its metadata, a README, and all files that it is built from.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use toml::Value;

use crate::{manifest, members, root};

/// The folder of each, and its name.
const PUBLISHED: [(&str, &str); 12] = [
    (".", "doorbell"),
    ("core", "doorbell-core"),
    ("ffi", "doorbell-ffi"),
    ("ffi/sys", "doorbell-sys"),
    ("ffi/tokio", "doorbell-tokio"),
    ("ffi/sandbox", "doorbell-sandbox"),
    ("hotpath", "doorbell-hotpath"),
    ("sim", "doorbell-sim"),
    ("src/operation", "doorbell-operation"),
    ("src/daemon", "doorbell-daemon"),
    ("src/broker", "doorbell-broker"),
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
        let documentation = format!("https://docs.rs/{name}");
        assert_eq!(package["documentation"].as_str(), Some(&*documentation));
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

/// A published package depends on published ones alone, each with its version. A dependency of tests on a package above has none, so that
/// it is left out of what is published: with one, neither could be published first.
#[test]
fn published_packages_depend_on_published_ones() {
    let workspace = manifest(".");
    let shared = &workspace["workspace"]["dependencies"];
    let below = |name: &str| PUBLISHED.iter().any(|(_, published)| *published == name);
    for (folder, name) in PUBLISHED {
        let manifest = manifest(folder);
        for table in ["dependencies", "build-dependencies", "dev-dependencies"] {
            let Some(table_of) = manifest.get(table).and_then(Value::as_table) else {
                continue;
            };
            for (dependency, own) in table_of {
                let is_shared = own.get("workspace").and_then(Value::as_bool) == Some(true);
                let entry = if is_shared { &shared[dependency] } else { own };
                if entry.get("path").is_none() {
                    continue;
                }
                let package = entry.get("package").and_then(Value::as_str).unwrap_or(dependency);
                let has_version = entry.get("version").is_some();
                if table == "dev-dependencies" {
                    assert!(
                        !has_version || below(package),
                        "{name} tests with {package}, which has a version"
                    );
                    assert!(
                        !has_version || !depends(package, name),
                        "{name} and {package} wait for each other"
                    );
                } else {
                    assert!(has_version && below(package), "{name} depends on {package}");
                }
            }
        }
    }
}

/// Whether a published package depends on another.
fn depends(package: &str, on: &str) -> bool {
    let folder = PUBLISHED
        .iter()
        .find(|(_, name)| *name == package)
        .map(|(folder, _)| *folder);
    folder.is_some_and(|folder| {
        crate::dependencies(&manifest(folder))
            .iter()
            .any(|(name, _)| name == on)
    })
}

/// Files that a source file names and is built from: modules by a path, and texts that are compiled in. Tests and doctests are left out.
fn named_files(path: &Path) -> Vec<PathBuf> {
    let text = fs::read_to_string(path).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let mut named = Vec::new();
    let mut is_test = false;
    for (index, line) in lines.iter().enumerate() {
        is_test |= line.trim() == "#[cfg(test)]"
            && lines.get(index + 1).is_some_and(|next| next.starts_with("mod "));
        if is_test && line.ends_with('{') {
            break;
        }
        is_test &= !line.ends_with(';');
        let is_of_test = lines[index.saturating_sub(3)..index]
            .iter()
            .any(|before| ["#[cfg(test)]", "#[cfg(doctest)]"].contains(&before.trim()))
            || line.trim_start().starts_with("//");
        for opening in ["#[path = \"", "include_str!(\"", "include_bytes!(\""] {
            let file = line
                .split_once(opening)
                .and_then(|(_, rest)| rest.split('"').next());
            named.extend(
                file.filter(|_| !is_of_test)
                    .map(|file| path.parent().unwrap().join(file)),
            );
        }
    }
    named
}

#[test]
fn a_package_has_the_files_that_it_is_built_from() {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    for (folder, name) in PUBLISHED {
        let mut command = Command::new(&cargo);
        command.args([
            "package",
            "--list",
            "--allow-dirty",
            "--offline",
            "--locked",
            "-p",
            name,
        ]);
        let output = command.current_dir(root()).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name}: {error}");
        let listed = String::from_utf8(output.stdout).unwrap();
        let has = |file: &str| listed.lines().any(|line| line == file);
        for file in ["Cargo.toml", "LICENSE-APACHE", "LICENSE-MIT", "README.md"] {
            assert!(has(file), "{name} has no {file}: {listed}");
        }
        assert!(has("src/lib.rs") || has("src/main.rs"), "{name}: {listed}");
        let package = root().join(folder).canonicalize().unwrap();
        for source in listed
            .lines()
            .filter(|file| file.starts_with("src/") && file.ends_with(".rs"))
        {
            if source
                .split(['/', '.'])
                .any(|part| matches!(part, "tests" | "hostile" | "book" | "schema" | "documents"))
            {
                continue;
            }
            for file in named_files(&package.join(source)) {
                let file = file.canonicalize().unwrap();
                let inside = file.strip_prefix(&package).ok().and_then(Path::to_str);
                assert!(
                    inside.is_some_and(has),
                    "{name}: {source} is built from {}",
                    file.display()
                );
            }
        }
    }
}
