//! `doorbell keygen`: creates a file with a new key, in the format that `--key-file` reads.

use core::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use doorbell::trust::KEY_BYTES_MIN;
use serde::Serialize;

use crate::report::{Failure, print};

/// Make a file with a new random key of 256 bits
///
/// Only its owner can read the file (mode 0600), and an existing file is never overwritten. Copy the file to every peer, over a
/// confidential channel, and name it with --key-file. A file of two keys replaces a key without a restart: docs/security.md has
/// the steps.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    doorbell keygen keys                    the first key of a site\n  \
    doorbell keygen next-keys --id 2        its successor\n  \
    doorbell lat --key-file keys")]
pub(crate) struct Arguments {
    /// The file to make
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// The id of the key, by which both sides name it
    #[arg(long, value_name = "ID", default_value_t = 1)]
    id: u32,

    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// The key that was generated. Only the file has its bytes.
#[derive(Serialize)]
struct Report {
    file: String,
    key_id: u32,
    key_bits: usize,
}

/// Creates the file.
///
/// # Errors
/// The file exists or cannot be written, or the system gave no random bytes.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let path = &arguments.file;
    make(path, arguments.id)?;
    let report = Report {
        file: path.display().to_string(),
        key_id: arguments.id,
        key_bits: KEY_BYTES_MIN.saturating_mul(8),
    };
    print("keygen", &report, arguments.json, |report| {
        format!(
            "{}: key {} of {} bits, for its owner alone (mode 0600)\n",
            report.file, report.key_id, report.key_bits
        )
    })
}

fn make(path: &Path, id: u32) -> Result<(), Failure> {
    let mut secret = [0; KEY_BYTES_MIN];
    getrandom::fill(&mut secret).map_err(|error| format!("the system gave no random bytes: {error}"))?;
    let mut text = format!("{id}:");
    for byte in secret {
        // Writing to a String does not fail.
        let _ = write!(text, "{byte:02x}");
    }
    text.push('\n');
    write_new(path, &text).map_err(|error| {
        let path = path.display();
        match error.kind() {
            io::ErrorKind::AlreadyExists => {
                format!("{path}: the file exists, and is not overwritten: name another, or remove it first")
            }
            _ => format!("{path}: {error}"),
        }
        .into()
    })
}

/// Creates a file that only its owner can open, from the beginning. A symbolic link at the path is not followed.
fn write_new(path: &Path, text: &str) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use doorbell::KeyRing;

    use super::make;

    #[test]
    fn a_new_key_is_read_by_those_who_take_keys_and_is_another_each_time() {
        let folder = tempfile::tempdir().unwrap();
        let [one, two] = ["one", "two"].map(|name| folder.path().join(name));
        make(&one, 7).unwrap();
        make(&two, 7).unwrap();
        let ids: Vec<_> = KeyRing::from_file(&one).unwrap().ids().collect();
        assert_eq!(ids, [7]);
        assert_eq!(fs::metadata(&one).unwrap().permissions().mode() & 0o7777, 0o600);
        assert_ne!(fs::read(&one).unwrap(), fs::read(&two).unwrap());
    }

    #[test]
    fn no_file_is_overwritten_and_no_link_followed() {
        let folder = tempfile::tempdir().unwrap();
        let [there, link, beyond] = ["there", "link", "beyond"].map(|name| folder.path().join(name));
        fs::write(&there, "kept").unwrap();
        symlink(&beyond, &link).unwrap();
        for path in [&there, &link] {
            let why = make(path, 1).unwrap_err().to_string();
            assert!(why.contains("is not overwritten"), "{why}");
        }
        assert_eq!(fs::read_to_string(&there).unwrap(), "kept");
        assert!(!beyond.exists());
        let nowhere = make(&folder.path().join("no/such"), 1).unwrap_err().to_string();
        assert!(nowhere.contains("no/such: No such file"), "{nowhere}");
    }
}
