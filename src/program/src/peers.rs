//! Whom a command takes for its peer: who has a key of a file, or, where that is asked for, whoever is there.

use core::error::Error;
use core::time::Duration;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use doorbell::provider::IpPrefix;
use doorbell::trust::KeyRingError;
use doorbell::{KeyRing, Node, Trust};
use doorbell_operation::SettingValues;

use crate::configured::{Configured, Said};

/// How often the file of keys is looked at again.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The error where the command line names no peers.
const NEITHER: &str = "no peer is trusted yet. A peer proves to have a key by --key-file FILE (key_file, DOORBELL_KEY_FILE); \
    `doorbell keygen FILE` makes one. Everyone who reaches the port is a peer by --unauthenticated \
    (unauthenticated = true, DOORBELL_UNAUTHENTICATED=true)";

#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct Peers {
    /// Take no peer but one that has a key of this file, and prove to have its first one; both sides name theirs.
    /// `doorbell keygen FILE` makes one. A line is ID:HEXADECIMAL, with 32 bytes or more, and the file is its owner's alone (mode 0600). When it is
    /// replaced or changed, its keys hold within a second for peers to come; if it is not good, those before stay
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
    pub(crate) fn trust(&self) -> Result<Trusted, Box<dyn Error>> {
        let settings = Configured::default().settings(SettingValues::default(), &self.said())?;
        trust_of(settings.values())
    }
}

/// Whom settings say to trust.
///
/// # Errors
/// They say nobody, or the file is not one of keys, or not secret.
pub(crate) fn trust_of(values: &SettingValues) -> Result<Trusted, Box<dyn Error>> {
    let only_from = &values.only_from.0;
    match &values.key_file {
        Some(path) => {
            let mut file = KeyFile {
                path: path.clone(),
                only_from: only_from.clone(),
                seen: None,
                failed: None,
            };
            let trust = file.read().map_err(advised)?.1;
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

/// Why a file is none of keys, with how one is made where there is none.
fn advised(error: KeyRingError) -> Box<dyn Error> {
    match &error {
        KeyRingError::File { path, error: cause } if cause.kind() == io::ErrorKind::NotFound => {
            format!("{error}; `doorbell keygen {path}` makes a file with a new key").into()
        }
        _ => error.into(),
    }
}

/// Whom to trust, and the file that says so, if one does.
#[derive(Debug)]
pub(crate) struct Trusted {
    pub(crate) trust: Trust,
    pub(crate) file: Option<KeyFile>,
}

/// A file of keys that were taken from it, and may be taken anew.
#[derive(Debug)]
pub(crate) struct KeyFile {
    path: PathBuf,
    only_from: Vec<IpPrefix>,
    /// What it was before it was read, where that went well.
    seen: Option<Stamp>,
    /// What it was where that did not, and what was wrong.
    failed: Option<(Option<Stamp>, String)>,
}

/// What changes where a file is written, is replaced, or becomes another's to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    bytes: u64,
    changed: (i64, i64),
}

impl KeyFile {
    /// Has the node take the keys of then when the file is another, as long as the node is there. What is not good is told, once,
    /// and the keys stay as they are.
    ///
    /// # Errors
    /// The system gave no thread.
    pub(crate) fn follow(mut self, node: &Arc<Node>) -> io::Result<()> {
        let node = Arc::downgrade(node);
        let look = move || {
            loop {
                thread::sleep(LOOK_EVERY);
                let Some(node) = node.upgrade() else { return };
                match self.changed() {
                    None => {}
                    Some(Ok((ids, trust))) => {
                        node.set_trust(trust);
                        let path = self.path.display();
                        eprintln!("doorbell: {path}: its keys are taken from now on: {ids:?}");
                    }
                    Some(Err(error)) => eprintln!("doorbell: the keys stay as they are: {error}"),
                }
            }
        };
        thread::Builder::new().name("doorbell-keys".into()).spawn(look)?;
        Ok(())
    }

    /// What is in the file, if it is another than when it was read last. One that could not be read is read again each time,
    /// since that may have had nothing to do with it (too many open files); what is wrong is given once.
    fn changed(&mut self) -> Option<Result<(Vec<u32>, Trust), KeyRingError>> {
        let stamp = self.stamp();
        if stamp == self.seen {
            return None;
        }
        let read = self.read();
        let failed = read.as_ref().err().map(|error| (stamp, error.to_string()));
        let is_told = failed.is_some() && failed == self.failed;
        self.failed = failed;
        (!is_told).then_some(read)
    }

    /// The names of the keys in the file, and whom to trust by them.
    fn read(&mut self) -> Result<(Vec<u32>, Trust), KeyRingError> {
        // First: what changes while it is read is found changed by the next look.
        let stamp = self.stamp();
        let ring = KeyRing::from_file(&self.path)?;
        self.seen = stamp;
        let ids = ring.ids().collect();
        Ok((ids, Trust::keys(ring).only_from(&self.only_from)))
    }

    /// None where there is no such file.
    fn stamp(&self) -> Option<Stamp> {
        let is = fs::metadata(&self.path).ok()?;
        Some(Stamp {
            device: is.dev(),
            inode: is.ino(),
            bytes: is.len(),
            changed: (is.ctime(), is.ctime_nsec()),
        })
    }
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
