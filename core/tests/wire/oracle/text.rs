//! Any bytes as the text of a handle, and as what a handle's text spells.

use doorbell_core::wire::{HANDLE_TEXT_BYTES_MAX, Handle, HandleTextError};

use super::plain;

/// Panics where reading `bytes` as a text, or as what one spells, breaks a promise.
pub(crate) fn check(bytes: &[u8]) {
    if let Ok(text) = core::str::from_utf8(bytes) {
        check_text(text);
    }
    // Random text does not hit a right check sum: here every text has one.
    check_text(&plain::text::write(bytes));
}

fn check_text(text: &str) {
    let spelled = plain::text::read(text);
    // A text says a handle in the only way there is, so nothing fills it up.
    let expected = spelled.as_deref().and_then(|bytes| {
        plain::handle::read(bytes)
            .filter(|handle| handle.length == bytes.len())
            .map(|_| bytes)
    });
    match text.parse::<Handle>() {
        Ok(handle) => {
            assert_eq!(Some(handle.as_bytes()), expected, "{text}");
            assert_eq!(handle.to_string(), text, "the text of a handle is unique");
        }
        Err(error) => {
            assert_eq!(expected, None, "{error}: {text}");
            assert!(!error.to_string().is_empty());
            match error {
                HandleTextError::NotHexadecimal { position } => {
                    let wrong = text.as_bytes()[position];
                    assert!(!b"0123456789abcdef".contains(&wrong), "{text}");
                }
                HandleTextError::TooLong => assert!(text.len() > HANDLE_TEXT_BYTES_MAX, "{text}"),
                // It got so far, so the text is one.
                HandleTextError::Wire(_) => assert!(spelled.is_some(), "{text}"),
                _ => assert_eq!(spelled, None, "{error}: {text}"),
            }
        }
    }
}
