//! Sources of settings, and errors of settings.

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
        /// The path, as it was given.
        path: Arc<str>,
        /// The line, from 1; 0 means the whole file.
        line: usize,
    },
    /// An environment variable.
    Environment(String),
    /// An option of the command line.
    Argument(String),
}

/// Error of a setting, or of a settings file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SettingsError {
    /// Source of the wrong setting.
    pub source: SettingSource,
    /// The name of the setting, as it was given. `None` if the error concerns the whole file.
    pub key: Option<String>,
    /// The error.
    pub fault: SettingsFault,
}

/// Kind of an error in a setting or a settings file. The author of the setting can correct it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SettingsFault {
    /// The file cannot be read, with the reason.
    Unreadable(String),
    /// The file is longer than this limit in bytes.
    TooLong(u64),
    /// The file is not valid TOML, with the reason.
    Syntax(String),
    /// The name is unknown, with a similar name if there is one.
    Unknown(Option<&'static str>),
    /// The value has the wrong type, with the expected type.
    WrongKind(&'static str),
    /// The value is out of range.
    OutOfBounds {
        /// The lower limit.
        least: String,
        /// The upper limit.
        most: String,
    },
    /// The value is invalid, with the reason.
    Wrong(String),
    /// The value is a key itself. The setting has to be the name of the key file.
    IsSecret,
    /// The setting contradicts another setting.
    Contradiction(String),
}

impl SettingSource {
    /// Precedence of the source: a higher one overrides.
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

/// Maximum number of characters of a name in an error message. All settings have much shorter
/// names.
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
