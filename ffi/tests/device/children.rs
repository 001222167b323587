//! A process that has children: asking for them late, once memory is registered (S32).

use core::ffi::{CStr, c_int};
use std::process::Command;

use doorbell_core::provider::Provider as _;
use rdma_sys::{IBV_FORK_DISABLED, IBV_FORK_UNNEEDED, ibv_access_flags, ibv_device};

use super::bench::bench;

/// Names the device to a process that has registered nothing yet.
const DEVICE: &str = "DOORBELL_ASK_LATE";
/// Output of that process when it is done.
const ASKED: &str = "asked late";
/// `ibv_fork_init(3)` says so where it is too late.
const EINVAL: c_int = 22;

#[test]
fn s32_registering_before_asking_for_children_is_reported_and_served() {
    let name = "s32_registering_before_asking_for_children_is_reported_and_served";
    if let Ok(device) = std::env::var(DEVICE) {
        ask_late(&device);
        println!("{ASKED}");
        return;
    }
    let Some(bench) = bench(name) else {
        return;
    };
    // This process has loaded the provider, and with it asked in time.
    let test = format!("tests::children::{name}");
    let output = Command::new(std::env::current_exe().unwrap())
        .args([&test, "--exact", "--nocapture"])
        .env(DEVICE, bench.port.device.as_str())
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(output.status.success() && said[0].contains(ASKED), "{said:?}");
}

/// The device of this name.
fn find(wanted: &str) -> *mut ibv_device {
    let mut count: c_int = 0;
    // SAFETY: the count can be written (ibv_get_device_list(3)). The list is kept: the process ends soon.
    let list = unsafe { rdma_sys::ibv_get_device_list(&raw mut count) };
    assert!(!list.is_null());
    // SAFETY: so many are there, and stay.
    let devices = unsafe { core::slice::from_raw_parts(list, usize::try_from(count).unwrap()) };
    let has_name = |device: &&*mut ibv_device| {
        // SAFETY: of the list.
        let name = unsafe { rdma_sys::ibv_get_device_name(**device) };
        // SAFETY: a text of the library, which stays as long as the device does (ibv_get_device_name(3)).
        unsafe { CStr::from_ptr(name) }.to_bytes() == wanted.as_bytes()
    };
    *devices.iter().find(has_name).unwrap()
}

/// Registers memory as another user of the library might, asks only then, and has the provider loaded all the same.
fn ask_late(wanted: &str) {
    crate::library().unwrap();
    let device = find(wanted);
    // SAFETY: of the list, which is kept.
    let context = unsafe { rdma_sys::ibv_open_device(device) };
    assert!(!context.is_null());
    // SAFETY: open.
    let domain = unsafe { rdma_sys::ibv_alloc_pd(context) };
    assert!(!domain.is_null());
    let memory: &'static mut [u64; 512] = Box::leak(Box::new([0; 512]));
    let access = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE;
    let access = c_int::try_from(access.0).unwrap();
    // SAFETY: the domain is live, and the memory stays: it is leaked.
    let region = unsafe { rdma_sys::ibv_reg_mr(domain, memory.as_mut_ptr().cast(), 4096, access) };
    assert!(!region.is_null());
    // SAFETY: may be called at any time.
    let status = unsafe { rdma_sys::ibv_is_fork_initialized() };
    // SAFETY: may be called at any time.
    let reported = unsafe { rdma_sys::ibv_fork_init() };
    // Even where the kernel copies for a child what a device has, and there is nothing to ask for.
    assert_eq!(reported, EINVAL, "{status:?}");
    assert!(
        [IBV_FORK_DISABLED, IBV_FORK_UNNEEDED].contains(&status),
        "{status:?}"
    );
    let rdma = crate::provider().unwrap();
    let context = rdma.open(wanted).unwrap();
    drop(context);
}
