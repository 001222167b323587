//! Kernels from the Debian archive: fetched and verified by apt itself, under
//! a configuration of its own in the cache, unpacked, not installed.
//!
//! The mirror is the one this machine's apt is configured with; the chain from
//! the suite's signature to each package's checksum is apt's.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use super::{Kernel, Series, in_entry, locate_series};
use crate::cache::{Cache, Scrutiny};
use crate::steps::{step, step_saying};
use crate::tool;

/// Names a mirror of the Debian archive where apt's configuration has none.
const MIRROR_VARIABLE: &str = "DOORBELL_LAB_MIRROR";

/// The keys the archive is signed with, where Debian's package puts them.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// The note that says which release a series was when last fetched.
pub(crate) fn note_of(series: Series) -> String {
    format!("kernels/{series}")
}

/// The entry that holds a release. The number is that of [`KEPT`] and goes up with it, so that what was
/// unpacked by another rule is not taken for whole.
pub(crate) fn entry_of(release: &str) -> String {
    format!("kernels/linux-{release}-2")
}

/// The kernel of a series, fetched if it is not whole in the cache; with
/// `refresh`, also if the archive has a newer one.
///
/// # Errors
///
/// No mirror, no network, a package that fails its verification, a missing tool.
pub(crate) fn fetch(series: Series, cache: &Cache, refresh: bool) -> Result<Kernel> {
    if !refresh {
        let found = step_saying(format_args!("kernel {series}: looking at the cache"), || {
            let found = locate_series(series, cache, Scrutiny::Checksums)?;
            let said = found
                .as_ref()
                .map_or("not there".to_owned(), |k| format!("{}, whole", k.release));
            Ok((found, said))
        })?;
        if let Some(kernel) = found {
            return Ok(kernel);
        }
    }
    let apt = Apt::new(series, cache)?;
    let packages = step(
        format_args!("kernel {series}: reading the package lists of {}", series.suite()),
        || {
            apt.update()?;
            apt.closure("linux-image-amd64")
        },
    )?;
    let release = release_of(&packages)?;
    let (entry, _) = cache.entry(&entry_of(&release), Scrutiny::Checksums, |folder| {
        let facts = step(
            format_args!("kernel {series}: downloading {}", packages.join(", ")),
            || apt.download(&packages, &folder.join("deb")),
        )?;
        step(format_args!("kernel {series}: unpacking {release}"), || {
            unpack(folder, &release)
        })?;
        Ok(facts)
    })?;
    let kernel = in_entry(&entry, series)?;
    cache.set_note(&note_of(series), &release)?;
    Ok(kernel)
}

/// apt, for one suite, touching nothing of this machine's own state.
pub(crate) struct Apt {
    /// As options on the command line: they come after the machine's own configuration, whose proxies and the
    /// like stay in force.
    options: Vec<String>,
}

impl Apt {
    /// For the suite a series of kernels is in.
    ///
    /// # Errors
    ///
    /// No mirror is known.
    pub(crate) fn new(series: Series, cache: &Cache) -> Result<Self> {
        let suite = series.suite();
        let folder = cache.folder(&format!("apt/{suite}"))?;
        for name in ["lists/partial", "archives/partial", "none"] {
            fs::create_dir_all(folder.join(name))?;
        }
        let signed = if Path::new(KEYRING).exists() {
            format!(" signed-by={KEYRING}")
        } else {
            String::new()
        };
        let sources = format!("deb [arch=amd64{signed}] {} {suite} main\n", mirror()?);
        fs::write(folder.join("sources.list"), sources)?;
        let at = folder.display();
        let options = [
            format!("Dir::Etc::sourcelist={at}/sources.list"),
            format!("Dir::Etc::sourceparts={at}/none"),
            "Dir::Etc::preferences=/dev/null".to_owned(),
            format!("Dir::Etc::preferencesparts={at}/none"),
            format!("Dir::State::lists={at}/lists"),
            format!("Dir::Cache={at}"),
            format!("Dir::Cache::archives={at}/archives"),
            // Images of Debian for containers turn this off, and every query then takes a second.
            "Dir::Cache::pkgcache=pkgcache.bin".to_owned(),
            "APT::Architecture=amd64".to_owned(),
            "APT::Default-Release=".to_owned(),
            // The user apt would change to could not write here.
            "APT::Sandbox::User=".to_owned(),
            "Acquire::Languages=none".to_owned(),
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".to_owned(),
            "Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled=false".to_owned(),
            "Acquire::AllowInsecureRepositories=false".to_owned(),
            "APT::Get::AllowUnauthenticated=false".to_owned(),
            "Acquire::Retries=3".to_owned(),
        ];
        Ok(Self {
            options: options.into(),
        })
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("LC_ALL", "C.UTF-8");
        for option in &self.options {
            command.args(["-o", option]);
        }
        command
    }

    /// Reads the suite's lists.
    ///
    /// # Errors
    ///
    /// One of them cannot be read.
    pub(crate) fn update(&self) -> Result<()> {
        // `any`: a list that could not be read is a failure, not a warning.
        let output = tool::output_of(self.command("apt-get").args(["--error-on=any", "update"]));
        output.map(drop).context("apt cannot read the archive's lists")
    }

    /// The packages that make up the kernel a meta package names.
    fn closure(&self, meta: &str) -> Result<Vec<String>> {
        let mut todo = vec![meta.to_owned()];
        let mut seen = BTreeSet::new();
        while let Some(package) = todo.pop() {
            let text = tool::output_of(self.command("apt-cache").args([
                "depends",
                "--no-recommends",
                "--",
                &package,
            ]))?;
            for dependency in kernel_packages(&text) {
                if seen.insert(dependency.clone()) {
                    todo.push(dependency);
                }
            }
        }
        Ok(seen.into_iter().filter(|package| self.exists(package)).collect())
    }

    /// Whether a name is a package, and not merely provided by one.
    fn exists(&self, package: &str) -> bool {
        let shown = self
            .command("apt-cache")
            .args(["show", "--no-all-versions", "--", package])
            .output();
        shown.is_ok_and(|output| output.status.success() && !output.stdout.is_empty())
    }

    /// Downloads packages, verified; gives version and checksum of each.
    ///
    /// # Errors
    ///
    /// One is not there, or fails its verification.
    pub(crate) fn download(&self, packages: &[String], into: &Path) -> Result<BTreeMap<String, String>> {
        fs::create_dir_all(into)?;
        let mut command = self.command("apt-get");
        command.current_dir(into).arg("download").args(packages);
        tool::output_of(&mut command)
            .with_context(|| format!("apt cannot download {}", packages.join(", ")))?;
        let mut facts = BTreeMap::new();
        for package in packages {
            let shown = tool::output_of(self.command("apt-cache").args([
                "show",
                "--no-all-versions",
                "--",
                package,
            ]))?;
            let value = |key: &str| {
                let found = shown.lines().find_map(|line| line.strip_prefix(key));
                found
                    .map(|v| v.trim().to_owned())
                    .with_context(|| format!("the index has no {key} of {package}"))
            };
            facts.insert(
                package.clone(),
                format!("{} sha256 {}", value("Version:")?, value("SHA256:")?),
            );
        }
        Ok(facts)
    }
}

/// The packages of one kernel among what `apt-cache depends` prints: those
/// whose name begins with `linux-` and carries a version.
fn kernel_packages(text: &str) -> Vec<String> {
    text.lines()
        .filter_map(|line| line.trim().trim_start_matches('|').strip_prefix("Depends:"))
        .map(|name| name.trim().trim_matches(['<', '>']).to_owned())
        .filter(|name| name.starts_with("linux-") && name.chars().any(|c| c.is_ascii_digit()))
        .filter(|name| {
            name.split('-')
                .nth(2)
                .is_some_and(|part| part.starts_with(|c: char| c.is_ascii_digit()))
        })
        .collect()
}

fn release_of(packages: &[String]) -> Result<String> {
    let release = |prefix: &str| {
        packages
            .iter()
            .find_map(|p| p.strip_prefix(prefix))
            .map(str::to_owned)
    };
    release("linux-image-")
        .or_else(|| release("linux-binary-"))
        .with_context(|| {
            format!(
                "the archive's kernel comes in packages not known here: {}",
                packages.join(", ")
            )
        })
}

/// The modules kept, by the beginnings of their paths: what a lab's machines
/// have and may want. `depmod` has to unpack every module there is, so the
/// thousands for other hardware would only cost time.
const KEPT: [&str; 16] = [
    "arch/",
    "block/",
    "crypto/",
    "drivers/block/",
    "drivers/char/",
    "drivers/infiniband/core/",
    "drivers/infiniband/sw/",
    "drivers/infiniband/ulp/",
    "drivers/virtio/",
    "fs/9p/",
    "fs/configfs/",
    // 9p of 6.1 needs it. In later kernels it is part of netfs.
    "fs/fscache/",
    "fs/netfs/",
    "fs/overlayfs/",
    "lib/",
    "net/",
];

fn is_kept(module: &str) -> bool {
    // Virtual devices (veth, virtio_net, dummy, bonding …) lie directly in drivers/net, hardware's drivers deeper.
    let virtual_net = module
        .strip_prefix("drivers/net/")
        .is_some_and(|name| !name.contains('/'));
    virtual_net || KEPT.iter().any(|beginning| module.starts_with(beginning))
}

/// Removes the modules that are not kept from a kernel's tree of them.
fn thin_out(tree: &Path) -> Result<()> {
    let mut folders = vec![tree.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if !is_kept(&path.strip_prefix(tree)?.to_string_lossy()) {
                fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
            }
        }
    }
    Ok(())
}

/// Unpacks the packages in `folder/deb` into `folder/vmlinuz` and `folder/lib/modules/RELEASE`.
fn unpack(folder: &Path, release: &str) -> Result<()> {
    let deb = folder.join("deb");
    let tree = folder.join("tree");
    for package in fs::read_dir(&deb)? {
        let package = package?.path();
        let (package, tree) = (package.to_string_lossy(), tree.to_string_lossy());
        tool::output("dpkg-deb", &["-x", &package, &tree])?;
    }
    fs::remove_dir_all(&deb)?;
    let modules = ["lib/modules", "usr/lib/modules"].map(|place| tree.join(place).join(release));
    let modules = modules
        .iter()
        .find(|m| m.join("kernel").is_dir())
        .context("the packages hold no modules")?;
    thin_out(&modules.join("kernel"))?;
    let images = [
        modules.join("vmlinuz"),
        tree.join(format!("boot/vmlinuz-{release}")),
    ];
    let image = images
        .iter()
        .find(|i| i.is_file())
        .context("the packages hold no kernel image")?;
    fs::rename(image, folder.join("vmlinuz"))?;
    fs::create_dir_all(folder.join("lib/modules"))?;
    fs::rename(modules, folder.join("lib/modules").join(release))?;
    fs::remove_dir_all(&tree)?;
    let depmod = tool::find("depmod").context("no depmod: install kmod")?;
    tool::output(
        &depmod.to_string_lossy(),
        &["-b", &folder.to_string_lossy(), release],
    )?;
    Ok(())
}

/// The mirror of the Debian archive this machine's apt uses.
fn mirror() -> Result<String> {
    if let Some(mirror) = std::env::var(MIRROR_VARIABLE).ok().filter(|m| !m.is_empty()) {
        ensure!(
            !mirror.contains(char::is_whitespace),
            "{MIRROR_VARIABLE} holds no address"
        );
        return Ok(mirror);
    }
    let format = "$(ORIGIN)|$(RELEASE)|$(COMPONENT)|$(REPO_URI)";
    let targets = tool::output(
        "apt-get",
        &["indextargets", "--format", format, "Created-By: Packages"],
    )
    .context(
        "kernels of the Debian archive are fetched with apt, which is not here; use --kernel host or PATH",
    )?;
    match mirror_in(&targets) {
        Some(mirror) => Ok(mirror),
        None => bail!(
            "apt is configured with no mirror of the Debian archive; name one in {MIRROR_VARIABLE}, \
             or use --kernel host or PATH"
        ),
    }
}

/// From lines `origin|suite|component|address`. The origin is known only once
/// apt has read the lists; without it, the archive is known by its path.
fn mirror_in(targets: &str) -> Option<String> {
    targets.lines().find_map(|line| {
        let mut parts = line.split('|');
        let (origin, suite, component, uri) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let debian =
            origin == "Debian" || (origin.is_empty() && uri.trim_end_matches('/').ends_with("/debian"));
        (debian && component == "main" && !suite.contains("security")).then(|| uri.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mirror_is_the_main_archive() {
        let targets = "X|nodistro|main|https://x.example/node/\n\
                       Debian|bookworm-security|main|http://m.example/debian-security/\n\
                       Debian|bookworm|contrib|http://c.example/debian/\n\
                       Debian|bookworm|main|http://m.example/debian/\n";
        assert_eq!(mirror_in(targets).as_deref(), Some("http://m.example/debian/"));
        assert_eq!(
            mirror_in("|bookworm|main|http://m.example/debian/").as_deref(),
            Some("http://m.example/debian/")
        );
        assert_eq!(mirror_in("Ubuntu|noble|main|http://u.example/ubuntu/"), None);
    }

    #[test]
    fn modules_of_other_hardware_are_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let kept = [
            "net/sched/sch_netem.ko",
            "fs/fscache/fscache.ko",
            "drivers/net/veth.ko.xz",
            "drivers/infiniband/sw/rxe/rdma_rxe.ko",
        ];
        let gone = [
            "sound/snd.ko",
            "drivers/net/ethernet/intel/e1000.ko",
            "drivers/infiniband/hw/mlx5/mlx5_ib.ko",
        ];
        for name in kept.iter().chain(&gone) {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        thin_out(folder.path()).unwrap();
        assert!(kept.iter().all(|name| folder.path().join(name).exists()));
        assert!(gone.iter().all(|name| !folder.path().join(name).exists()));
    }

    #[test]
    fn a_kernel_s_packages_are_told_from_its_helpers() {
        let old = "linux-image-amd64\n  Depends: linux-image-6.1.0-50-amd64\n  Depends: initramfs-tools\n";
        assert_eq!(kernel_packages(old), ["linux-image-6.1.0-50-amd64"]);
        let new = "linux-image-7.2.13+deb14-amd64\n  Depends: linux-binary-7.2.13+deb14-amd64\n \
                   |Depends: linux-modules-7.2.13+deb14-amd64\n  Depends: linux-base-amd64\n  Depends: <linux-initramfs-tool>\n";
        assert_eq!(
            kernel_packages(new),
            [
                "linux-binary-7.2.13+deb14-amd64",
                "linux-modules-7.2.13+deb14-amd64"
            ]
        );
        let packages = kernel_packages(new);
        assert_eq!(release_of(&packages).unwrap(), "7.2.13+deb14-amd64");
        assert!(release_of(&["linux-base-1".to_owned()]).is_err());
    }
}
