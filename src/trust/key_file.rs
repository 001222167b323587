//! Reads keys from a file that only its owner can read, or from the environment.

use std::io::{Error, ErrorKind, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::process::geteuid;

use crate::machine::plain_file;
use crate::trust::{KeyRing, KeyRingError, wipe};

/// The maximum size of a key file in bytes.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// Permission bits of all users except the owner.
const OTHERS: u32 = 0o077;

/// Passes the text of a file of keys to `parse`, and then erases the text. The file must belong to the effective user or to root, and its
/// mode must give no rights to others (0600 or 0400). If the path is a symbolic link, this holds for the file to which it leads.
///
/// # Errors
/// The file cannot be read, is not kept secret, has more than 64 KiB, or is not UTF-8; or `parse` fails.
pub fn with_secret_file<T>(
    path: &Path,
    parse: impl FnOnce(&str) -> Result<T, KeyRingError>,
) -> Result<T, KeyRingError> {
    let named = || path.display().to_string();
    let unreadable = |error| KeyRingError::File { path: named(), error };
    let open = plain_file::open(path).map_err(unreadable)?;
    let is = open.metadata().map_err(unreadable)?;
    let not_secret = |why| KeyRingError::NotSecret { path: named(), why };
    if is.mode() & OTHERS != 0 {
        let mode = is.mode() & 0o7777;
        return Err(not_secret(format!(
            "its mode is {mode:04o}, which others than its owner may use; make it 0600"
        )));
    }
    if is.uid() != geteuid().as_raw() && is.uid() != 0 {
        return Err(not_secret(format!("it belongs to user {}", is.uid())));
    }
    if is.len() > FILE_BYTES_MAX {
        return Err(not_secret(format!("it has {} bytes", is.len())));
    }
    // The vector has room for the whole file, so it never grows and leaves no copy of the keys in freed memory.
    let mut bytes = Vec::with_capacity(usize::try_from(FILE_BYTES_MAX).unwrap_or_default());
    let read = open.take(FILE_BYTES_MAX).read_to_end(&mut bytes);
    let parsed = read
        .map_err(unreadable)
        .and_then(|_| match core::str::from_utf8(&bytes) {
            Ok(text) => parse(text),
            Err(error) => Err(unreadable(Error::new(ErrorKind::InvalidData, error))),
        });
    wipe(&mut bytes);
    parsed
}

impl KeyRing {
    /// Reads the keys from a text file in the format that [`KeyRing`] describes. [`with_secret_file`] has the requirements.
    ///
    /// To change keys without a restart, read the file again and pass the new trust to
    /// [`Node::set_trust`](crate::Node::set_trust).
    ///
    /// # Errors
    /// As for [`with_secret_file`], or the file does not contain valid keys.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, KeyRingError> {
        with_secret_file(path.as_ref(), Self::from_text)
    }

    /// Reads the keys from an environment variable in the format that [`KeyRing`] describes. The variable stays in the environment,
    /// where child processes and whoever may inspect the process can read it. Prefer a file.
    ///
    /// # Errors
    /// There is no such variable, or it does not contain valid keys.
    pub fn from_env(variable: &str) -> Result<Self, KeyRingError> {
        let text = std::env::var(variable).map_err(|_| KeyRingError::Environment(variable.into()))?;
        let ring = Self::from_text(&text);
        wipe(&mut text.into_bytes());
        ring
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::PathBuf;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::{KeyRing, KeyRingError};

    const TEXT: &str = "3:6a09e667bb67ae853c6ef372a54ff53a510e527f9b05688c1f83d9ab5be0cd19\n";

    /// A file of one test, which is removed when this is dropped.
    struct Kept(PathBuf);

    impl Kept {
        fn new(name: &str, text: &str, mode: u32) -> Self {
            let path = std::env::temp_dir().join(format!("doorbell-{}-{name}", std::process::id()));
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            Self(path)
        }
    }

    impl Drop for Kept {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.0);
        }
    }

    #[test]
    fn a_file_has_to_be_its_owners_alone() {
        for mode in [0o600, 0o400] {
            let kept = Kept::new("secret", TEXT, mode);
            let ring = KeyRing::from_file(&kept.0).unwrap();
            assert_eq!(ring.ids().collect::<Vec<_>>(), [3]);
        }
        for mode in [0o640, 0o604, 0o660, 0o602, 0o610, 0o601, 0o644, 0o777] {
            let kept = Kept::new("open", TEXT, mode);
            let error = KeyRing::from_file(&kept.0).unwrap_err().to_string();
            assert!(error.contains(&format!("its mode is {mode:04o}")), "{error}");
            assert!(!error.contains("6a09"), "{error}");
        }
    }

    #[test]
    fn what_is_no_file_of_keys_is_refused() {
        let error = KeyRing::from_file("/nonexistent").unwrap_err();
        assert!(matches!(error, KeyRingError::File { .. }), "{error}");
        let error = KeyRing::from_file("/dev/null").unwrap_err().to_string();
        assert!(error.contains("not a plain file"), "{error}");
        // No process ever writes to this FIFO. Opening it must not block.
        let kept = Kept::new("fifo", "", 0o600);
        fs::remove_file(&kept.0).unwrap();
        mknodat(CWD, &kept.0, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let error = KeyRing::from_file(&kept.0).unwrap_err().to_string();
        assert!(error.contains("not a plain file"), "{error}");
        let long = Kept::new("long", &"#".repeat((64 << 10) + 1), 0o600);
        assert!(
            KeyRing::from_file(&long.0)
                .unwrap_err()
                .to_string()
                .contains("65537 bytes")
        );
        let binary = Kept::new("binary", "", 0o600);
        fs::write(&binary.0, b"3:\xff").unwrap();
        let error = KeyRing::from_file(&binary.0).unwrap_err();
        assert!(matches!(error, KeyRingError::File { .. }), "{error}");
        let empty = Kept::new("empty", "", 0o600);
        assert_eq!(
            KeyRing::from_file(&empty.0).unwrap_err().to_string(),
            "there is no key: write one a line, as ID:HEXADECIMAL"
        );
    }

    #[test]
    fn the_environment_has_to_have_them() {
        let error = KeyRing::from_env("DOORBELL_NO_SUCH_KEYS").unwrap_err();
        assert_eq!(
            error.to_string(),
            "the environment has no keys in DOORBELL_NO_SUCH_KEYS: set it to lines of ID:HEXADECIMAL"
        );
        // This variable always exists, and does not contain keys.
        assert!(KeyRing::from_env("PATH").is_err());
    }
}
