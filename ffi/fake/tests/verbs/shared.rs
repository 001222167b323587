//! Shared receive queues.

use rdma_sys::*;

use crate::rig::{Device, SUCCESS, poll, send, zeroed};

fn shared(device: &Device, depth: u32) -> *mut ibv_srq {
    let mut wanted: ibv_srq_init_attr = zeroed();
    wanted.attr.max_wr = depth;
    wanted.attr.max_sge = 1;
    // SAFETY: the domain is there until `close`, and the attributes are whole.
    let srq = unsafe { ibv_create_srq(device.pd, &raw mut wanted) };
    assert!(!srq.is_null());
    srq
}

fn post(srq: *mut ibv_srq, wr_id: u64, mut element: ibv_sge) -> i32 {
    let mut request = ibv_recv_wr {
        wr_id,
        next: core::ptr::null_mut(),
        sg_list: &raw mut element,
        num_sge: 1,
    };
    let mut refused = core::ptr::null_mut();
    // SAFETY: the queue is there, and the request and its element outlive the call.
    let status = unsafe { ibv_post_srq_recv(srq, &raw mut request, &raw mut refused) };
    assert_eq!(status != 0, refused == &raw mut request);
    status
}

fn set_limit(srq: *mut ibv_srq, limit: u32) -> i32 {
    let mut wanted: ibv_srq_attr = zeroed();
    wanted.srq_limit = limit;
    // SAFETY: the queue is there, and the attributes are whole.
    unsafe { ibv_modify_srq(srq, &raw mut wanted, ibv_srq_attr_mask::IBV_SRQ_LIMIT.0 as i32) }
}

#[test]
fn s22_many_queue_pairs_take_from_one_queue() {
    let device = Device::open();
    let region = device.region(64);
    let srq = shared(&device, 4);
    let senders = [0, 1].map(|_| device.queue_pair(core::ptr::null_mut()));
    let receivers = [0, 1].map(|_| device.queue_pair(srq));
    for (sender, receiver) in senders.iter().zip(&receivers) {
        sender.connect(receiver.number());
        receiver.connect(sender.number());
    }
    assert_eq!(
        receivers[0].receive(0, &[]),
        Err(libc::EINVAL),
        "it has no queue of its own"
    );
    for index in 0..4 {
        assert_eq!(post(srq, index, region.element(index as usize * 8, 8)), 0);
    }
    assert_eq!(post(srq, 4, region.element(0, 8)), libc::ENOMEM);
    assert_eq!(set_limit(srq, 5), libc::EINVAL);
    assert_eq!(set_limit(srq, 2), 0);
    let source = device.region(8);
    let message = |sender: usize, text: &[u8; 3]| {
        source.write(0, text);
        senders[sender].post(&[send(9, &[source.element(0, 3)])]).unwrap();
    };
    message(0, b"one");
    message(1, b"two");
    assert_eq!(device.events(), [], "two are left, which is not below two");
    message(0, b"tri");
    assert_eq!(device.events(), [ibv_event_type::IBV_EVENT_SRQ_LIMIT_REACHED]);
    message(1, b"qua");
    assert_eq!(device.events(), [], "once, and then it is disarmed");
    assert_eq!(receivers[0].polled(), [(0, SUCCESS), (2, SUCCESS)]);
    assert_eq!(receivers[1].polled(), [(1, SUCCESS), (3, SUCCESS)]);
    assert_eq!(region.read(8, 3), b"two");
    assert_eq!(region.read(24, 3), b"qua");
    // Empty: both wait, and each receive that is posted is taken.
    senders.iter().for_each(|sender| drop(sender.polled()));
    message(0, b"cin");
    message(1, b"six");
    assert!(senders.iter().all(|sender| sender.polled().is_empty()));
    assert_eq!(post(srq, 10, region.element(0, 8)), 0);
    assert_eq!(post(srq, 11, region.element(8, 8)), 0);
    let arrived: Vec<_> = receivers.iter().flat_map(|receiver| poll(receiver.cq)).collect();
    assert_eq!(arrived.len(), 2);
    // Nothing more is handed to a queue pair that failed; what is shared stays.
    assert_eq!(post(srq, 12, region.element(0, 8)), 0);
    assert_eq!(receivers[0].bring(ibv_qp_state::IBV_QPS_ERR), 0);
    assert!(receivers[0].polled().is_empty());
    assert_eq!(device.events(), [ibv_event_type::IBV_EVENT_QP_LAST_WQE_REACHED]);
    message(1, b"end");
    assert_eq!(receivers[1].polled(), [(12, SUCCESS)]);
    // SAFETY: the queue is there, and a refused destruction leaves it as it was.
    assert_eq!(unsafe { ibv_destroy_srq(srq) }, libc::EBUSY);
    for end in senders.into_iter().chain(receivers) {
        end.destroy();
    }
    let mut attributes: ibv_srq_attr = zeroed();
    // SAFETY: the queue is there, and the attributes are writable.
    assert_eq!(unsafe { ibv_query_srq(srq, &raw mut attributes) }, 0);
    assert_eq!((attributes.max_wr, attributes.srq_limit), (4, 0));
    // SAFETY: the queue is there, its queue pairs are gone, and nothing uses it after this call.
    assert_eq!(unsafe { ibv_destroy_srq(srq) }, 0);
    region.release();
    source.release();
    device.close();
}
