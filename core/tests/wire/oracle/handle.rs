//! Any bytes as a handle: refused with a place in them, or understood and written again the same.

use doorbell_core::wire::{HANDLE_BYTES_MAX, Handle, VERSION};

/// Panics where reading `bytes` as a handle, or as the text of one, breaks a promise.
pub(crate) fn check(bytes: &[u8]) {
    if let Ok(text) = core::str::from_utf8(bytes) {
        if let Ok(handle) = text.parse::<Handle>() {
            assert_eq!(handle.to_string(), text, "the text of a handle is unique");
        }
    }
    let view = match Handle::parse(bytes) {
        Ok(view) => view,
        Err(error) => {
            assert!(
                usize::from(error.offset) <= bytes.len().min(HANDLE_BYTES_MAX),
                "{error}"
            );
            return;
        }
    };
    let used = view.as_bytes();
    assert!(bytes.starts_with(used) && bytes[used.len()..].iter().all(|byte| *byte == 0));
    let handle = view.to_handle();
    assert_eq!(handle.as_bytes(), used);
    assert_eq!((handle.port(), handle.instance()), (view.port(), view.instance()));
    assert_eq!(
        (handle.has_more(), handle.rails()),
        (view.has_more(), view.rails())
    );
    assert_eq!(Handle::parse(handle.as_padded_bytes()).unwrap(), view);
    assert_eq!(handle.to_string().parse::<Handle>(), Ok(handle));
    if view.versions().newest() > VERSION {
        return;
    }
    // What this version understands whole, it also writes, but for the flag that says there was more.
    let mut builder = Handle::builder(view.port(), view.instance());
    for rail in view.rails() {
        let _ = builder.push(&rail);
    }
    let rebuilt = builder.finish().unwrap();
    assert_eq!(rebuilt.as_bytes()[..6], used[..6]);
    assert_eq!(rebuilt.as_bytes()[7..], used[7..]);
}
