//! The libibverbs of this machine, where there is one.

#![expect(
    clippy::multiple_unsafe_ops_per_block,
    clippy::unwrap_used,
    reason = "every call is one that the manual page allows without a device"
)]

use std::ffi::CStr;
use std::io::Write as _;

use rdma_sys::*;

/// Says something past libtest's capture, so that it is seen of a test that passes.
fn say(text: &str) {
    let mut stderr = std::io::stderr();
    writeln!(stderr, "{text}").unwrap();
}

#[test]
fn the_installed_library_is_usable() {
    let library = match load() {
        Ok(library) => library,
        Err(error @ LoadError::Open { .. }) => {
            return say(&format!("SKIPPED: no libibverbs here: {error}"));
        }
        Err(error) => panic!("there is a libibverbs, and it cannot be used: {error}"),
    };
    let file = library.file().expect("a library comes from a file");
    let version = library.rdma_core_version();
    assert!(
        version.is_some() || std::env::var_os(LIBRARY_ENV).is_some(),
        "{} states no version",
        file.display()
    );

    // Debian 12 has rdma-core 44, and with it every function of the table.
    if version.is_some_and(|version| version >= (44, 0)) {
        let text = format!("{:?}", **library);
        assert!(!text.contains("None"), "a function was not found: {text}");
    }

    // SAFETY: texts of the library are terminated and never freed, and the list is used up to its null entry, before it is freed.
    unsafe {
        let text = |text| CStr::from_ptr(text).to_str().unwrap();
        assert_eq!(
            text(ibv_wc_status_str(ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR)),
            "RNR retry counter exceeded"
        );
        assert_eq!(
            text(ibv_port_state_str(ibv_port_state::IBV_PORT_ACTIVE)),
            "active"
        );
        assert_eq!(
            text(ibv_event_type_str(ibv_event_type::IBV_EVENT_CQ_ERR)),
            "CQ error"
        );
        // A value it does not know is a value still.
        assert!(!ibv_event_type_str(ibv_event_type(4000)).is_null());
        assert_eq!(ibv_rate_to_mult(ibv_rate::IBV_RATE_10_GBPS), 4);
        assert_eq!(mult_to_ibv_rate(4), ibv_rate::IBV_RATE_10_GBPS);

        let mut count = -1;
        let list = ibv_get_device_list(&raw mut count);
        if list.is_null() {
            // Without the uverbs module, or without the right to look.
            let error = std::io::Error::last_os_error();
            return say(&format!("{}: no device list: {error}", file.display()));
        }
        assert!(count >= 0);
        for index in 0..usize::try_from(count).unwrap() {
            let name = CStr::from_ptr(ibv_get_device_name(*list.add(index)));
            assert!(!name.is_empty());
        }
        assert!(
            (*list.add(usize::try_from(count).unwrap())).is_null(),
            "the list does not end"
        );
        ibv_free_device_list(list);
        writeln!(
            std::io::stderr(),
            "{} (rdma-core {version:?}): {count} devices",
            file.display()
        )
        .unwrap();
    }
}
