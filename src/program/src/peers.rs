//! Trust in peers: a peer needs a key from a file, or every peer is accepted if the user requests that.

use core::error::Error;
use core::net::SocketAddr;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use doorbell::trust::KeyRingError;
use doorbell::{KeyRing, Node, Trust};
use doorbell_operation::SettingValues;

use crate::configured::{Configured, OptionValue};
use crate::key_file::KeyFile;
use crate::log;

/// The error if neither keys nor unauthenticated peers are configured.
const NEITHER: &str = "no peer is trusted: name a key file with --key-file FILE (key_file, DOORBELL_KEY_FILE), which \
    `doorbell keygen FILE` makes; or accept every peer that reaches the port with --unauthenticated \
    (unauthenticated = true, DOORBELL_UNAUTHENTICATED=true)";

#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct Peers {
    /// Accept only peers that prove that they have a key of FILE, and prove its first key to them
    ///
    /// Both sides need a key file; `doorbell keygen FILE` makes one. Each line is ID:HEXADECIMAL, with 32 bytes or more. The file
    /// must belong to its owner alone (mode 0600). A changed file applies to new peers within a second. If it is invalid, the
    /// previous keys stay.
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,

    /// Accept every peer that reaches the port, and prove nothing to it
    ///
    /// For a lab, or for a network that only trusted hosts can reach. Without this option a key file is required.
    #[arg(long)]
    unauthenticated: bool,
}

impl Peers {
    /// Returns the options of the command line, as settings.
    pub(crate) fn options(&self) -> [OptionValue; 2] {
        let path = self.key_file.as_ref();
        let path = path.map(|path| path.to_string_lossy().into_owned());
        let flag = self.unauthenticated.then(|| true.to_string());
        [
            ("--key-file", "key_file", path),
            ("--unauthenticated", "unauthenticated", flag),
        ]
    }

    /// Returns these options, and those of a time limit and of metrics, as settings.
    pub(crate) fn options_with(
        &self,
        timeout_seconds: Option<u64>,
        metrics: Option<SocketAddr>,
    ) -> [OptionValue; 4] {
        let timeout = timeout_seconds.map(|seconds| format!("{seconds}s"));
        let metrics = metrics.map(|address| address.to_string());
        let [key_file, unauthenticated] = self.options();
        [
            key_file,
            unauthenticated,
            ("--timeout", "timeout", timeout),
            ("--metrics", "metrics", metrics),
        ]
    }

    /// Returns the peers to trust, for a command that has no other settings.
    ///
    /// # Errors
    /// A setting is invalid; otherwise as for [`trust_of`].
    pub(crate) fn trust(&self) -> Result<Trusted, Box<dyn Error>> {
        let settings = Configured::default().settings(SettingValues::default(), &self.options())?;
        trust_of(settings.values())
    }
}

/// Returns the peers that the settings trust.
///
/// # Errors
/// The settings trust no peer, or the key file is invalid or readable by other users.
pub(crate) fn trust_of(values: &SettingValues) -> Result<Trusted, Box<dyn Error>> {
    let only_from = &values.only_from.0;
    match &values.key_file {
        Some(path) => {
            let only_from = only_from.clone();
            let mut file = KeyFile::new(path, move |path| {
                let ring = KeyRing::from_file(path)?;
                let ids = ring.ids().collect();
                let trust = Trust::keys(ring).only_from(&only_from);
                Ok(NodeKeys { ids, trust })
            });
            let trust = file.read().map_err(advised)?.trust;
            Ok(Trusted {
                trust,
                file: Some(file),
            })
        }
        None if values.unauthenticated => Ok(Trusted {
            trust: Trust::unauthenticated_on_purpose().only_from(only_from),
            file: None,
        }),
        None => Err(NEITHER.into()),
    }
}

/// Adds to the error of a missing key file how to create one.
fn advised(error: KeyRingError) -> Box<dyn Error> {
    match &error {
        KeyRingError::File { path, error: cause } if cause.kind() == io::ErrorKind::NotFound => {
            format!("{error}; `doorbell keygen {path}` makes a file with a new key").into()
        }
        _ => error.into(),
    }
}

/// The peers to trust, and the key file, if there is one.
#[derive(Debug)]
pub(crate) struct Trusted {
    pub(crate) trust: Trust,
    pub(crate) file: Option<KeyFile<NodeKeys>>,
}

/// The ids of the keys in a file, and the trust that they give.
#[derive(Debug)]
pub(crate) struct NodeKeys {
    ids: Vec<u32>,
    trust: Trust,
}

/// Updates the node's keys whenever the file changes, as long as the node exists. An invalid file is reported once, and the keys stay
/// unchanged.
///
/// # Errors
/// No thread can be started.
pub(crate) fn follow(file: KeyFile<NodeKeys>, node: &Arc<Node>) -> io::Result<()> {
    let node = Arc::downgrade(node);
    let path = file.path().display().to_string();
    file.follow(move |changed| {
        let Some(node) = node.upgrade() else { return false };
        match changed {
            None => {}
            Some(Ok(keys)) => {
                node.set_trust(keys.trust);
                let ids = keys.ids;
                log::write_line(&format!("doorbell: {path}: keys in force from now on: {ids:?}"));
            }
            Some(Err(error)) => log::write_line(&format!("doorbell: the keys stay as they are: {error}")),
        }
        true
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use doorbell_operation::{SettingValues, Settings};

    use super::{NEITHER, Peers, trust_of};

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        peers: Peers,
    }

    /// Returns the checked settings of `file`, with the options in `words` over them.
    fn said(file: &str, words: &[&str]) -> Result<SettingValues, String> {
        let peers = Line::parse_from(["doorbell"].iter().chain(words)).peers;
        let mut settings = Settings::default();
        settings.text("a.toml", file).unwrap();
        for (option, key, value) in peers.options() {
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
            let trusted = trust_of(&said(file, words).unwrap()).unwrap();
            assert!(!trusted.trust.is_authenticated() && trusted.file.is_none());
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
