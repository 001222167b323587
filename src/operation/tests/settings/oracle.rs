//! Checks arbitrary text as a file of settings. Tests and the fuzzer run these checks.

use doorbell_operation::{SettingSource, Settings};

/// Panics if reading `bytes` as settings violates an invariant. Returns whether all of the text is
/// valid settings.
pub(crate) fn check(bytes: &[u8]) -> bool {
    let Ok(text) = core::str::from_utf8(bytes) else {
        return false;
    };
    let lines = text.matches('\n').count() + 1;
    let mut settings = Settings::default();
    let taken = settings.text("a.toml", text);
    check_sources(&settings, lines);
    if let Err(error) = &taken {
        let SettingSource::File { line, .. } = &error.source else {
            panic!("{error:?}");
        };
        assert!((1..=lines).contains(line), "{error}");
        let told = error.to_string();
        assert!(
            told.starts_with(&format!("a.toml:{line}: ")) && told.len() < 1024,
            "{told}"
        );
        // The text contains no control characters for a terminal.
        assert!(
            !told.contains(|character: char| character.is_control()),
            "{told:?}"
        );
    }
    // Settings in effect are written in a form that can be read again, with the same effect.
    let written = settings.to_toml();
    let mut again = Settings::default();
    again
        .text("b.toml", &written)
        .unwrap_or_else(|error| panic!("{error}\n{written}"));
    assert_eq!(again.values(), settings.values(), "{written}");
    if let Err(error) = settings.check() {
        assert!(!error.to_string().is_empty());
    }
    taken.is_ok()
}

/// Each setting names a possible source, and each setting without a source has its default.
fn check_sources(settings: &Settings, lines: usize) {
    let defaults = Settings::default();
    for (setting, default) in settings.iter().zip(defaults.iter()) {
        match setting.source {
            SettingSource::Default => assert_eq!(setting.value, default.value, "{}", setting.key),
            SettingSource::File { line, .. } => assert!((1..=lines).contains(line)),
            source => panic!("{}: {source}", setting.key),
        }
    }
}
