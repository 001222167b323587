//! Labels, which distinguish the series of a family.

use core::fmt;

/// Labels of a series: names and values, in the order in which they were given.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Labels {
    /// The text between the braces.
    rendered: String,
}

/// Error of a label. The caller can correct it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LabelError {
    /// A name has to be a letter or `_`, followed by letters, digits and `_`. Names that begin with `__` are reserved by
    /// Prometheus.
    NotAName,
    /// Doorbell uses this label itself.
    Reserved,
    /// A name is given twice.
    Twice,
}

/// Names that doorbell or the format uses.
const RESERVED: &[&str] = &["by", "le", "member", "outcome", "peer", "rail", "reason", "state"];

impl fmt::Display for LabelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotAName => "a label's name is a letter or _, then letters, digits and _",
            Self::Reserved => "doorbell uses this label itself: choose another name",
            Self::Twice => "a label is given twice",
        })
    }
}

impl core::error::Error for LabelError {}

impl Labels {
    /// No label.
    pub const NONE: Self = Self {
        rendered: String::new(),
    };

    /// Labels with these names and values. A value may be any text.
    ///
    /// # Errors
    /// A name is invalid, reserved, or given twice.
    pub fn new(labels: &[(&str, &str)]) -> Result<Self, LabelError> {
        let mut all = Self::NONE;
        for (place, (name, value)) in labels.iter().enumerate() {
            if !is_name(name) {
                return Err(LabelError::NotAName);
            }
            if RESERVED.contains(name) {
                return Err(LabelError::Reserved);
            }
            if labels.iter().take(place).any(|(earlier, _)| earlier == name) {
                return Err(LabelError::Twice);
            }
            all = all.and(name, value);
        }
        Ok(all)
    }

    /// Adds one of doorbell's own labels.
    pub(super) fn and(&self, name: &str, value: &str) -> Self {
        let Self { rendered } = self;
        let separator = if rendered.is_empty() { "" } else { "," };
        let value = value
            .replace('\\', "\\\\")
            .replace('"', "\\\"")
            .replace('\n', "\\n");
        Self {
            rendered: format!("{rendered}{separator}{name}=\"{value}\""),
        }
    }
}

/// With braces, unless there are no labels.
impl fmt::Display for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rendered.as_str() {
            "" => Ok(()),
            rendered => write!(f, "{{{rendered}}}"),
        }
    }
}

fn is_name(name: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let begins_well = name.bytes().next().is_some_and(|byte| !byte.is_ascii_digit());
    begins_well && name.bytes().all(is_word) && !name.starts_with("__")
}
