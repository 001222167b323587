//! Which kernel a lab runs: the choice, and where its image and modules are.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};

use crate::cache::{Cache, Scrutiny};

pub(crate) mod archive;
mod choice;
pub(crate) mod image;

pub(crate) use choice::{Choice, Series};

impl Series {
    /// The archive's suite it is in.
    pub(crate) fn suite(self) -> &'static str {
        match self {
            Self::V6_1 => "bookworm",
            Self::V6_12 => "bookworm-backports",
            Self::Newest => "sid",
        }
    }

    /// Whether a kernel of this version is one.
    fn admits(self, version: Version) -> bool {
        match self {
            Self::V6_1 => version == Version(6, 1),
            Self::V6_12 => version == Version(6, 12),
            Self::Newest => version >= NAMESPACES_SINCE,
        }
    }
}

/// Major and minor number of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version(pub(crate) u32, pub(crate) u32);

/// Since when rxe belongs to network namespaces.
pub(crate) const NAMESPACES_SINCE: Version = Version(7, 1);

impl Version {
    /// From a release as `uname -r` gives it.
    pub(crate) fn of_release(release: &str) -> Result<Self> {
        let mut numbers = release
            .split(|c: char| !c.is_ascii_digit())
            .map(str::parse::<u32>);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(major)), Some(Ok(minor))) => Ok(Self(major, minor)),
            _ => bail!("`{release}` is not the release of a kernel"),
        }
    }
}

/// A kernel that can be booted.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    /// As `uname -r` gives it.
    pub(crate) release: String,
    /// Its version.
    pub(crate) version: Version,
    /// A bzImage.
    pub(crate) image: PathBuf,
    /// The folder with `modules.dep`.
    pub(crate) modules: PathBuf,
    /// The choice that asked for it, in words.
    pub(crate) origin: String,
}

/// Finds a kernel on this machine or in the cache; nothing is fetched.
///
/// # Errors
///
/// It is not here: says what to run, or what is missing.
pub(crate) fn locate(choice: &Choice, cache: &Cache) -> Result<Kernel> {
    match choice {
        Choice::Natural => match host() {
            Ok(kernel) if kernel.version >= NAMESPACES_SINCE => Ok(kernel),
            _ => locate(&Choice::Series(Series::Newest), cache),
        },
        Choice::Series(series) => locate_series(*series, cache, Scrutiny::Sizes)?
            .with_context(|| format!("kernel {series} is not here: run `cargo lab setup --kernel {series}`")),
        Choice::Host => host(),
        Choice::Path(path) => at_path(path),
    }
}

/// The cached kernel of a series, if it is whole.
pub(crate) fn locate_series(series: Series, cache: &Cache, scrutiny: Scrutiny) -> Result<Option<Kernel>> {
    let Some(release) = cache.note(&archive::note_of(series)) else {
        return Ok(None);
    };
    let Some((entry, _)) = cache.find(&archive::entry_of(release.trim()), scrutiny) else {
        return Ok(None);
    };
    in_entry(&entry, series).map(Some)
}

/// The kernel an entry of the cache holds.
fn in_entry(entry: &Path, series: Series) -> Result<Kernel> {
    let image = entry.join("vmlinuz");
    let release = image::release(&image)?;
    let version = Version::of_release(&release)?;
    ensure!(
        series.admits(version),
        "the archive's kernel {release} is not {series} (at least 7.1 for newest)"
    );
    let modules = entry.join("lib/modules").join(&release);
    let origin = format!("{series}, from the Debian archive");
    checked(Kernel {
        release,
        version,
        image,
        modules,
        origin,
    })
}

fn host() -> Result<Kernel> {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let version = Version::of_release(&release)?;
    let modules = Path::new("/lib/modules").join(&release);
    let candidates = [
        PathBuf::from(format!("/boot/vmlinuz-{release}")),
        modules.join("vmlinuz"),
    ];
    let image = candidates.iter().find(|path| path.exists()).with_context(|| {
        format!(
            "this machine's kernel {release} has no image at {} or {}",
            candidates[0].display(),
            candidates[1].display()
        )
    })?;
    fs::File::open(image)
        .with_context(|| format!("cannot read {} (as root, make it readable)", image.display()))?;
    checked(Kernel {
        release,
        version,
        image: image.clone(),
        modules,
        origin: "this machine's own".to_owned(),
    })
}

fn at_path(path: &Path) -> Result<Kernel> {
    let path = fs::canonicalize(path).with_context(|| format!("no kernel image at {}", path.display()))?;
    let release = image::release(&path)?;
    let version = Version::of_release(&release)?;
    let beside = path.parent().unwrap_or(Path::new("/"));
    let candidates = [
        beside.to_owned(),
        beside.join("lib/modules").join(&release),
        beside.join("../lib/modules").join(&release),
        Path::new("/lib/modules").join(&release),
    ];
    let modules = candidates
        .iter()
        .find(|folder| folder.join("modules.dep").exists())
        .with_context(|| {
            let places = candidates
                .iter()
                .map(|c| c.display().to_string())
                .collect::<Vec<_>>()
                .join(", ");
            format!("no modules of {release} with a modules.dep in any of {places}")
        })?;
    let origin = path.display().to_string();
    checked(Kernel {
        release,
        version,
        image: path,
        modules: modules.clone(),
        origin,
    })
}

fn checked(kernel: Kernel) -> Result<Kernel> {
    let known = fs::read_to_string(kernel.modules.join("modules.dep")).with_context(|| {
        format!(
            "kernel {} has no modules.dep in {}: run depmod",
            kernel.release,
            kernel.modules.display()
        )
    })?;
    let builtin = fs::read_to_string(kernel.modules.join("modules.builtin")).unwrap_or_default();
    ensure!(
        known.contains("/rdma_rxe.ko") || builtin.contains("/rdma_rxe.ko"),
        "kernel {} has no rdma_rxe module; take another, with --kernel",
        kernel.release
    );
    Ok(kernel)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_releases() {
        for (release, version) in [
            ("6.1.0-50-amd64", Version(6, 1)),
            ("6.12.95+deb12-amd64", Version(6, 12)),
            ("7.2.13+deb14-amd64", Version(7, 2)),
            ("7.10-rc1", Version(7, 10)),
        ] {
            assert_eq!(Version::of_release(release).unwrap(), version, "{release}");
        }
        for bad in ["", "linux", "7", "x.1.2", "99999999999.1"] {
            assert!(Version::of_release(bad).is_err(), "{bad}");
        }
        assert!(Version(7, 10) > Version(7, 2) && Version(6, 12) < NAMESPACES_SINCE);
    }

    #[test]
    fn choices_are_read_and_strangers_refused() {
        assert_eq!("6.1".parse::<Choice>().unwrap(), Choice::Series(Series::V6_1));
        assert_eq!(
            "newest".parse::<Choice>().unwrap(),
            Choice::Series(Series::Newest)
        );
        assert_eq!("host".parse::<Choice>().unwrap(), Choice::Host);
        assert_eq!(
            "./bzImage".parse::<Choice>().unwrap(),
            Choice::Path("./bzImage".into())
        );
        let message = "6.2".parse::<Choice>().unwrap_err().to_string();
        assert!(message.contains("`6.2`") && message.contains("6.12"), "{message}");
    }

    #[test]
    fn a_series_does_not_take_any_kernel() {
        assert!(Series::Newest.admits(Version(7, 1)) && !Series::Newest.admits(Version(7, 0)));
        assert!(Series::V6_1.admits(Version(6, 1)) && !Series::V6_1.admits(Version(6, 12)));
    }

    #[test]
    fn what_is_not_here_names_the_command() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path().join("c")).unwrap();
        let message = locate(&Choice::Series(Series::V6_12), &cache)
            .unwrap_err()
            .to_string();
        assert!(message.contains("cargo lab setup --kernel 6.12"), "{message}");
        assert!(locate(&Choice::Path("/no/such/image".into()), &cache).is_err());
    }
}
