//! Sources of settings, and errors in them.

use core::fmt;
use std::sync::Arc;

/// Source of a setting's value. Later variants override earlier ones.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SettingSource {
    /// The default of doorbell.
    Default,
    /// The default of the program.
    Program,
    /// A line of a file.
    File {
        /// The path, as it was named.
        path: Arc<str>,
        /// The line, from 1; 0 is the file as a whole.
        line: usize,
    },
    /// This variable of the environment.
    Environment(String),
    /// This option of the command line.
    Argument(String),
}

/// Error of a setting, or of a file of settings.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SettingsError {
    /// Source of the setting at fault.
    pub source: SettingSource,
    /// The setting, as it was named; `None` if the whole file is at fault.
    pub key: Option<String>,
    /// The fault.
    pub fault: SettingsFault,
}

/// Fault of a setting, or of a file of them. The author of the setting can correct it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SettingsFault {
    /// The file cannot be read, with the reason.
    Unreadable(String),
    /// The file has more bytes than this limit.
    TooLong(u64),
    /// The file is no TOML, with the reason.
    Syntax(String),
    /// The name is unknown; this setting may be meant.
    Unknown(Option<&'static str>),
    /// The value is of the wrong kind; this kind is expected.
    WrongKind(&'static str),
    /// The value is out of bounds.
    OutOfBounds {
        /// The least.
        least: String,
        /// The most.
        most: String,
    },
    /// The value is invalid, with the reason.
    Wrong(String),
    /// The value is a key itself. The setting has to name the key file.
    IsSecret,
    /// The setting contradicts another one.
    Contradiction(String),
}

impl SettingSource {
    /// Strength of the source: a stronger one overrides.
    pub(super) const fn strength(&self) -> u8 {
        match self {
            Self::Default | Self::Program => 0,
            Self::File { .. } => 1,
            Self::Environment(_) => 2,
            Self::Argument(_) => 3,
        }
    }
}

impl fmt::Display for SettingSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Program => f.write_str("default of the program"),
            Self::File { path, line: 0 } => write!(f, "{}", path.escape_debug()),
            Self::File { path, line } => write!(f, "{}:{line}", path.escape_debug()),
            Self::Environment(variable) => f.write_str(variable),
            Self::Argument(option) => f.write_str(option),
        }
    }
}

/// The longest name that an error shows in full. No setting has a name half as long.
const SHOWN_MAX: usize = 80;

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.source)?;
        if let Some(key) = &self.key {
            let shown: String = key.escape_debug().take(SHOWN_MAX).collect();
            write!(f, "{shown}: ")?;
        }
        fmt::Display::fmt(&self.fault, f)
    }
}

impl fmt::Display for SettingsFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(why) => f.write_str(why),
            Self::TooLong(bytes) => write!(f, "a settings file has at most {bytes} bytes"),
            Self::Syntax(why) => write!(f, "not valid TOML: {why}"),
            Self::Unknown(None) => f.write_str("there is no such setting"),
            Self::Unknown(Some(meant)) => write!(f, "there is no such setting; is it {meant}?"),
            Self::WrongKind(expected) => write!(f, "must be {expected}"),
            Self::OutOfBounds { least, most } => write!(f, "must be from {least} to {most}"),
            Self::Wrong(why) => f.write_str(why),
            Self::IsSecret => {
                f.write_str("must name a key file that only its owner can read, and is a key itself")
            }
            Self::Contradiction(why) => f.write_str(why),
        }
    }
}

impl core::error::Error for SettingsError {}
