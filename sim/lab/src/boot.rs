//! Files that a machine boots from: a kernel unpacked ahead of time, and an initial file system with the
//! modules it needs and the lab itself as process 1.

use core::fmt::Write as _;
use core::hash::{Hash as _, Hasher as _};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::hash::DefaultHasher;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};

use crate::cache::{Cache, Scrutiny};
use crate::guest::init::MODULES;
use crate::kernel::{Kernel, image};
use crate::steps::step;
use crate::tool;

/// Modules that every machine needs, in this order. Their dependencies are added, and modules that are built
/// into the kernel are left out.
const REQUIRED: [&str; 9] = [
    "virtio_pci",
    "virtio_console",
    "9pnet_virtio",
    "9p",
    "overlay",
    "veth",
    "virtio_net",
    "ib_uverbs",
    "rdma_rxe",
];

/// Modules that are loaded if the kernel has them: shaping, a filter that drops every n-th incoming packet,
/// the connection manager, and the checksums that rxe of older kernels asks the crypto layer for.
const WELCOME: [&str; 9] = [
    "sch_netem",
    "sch_tbf",
    "sch_ingress",
    "cls_flower",
    "act_gact",
    "rdma_ucm",
    "ib_umad",
    "crc32_generic",
    "crc32c_generic",
];

/// Files to boot from.
#[derive(Clone, Debug)]
pub(crate) struct BootFiles {
    /// For QEMU's `-kernel`.
    pub(crate) kernel: PathBuf,
    /// For QEMU's `-initrd`.
    pub(crate) initial: PathBuf,
}

/// Prepares a kernel in the cache, and writes the initial file system to `into`.
///
/// # Errors
///
/// A module is missing, a tool is, or the disk is full.
pub(crate) fn prepare(kernel: &Kernel, cache: &Cache, into: &Path) -> Result<BootFiles> {
    let metadata = fs::metadata(&kernel.image).context("the kernel image is gone")?;
    let mut hasher = DefaultHasher::new();
    (&kernel.image, metadata.len(), metadata.mtime(), REQUIRED, WELCOME).hash(&mut hasher);
    let name = format!("boot/{}-{:016x}", kernel.release, hasher.finish());
    let found = cache.find(&name, Scrutiny::Sizes);
    let (entry, _) = match found {
        Some(found) => found,
        None => step(
            format_args!("unpacking kernel {} and its modules", kernel.release),
            || cache.entry(&name, Scrutiny::Sizes, |folder| unpack(kernel, folder)),
        )?,
    };
    let vmlinux = entry.join("vmlinux");
    let initial = into.join("initial.cpio");
    write_initial(&entry.join("modules"), &initial).context("cannot make the initial file system")?;
    Ok(BootFiles {
        kernel: if vmlinux.exists() {
            vmlinux
        } else {
            kernel.image.clone()
        },
        initial,
    })
}

fn unpack(kernel: &Kernel, folder: &Path) -> Result<BTreeMap<String, String>> {
    let vmlinux = folder.join("vmlinux");
    image::unpack(&kernel.image, &vmlinux)?;
    if !image::has_pvh_entry(&vmlinux)? {
        // QEMU starts such a kernel only from its image.
        fs::remove_file(&vmlinux)?;
    }
    let modules = folder.join("modules");
    fs::create_dir(&modules)?;
    let known = Modules::read(&kernel.modules)?;
    let order = known.in_order()?;
    let mut wants = Vec::new();
    for (index, path) in order.iter().enumerate() {
        let source = kernel.modules.join(path);
        let target = modules.join(format!("{index:03}-{}.ko", module_name(path)));
        match source.extension().and_then(|e| e.to_str()) {
            Some("ko") => fs::copy(&source, &target)
                .map(drop)
                .context("cannot copy a module")?,
            Some("xz") => tool::filter("xz", &["-dc"], &source, &target)?,
            Some("zst") => tool::filter("zstd", &["-dcq"], &source, &target)?,
            Some("gz") => tool::filter("gzip", &["-dc"], &source, &target)?,
            _ => bail!("module {} is packed in a way not known here", source.display()),
        }
        wants.push((path.clone(), wanted_by(&fs::read(&target)?)));
    }
    check_complete(&order, &known.built_in, &wants)?;
    Ok(BTreeMap::from([("release".to_owned(), kernel.release.clone())]))
}

/// A kernel's modules, as `depmod` lists them.
struct Modules {
    /// Path of each module by its name, and the paths it depends on, the first needed last.
    known: BTreeMap<String, (String, Vec<String>)>,
    built_in: BTreeSet<String>,
}

impl Modules {
    fn read(folder: &Path) -> Result<Self> {
        let text = fs::read_to_string(folder.join("modules.dep"))
            .with_context(|| format!("no modules.dep in {}", folder.display()))?;
        let built_in = fs::read_to_string(folder.join("modules.builtin")).unwrap_or_default();
        Ok(Self::parse(&text, &built_in))
    }

    fn parse(dependencies: &str, built_in: &str) -> Self {
        let mut known = BTreeMap::new();
        for line in dependencies.lines() {
            if let Some((path, needs)) = line.split_once(':') {
                let needs = needs.split_whitespace().map(str::to_owned).collect();
                known.insert(module_name(path), (path.to_owned(), needs));
            }
        }
        Self {
            known,
            built_in: built_in.lines().map(module_name).collect(),
        }
    }

    /// The modules to load, each after what it depends on.
    fn in_order(&self) -> Result<Vec<String>> {
        let mut order: Vec<String> = Vec::new();
        let required = REQUIRED.iter().map(|name| (name, true));
        for (name, required) in required.chain(WELCOME.iter().map(|name| (name, false))) {
            match self.known.get(*name) {
                Some((path, needs)) => {
                    for path in needs.iter().rev().chain([path]) {
                        if !order.contains(path) {
                            order.push(path.clone());
                        }
                    }
                }
                None => ensure!(
                    self.built_in.contains(*name) || !required,
                    "the kernel has no module {name}, which the lab needs; take another, with --kernel"
                ),
            }
        }
        Ok(order)
    }
}

/// A module's name, from its path; dashes and underscores are the same.
fn module_name(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or_default();
    file.split(".ko").next().unwrap_or_default().replace('-', "_")
}

/// The modules that one says of itself it depends on: what `depmod` leaves out where it does not find them.
fn wanted_by(module: &[u8]) -> Vec<String> {
    const FIELD: &[u8] = b"\0depends=";
    let Some(start) = module.windows(FIELD.len()).position(|window| window == FIELD) else {
        return Vec::new();
    };
    let text = module
        .get(start.saturating_add(FIELD.len())..)
        .unwrap_or_default();
    let text = text.split(|&byte| byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text)
        .split(',')
        .filter(|name| !name.is_empty())
        .map(module_name)
        .collect()
}

/// A module without one it depends on is found here, and not by a machine that does not come up.
fn check_complete(
    order: &[String],
    built_in: &BTreeSet<String>,
    wants: &[(String, Vec<String>)],
) -> Result<()> {
    let there: BTreeSet<String> = order.iter().map(|path| module_name(path)).collect();
    for (path, wanted) in wants {
        if let Some(missing) = wanted
            .iter()
            .find(|name| !there.contains(*name) && !built_in.contains(*name))
        {
            bail!("the kernel's module {path} depends on {missing}, which is not there");
        }
    }
    Ok(())
}

/// Writes the initial file system: this program as `/init`, its libraries, the modules.
fn write_initial(modules: &Path, target: &Path) -> Result<()> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut archive = Archive::default();
    archive.folder("dev");
    archive.console();
    for name in ["proc", "sys", "lower", "upper", "root"] {
        archive.folder(name);
    }
    archive.file("init", &without_symbols(fs::read(&program)?))?;
    for library in libraries(&program)? {
        archive.file_with_folders(&library, &fs::read(&library)?)?;
    }
    let mut names: Vec<_> = fs::read_dir(modules)?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_>>()?;
    names.sort();
    for path in names {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        archive.file_with_folders(&format!("{MODULES}/{name}"), &fs::read(&path)?)?;
    }
    fs::File::create(target)?.write_all(&archive.finish())?;
    Ok(())
}

/// The shared libraries of a program, by the paths they are loaded from.
fn libraries(program: &Path) -> Result<Vec<String>> {
    let text = tool::output("ldd", &[&program.to_string_lossy()])?;
    Ok(text
        .split_whitespace()
        .filter(|word| word.starts_with('/'))
        .map(str::to_owned)
        .collect())
}

/// An ELF program without what follows its last loaded byte: debug
/// information, mostly, which would be most of what has to be loaded.
fn without_symbols(mut elf: Vec<u8>) -> Vec<u8> {
    let Some(end) = image::loaded_end(&elf) else {
        return elf;
    };
    elf.truncate(end);
    // No table of sections any more: its offset, entry count and name index.
    for range in [0x28..0x30, 0x3c..0x40] {
        if let Some(field) = elf.get_mut(range) {
            field.fill(0);
        }
    }
    elf
}

/// A cpio archive in the "new ASCII" form the kernel unpacks.
#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    inode: u32,
    folders: BTreeSet<String>,
}

impl Archive {
    fn folder(&mut self, name: &str) {
        if self.folders.insert(name.to_owned()) {
            self.entry(name, 0o040_755, &[], (0, 0));
        }
    }

    fn console(&mut self) {
        self.entry("dev/console", 0o020_600, &[], (5, 1));
    }

    fn file(&mut self, name: &str, content: &[u8]) -> Result<()> {
        ensure!(u32::try_from(content.len()).is_ok(), "{name} is too large");
        self.entry(name, 0o100_755, content, (0, 0));
        Ok(())
    }

    fn file_with_folders(&mut self, path: &str, content: &[u8]) -> Result<()> {
        let path = path.trim_start_matches('/');
        for (end, _) in path.match_indices('/') {
            self.folder(path.get(..end).unwrap_or_default());
        }
        self.file(path, content)
    }

    fn entry(&mut self, name: &str, mode: u32, content: &[u8], device: (u32, u32)) {
        self.inode = self.inode.saturating_add(1);
        let size = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
        let mut header = "070701".to_owned();
        // Inode, mode, owner, group, links, time, size, device, special device, name's size, checksum.
        let name_bytes = size(name.len().saturating_add(1));
        for value in [
            self.inode,
            mode,
            0,
            0,
            1,
            0,
            size(content.len()),
            0,
            0,
            device.0,
            device.1,
            name_bytes,
            0,
        ] {
            let _ = write!(header, "{value:08X}");
        }
        self.bytes.extend(header.bytes().chain(name.bytes()).chain([0]));
        self.pad();
        self.bytes.extend(content);
        self.pad();
    }

    fn pad(&mut self) {
        let length = self.bytes.len().next_multiple_of(4);
        self.bytes.resize(length, 0);
    }

    fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[], (0, 0));
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_come_after_what_they_depend_on() {
        let mut text = "kernel/a/rdma_rxe.ko.xz: kernel/b/ib-core.ko.xz kernel/c/udp_tunnel.ko.xz\n\
                        kernel/b/ib-core.ko.xz:\nkernel/c/udp_tunnel.ko.xz:\n"
            .to_owned();
        for name in REQUIRED
            .iter()
            .filter(|name| **name != "rdma_rxe" && **name != "virtio_pci")
        {
            let _ = writeln!(text, "kernel/x/{name}.ko:");
        }
        let order = Modules::parse(&text, "kernel/d/virtio-pci.ko\n")
            .in_order()
            .unwrap();
        let at = |name: &str| order.iter().position(|path| path.contains(name));
        assert!(at("udp_tunnel") < at("ib-core") && at("ib-core") < at("rdma_rxe"));
        assert_eq!(at("virtio"), at("virtio_console"), "virtio_pci is built in");

        let message = Modules::parse(&text, "").in_order().unwrap_err().to_string();
        assert!(message.contains("virtio_pci"), "{message}");
    }

    #[test]
    fn a_module_that_misses_another_is_named() {
        let module = b"\x7fELF..\0license=GPL\0depends=9pnet,fs-cache,netfs\0name=9p\0";
        let wants = wanted_by(module);
        assert_eq!(wants, ["9pnet", "fs_cache", "netfs"]);
        assert!(wanted_by(b"..\0depends=\0").is_empty() && wanted_by(b"no module").is_empty());

        let order = ["fs/netfs/netfs.ko.xz", "net/9p/9pnet.ko.xz"].map(str::to_owned);
        let wants = [("fs/9p/9p.ko".to_owned(), wants)];
        let built_in = BTreeSet::from(["fs_cache".to_owned()]);
        assert!(check_complete(&order, &built_in, &wants).is_ok());
        let message = check_complete(&order, &BTreeSet::new(), &wants)
            .unwrap_err()
            .to_string();
        assert!(
            message.contains("fs/9p/9p.ko") && message.contains("fs_cache"),
            "{message}"
        );
    }

    #[test]
    fn this_program_runs_without_its_symbols() {
        use std::os::unix::fs::PermissionsExt;
        let program = fs::read("/bin/true").unwrap();
        let stripped = without_symbols(program.clone());
        assert!(stripped.len() <= program.len());
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("true");
        fs::write(&path, stripped).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        // A process that another test starts at this moment holds the file open for writing until it is
        // another program.
        let status = loop {
            match std::process::Command::new(&path).status() {
                Err(e) if e.kind() == std::io::ErrorKind::ExecutableFileBusy => std::thread::yield_now(),
                other => break other.unwrap(),
            }
        };
        assert!(status.success());
        assert_eq!(without_symbols(b"no elf".to_vec()), b"no elf");
    }

    #[test]
    fn the_archive_has_the_form_the_kernel_reads() {
        let mut archive = Archive::default();
        archive.file_with_folders("/lib/x/file", b"abc").unwrap();
        archive.file_with_folders("/lib/x/other", b"").unwrap();
        let bytes = archive.finish();
        assert_eq!(bytes.len() % 4, 0);
        let text = String::from_utf8(bytes).unwrap();
        assert_eq!(
            text.matches("070701").count(),
            5,
            "two folders, two files, the trailer"
        );
        // mode of the file, its size, and the length of its name with the final zero.
        let header = text.split("070701").nth(3).unwrap();
        assert_eq!(header.get(8..16).unwrap(), "000081ED");
        assert_eq!(header.get(48..56).unwrap(), "00000003");
        assert_eq!(header.get(88..96).unwrap(), "0000000B");
        assert!(header.contains("lib/x/file\0"));
    }
}
