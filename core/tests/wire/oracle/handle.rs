//! Any bytes as a handle: refused with a place in them, or understood as the plain reading does and written
//! again the same.

use doorbell_core::wire::{HANDLE_BYTES_MAX, Handle, HandleRef, VersionRange};

use super::plain;

/// Panics where reading `bytes` as a handle breaks a promise.
pub(crate) fn check(bytes: &[u8]) {
    let plain = plain::handle::read(bytes);
    let view = match Handle::parse(bytes) {
        Ok(view) => view,
        Err(error) => {
            assert!(plain.is_none(), "{error}, and yet it is a handle: {plain:?}");
            assert!(
                usize::from(error.offset) <= bytes.len().min(HANDLE_BYTES_MAX),
                "{error}"
            );
            return;
        }
    };
    assert_same(&view, &plain.expect("taken, and yet it is no handle"));
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
    assert_eq!(handle.to_string(), plain::text::write(used));
    assert_eq!(handle.to_string().parse::<Handle>(), Ok(handle));
    if view.versions() != VersionRange::OURS {
        return;
    }
    // A handle of this version is rebuilt byte by byte, except for the flag that says that rails were left out.
    let mut builder = Handle::builder(view.port(), view.instance());
    for rail in view.rails() {
        let _ = builder.push(&rail);
    }
    let rebuilt = builder.finish().unwrap();
    assert_eq!(rebuilt.as_bytes()[..6], used[..6]);
    assert_eq!(rebuilt.as_bytes()[7..], used[7..]);
}

fn assert_same(view: &HandleRef<'_>, plain: &plain::handle::Handle) {
    let versions = (view.versions().oldest(), view.versions().newest());
    assert_eq!(
        (u64::from(versions.0), u64::from(versions.1)),
        (plain.oldest, plain.newest)
    );
    assert_eq!(view.as_bytes().len(), plain.length);
    assert_eq!(view.has_more(), plain.has_more);
    assert_eq!(u64::from(view.port().get()), plain.port);
    assert_eq!(view.instance().to_u64(), plain.instance);
    plain::rails::assert_same(view.rails(), &plain.rails);
}
