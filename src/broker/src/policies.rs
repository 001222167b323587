//! The policies of a listener: one file for all containers, or a folder from which each container selects one.

use core::fmt;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use crate::host::open_plain_file;
use crate::policy::{Policy, PolicyError};

/// Maximum length of a policy in bytes.
const POLICY_BYTES_MAX: u64 = 1 << 20;

/// Maximum length of the name of a policy in bytes.
const NAME_BYTES_MAX: usize = 64;

/// The name of the policy of a container that does not select one.
const DEFAULT: &str = "default";

/// The policies of a listener. A file is read for each container, so that changes apply to later containers.
#[derive(Debug)]
pub(crate) struct Policies(PolicySource);

#[derive(Debug)]
enum PolicySource {
    File(PathBuf),
    Folder(PathBuf),
}

/// Reason why a container has no valid policy.
#[derive(Debug)]
#[non_exhaustive]
pub enum PoliciesError {
    /// The file cannot be read.
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
    /// The policy is invalid.
    Policy {
        /// The file.
        path: PathBuf,
        /// The reason.
        error: PolicyError,
    },
    /// The name has other characters than letters, digits, `-` and `_`, or more than 64 characters.
    Name(String),
    /// The container selects a policy, but there is one policy for all.
    OneForAll(String),
}

impl fmt::Display for PoliciesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, error } => write!(f, "{}: {error}", path.display()),
            Self::Policy { path, error } => write!(f, "{}: {error}", path.display()),
            Self::Name(name) => write!(
                f,
                "listenerMetadata {name:?} is no name of a policy: up to {NAME_BYTES_MAX} letters, digits, - and _"
            ),
            Self::OneForAll(name) => {
                write!(
                    f,
                    "listenerMetadata names policy {name:?}, and --policy is no folder of policies"
                )
            }
        }
    }
}

impl core::error::Error for PoliciesError {}

impl Policies {
    /// Creates the policies of a file or of a folder. A file is checked at once.
    pub(crate) fn new(path: &Path) -> Result<Self, PoliciesError> {
        if path.is_dir() {
            return Ok(Self(PolicySource::Folder(path.to_owned())));
        }
        read(path)?;
        Ok(Self(PolicySource::File(path.to_owned())))
    }

    /// Returns the policy of a container with this `listenerMetadata`, and its name.
    pub(crate) fn choose(&self, metadata: &str) -> Result<(String, Policy), PoliciesError> {
        let name = if metadata.is_empty() { DEFAULT } else { metadata };
        let shortened = || name.chars().take(NAME_BYTES_MAX).collect();
        match &self.0 {
            PolicySource::File(_) if !metadata.is_empty() => Err(PoliciesError::OneForAll(shortened())),
            PolicySource::File(path) => Ok((path.display().to_string(), read(path)?)),
            PolicySource::Folder(folder) => {
                let is_of_names = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
                // The name becomes part of a path.
                if name.len() > NAME_BYTES_MAX || !name.bytes().all(is_of_names) {
                    return Err(PoliciesError::Name(shortened()));
                }
                Ok((name.to_owned(), read(&folder.join(format!("{name}.toml")))?))
            }
        }
    }
}

fn read(path: &Path) -> Result<Policy, PoliciesError> {
    Policy::read(path)
}

impl Policy {
    /// Reads the policy of a container with this `listenerMetadata`, which may be empty, as the listener does.
    ///
    /// # Errors
    /// The listener would refuse the container: the name is invalid, there is one policy for all, or the file is not a valid
    /// policy.
    pub fn of_container(policies: &Path, metadata: &str) -> Result<Self, PoliciesError> {
        let (_, policy) = Policies::new(policies)?.choose(metadata)?;
        Ok(policy)
    }

    /// Reads a policy from a file, and checks its values.
    ///
    /// # Errors
    /// The file cannot be read, is not a plain file, is longer than 1 MiB, or is not a valid policy.
    pub fn read(path: &Path) -> Result<Self, PoliciesError> {
        let at = |error| PoliciesError::File {
            path: path.to_owned(),
            error,
        };
        let mut bytes = Vec::new();
        let file = open_plain_file(path).map_err(at)?;
        let mut file = file.take(POLICY_BYTES_MAX.saturating_add(1));
        file.read_to_end(&mut bytes).map_err(at)?;
        // A truncated policy could be valid, and differ.
        if bytes.len() as u64 > POLICY_BYTES_MAX {
            return Err(at(io::Error::new(
                io::ErrorKind::FileTooLarge,
                format!("a policy has {POLICY_BYTES_MAX} bytes at most"),
            )));
        }
        let text = core::str::from_utf8(&bytes);
        let text = text.map_err(|error| at(io::Error::new(io::ErrorKind::InvalidData, error)))?;
        let checked = Self::parse(text).and_then(|policy| policy.check().map(|()| policy));
        checked.map_err(|error| PoliciesError::Policy {
            path: path.to_owned(),
            error,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use super::Policies;

    #[test]
    fn metadata_name_a_policy_of_the_folder_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let policies = folder.path().join("policies");
        fs::create_dir(&policies).unwrap();
        fs::write(folder.path().join("outside.toml"), "devices = ['secret']").unwrap();
        fs::write(policies.join("train.toml"), "devices = ['mlx5_0']").unwrap();
        fs::write(policies.join("bad.toml"), "devices = []").unwrap();
        let of_folder = Policies::new(&policies).unwrap();
        let (name, policy) = of_folder.choose("train").unwrap();
        assert_eq!(
            (name.as_str(), policy.devices),
            ("train", vec!["mlx5_0".to_owned()])
        );
        for (metadata, said) in [
            ("", "default.toml: No such file"),
            ("other", "other.toml: No such file"),
            ("../outside", "is no name of a policy"),
            ("a/b", "is no name of a policy"),
            ("train\0", "is no name of a policy"),
            ("bad", "bad.toml: the policy allows no device"),
            (&"x".repeat(65), "is no name of a policy"),
        ] {
            let error = of_folder.choose(metadata).unwrap_err().to_string();
            assert!(error.contains(said), "{metadata}: {error}");
        }
        fs::write(policies.join("default.toml"), "devices = ['rxe0']").unwrap();
        assert_eq!(of_folder.choose("").unwrap().1.devices, ["rxe0"]);
        let of_file = Policies::new(&policies.join("train.toml")).unwrap();
        assert_eq!(of_file.choose("").unwrap().1.devices, ["mlx5_0"]);
        let error = of_file.choose("train").unwrap_err().to_string();
        assert!(error.contains("no folder of policies"), "{error}");
        let error = Policies::new(&policies.join("bad.toml")).unwrap_err().to_string();
        assert!(error.ends_with("name one in `devices`"), "{error}");
        // The limit is within the last character.
        let long = "#".repeat(super::POLICY_BYTES_MAX as usize) + "\u{20ac}";
        fs::write(policies.join("long.toml"), long).unwrap();
        let error = of_folder.choose("long").unwrap_err().to_string();
        assert!(error.ends_with("1048576 bytes at most"), "{error}");
    }

    #[test]
    fn what_is_no_plain_file_is_refused_and_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        // No process ever writes to it.
        let pipe = folder.path().join("pipe.toml");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        fs::create_dir(folder.path().join("folder.toml")).unwrap();
        let of_folder = Policies::new(folder.path()).unwrap();
        for name in ["pipe", "folder"] {
            let error = of_folder.choose(name).unwrap_err().to_string();
            let said = format!("{name}.toml: it is not a plain file");
            assert!(error.ends_with(&said), "{error}");
        }
        let error = Policies::new(&pipe).unwrap_err().to_string();
        assert!(error.ends_with("pipe.toml: it is not a plain file"), "{error}");
    }
}
