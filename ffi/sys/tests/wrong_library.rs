//! A library that is no libibverbs is refused, with the function that it lacks.

use std::path::Path;

use rdma_sys::{LoadError, load, load_from};

#[test]
#[cfg_attr(feature = "link", ignore = "libibverbs is linked: no other can be opened")]
fn a_library_that_is_no_libibverbs_is_refused() {
    // SAFETY: a library of the system's own, which this process has opened before.
    let error = unsafe { load_from(Path::new("libc.so.6")) }.err();
    assert!(
        matches!(
            &error,
            Some(LoadError::Symbol {
                name: "ibv_get_device_list",
                version: "IBVERBS_1.1",
                ..
            })
        ),
        "{error:?}"
    );
    let text = error.map(|error| error.to_string()).unwrap_or_default();
    for word in ["libc.so.6", "ibv_get_device_list", "libibverbs1"] {
        assert!(text.contains(word), "{word} is not in: {text}");
    }
    assert!(load().is_err(), "the answer stays");
}
