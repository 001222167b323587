//! Operations that a provider lacks fail with `EOPNOTSUPP`; the ones it has are called with the arguments given.

#![expect(
    clippy::arithmetic_side_effects,
    clippy::multiple_unsafe_ops_per_block,
    reason = "fakes of this test's own, set up and called in one go"
)]

mod fakes;

use core::ffi::{c_int, c_void};
use core::ptr;

use fakes::{extended_context, plain_context, with_errno, zeroed};
use rdma_sys::*;

const NO: c_int = libc::EOPNOTSUPP;

fn qp_on(context: *mut ibv_context) -> *mut ibv_qp {
    let qp: *mut ibv_qp = zeroed();
    // SAFETY: a zeroed allocation that is never freed, and nothing else uses it.
    unsafe { (*qp).context = context };
    qp
}

fn cq_on(context: *mut ibv_context) -> *mut ibv_cq {
    let cq: *mut ibv_cq = zeroed();
    // SAFETY: a zeroed allocation that is never freed, and nothing else uses it.
    unsafe { (*cq).context = context };
    cq
}

#[test]
fn the_data_path_without_operations() {
    let context = plain_context();
    let (qp, cq) = (qp_on(context), cq_on(context));
    let srq: *mut ibv_srq = zeroed();
    let (send, recv) = (zeroed::<ibv_send_wr>(), zeroed::<ibv_recv_wr>());
    // SAFETY: the objects are zeroed allocations that are never freed, their contexts are set, and no operation is there that could read the null array.
    unsafe {
        (*srq).context = context;
        let (mut bad_send, mut bad_recv, mut bad_srq) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        assert_eq!(
            with_errno(|| ibv_post_send(qp, send, &raw mut bad_send)),
            (NO, NO)
        );
        assert_eq!(
            with_errno(|| ibv_post_recv(qp, recv, &raw mut bad_recv)),
            (NO, NO)
        );
        assert_eq!(
            with_errno(|| ibv_post_srq_recv(srq, recv, &raw mut bad_srq)),
            (NO, NO)
        );
        assert_eq!(
            (bad_send, bad_recv, bad_srq),
            (send, recv, recv),
            "nothing was posted"
        );
        assert_eq!(with_errno(|| ibv_poll_cq(cq, 1, ptr::null_mut())), (-NO, NO));
        assert_eq!(with_errno(|| ibv_req_notify_cq(cq, 0)), (NO, NO));
    }
}

unsafe extern "C" fn post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr) -> c_int {
    // SAFETY: the test below passes zeroed allocations that are never freed, and a place of its own.
    unsafe {
        (*qp).events_completed += 1;
        *bad = (*wr).next;
        (*wr).num_sge
    }
}

unsafe extern "C" fn poll_cq(_: *mut ibv_cq, entries: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: the test below passes one whole completion.
    unsafe { (*wc).wr_id = 77 };
    entries
}

#[test]
fn the_data_path_hands_its_arguments_on() {
    let context = plain_context();
    let (qp, cq) = (qp_on(context), cq_on(context));
    let wr: *mut ibv_send_wr = zeroed();
    let wc: *mut ibv_wc = zeroed();
    // SAFETY: the objects are zeroed allocations that are never freed, and the operations are those above, which write one request and one completion.
    unsafe {
        (*context).ops.post_send = Some(post_send);
        (*context).ops.poll_cq = Some(poll_cq);
        (*wr).num_sge = 12;
        (*wr).next = wr;
        let mut bad = ptr::null_mut();
        assert_eq!(ibv_post_send(qp, wr, &raw mut bad), 12);
        assert_eq!((bad, (*qp).events_completed), (wr, 1));
        assert_eq!((ibv_poll_cq(cq, 3, wc), (*wc).wr_id), (3, 77));
    }
}

/// Every extended creator and its like, on a context without the extended part and on one that is empty.
#[test]
fn extended_verbs_without_operations() {
    let (_, extended) = extended_context();
    for context in [plain_context(), extended] {
        let (qp, cq) = (qp_on(context), cq_on(context));
        let pd: *mut ibv_pd = zeroed();
        let srq: *mut ibv_srq = zeroed();
        let qp_attr: *mut ibv_qp_init_attr_ex = zeroed();
        let srq_attr: *mut ibv_srq_init_attr_ex = zeroed();
        // SAFETY: the objects are zeroed allocations that are never freed, their contexts are set, and no operation is there that could read through a null pointer.
        unsafe {
            (*pd).context = context;
            (*srq).context = context;
            macro_rules! null {
                ($($name:ident($($arg:expr),*);)*) => {$(
                    assert_eq!(with_errno(|| $name($($arg),*).is_null()), (true, NO), stringify!($name));
                )*};
            }
            macro_rules! status {
                ($($name:ident($($arg:expr),*);)*) => {$(
                    assert_eq!(with_errno(|| $name($($arg),*)), (NO, NO), stringify!($name));
                )*};
            }
            null! {
                ibv_create_cq_ex(context, ptr::null_mut());
                ibv_create_qp_ex(context, qp_attr);
                ibv_create_srq_ex(context, srq_attr);
                ibv_open_qp(context, ptr::null_mut());
                ibv_open_xrcd(context, ptr::null_mut());
                ibv_alloc_td(context, ptr::null_mut());
                ibv_alloc_parent_domain(context, ptr::null_mut());
                ibv_alloc_dm(context, ptr::null_mut());
                ibv_alloc_null_mr(pd);
                ibv_alloc_mw(pd, ibv_mw_type::IBV_MW_TYPE_1);
                ibv_reg_dm_mr(pd, ptr::null_mut(), 0, 0, 0);
                ibv_create_flow(qp, ptr::null_mut());
                ibv_create_flow_action_esp(context, ptr::null_mut());
                ibv_create_counters(context, ptr::null_mut());
                ibv_create_wq(context, ptr::null_mut());
                ibv_create_rwq_ind_table(context, ptr::null_mut());
            }
            status! {
                ibv_modify_cq(cq, ptr::null_mut());
                ibv_modify_qp_rate_limit(qp, ptr::null_mut());
                ibv_get_srq_num(srq, ptr::null_mut());
                ibv_query_rt_values_ex(context, ptr::null_mut());
                ibv_advise_mr(pd, ib_uverbs_advise_mr_advice(0), 0, ptr::null_mut(), 0);
            }
            let xrcd: *mut ibv_xrcd = zeroed();
            let td: *mut ibv_td = zeroed();
            let dm: *mut ibv_dm = zeroed();
            let mw: *mut ibv_mw = zeroed();
            let wq: *mut ibv_wq = zeroed();
            let flow: *mut ibv_flow = zeroed();
            let counters: *mut ibv_counters = zeroed();
            for field in [
                &raw mut (*xrcd).context,
                &raw mut (*td).context,
                &raw mut (*dm).context,
                &raw mut (*mw).context,
                &raw mut (*wq).context,
                &raw mut (*flow).context,
                &raw mut (*counters).context,
            ] {
                field.write(context);
            }
            (*mw).type_ = ibv_mw_type::IBV_MW_TYPE_1;
            let bind: *mut ibv_mw_bind = zeroed();
            status! {
                ibv_close_xrcd(xrcd);
                ibv_dealloc_td(td);
                ibv_free_dm(dm);
                ibv_memcpy_to_dm(dm, 0, ptr::null(), 0);
                ibv_memcpy_from_dm(ptr::null_mut(), dm, 0, 0);
                ibv_dealloc_mw(mw);
                ibv_bind_mw(qp, mw, bind);
                ibv_modify_wq(wq, ptr::null_mut());
                ibv_destroy_wq(wq);
                ibv_destroy_flow(flow);
                ibv_destroy_counters(counters);
                ibv_read_counters(counters, ptr::null_mut(), 0, 0);
            }
            let (wr, mut bad_wr) = (zeroed::<ibv_recv_wr>(), ptr::null_mut());
            assert_eq!(with_errno(|| ibv_post_wq_recv(wq, wr, &raw mut bad_wr)), (NO, NO));
            assert_eq!(bad_wr, wr);
            let (op, mut bad) = (zeroed::<ibv_ops_wr>(), ptr::null_mut());
            assert_eq!(with_errno(|| ibv_post_srq_ops(srq, op, &raw mut bad)), (NO, NO));
            assert_eq!(bad, op);
        }
    }
}

#[test]
fn bind_mw_checks_what_c_checks() {
    let context = plain_context();
    let (qp, mw, mr, bind) = (
        qp_on(context),
        zeroed::<ibv_mw>(),
        zeroed::<ibv_mr>(),
        zeroed::<ibv_mw_bind>(),
    );
    let pd: *mut ibv_pd = zeroed();
    // SAFETY: the objects are zeroed allocations that are never freed, and the context has no operation that could go on with them.
    unsafe {
        (*mw).context = context;
        (*mw).type_ = ibv_mw_type::IBV_MW_TYPE_2;
        assert_eq!(ibv_bind_mw(qp, mw, bind), libc::EINVAL, "a window of type 2");
        (*mw).type_ = ibv_mw_type::IBV_MW_TYPE_1;
        (*bind).bind_info.length = 1;
        assert_eq!(
            ibv_bind_mw(qp, mw, bind),
            libc::EINVAL,
            "a length without a region"
        );
        (*bind).bind_info.mr = mr;
        (*mr).pd = pd;
        assert_eq!(
            ibv_bind_mw(qp, mw, bind),
            libc::EPERM,
            "another protection domain"
        );
        (*mw).pd = pd;
        assert_eq!(ibv_bind_mw(qp, mw, bind), NO, "no such operation");
    }
}

#[test]
fn an_extended_queue_pair_without_operations() {
    let qp: *mut ibv_qp_ex_with_flush = zeroed();
    let qp: *mut ibv_qp_ex = qp.cast();
    // SAFETY: the queue pair is a zeroed allocation of the longest form, and no operation is there that could read through a null pointer.
    unsafe {
        macro_rules! status {
            ($($name:ident($($arg:expr),*);)*) => {$(
                assert_eq!(with_errno(|| $name(qp $(, $arg)*)), (NO, NO), stringify!($name));
            )*};
        }
        status! {
            ibv_wr_start();
            ibv_wr_abort();
            ibv_wr_complete();
            ibv_wr_atomic_cmp_swp(0, 0, 0, 0);
            ibv_wr_atomic_fetch_add(0, 0, 0);
            ibv_wr_atomic_write(0, 0, ptr::null());
            ibv_wr_bind_mw(ptr::null_mut(), 0, ptr::null());
            ibv_wr_flush(0, 0, 0, IBV_FLUSH_GLOBAL, IBV_FLUSH_RANGE);
            ibv_wr_local_inv(0);
            ibv_wr_rdma_read(0, 0);
            ibv_wr_rdma_write(0, 0);
            ibv_wr_rdma_write_imm(0, 0, 0);
            ibv_wr_send();
            ibv_wr_send_imm(0);
            ibv_wr_send_inv(0);
            ibv_wr_send_tso(ptr::null_mut(), 0, 0);
            ibv_wr_set_ud_addr(ptr::null_mut(), 0, 0);
            ibv_wr_set_xrc_srqn(0);
            ibv_wr_set_inline_data(ptr::null_mut(), 0);
            ibv_wr_set_inline_data_list(0, ptr::null());
            ibv_wr_set_sge(0, 0, 0);
            ibv_wr_set_sge_list(0, ptr::null());
        }
    }
}

unsafe extern "C" fn wr_rdma_write_imm(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, imm: u32) {
    // SAFETY: the test below passes a zeroed allocation that is never freed.
    unsafe {
        (*qp).wr_id = remote_addr + u64::from(rkey);
        (*qp).wr_flags = imm;
    }
}

unsafe extern "C" fn wr_flush(qp: *mut ibv_qp_ex, _: u32, _: u64, len: usize, type_: u8, level: u8) {
    // SAFETY: the test below passes a zeroed allocation that is never freed.
    unsafe { (*qp).wr_id = len as u64 + u64::from(type_) * 1000 + u64::from(level) * 100 };
}

unsafe extern "C" fn wr_complete(_: *mut ibv_qp_ex) -> c_int {
    libc::ENOMEM
}

#[test]
fn an_extended_queue_pair_hands_its_arguments_on() {
    let longer: *mut ibv_qp_ex_with_flush = zeroed();
    let qp: *mut ibv_qp_ex = longer.cast();
    // SAFETY: the queue pair is a zeroed allocation of the longest form that is never freed, and its operations are those above.
    unsafe {
        (*qp).wr_rdma_write_imm = Some(wr_rdma_write_imm);
        (*qp).wr_complete = Some(wr_complete);
        (*longer).wr_flush = Some(wr_flush);
        assert_eq!(ibv_wr_rdma_write_imm(qp, 5, 100, 9), 0);
        assert_eq!(((*qp).wr_id, (*qp).wr_flags), (105, 9));
        assert_eq!(ibv_wr_flush(qp, 0, 0, 64, IBV_FLUSH_PERSISTENT, IBV_FLUSH_MR), 0);
        assert_eq!((*qp).wr_id, 2164);
        assert_eq!(ibv_wr_complete(qp), libc::ENOMEM);
    }
}

unsafe extern "C" fn read_byte_len(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: the test below passes a zeroed allocation that is never freed.
    unsafe { (*cq).comp_mask }
}

unsafe extern "C" fn read_completion_ts(_: *mut ibv_cq_ex) -> u64 {
    u64::MAX - 1
}

#[test]
fn an_extended_completion_queue() {
    let cq: *mut ibv_cq_ex = zeroed();
    let (attr, tm): (*mut ibv_poll_cq_attr, *mut ibv_wc_tm_info) = (zeroed(), zeroed());
    // SAFETY: the objects are zeroed allocations that are never freed, and the readers are those above, of the right types.
    unsafe {
        assert_eq!(ibv_cq_ex_to_cq(cq).addr(), cq.addr());
        assert_eq!(with_errno(|| ibv_start_poll(cq, attr)), (NO, NO));
        assert_eq!(with_errno(|| ibv_next_poll(cq)), (NO, NO));
        assert_eq!(with_errno(|| ibv_end_poll(cq)), ((), NO));
        (*tm).tag = 3;
        assert_eq!(with_errno(|| ibv_wc_read_tm_info(cq, tm)), ((), NO));
        assert_eq!((*tm).tag, 0, "not what was there before");
        assert_eq!(with_errno(|| ibv_wc_read_opcode(cq)), (ibv_wc_opcode(0), NO));
        assert_eq!(with_errno(|| ibv_wc_read_byte_len(cq)), (0, NO));
        (*cq).comp_mask = 4096;
        (*cq).read_byte_len = Some(read_byte_len);
        (*cq).read_completion_ts = Some(read_completion_ts);
        assert_eq!(with_errno(|| ibv_wc_read_byte_len(cq)), (4096, 0));
        assert_eq!(with_errno(|| ibv_wc_read_completion_ts(cq)), (u64::MAX - 1, 0));
        assert_eq!(
            with_errno(|| ibv_wc_read_sl(cq)),
            (0, NO),
            "a reader that was not asked for"
        );
    }
}

unsafe extern "C" fn create_wq(_: *mut ibv_context, attr: *mut ibv_wq_init_attr) -> *mut ibv_wq {
    let wq: *mut ibv_wq = zeroed();
    // SAFETY: the work queue was just allocated, and the test below passes whole attributes.
    unsafe {
        (*wq).events_completed = 99;
        (*wq).wq_num = (*attr).max_wr;
    }
    wq
}

#[test]
fn create_wq_sets_up_what_the_c_inline_sets_up() {
    let (whole, context) = extended_context();
    let attr: *mut ibv_wq_init_attr = zeroed();
    // SAFETY: the objects are zeroed allocations that are never freed, the creator is the one above, and `ibv_create_wq` initialises the mutex.
    unsafe {
        (*whole).create_wq = Some(create_wq);
        (*attr).max_wr = 16;
        (*attr).wq_context = ptr::without_provenance_mut::<c_void>(0x77);
        let wq = ibv_create_wq(context, attr);
        assert_eq!(
            ((*wq).wq_context.addr(), (*wq).events_completed, (*wq).wq_num),
            (0x77, 0, 16)
        );
        assert_eq!(libc::pthread_mutex_lock(&raw mut (*wq).mutex), 0);
        assert_eq!(libc::pthread_mutex_unlock(&raw mut (*wq).mutex), 0);
    }
}

#[test]
fn the_udp_source_port_of_a_flow_label() {
    assert_eq!(ibv_flow_label_to_udp_sport(0), 0xc000);
    assert_eq!(ibv_flow_label_to_udp_sport(0x3fff), 0xffff);
    assert_eq!(ibv_flow_label_to_udp_sport(0xf_ffff), 0xc000 | (0x3fff ^ 0x3f));
}
