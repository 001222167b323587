//! The plugin that was built for these tests.

use std::path::PathBuf;

/// Its path: cargo puts it beside the tests.
pub(crate) fn plugin() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let folder = test.parent().unwrap();
    let path = folder.join("libdoorbell_nccl.so");
    assert!(path.is_file(), "{} is not built", path.display());
    path
}
