//! An empty name is refused: the dynamic linker would take it for the program itself.

use std::path::{Path, PathBuf};

use rdma_sys::{LoadError, load, load_from};

#[test]
#[cfg_attr(feature = "link", ignore = "libibverbs is linked: no other can be opened")]
fn an_empty_name_is_refused() {
    assert_eq!(
        // SAFETY: no file of that name is a library with code to run, or it is one of the system's own.
        unsafe { load_from(Path::new("")) }.err(),
        Some(LoadError::Path { path: PathBuf::new() })
    );
    let text = load().err().map(|error| error.to_string()).unwrap_or_default();
    assert!(text.contains("DOORBELL_LIBIBVERBS"), "{text}");
}
