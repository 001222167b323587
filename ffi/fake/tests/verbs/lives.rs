//! Tests of lifetimes: the order of destroying, the library's own facts, and objects that it refuses to make.

use core::ptr;
use core::time::Duration;
use std::thread;

use rdma_sys::*;

use crate::rig::{ALL, Device, last_errno, send, zeroed};

#[test]
fn no_function_is_missing() {
    let device = Device::open();
    let library = format!("{:?}", load().unwrap());
    assert!(library.contains("ibv_query_qp_data_in_order: Some"));
    assert!(!library.contains("None"), "{library}");
    // SAFETY: the device is open, and each object is used only between its making and its end. The fake takes null for what it does not have.
    unsafe {
        let name = core::ffi::CStr::from_ptr(ibv_get_device_name((*device.context).device));
        assert_eq!(name, c"fake0");
        for status in 0..100 {
            assert!(!ibv_wc_status_str(ibv_wc_status(status)).is_null());
            assert!(!ibv_event_type_str(ibv_event_type(status)).is_null());
        }
        let mut way: ibv_ah_attr = zeroed();
        assert!(ibv_create_ah_from_wc(device.pd, ptr::null_mut(), ptr::null_mut(), 1).is_null());
        assert_eq!(last_errno(), libc::EOPNOTSUPP);
        assert!(
            ibv_create_ah(device.pd, &raw mut way).is_null(),
            "without a global route"
        );
        assert_eq!(last_errno(), libc::EINVAL);
        (way.is_global, way.port_num) = (1, 1);
        let ah = ibv_create_ah(device.pd, &raw mut way);
        assert_eq!(
            ibv_dealloc_pd(device.pd),
            libc::EBUSY,
            "what is made in it holds it"
        );
        assert_eq!(ibv_destroy_ah(ah), 0);
        assert!(ibv_create_cq_ex(device.context, ptr::null_mut()).is_null());
        assert_eq!(last_errno(), libc::EOPNOTSUPP);
    }
    device.close();
}

#[test]
fn ports_and_tables() {
    let device = Device::open();
    // SAFETY: the device is open, and each structure is whole and writable. No entry is written where zero entries are asked for.
    unsafe {
        let mut port: ibv_port_attr = zeroed();
        assert_eq!(ibv_query_port(device.context, 1, &raw mut port), 0);
        assert_eq!(port.state, ibv_port_state::IBV_PORT_ACTIVE);
        assert_eq!(ibv_query_port(device.context, 2, &raw mut port), libc::EINVAL);
        let mut entry: ibv_gid_entry = zeroed();
        assert_eq!(ibv_query_gid_ex(device.context, 1, 0, &raw mut entry, 0), 0);
        assert_eq!((entry.port_num, entry.gid_type), (1, IBV_GID_TYPE_ROCE_V2.0));
        assert_ne!(entry.ndev_ifindex, 0);
        let mut gid: ibv_gid = zeroed();
        assert_eq!(ibv_query_gid(device.context, 1, 0, &raw mut gid), 0);
        assert_eq!(gid.raw, entry.gid.raw);
        let last = port.gid_tbl_len - 1;
        assert_eq!(
            ibv_query_gid_ex(device.context, 1, last as u32, &raw mut entry, 0),
            libc::ENODATA
        );
        assert_eq!(ibv_query_gid(device.context, 1, last + 1, &raw mut gid), -1);
        assert_eq!(ibv_query_gid_table(device.context, &raw mut entry, 0, 0), -22);
        let mut key = 0;
        assert_eq!(ibv_query_pkey(device.context, 1, 0, &raw mut key), 0);
        assert_eq!(key, 0xffff);
        assert_eq!(ibv_get_pkey_index(device.context, 1, key), 0);
    }
    device.close();
}

#[test]
fn what_is_still_used_is_busy() {
    let device = Device::open();
    let region = device.region(8);
    let end = device.queue_pair(ptr::null_mut());
    // SAFETY: the device is open, and each object is used only until it is destroyed. A refused destruction leaves it as it was.
    unsafe {
        let channel = ibv_create_comp_channel(device.context);
        let cq = ibv_create_cq(device.context, 1, ptr::null_mut(), channel, 0);
        assert_eq!(ibv_destroy_cq(end.cq), libc::EBUSY);
        assert_eq!(ibv_destroy_comp_channel(channel), libc::EBUSY);
        assert_eq!(ibv_dealloc_pd(device.pd), libc::EBUSY);
        assert_eq!(ibv_close_device(device.context), -1);
        assert_eq!(last_errno(), libc::EBUSY);
        end.destroy();
        assert_eq!(ibv_dealloc_pd(device.pd), libc::EBUSY, "the region is left");
        assert_eq!(ibv_destroy_cq(cq), 0);
        assert_eq!(ibv_destroy_comp_channel(channel), 0);
    }
    region.release();
    device.close();
}

#[test]
fn what_cannot_be_made_is_refused() {
    let device = Device::open();
    let mut wanted: ibv_qp_init_attr = zeroed();
    let cq = device.cq(8);
    // SAFETY: the device is open, the completion queue is there until the last line, and the attributes are whole.
    unsafe {
        assert_eq!((*cq).cqe, 8);
        for depth in [0, -1, i32::MAX] {
            assert!(ibv_create_cq(device.context, depth, ptr::null_mut(), ptr::null_mut(), 0).is_null());
            assert_eq!(last_errno(), libc::EINVAL);
        }
        wanted.qp_type = ibv_qp_type::IBV_QPT_RC;
        assert!(
            ibv_create_qp(device.pd, &raw mut wanted).is_null(),
            "without completion queues"
        );
        (wanted.send_cq, wanted.recv_cq) = (cq, cq);
        for cap in [
            ibv_qp_cap {
                max_send_wr: 1 << 20,
                ..zeroed()
            },
            ibv_qp_cap {
                max_recv_sge: 9,
                ..zeroed()
            },
            ibv_qp_cap {
                max_inline_data: 257,
                ..zeroed()
            },
        ] {
            wanted.cap = cap;
            assert!(ibv_create_qp(device.pd, &raw mut wanted).is_null());
            assert_eq!(last_errno(), libc::EINVAL);
        }
        wanted.cap = zeroed();
        wanted.qp_type = ibv_qp_type::IBV_QPT_UC;
        assert!(ibv_create_qp(device.pd, &raw mut wanted).is_null());
        assert_eq!(last_errno(), libc::EOPNOTSUPP);
        assert!(ibv_reg_mr(device.pd, ptr::null_mut(), 0, ALL).is_null());
        assert_eq!(last_errno(), libc::EINVAL);
        assert_eq!(ibv_destroy_cq(cq), 0);
    }
    device.close();
}

#[test]
fn s2_a_refused_change_changes_nothing() {
    let device = Device::open();
    let end = device.queue_pair(ptr::null_mut());
    let mut attributes: ibv_qp_attr = zeroed();
    attributes.qp_state = ibv_qp_state::IBV_QPS_INIT;
    attributes.port_num = 1;
    let whole = 1 | 8 | 16 | 32;
    for (port, mask) in [(1, 1), (1, whole & !32), (1, whole | 512), (2, whole)] {
        attributes.port_num = port;
        assert_eq!(end.modify(&mut attributes, mask), libc::EINVAL);
    }
    assert_eq!(end.bring(ibv_qp_state::IBV_QPS_ERR), libc::EINVAL, "S1");
    assert_eq!(end.bring(ibv_qp_state(77)), libc::EINVAL);
    end.to_init();
    assert_eq!(end.bring(ibv_qp_state::IBV_QPS_RTS), libc::EINVAL);
    end.destroy();
    device.close();
}

#[test]
fn s24_the_end_of_a_queue_pair_waits_for_its_events() {
    let device = Device::open();
    let (one, other) = device.pair();
    let mut write = send(1, &[]);
    write.opcode = ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD;
    write.remote = (4, 0);
    one.post(&[write]).unwrap();
    let mut event: ibv_async_event = zeroed();
    // SAFETY: the device is open, and the event is whole and writable.
    unsafe {
        assert_eq!(ibv_get_async_event(device.context, &raw mut event), 0);
        assert_eq!(event.element.qp, other.qp);
    }
    let (qp, event_address) = (other.qp.expose_provenance(), (&raw mut event).expose_provenance());
    // SAFETY: the queue pair is there, nothing else destroys it, and nothing uses it from here on but the acknowledgement of its event.
    let destroying = thread::spawn(move || unsafe {
        assert_eq!(ibv_destroy_qp(ptr::with_exposed_provenance_mut(qp)), 0);
    });
    thread::sleep(Duration::from_millis(50));
    assert!(!destroying.is_finished());
    // SAFETY: the event was filled above, is acknowledged once, and lives until the end of the test.
    unsafe { ibv_ack_async_event(ptr::with_exposed_provenance_mut(event_address)) };
    destroying.join().unwrap();
    one.destroy();
    // SAFETY: the completion queue is there, and its queue pair is gone: nothing uses it after this call.
    assert_eq!(unsafe { ibv_destroy_cq(other.cq) }, 0);
    // An event that nobody took goes with its object.
    let (one, other) = device.pair();
    let mut write = send(1, &[]);
    write.opcode = ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD;
    write.remote = (4, 0);
    one.post(&[write]).unwrap();
    one.destroy();
    other.destroy();
    assert_eq!(device.events(), []);
    device.close();
}
