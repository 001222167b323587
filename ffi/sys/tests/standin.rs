//! A library of our own in place of libibverbs. The functions of a library without symbol versions are found, and
//! a function that it lacks fails alone. The verbs over it pass on their arguments.

#![expect(
    clippy::arithmetic_side_effects,
    clippy::unwrap_used,
    clippy::multiple_unsafe_ops_per_block,
    reason = "a test fails by panicking; the library and all objects are this test's own"
)]

mod compiled;
mod fakes;

use core::fmt::Write as _;
use core::ptr;

use std::path::{Path, PathBuf};

use fakes::{EXTENDED, extended_context, plain_context, with_errno, zeroed};
use rdma_sys::*;

/// Compiles the stand-in with the compiler that compiled this test.
fn build() -> PathBuf {
    let mut source = include_str!("standin/lib.rs").to_owned();
    for line in include_str!("../src/functions.rs").lines() {
        let line = line.trim();
        let required = line.starts_with("c\"IBVERBS_1.0\"") || line.starts_with("c\"IBVERBS_1.1\"");
        let Some((_, rest)) = line.split_once(" fn ").filter(|_| required) else {
            continue;
        };
        let name = rest.split_once('(').unwrap().0;
        if !source.contains(&format!("fn {name}(")) {
            writeln!(
                source,
                "#[unsafe(no_mangle)] extern \"C\" fn {name}() -> usize {{ 0 }}"
            )
            .unwrap();
        }
    }
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("standin-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let (input, output) = (dir.join("standin.rs"), dir.join("libstandin.so"));
    std::fs::write(&input, source).unwrap();
    compiled::shared_library(&input, &output, &["dead_code"]);
    output
}

#[test]
#[cfg_attr(feature = "link", ignore = "libibverbs is linked: no other can be opened")]
fn a_library_of_our_own() {
    let path = build();
    // SAFETY: the fake was built from this workspace and stands for libibverbs of the machine's ABI.
    let library = unsafe { load_from(&path) }.unwrap();
    assert_eq!(library.asked(), path);
    assert_eq!(library.file(), Some(path.canonicalize().unwrap().as_path()));
    assert_eq!(library.rdma_core_version(), None, "its name states none");
    assert_eq!(load().unwrap().asked(), path, "one library for the process");
    assert_eq!(
        // SAFETY: no file of that name is a library with code to run, or it is one of the system's own.
        unsafe { load_from(Path::new("libibverbs.so.1")) }.unwrap_err(),
        LoadError::Settled { path: path.clone() }
    );

    let mut count = 0;
    // SAFETY: the count is writable.
    assert_eq!(unsafe { ibv_get_device_list(&raw mut count) }.addr(), 0x1000);
    assert_eq!(count, 3);

    a_function_it_lacks_fails_alone(library);
    registration_takes_the_path_the_access_asks_for();
    plain_attributes_reach_the_plain_creators();
    queries_fall_back();
    std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
}

fn a_function_it_lacks_fails_alone(library: &Library) {
    assert!(library.ibv_reg_dmabuf_mr.is_none());
    assert!(library.ibv_reg_mr_iova2.is_some());
    // SAFETY: the stand-in reads and writes through none of these pointers, and the functions that it lacks are not called.
    unsafe {
        let mr = with_errno(|| ibv_reg_dmabuf_mr(ptr::null_mut(), 0, 0, 0, -1, 0));
        assert_eq!(mr, (ptr::null_mut(), libc::ENOSYS));
        assert_eq!(
            with_errno(|| ibv_query_ece(ptr::null_mut(), ptr::null_mut())).0,
            libc::ENOSYS
        );
        assert_eq!(
            with_errno(|| ibv_import_device(-1)),
            (ptr::null_mut(), libc::ENOSYS)
        );
        let order = with_errno(|| ibv_query_qp_data_in_order(ptr::null_mut(), ibv_wr_opcode::IBV_WR_SEND, 0));
        assert_eq!(order, (0, libc::ENOSYS), "no promise of order");
        let gid = ibv_query_gid_ex(ptr::null_mut(), 1, 2, ptr::null_mut(), 0);
        assert_eq!(gid, 12_000 + i32::try_from(size_of::<ibv_gid_entry>()).unwrap());
        let table = with_errno(|| ibv_query_gid_table(ptr::null_mut(), ptr::null_mut(), 0, 0));
        assert_eq!(table.1, libc::ENOSYS);
    }
}

fn registration_takes_the_path_the_access_asks_for() {
    let local = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE;
    let relaxed = local | ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING;
    let access = |flags: ibv_access_flags| i32::try_from(flags.0).unwrap();
    let address = ptr::without_provenance_mut(0x7000);
    let pd = ptr::null_mut();
    // SAFETY: the stand-in reads no memory of a registration: it returns numbers as addresses, which nothing reads through.
    unsafe {
        assert_eq!(
            ibv_reg_mr(pd, address, 1, access(local)).addr(),
            0xa001,
            "the plain function"
        );
        assert_eq!(
            ibv_reg_mr(pd, address, 1, access(relaxed)).addr(),
            0x7000,
            "the one for optional bits"
        );
        assert_eq!(
            ibv_reg_mr_iova(pd, address, 1, 0x9000, access(relaxed)).addr(),
            0x9000
        );
        // The plain function with an address for the device came later than the plain one.
        assert!(
            with_errno(|| ibv_reg_mr_iova(pd, address, 1, 0x9000, access(local)))
                .0
                .is_null()
        );
        // A mask the C compiler cannot know takes the newer function always.
        assert_eq!(__ibv_reg_mr(pd, address, 1, local.0, 0).addr(), 0x7000);
    }
}

fn plain_attributes_reach_the_plain_creators() {
    let context = plain_context();
    let srq: *mut ibv_srq_init_attr_ex = zeroed();
    let qp: *mut ibv_qp_init_attr_ex = zeroed();
    // SAFETY: the objects are zeroed allocations that are never freed, and the stand-in reads only the first field of the attributes. Nothing reads through the numbers.
    unsafe {
        (*srq).comp_mask = ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_PD.0;
        (*srq).pd = ptr::without_provenance_mut(0x100);
        (*srq).srq_context = ptr::without_provenance_mut(0x22);
        assert_eq!(ibv_create_srq_ex(context, srq).addr(), 0x122);
        (*qp).comp_mask = ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0;
        (*qp).pd = ptr::without_provenance_mut(0x200);
        (*qp).qp_context = ptr::without_provenance_mut(0x33);
        assert_eq!(ibv_create_qp_ex(context, qp).addr(), 0x233);
    }
}

unsafe extern "C" fn query_port(_: *mut ibv_context, port: u8, attr: *mut ibv_port_attr, size: usize) -> i32 {
    assert_eq!(size, size_of::<ibv_port_attr>());
    // SAFETY: the caller passes attributes of the size that was compared.
    unsafe { (*attr).lid = u16::from(port) };
    0
}

fn queries_fall_back() {
    let (whole, extended) = extended_context();
    let port: *mut ibv_port_attr = zeroed();
    let device: *mut ibv_device_attr_ex = zeroed();
    // SAFETY: the objects are zeroed allocations that are never freed, nothing else uses them, and each table of operations holds functions of the right type.
    unsafe {
        for context in [plain_context(), extended] {
            port.write_bytes(0xff, 1);
            assert_eq!(ibv_query_port(context, 2, port), 0);
            assert_eq!(
                (*port).state,
                ibv_port_state(2),
                "the library's older query was not asked"
            );
            assert_eq!(
                ((*port).max_mtu.0, (*port).port_cap_flags2),
                (0, 0),
                "not zeroed before it"
            );
            device.write_bytes(0xff, 1);
            assert_eq!(ibv_query_device_ex(context, ptr::null(), device), 0);
            let version = (*device).orig_attr.fw_ver;
            assert_eq!((version[0].to_ne_bytes(), version[1]), ([b'4'], 0));
            assert_eq!((*device).completion_timestamp_mask, 0);
        }
        (*whole).query_port = Some(query_port);
        assert_eq!((*extended).abi_compat.addr(), EXTENDED);
        assert_eq!(ibv_query_port(extended, 7, port), 0);
        assert_eq!((*port).lid, 7, "the provider's own query was not asked");
    }
}
