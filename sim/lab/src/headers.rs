//! Counterparts of the raw bindings: a C compiler, the headers of the installed rdma-core, and the newest
//! headers there are, which are unpacked and not installed.

use std::path::PathBuf;

use anyhow::Result;

use crate::cache::{Cache, Scrutiny};
use crate::kernel::Series;
use crate::kernel::archive::Apt;
use crate::setup;
use crate::steps::step;
use crate::tool;

/// The package the headers are in.
const PACKAGE: &str = "libibverbs-dev";

/// Packages that the comparison installs.
const PACKAGES: [&str; 2] = [PACKAGE, "gcc"];

/// Sets up both; gives the folder of the newest headers, for `-I`.
///
/// # Errors
///
/// A package cannot be installed, fetched or unpacked.
pub(crate) fn ensure() -> Result<PathBuf> {
    setup::install_missing(|need| PACKAGES.contains(&need.package))?;
    let cache = Cache::open()?;
    let (entry, _) = cache.entry("headers/newest", Scrutiny::Sizes, |folder| {
        step("fetching the headers of the newest rdma-core", || {
            let apt = Apt::new(Series::Newest, &cache)?;
            apt.update()?;
            let deb = folder.join("deb");
            let facts = apt.download(&[PACKAGE.to_owned()], &deb)?;
            for package in std::fs::read_dir(&deb)? {
                let package = package?.path();
                tool::output(
                    "dpkg-deb",
                    &["-x", &package.to_string_lossy(), &folder.to_string_lossy()],
                )?;
            }
            std::fs::remove_dir_all(&deb)?;
            Ok(facts)
        })
    })?;
    Ok(entry.join("usr/include"))
}
