//! The faults known of rdma-sys 0.3.0, one test each: A to D, and the smaller ones.
//!
//! No libibverbs takes part: this process settles on one that does not exist, so a call that reaches for the
//! library fails with `ENOSYS`. Tests of calls that reach a library are in `standin.rs`.

#![expect(
    clippy::panic,
    clippy::arithmetic_side_effects,
    clippy::multiple_unsafe_ops_per_block,
    reason = "a test fails by panicking, and sets its fakes up in one go"
)]

mod fakes;

use core::ffi::c_int;
use core::mem::offset_of;
use core::ptr;
use std::path::Path;

use fakes::{EXTENDED, extended_context, plain_context, with_errno, zeroed};
use rdma_sys::*;

/// As [`zeroed`], by value.
fn zero<T: Copy>() -> T {
    // SAFETY: initialised with zeroes, which every type asked for takes.
    unsafe { zeroed::<T>().read() }
}

/// A libibverbs that cannot be there.
const NOWHERE: &str = "/nonexistent/libibverbs.so.1";

fn settle_on_no_library() {
    // SAFETY: no file of that name is a library with code to run, or it is one of the system's own.
    match unsafe { load_from(Path::new(NOWHERE)) } {
        Err(LoadError::Open { .. }) => {}
        other => panic!("{other:?}"),
    }
}

// ---- A: an extended context is seen as one ------------------------------------------------------------

unsafe extern "C" fn make_cq(_: *mut ibv_context, _: *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex {
    ptr::without_provenance_mut(0xc0)
}

unsafe extern "C" fn make_qp(_: *mut ibv_context, _: *mut ibv_qp_init_attr_ex) -> *mut ibv_qp {
    ptr::without_provenance_mut(0xd0)
}

#[test]
fn a_an_extended_context_reaches_its_operations() {
    let (whole, context) = extended_context();
    let mut cq_attr: ibv_cq_init_attr_ex = zero();
    let mut qp_attr: ibv_qp_init_attr_ex = zero();
    qp_attr.comp_mask = (ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD
        | ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS)
        .0;
    // SAFETY: a fake of full size; the operations touch nothing.
    unsafe {
        (*whole).create_cq_ex = Some(make_cq);
        (*whole).create_qp_ex = Some(make_qp);
        assert_eq!(verbs_get_ctx(context), whole);
        assert_eq!(ibv_create_cq_ex(context, &raw mut cq_attr).addr(), 0xc0);
        assert_eq!(ibv_create_qp_ex(context, &raw mut qp_attr).addr(), 0xd0);
    }
}

#[test]
fn a_the_mark_is_a_whole_pointer_of_ones() {
    let (whole, context) = extended_context();
    // SAFETY: a fake of full size.
    unsafe {
        (*whole).create_cq_ex = Some(make_cq);
        for other in [0, 1, u32::MAX as usize, usize::MAX - 1] {
            (*context).abi_compat = ptr::without_provenance_mut(other);
            assert!(verbs_get_ctx(context).is_null(), "{other:#x} is not the mark");
            let (cq, errno) = with_errno(|| ibv_create_cq_ex(context, ptr::null_mut()));
            assert_eq!((cq, errno), (ptr::null_mut(), libc::EOPNOTSUPP));
        }
    }
}

/// A context whose extended part ends at `first`, an offset in `verbs_context`, as an older provider makes it.
/// The page before it cannot be read, so reading a field that is not there ends the process.
fn short_context(first: usize) -> *mut ibv_context {
    const PAGE: usize = 65536;
    let bytes = size_of::<verbs_context>() - first;
    // SAFETY: an anonymous mapping of fresh pages.
    let base = unsafe {
        libc::mmap(
            ptr::null_mut(),
            2 * PAGE,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    assert_ne!(base, libc::MAP_FAILED);
    // SAFETY: the first half of the mapping made above.
    assert_eq!(unsafe { libc::mprotect(base, PAGE, libc::PROT_NONE) }, 0);
    let start = base.wrapping_byte_add(PAGE);
    let place = |offset: usize| start.wrapping_byte_add(offset - first);
    // SAFETY: both fields lie in the second half, which is writable and zeroed.
    unsafe {
        place(offset_of!(verbs_context, sz)).cast::<usize>().write(bytes);
        let context = place(offset_of!(verbs_context, context)).cast::<ibv_context>();
        (*context).abi_compat = ptr::without_provenance_mut(EXTENDED);
        context
    }
}

/// A provider older than an operation: its context ends before the field, and nothing there is touched.
#[test]
fn a_a_shorter_context_ends_where_it_says() {
    let context = short_context(offset_of!(verbs_context, create_cq_ex));
    // SAFETY: a fake whose extended part begins with `create_cq_ex`; the page before it cannot be read.
    unsafe {
        assert!(!verbs_get_ctx(context).is_null());
        assert!(
            verbs_get_ctx_op!(context, create_cq_ex).is_none(),
            "there, but null"
        );
        assert!(
            verbs_get_ctx_op!(context, query_rt_values).is_none(),
            "the first field that is not there"
        );
        assert!(verbs_get_ctx_op!(context, query_port).is_none(), "the farthest");
        let field = verbs_get_ctx(context).wrapping_byte_add(offset_of!(verbs_context, create_cq_ex));
        field.cast::<usize>().write(make_cq as *const () as usize);
        assert_eq!(ibv_create_cq_ex(context, ptr::null_mut()).addr(), 0xc0);
        let (status, errno) = with_errno(|| ibv_query_rt_values_ex(context, ptr::null_mut()));
        assert_eq!((status, errno), (libc::EOPNOTSUPP, libc::EOPNOTSUPP));
    }
}

// ---- B: the package builds with cargo alone -----------------------------------------------------------

#[test]
fn b_the_package_needs_nothing_but_cargo() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let manifest = std::fs::read_to_string(package.join("Cargo.toml")).unwrap();
    assert!(!package.join("build.rs").exists(), "a build script");
    for word in ["build-dependencies", "bindgen", "pkg-config", "cmake", "links ="] {
        assert!(!manifest.contains(word), "{word} in Cargo.toml");
    }
    let dependencies = manifest.split_once("[dependencies]\n").unwrap().1;
    let dependencies: Vec<&str> = dependencies.lines().take_while(|line| !line.is_empty()).collect();
    assert_eq!(dependencies, ["libc.workspace = true"]);
}

#[cfg(not(feature = "link"))]
#[test]
fn b_nothing_is_linked() {
    settle_on_no_library();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(
        !maps.contains("libibverbs"),
        "this program was linked to libibverbs"
    );
}

// ---- C: a value this crate has no name for is a value ---------------------------------------------------

#[test]
fn c_an_unknown_event_is_only_an_unknown_number() {
    let mut event: ibv_async_event = zero();
    for raw in [20, 21, 9999, u32::MAX] {
        // A newer library would do so: store an integer there.
        // SAFETY: the field of an event of our own.
        unsafe { (&raw mut event.event_type).cast::<u32>().write(raw) };
        assert_eq!(event.event_type, ibv_event_type(raw));
        assert_ne!(event.event_type, ibv_event_type::IBV_EVENT_WQ_FATAL);
        assert_eq!(
            format!("{:?}", event.event_type),
            format!("ibv_event_type({raw})")
        );
    }
    assert_eq!(ibv_event_type::IBV_EVENT_DEVICE_SPEED_CHANGE.0, 20);
}

#[test]
fn c_no_enumeration_is_a_rust_enum() {
    for text in [
        include_str!("../src/bindings.rs"),
        include_str!("../src/unions.rs"),
    ] {
        assert!(!text.contains("pub enum "), "a Rust enum among the C types");
    }
}

// ---- D: the layout checks are compile-time, complete, and dereference nothing ---------------------------

#[test]
fn d_every_structure_is_in_the_layout_table() {
    let table = include_str!("../src/layout_table.rs");
    let bindings = include_str!("../src/bindings.rs");
    let unions = include_str!("../src/unions.rs");
    assert!(!bindings.contains("ptr::null"), "a check by a null pointer");
    // Two that nobody may look into; and two unions of a pointer with an integer of its size.
    let without = ["_compat_ibv_port_attr", "verbs_ex_private"];
    let mut rows = 0_usize;
    for line in bindings.lines().chain(unions.lines()) {
        let Some(name) = line
            .strip_prefix("pub struct ")
            .or_else(|| line.strip_prefix("pub union "))
            .and_then(|rest| rest.strip_suffix(" {"))
        else {
            continue;
        };
        let inner = name.starts_with("ib_uverbs_flow_action_esp_encap__");
        if without.contains(&name) || inner {
            continue;
        }
        assert!(table.contains(&format!("\" {name} [")), "{name} has no row");
        rows += 1;
    }
    let in_table = table.lines().filter(|line| line.starts_with("    \"")).count();
    assert_eq!(rows, in_table, "rows for something that is not there");
    assert!(rows > 100, "only {rows} structures found");
}

// ---- The smaller ones -----------------------------------------------------------------------------------

unsafe extern "C" fn make_srq(_: *mut ibv_context, attr: *mut ibv_srq_init_attr_ex) -> *mut ibv_srq {
    // SAFETY: the test passes its own attributes.
    ptr::without_provenance_mut(0x500 + unsafe { (*attr).srq_type.0 } as usize)
}

/// The condition of the C function, for every mask and type: only a basic queue may become one.
#[test]
#[cfg_attr(feature = "link", ignore = "libibverbs is linked: it cannot be absent")]
fn create_srq_ex_takes_the_plain_path_for_basic_queues_alone() {
    settle_on_no_library();
    let (whole, context) = extended_context();
    // SAFETY: a fake of full size.
    unsafe { (*whole).create_srq_ex = Some(make_srq) };
    let (pd, ty) = (
        ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_PD.0,
        ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_TYPE.0,
    );
    for mask in 0..64_u32 {
        for srq_type in [
            ibv_srq_type::IBV_SRQT_BASIC,
            ibv_srq_type::IBV_SRQT_XRC,
            ibv_srq_type::IBV_SRQT_TM,
        ] {
            let mut attr: ibv_srq_init_attr_ex = zero();
            (attr.comp_mask, attr.srq_type) = (mask, srq_type);
            // SAFETY: a fake context and attributes of our own.
            let (srq, errno) = with_errno(|| unsafe { ibv_create_srq_ex(context, &raw mut attr) });
            let plain = (mask == pd) || (mask == pd | ty && srq_type == ibv_srq_type::IBV_SRQT_BASIC);
            let expected = if plain {
                (0, libc::ENOSYS)
            } else {
                (0x500 + srq_type.0 as usize, 0)
            };
            assert_eq!((srq.addr(), errno), expected, "mask {mask:#x}, {srq_type:?}");
        }
    }
}

unsafe extern "C" fn query_device_unsupported(
    _: *mut ibv_context,
    _: *const ibv_query_device_ex_input,
    _: *mut ibv_device_attr_ex,
    _: usize,
) -> c_int {
    libc::EOPNOTSUPP
}

unsafe extern "C" fn query_device_fails(
    _: *mut ibv_context,
    _: *const ibv_query_device_ex_input,
    _: *mut ibv_device_attr_ex,
    size: usize,
) -> c_int {
    assert_eq!(size, size_of::<ibv_device_attr_ex>());
    libc::EIO
}

#[test]
#[cfg_attr(feature = "link", ignore = "libibverbs is linked: it cannot be absent")]
fn query_device_ex_zeroes_what_the_plain_query_leaves() {
    settle_on_no_library();
    let (whole, extended) = extended_context();
    // SAFETY: a fake of full size.
    unsafe { (*whole).query_device_ex = Some(query_device_unsupported) };
    for context in [plain_context(), extended] {
        let attr: *mut ibv_device_attr_ex = zeroed();
        // SAFETY: our own structure of integers.
        unsafe { attr.write_bytes(0xff, 1) };
        // SAFETY: a fake context and our own structure.
        let status = unsafe { ibv_query_device_ex(context, ptr::null(), attr) };
        assert_eq!(status, libc::ENOSYS, "the plain query was not asked");
        // SAFETY: as above, initialised by the write.
        let bytes =
            unsafe { core::slice::from_raw_parts(attr.cast::<u8>(), size_of::<ibv_device_attr_ex>()) };
        assert!(
            bytes.iter().all(|byte| *byte == 0),
            "extended attributes left as they were"
        );
    }
    // SAFETY: as above.
    unsafe {
        (*whole).query_device_ex = Some(query_device_fails);
        let attr: *mut ibv_device_attr_ex = zeroed();
        assert_eq!(
            ibv_query_device_ex(extended, ptr::null(), attr),
            libc::EIO,
            "a failure is no fallback"
        );
        let input = ibv_query_device_ex_input { comp_mask: 1 };
        assert_eq!(
            ibv_query_device_ex(extended, &raw const input, attr),
            libc::EINVAL
        );
    }
}

#[test]
fn inc_rkey_wraps_in_its_eight_bits() {
    assert_eq!(ibv_inc_rkey(0x1234_5600), 0x1234_5601);
    assert_eq!(ibv_inc_rkey(0x1234_56ff), 0x1234_5600);
    assert_eq!(ibv_inc_rkey(u32::MAX), 0xffff_ff00);
}

#[test]
fn is_qpt_supported_answers_one_or_zero() {
    let caps = 1 << ibv_qp_type::IBV_QPT_RC.0 | 1 << ibv_qp_type::IBV_QPT_UD.0;
    assert_eq!(ibv_is_qpt_supported(caps, ibv_qp_type::IBV_QPT_RC), 1);
    assert_eq!(ibv_is_qpt_supported(caps, ibv_qp_type::IBV_QPT_UD), 1);
    assert_eq!(ibv_is_qpt_supported(caps, ibv_qp_type::IBV_QPT_UC), 0);
    assert_eq!(
        ibv_is_qpt_supported(u32::MAX, ibv_qp_type(200)),
        0,
        "beyond the mask"
    );
}

#[test]
fn a_completion_is_copy_and_tag_operations_are_reachable() {
    fn is_copy<T: Copy>(_: T) {}
    let wc: ibv_wc = zero();
    is_copy(wc);
    let op: ibv_ops_wr = zero();
    assert_eq!((op.wr_id, op.flags, op.tm.handle), (0, 0, 0));
}

#[test]
#[cfg_attr(feature = "link", ignore = "libibverbs is linked: it cannot be absent")]
fn a_missing_library_says_what_to_install() {
    // SAFETY: no file of that name is a library with code to run, or it is one of the system's own.
    let error = unsafe { load_from(Path::new(NOWHERE)) }.unwrap_err();
    let text = error.to_string();
    for word in [
        NOWHERE,
        "No such file",
        "libibverbs1",
        "ibverbs-providers",
        "Fedora",
    ] {
        assert!(text.contains(word), "{word} is not in: {text}");
    }
    assert_eq!(load().unwrap_err(), error, "the answer stays");
    // Every convention of failure: null, an errno value, minus one, a negated errno value.
    // SAFETY: without a library none of these looks at its arguments.
    unsafe {
        assert_eq!(
            with_errno(|| ibv_get_device_list(ptr::null_mut())),
            (ptr::null_mut(), libc::ENOSYS)
        );
        assert_eq!(
            with_errno(|| ibv_query_device(ptr::null_mut(), ptr::null_mut())),
            (libc::ENOSYS, libc::ENOSYS)
        );
        assert_eq!(
            with_errno(|| ibv_get_async_event(ptr::null_mut(), ptr::null_mut())),
            (-1, libc::ENOSYS)
        );
        let table = with_errno(|| ibv_query_gid_table(ptr::null_mut(), ptr::null_mut(), 0, 0));
        assert_eq!(table, (-(libc::ENOSYS as isize), libc::ENOSYS));
        let text = core::ffi::CStr::from_ptr(ibv_wc_status_str(ibv_wc_status(12)));
        assert!(text.to_str().unwrap().contains("not loaded"));
    }
}
