//! Whom a command takes for its peer: who has a key of a file, or whoever is there.

use std::path::{Path, PathBuf};

use doorbell::{KeyRing, KeyRingError, SettingValues, Trust};

#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct Peers {
    /// Take no peer but one that has a key of this file, and prove to have its first one; both sides name theirs.
    /// A line is ID:HEXADECIMAL, with 32 bytes or more, and the file is its owner's alone (mode 0600).
    /// Without it, whoever reaches the port is taken for the peer.
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
}

impl Peers {
    /// What was said, as a Node is told.
    ///
    /// # Errors
    /// The file is not one of keys, or not secret.
    pub(crate) fn trust(&self) -> Result<Trust, KeyRingError> {
        of_keys(self.key_file.as_deref())
    }

    /// What was said, as a setting.
    pub(crate) fn said(&self) -> (&'static str, &'static str, Option<String>) {
        let path = self.key_file.as_ref();
        let path = path.map(|path| path.to_string_lossy().into_owned());
        ("--key-file", "key_file", path)
    }
}

/// Whom settings say to trust.
///
/// # Errors
/// The file is not one of keys, or not secret.
pub(crate) fn trust_of(values: &SettingValues) -> Result<Trust, KeyRingError> {
    let trust = of_keys(values.key_file.as_deref())?;
    Ok(trust.only_from(&values.only_from.0))
}

fn of_keys(path: Option<&Path>) -> Result<Trust, KeyRingError> {
    match path {
        Some(path) => Ok(Trust::keys(KeyRing::from_file(path)?)),
        None => Ok(Trust::unauthenticated_on_purpose()),
    }
}
