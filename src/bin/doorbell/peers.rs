//! Whom a command takes for its peer: who has a key of a file, or, where that is asked for, whoever is there.

use core::error::Error;
use std::path::PathBuf;

use doorbell::{KeyRing, SettingValues, Trust};

use crate::configured::{Configured, Said};

/// What is said to who says neither.
const NEITHER: &str = "whom to take for a peer is not said: who has a key, by --key-file FILE (key_file, DOORBELL_KEY_FILE), or \
    whoever reaches the port, by --unauthenticated (unauthenticated = true, DOORBELL_UNAUTHENTICATED=true)";

#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct Peers {
    /// Take no peer but one that has a key of this file, and prove to have its first one; both sides name theirs.
    /// A line is ID:HEXADECIMAL, with 32 bytes or more, and the file is its owner's alone (mode 0600)
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,

    /// Take whoever reaches the port for the peer, and prove nothing to it: for a lab, or a network where nobody is who should
    /// not be. Without this there has to be a key file
    #[arg(long)]
    unauthenticated: bool,
}

impl Peers {
    /// What was said, as settings.
    pub(crate) fn said(&self) -> [Said; 2] {
        let path = self.key_file.as_ref();
        let path = path.map(|path| path.to_string_lossy().into_owned());
        let flag = self.unauthenticated.then(|| true.to_string());
        [
            ("--key-file", "key_file", path),
            ("--unauthenticated", "unauthenticated", flag),
        ]
    }

    /// Whom to trust, for a command that has no other settings.
    ///
    /// # Errors
    /// A setting is wrong, and those of [`trust_of`].
    pub(crate) fn trust(&self) -> Result<Trust, Box<dyn Error>> {
        let settings = Configured::default().settings(SettingValues::default(), &self.said())?;
        trust_of(settings.values())
    }
}

/// Whom settings say to trust.
///
/// # Errors
/// They say nobody, or the file is not one of keys, or not secret.
pub(crate) fn trust_of(values: &SettingValues) -> Result<Trust, Box<dyn Error>> {
    let trust = match &values.key_file {
        Some(path) => Trust::keys(KeyRing::from_file(path)?),
        None if values.unauthenticated => Trust::unauthenticated_on_purpose(),
        None => return Err(NEITHER.into()),
    };
    Ok(trust.only_from(&values.only_from.0))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use doorbell::{SettingValues, Settings};

    use super::{NEITHER, Peers, trust_of};

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        peers: Peers,
    }

    /// What `words` of a command line say over `file`, checked.
    fn said(file: &str, words: &[&str]) -> Result<SettingValues, String> {
        let peers = Line::parse_from(["doorbell"].iter().chain(words)).peers;
        let mut settings = Settings::default();
        settings.text("a.toml", file).unwrap();
        for (option, key, value) in peers.said() {
            if let Some(value) = value {
                settings.argument(option, key, &value).unwrap();
            }
        }
        settings.check().map_err(|error| error.to_string())?;
        Ok(settings.values().clone())
    }

    #[test]
    fn nobody_is_trusted_who_was_not_asked_for() {
        let told = trust_of(&said("", &[]).unwrap()).unwrap_err().to_string();
        assert_eq!(told, NEITHER);
        assert!(told.contains("--key-file FILE") && told.contains("--unauthenticated"));
        let off = said("unauthenticated = false", &[]).unwrap();
        assert_eq!(trust_of(&off).unwrap_err().to_string(), NEITHER);
    }

    #[test]
    fn whoever_is_there_is_trusted_where_that_is_said() {
        for (file, words) in [("", &["--unauthenticated"][..]), ("unauthenticated = true", &[])] {
            let trust = trust_of(&said(file, words).unwrap()).unwrap();
            assert!(!trust.is_authenticated());
        }
    }

    #[test]
    fn a_file_that_is_named_is_read() {
        let told = trust_of(&said("", &["--key-file", "no/such/file"]).unwrap()).unwrap_err();
        assert!(told.to_string().starts_with("no/such/file: "), "{told}");
    }

    #[test]
    fn both_contradict_each_other_and_both_places_are_told() {
        let both = "it is true, and key_file names the keys that peers have to have";
        for (file, words, expected) in [
            (
                "",
                &["--key-file", "keys", "--unauthenticated"][..],
                format!("--unauthenticated: unauthenticated: {both} (--key-file): one of them has to go"),
            ),
            (
                "key_file = \"keys\"",
                &["--unauthenticated"],
                format!("--unauthenticated: unauthenticated: {both} (a.toml:1): one of them has to go"),
            ),
        ] {
            assert_eq!(said(file, words).unwrap_err(), expected);
        }
    }
}
