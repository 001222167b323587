//! Tests with a sysfs that has a card with two functions and a software device. The policy allows one of the
//! devices at a time.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::{TopologyError, classes_of, tree_of};
use doorbell_sandbox::TreeEntry;

use crate::policy::Policy;

const BRIDGE: &str = "devices/pci0000:3a/0000:3a:00.0";

fn write(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn device(root: &Path, name: &str, place: &str, gid: &str) {
    write(root, &format!("{place}/node_guid"), &format!("guid of {name}\n"));
    write(root, &format!("{place}/ports/1/state"), "4: ACTIVE\n");
    write(
        root,
        &format!("{place}/ports/1/hw_counters/duplicate_request"),
        "7\n",
    );
    for (index, gid) in [gid, "0000:0000:0000:0000:0000:0000:0000:0000", gid]
        .iter()
        .enumerate()
    {
        write(
            root,
            &format!("{place}/ports/1/gids/{index}"),
            &format!("{gid}\n"),
        );
        write(
            root,
            &format!("{place}/ports/1/gid_attrs/types/{index}"),
            "RoCE v2\n",
        );
        write(
            root,
            &format!("{place}/ports/1/gid_attrs/ndevs/{index}"),
            &format!("net-{name}\n"),
        );
    }
    write(root, &format!("{place}/ports/1/pkeys/0"), "0xffff\n");
    write(root, &format!("{place}/ports/1/pkeys/1"), "0x0000\n");
    fs::create_dir_all(root.join("class/infiniband")).unwrap();
    let link = root.join("class/infiniband").join(name);
    symlink(Path::new("../..").join(place), link).unwrap();
}

/// Creates a sysfs with `mlx5_0` and `mlx5_1` on one card, and `rxe0`.
fn host() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    write(root, &format!("{BRIDGE}/vendor"), "0x1000\n");
    for function in [0, 1] {
        let place = format!("{BRIDGE}/0000:3b:00.{function}");
        write(root, &format!("{place}/numa_node"), "1\n");
        write(root, &format!("{place}/current_link_speed"), "32.0 GT/s PCIe\n");
        write(root, &format!("{place}/resource0"), "not a fact\n");
        let name = format!("mlx5_{function}");
        device(
            root,
            &name,
            &format!("{place}/infiniband/{name}"),
            &format!("fe80::{function}"),
        );
        symlink("../..", root.join(format!("{place}/infiniband/{name}/device"))).unwrap();
        write(
            root,
            &format!("{place}/infiniband_verbs/uverbs{function}/ibdev"),
            &format!("{name}\n"),
        );
        write(
            root,
            &format!("{place}/infiniband_verbs/uverbs{function}/dev"),
            "231:192\n",
        );
        fs::create_dir_all(root.join("class/infiniband_verbs")).unwrap();
        let link = root.join(format!("class/infiniband_verbs/uverbs{function}"));
        symlink(format!("../../{place}/infiniband_verbs/uverbs{function}"), link).unwrap();
    }
    device(root, "rxe0", "devices/virtual/infiniband/rxe0", "fe80::7");
    folder
}

/// Writes the tree for this device to a folder.
fn shown(root: &Path, device: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let policy = Policy::parse(&format!("devices = ['{device}']")).unwrap();
    let tree = tree_of(root, &policy, folder.path(), b"{}").unwrap();
    tree.write().unwrap();
    folder
}

fn all(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.is_symlink() {
            all(&path, found);
        }
        found.push(path);
    }
}

#[test]
fn each_file_has_the_bytes_of_sysfs_and_each_link_its_place() {
    let host = host();
    for device in ["mlx5_0", "rxe0", "*"] {
        let shown = shown(host.path(), device);
        let mut found = Vec::new();
        all(shown.path(), &mut found);
        let (mut files, mut links) = (0, 0);
        for path in found {
            let inside = path.strip_prefix(shown.path()).unwrap();
            let real = host.path().join(inside);
            if path.is_symlink() {
                let place = path.canonicalize().unwrap();
                let expected = real.canonicalize().unwrap();
                assert_eq!(
                    place.strip_prefix(shown.path().canonicalize().unwrap()),
                    expected.strip_prefix(host.path().canonicalize().unwrap())
                );
                links += 1;
            } else if path.is_file() && inside != Path::new("topology.json") {
                assert_eq!(fs::read(&path).unwrap(), fs::read(&real).unwrap(), "{inside:?}");
                files += 1;
            }
        }
        assert!(files > 8 && links > 0, "{device}: {files} files, {links} links");
    }
}

#[test]
fn a_device_is_found_by_its_pci_path_with_its_gids() {
    let host = host();
    let shown = shown(host.path(), "mlx5_1");
    let device = shown.path().join("class/infiniband/mlx5_1");
    let text = |path: &str| fs::read_to_string(device.join(path)).unwrap();
    assert_eq!(text("ports/1/gids/0"), "fe80::1\n");
    assert_eq!(text("ports/1/gids/2"), "fe80::1\n", "indices stay");
    assert!(!device.join("ports/1/gids/1").exists(), "it is empty");
    assert_eq!(text("ports/1/gid_attrs/ndevs/2"), "net-mlx5_1\n");
    assert_eq!(text("device/numa_node"), "1\n");
    assert_eq!(text("device/../vendor"), "0x1000\n", "the bridge above it");
    let place = device.join("device").canonicalize().unwrap();
    assert!(place.ends_with(format!("{BRIDGE}/0000:3b:00.1")), "{place:?}");
    let node = shown.path().join("class/infiniband_verbs/uverbs1/ibdev");
    assert_eq!(fs::read_to_string(node).unwrap(), "mlx5_1\n");
    assert_eq!(
        fs::read_to_string(shown.path().join("topology.json")).unwrap(),
        "{}"
    );
}

#[test]
fn nothing_of_another_device_is_there() {
    let host = host();
    let shown = shown(host.path(), "mlx5_1");
    let mut found = Vec::new();
    all(shown.path(), &mut found);
    for path in found {
        let name = path.to_str().unwrap();
        let others = ["mlx5_0", "3b:00.0", "uverbs0", "rxe0", "resource0", "hw_counters"];
        assert!(!others.iter().any(|other| name.contains(other)), "{name}");
        let text = fs::read_to_string(&path).unwrap_or_default();
        assert!(
            !text.contains("mlx5_0") && !text.contains("fe80::0"),
            "{name}: {text}"
        );
    }
    let none = self::shown(host.path(), "absent");
    assert_eq!(
        fs::read_dir(none.path().join("class/infiniband"))
            .unwrap()
            .count(),
        0
    );
}

#[test]
fn a_tree_is_written_to_a_new_folder_alone() {
    let folder = tempfile::tempdir().unwrap();
    let policy = Policy::parse("devices = ['absent']").unwrap();
    let written = super::write_topology(&policy, folder.path(), b"");
    assert!(matches!(written, Err(TopologyError::File { .. })));
    super::write_topology(&policy, &folder.path().join("new"), b"").unwrap();
}

#[test]
fn the_classes_have_links_of_allowed_devices_alone_and_their_files() {
    let host = host();
    write(host.path(), "class/infiniband_verbs/abi_version", "6\n");
    for (device, expected) in [
        ("mlx5_0", [vec!["mlx5_0"], vec!["abi_version", "uverbs0"]]),
        ("rxe0", [vec!["rxe0"], vec!["abi_version"]]),
        ("none", [vec![], vec!["abi_version"]]),
    ] {
        let policy = Policy::parse(&format!("devices = ['{device}']")).unwrap();
        let trees = classes_of(host.path(), &policy);
        let folders: Vec<_> = trees.iter().map(|tree| tree.at.clone()).collect();
        let classes = ["class/infiniband", "class/infiniband_verbs"];
        assert_eq!(folders, classes.map(|class| host.path().join(class)));
        for (tree, names) in trees.iter().zip(expected) {
            let found: Vec<_> = tree
                .entries
                .iter()
                .map(|(path, _)| path.to_str().unwrap())
                .collect();
            assert_eq!(found, names);
            // Written over the class, each link leads to the same place as before.
            for (path, entry) in &tree.entries {
                let real = tree.at.join(path);
                match entry {
                    TreeEntry::Link(target) => {
                        let place = tree.at.join(target).canonicalize().unwrap();
                        assert_eq!(place, real.canonicalize().unwrap());
                    }
                    TreeEntry::File(bytes) => assert_eq!(*bytes, fs::read(real).unwrap()),
                    TreeEntry::Folder => panic!("{path:?}"),
                }
            }
        }
    }
}
