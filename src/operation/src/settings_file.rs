//! Reads settings files.

use std::io::{self, Read as _};
use std::path::Path;
use std::sync::Arc;

use crate::settings::{FILE_BYTES_MAX, SettingSource, Settings, SettingsError, SettingsFault};
use doorbell::trust::open_plain_file;

impl Settings {
    /// Applies the settings of a TOML file.
    ///
    /// # Errors
    /// The file cannot be read; otherwise as for [`Settings::text`].
    pub fn file(&mut self, path: impl AsRef<Path>) -> Result<(), SettingsError> {
        let path = path.as_ref();
        let name = path.display().to_string();
        let text = read(path).map_err(|(line, fault)| SettingsError {
            source: SettingSource::File {
                path: Arc::from(name.as_str()),
                line,
            },
            key: None,
            fault,
        })?;
        self.text(&name, &text)
    }
}

/// Reads one byte more than the limit, so that a file that is too long is noticed. An error has the line at fault.
fn read(path: &Path) -> Result<String, (usize, SettingsFault)> {
    let unreadable = |error: io::Error| (0, SettingsFault::Unreadable(error.to_string()));
    let mut bytes = Vec::new();
    let file = open_plain_file(path).map_err(unreadable)?;
    let mut file = file.take(FILE_BYTES_MAX.saturating_add(1));
    file.read_to_end(&mut bytes).map_err(unreadable)?;
    // The limit may be within a character.
    if u64::try_from(bytes.len()).is_ok_and(|count| count > FILE_BYTES_MAX) {
        return Err((1, SettingsFault::TooLong(FILE_BYTES_MAX)));
    }
    String::from_utf8(bytes).map_err(|error| {
        let fault = error.utf8_error();
        let valid = error.as_bytes().iter().take(fault.valid_up_to());
        let line = valid.filter(|byte| **byte == b'\n').count().saturating_add(1);
        let why = match fault.error_len() {
            Some(_) => "not valid UTF-8: save the file as UTF-8",
            None => "the file ends within a UTF-8 character: it may be truncated, so write it again",
        };
        (line, SettingsFault::Unreadable(why.to_owned()))
    })
}
