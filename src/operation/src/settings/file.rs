//! Settings in TOML, with the line of each.

use core::ops::Range;
use std::sync::Arc;

use toml::de::{DeInteger, DeTable, DeValue};

use super::Settings;
use super::error::{SettingSource, SettingsError, SettingsFault};
use super::keys;
use super::value::RawValue;

/// Maximum length of a settings file.
pub(crate) const FILE_BYTES_MAX: u64 = 64 << 10;

/// Maximum depth of nested sections.
const DEPTH_MAX: usize = 3;

/// Full name, value and offset of a setting.
type Found<'t> = (String, &'t DeValue<'t>, usize);

impl Settings {
    /// Applies the settings in a TOML text, which comes from the file `path`.
    ///
    /// # Errors
    /// The first error, with its line: the text is not TOML, a name is not a setting, or a value is invalid. Earlier settings
    /// are applied.
    pub fn text(&mut self, path: &str, text: &str) -> Result<(), SettingsError> {
        let path: Arc<str> = path.into();
        let at = |offset: usize| {
            let before = text.as_bytes().get(..offset).unwrap_or(text.as_bytes());
            let ends = before.iter().filter(|byte| **byte == b'\n').count();
            SettingSource::File {
                path: Arc::clone(&path),
                line: ends.saturating_add(1),
            }
        };
        let fail = |offset, fault| SettingsError {
            source: at(offset),
            key: None,
            fault,
        };
        if u64::try_from(text.len()).is_ok_and(|bytes| bytes > FILE_BYTES_MAX) {
            return Err(fail(0, SettingsFault::TooLong(FILE_BYTES_MAX)));
        }
        let table = DeTable::parse(text).map_err(|error| {
            let Range { start, .. } = error.span().unwrap_or_default();
            // The message quotes nothing of the text, which may contain a secret.
            fail(start, SettingsFault::Syntax(one_line(error.message())))
        })?;
        let mut found = Vec::new();
        flatten(table.get_ref(), "", 0, &mut found);
        found.sort_by_key(|(_, _, offset)| *offset);
        for (name, value, offset) in found {
            let given = match value {
                DeValue::Integer(integer) => RawValue::Number(number(integer)),
                DeValue::String(text) => RawValue::Quoted(text),
                DeValue::Boolean(flag) => RawValue::Flag(*flag),
                _ => RawValue::Other,
            };
            self.set(at(offset), &name, given)?;
        }
        Ok(())
    }
}

/// Collects the values of a table and of its nested sections, including unknown sections, so that errors name the settings in
/// them. No setting is nested deeper than [`DEPTH_MAX`].
fn flatten<'t>(table: &'t DeTable<'t>, within: &str, depth: usize, found: &mut Vec<Found<'t>>) {
    for (key, value) in table {
        let key_name = match key.get_ref().as_ref() {
            // A quoted key may contain dots or be empty. It is neither a path nor a section.
            path if path.is_empty() || path.contains('.') => format!("\"{path}\""),
            plain => plain.to_owned(),
        };
        let name = match within {
            "" => key_name,
            within => format!("{within}.{key_name}"),
        };
        match value.get_ref() {
            DeValue::Table(inner)
                if depth < DEPTH_MAX
                    && keys::find(&name).is_none()
                    && (!inner.is_empty() || keys::is_section(&name)) =>
            {
                flatten(inner, &name, depth.saturating_add(1), found);
            }
            other => found.push((name, other, key.span().start)),
        }
    }
}

fn number(integer: &DeInteger<'_>) -> Option<u64> {
    u64::from_str_radix(integer.as_str(), integer.radix()).ok()
}

fn one_line(message: &str) -> String {
    let words: Vec<&str> = message.split_whitespace().collect();
    words.join(" ")
}
