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
        let text = read(path).map_err(|error| SettingsError {
            source: SettingSource::File {
                path: Arc::from(name.as_str()),
                line: 0,
            },
            key: None,
            fault: SettingsFault::Unreadable(error.to_string()),
        })?;
        self.text(&name, &text)
    }
}

/// Reads one byte more than the limit, to detect longer files.
fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let file = open_plain_file(path)?.take(FILE_BYTES_MAX.saturating_add(1));
    io::BufReader::new(file).read_to_string(&mut text)?;
    Ok(text)
}
