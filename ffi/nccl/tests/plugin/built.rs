//! The plugin and its driver, as they were built for these tests.

use std::path::PathBuf;

fn folder() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().to_owned()
}

/// The plugin's path: cargo puts it beside the tests.
pub(crate) fn plugin() -> PathBuf {
    let path = folder().join("libdoorbell_nccl.so");
    assert!(path.is_file(), "{} is not built", path.display());
    path
}

/// The driver's path: cargo puts it among the examples.
pub(crate) fn driver() -> PathBuf {
    let path = folder().join("../examples/nccl-driver");
    let name = path.display();
    assert!(
        path.is_file(),
        "{name} is not built: `cargo test -p doorbell-nccl` builds it"
    );
    path
}
