//! The description of a sandbox's devices, as a tree like sysfs that contains no other devices.
//!
//! Files have the same contents as in sysfs. Each link leads to the same path as in sysfs, inside the tree.

use core::fmt;
use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use doorbell_sandbox::{Tree, TreeEntry};

use crate::policy::Policy;

/// Maximum number of entries of a tree, enough for more than 500 ports with full tables of GIDs. Each entry takes a page of memory in a
/// sandbox.
const ENTRIES_MAX: usize = 1 << 20;

/// Maximum number of bytes that are read from a file. sysfs has no longer text.
const FILE_BYTES_MAX: u64 = 4096;

/// Maximum number of entries of a port's table: indices have 16 bits.
const TABLE_MAX: u32 = 1 << 16;

/// Files of a device.
const OF_DEVICE: [&str; 8] = [
    "node_guid",
    "sys_image_guid",
    "node_type",
    "node_desc",
    "fw_ver",
    "hw_rev",
    "board_id",
    "parent",
];

/// Files of a port.
const OF_PORT: [&str; 9] = [
    "state",
    "phys_state",
    "rate",
    "link_layer",
    "lid",
    "lid_mask_count",
    "sm_lid",
    "sm_sl",
    "cap_mask",
];

/// Files of a device node.
const OF_NODE: [&str; 3] = ["dev", "ibdev", "abi_version"];

/// Files of a function and of a bridge of the PCI tree.
const OF_PCI: [&str; 13] = [
    "vendor",
    "device",
    "subsystem_vendor",
    "subsystem_device",
    "class",
    "revision",
    "numa_node",
    "local_cpulist",
    "local_cpus",
    "current_link_speed",
    "current_link_width",
    "max_link_speed",
    "max_link_width",
];

/// Reason why the topology cannot be created.
#[derive(Debug)]
#[non_exhaustive]
pub enum TopologyError {
    /// A folder or a file cannot be read or created.
    File {
        /// Its path.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
    /// The topology has more entries than expected of any host.
    TooLarge,
    /// The program has no separate mount namespace.
    Namespaces,
}

impl fmt::Display for TopologyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, error } => write!(f, "cannot make the topology: {}: {error}", path.display()),
            Self::TooLarge => write!(f, "the topology has more than {ENTRIES_MAX} entries"),
            Self::Namespaces => f.write_str(
                "a program without a mount namespace of its own has no topology; write one with --write-topology",
            ),
        }
    }
}

impl core::error::Error for TopologyError {}

/// Writes the description of the policy's devices into a new folder, with `snapshot` as its `topology.json`.
///
/// # Errors
/// The folder exists, or cannot be created; or a device is removed while it is read.
pub fn write_topology(policy: &Policy, folder: &Path, snapshot: &[u8]) -> Result<(), TopologyError> {
    fs::create_dir(folder).map_err(|error| TopologyError::File {
        path: folder.to_owned(),
        error,
    })?;
    let tree = tree(policy, folder, snapshot)?;
    tree.write().map_err(|error| TopologyError::File {
        path: folder.to_owned(),
        error,
    })
}

/// The description of the policy's devices, to be mounted at `at`.
pub(crate) fn tree(policy: &Policy, at: &Path, snapshot: &[u8]) -> Result<Tree, TopologyError> {
    tree_of(Path::new("/sys"), policy, at, snapshot)
}

fn tree_of(root: &Path, policy: &Policy, at: &Path, snapshot: &[u8]) -> Result<Tree, TopologyError> {
    let mut look = Look {
        root,
        made: BTreeSet::new(),
        tree: Tree {
            at: at.to_owned(),
            entries: Vec::new(),
        },
    };
    for class in ["class/infiniband", "class/infiniband_verbs"] {
        look.folder(Path::new(class))?;
        for name in names(&root.join(class)) {
            let link = Path::new(class).join(&name);
            let is_node = class.ends_with("verbs");
            let device = if is_node {
                look.text(&link.join("ibdev"))
            } else {
                Some(name.clone())
            };
            if !device.is_some_and(|device| policy.allows(device.trim_end())) {
                continue;
            }
            let Some(place) = look.place(&link)? else { continue };
            look.link(&link, &place)?;
            if is_node {
                look.files(&place, &OF_NODE)?;
            } else {
                look.device(&place)?;
            }
        }
    }
    if !snapshot.is_empty() {
        look.add(
            PathBuf::from("topology.json"),
            TreeEntry::File(snapshot.to_owned()),
        )?;
    }
    Ok(look.tree)
}

/// Classes of sysfs whose entries belong to RDMA devices.
const CLASSES: [&str; 4] = [
    "class/infiniband",
    "class/infiniband_verbs",
    "class/infiniband_mad",
    "class/infiniband_cm",
];

/// Trees that cover these classes, each with the links of the policy's devices, and the files. A class that does not exist has no tree.
pub(crate) fn classes(policy: &Policy) -> Vec<Tree> {
    classes_of(Path::new("/sys"), policy)
}

fn classes_of(root: &Path, policy: &Policy) -> Vec<Tree> {
    let there = CLASSES.iter().map(|class| root.join(class));
    let tree = |at: PathBuf| {
        let entry = |name: String| {
            let path = at.join(&name);
            // Links of sysfs are relative: they lead to the same path from here.
            if let Ok(target) = fs::read_link(&path) {
                let of_device = fs::read_to_string(path.join("ibdev")).ok();
                let device = of_device.as_deref().map_or(name.as_str(), str::trim_end);
                let is_allowed = policy.allows(device);
                return is_allowed.then(|| (name.into(), TreeEntry::Link(target)));
            }
            let bytes = fs::read(&path).ok()?;
            Some((name.into(), TreeEntry::File(bytes)))
        };
        let entries = names(&at).into_iter().filter_map(entry).collect();
        Tree { at, entries }
    };
    there.filter(|at| at.is_dir()).map(tree).collect()
}

/// The names in a folder, sorted. Empty if it cannot be read.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    names.sort_unstable();
    names
}

struct Look<'r> {
    root: &'r Path,
    made: BTreeSet<PathBuf>,
    tree: Tree,
}

impl Look<'_> {
    fn add(&mut self, path: PathBuf, entry: TreeEntry) -> Result<(), TopologyError> {
        if self.tree.entries.len() >= ENTRIES_MAX {
            return Err(TopologyError::TooLarge);
        }
        if self.made.insert(path.clone()) {
            self.tree.entries.push((path, entry));
        }
        Ok(())
    }

    /// Adds a folder and its parents.
    fn folder(&mut self, path: &Path) -> Result<(), TopologyError> {
        let mut above = PathBuf::new();
        for part in path.components() {
            above.push(part);
            self.add(above.clone(), TreeEntry::Folder)?;
        }
        Ok(())
    }

    /// Resolves a path in sysfs, and returns the same path in the tree. `None` if it is outside of sysfs, or does not exist.
    fn place(&self, path: &Path) -> Result<Option<PathBuf>, TopologyError> {
        let root = self.root.canonicalize().map_err(|error| TopologyError::File {
            path: self.root.to_owned(),
            error,
        })?;
        let place = self.root.join(path).canonicalize().ok();
        Ok(place.and_then(|place| Some(place.strip_prefix(root).ok()?.to_owned())))
    }

    /// Adds a relative link.
    fn link(&mut self, from: &Path, to: &Path) -> Result<(), TopologyError> {
        let folder = from.parent().unwrap_or(Path::new(""));
        self.folder(folder)?;
        let up: PathBuf = folder.components().map(|_| "..").collect();
        self.add(from.to_owned(), TreeEntry::Link(up.join(to)))
    }

    fn text(&self, path: &Path) -> Option<String> {
        let mut text = String::new();
        let file = fs::File::open(self.root.join(path)).ok()?;
        file.take(FILE_BYTES_MAX).read_to_string(&mut text).ok()?;
        Some(text)
    }

    /// Copies the files of a folder that exist and can be read.
    fn files(&mut self, folder: &Path, names: &[&str]) -> Result<(), TopologyError> {
        self.folder(folder)?;
        for name in names {
            let path = folder.join(name);
            if let Some(text) = self.text(&path) {
                self.add(path, TreeEntry::File(text.into_bytes()))?;
            }
        }
        Ok(())
    }

    fn device(&mut self, place: &Path) -> Result<(), TopologyError> {
        self.files(place, &OF_DEVICE)?;
        let ports = place.join("ports");
        for port in names(&self.root.join(&ports)) {
            self.port(&ports.join(port))?;
        }
        let link = place.join("device");
        if let Some(function) = self.place(&link)? {
            self.link(&link, &function)?;
            self.pci(&function)?;
        }
        Ok(())
    }

    fn port(&mut self, port: &Path) -> Result<(), TopologyError> {
        self.files(port, &OF_PORT)?;
        for table in ["gids", "pkeys"] {
            let folder = port.join(table);
            self.folder(&folder)?;
            for index in 0..TABLE_MAX {
                let name = index.to_string();
                let Some(text) = self.text(&folder.join(&name)) else {
                    break;
                };
                let is_empty = match table {
                    "gids" => !text.trim_end().bytes().any(|byte| byte != b'0' && byte != b':'),
                    _ => text.trim_end() == "0x0000",
                };
                if is_empty {
                    continue;
                }
                self.add(folder.join(&name), TreeEntry::File(text.into_bytes()))?;
                if table == "gids" {
                    self.files(&port.join("gid_attrs/types"), &[&name])?;
                    self.files(&port.join("gid_attrs/ndevs"), &[&name])?;
                }
            }
        }
        Ok(())
    }

    /// Adds a PCI function, and the bridges above it.
    fn pci(&mut self, function: &Path) -> Result<(), TopologyError> {
        let devices = Path::new("devices");
        for place in function.ancestors().take_while(|place| *place != devices) {
            if !place.starts_with(devices) {
                break;
            }
            self.files(place, &OF_PCI)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
