//! Which kernel is asked for, as it is written.

use core::fmt;
use core::str::FromStr;
use std::path::PathBuf;

use anyhow::{Result, bail};

/// Kernel that `--kernel` asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Choice {
    /// This machine's own kernel if it has rxe and joins it to network
    /// namespaces (7.1 and newer), else [`Series::Newest`].
    #[default]
    Natural,
    /// One of the archive's.
    Series(Series),
    /// This machine's own, from `/boot` and `/lib/modules`.
    Host,
    /// An image; its modules are looked for beside it and under `/lib/modules`.
    Path(PathBuf),
}

/// The kernels taken from the Debian archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Series {
    /// Debian 12's.
    V6_1,
    /// Debian 12's backports.
    V6_12,
    /// Sid's: it moves, and is at least 7.1.
    Newest,
}

impl Series {
    /// All of them.
    pub(crate) const ALL: [Self; 3] = [Self::V6_1, Self::V6_12, Self::Newest];
}

impl fmt::Display for Series {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V6_1 => "6.1",
            Self::V6_12 => "6.12",
            Self::Newest => "newest",
        })
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Natural => f.write_str("natural"),
            Self::Series(series) => series.fmt(f),
            Self::Host => f.write_str("host"),
            Self::Path(path) => path.display().fmt(f),
        }
    }
}

impl FromStr for Choice {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        if let Some(series) = Series::ALL.into_iter().find(|series| series.to_string() == text) {
            return Ok(Self::Series(series));
        }
        match text {
            "host" => Ok(Self::Host),
            path if path.contains('/') => Ok(Self::Path(PathBuf::from(path))),
            _ => bail!(
                "`{text}` is no kernel: 6.1, 6.12, newest, host, or the path of an image (with a `/` in it)"
            ),
        }
    }
}
