//! Null connections, and what waits on loopback ones: for a receive, for the peer, for room.

use core::ptr;
use std::time::Instant;

use rdma_sys::*;

use crate::rig::{Device, FLUSHED, INLINE, PATIENCE, SUCCESS, send, wait_for, zeroed};

#[test]
fn a_null_connection_completes_what_is_signaled_and_nothing_else() {
    let device = Device::open();
    for number in [None, Some(doorbell_fake::NULL_QPN)] {
        let end = device.queue_pair(ptr::null_mut());
        end.connect(number.unwrap_or(end.number()));
        let region = device.region(64);
        end.receive(1, &[region.element(0, 64)]).unwrap();
        let mut unsignaled = send(1, &[region.element(0, 64)]);
        unsignaled.flags = 0;
        let list = [unsignaled.clone(), send(2, &[]), unsignaled, send(4, &[])];
        end.post(&list).unwrap();
        assert_eq!(end.polled(), [(2, SUCCESS), (4, SUCCESS)]);
        // Eight fit; the first refused is named.
        let list: Vec<_> = (0..9).map(|index| send(index, &[])).collect();
        assert_eq!(end.post(&list), Err((libc::ENOMEM, 8)));
        assert_eq!(end.polled().len(), 8);
        // Unsignaled ones keep their places until a later one was polled.
        let mut quiet = send(0, &[]);
        quiet.flags = 0;
        end.post(&vec![quiet.clone(); 7]).unwrap();
        assert!(end.polled().is_empty());
        assert_eq!(end.post(&[quiet.clone(), quiet]), Err((libc::ENOMEM, 1)));
        end.destroy();
        region.release();
    }
    device.close();
}

#[test]
fn what_cannot_be_posted_is_refused_where_it_stands() {
    let device = Device::open();
    let (one, other) = device.pair();
    let region = device.region(64);
    let element = region.element(0, 1);
    let mut unknown = send(0, &[]);
    unknown.opcode = ibv_wr_opcode::IBV_WR_TSO;
    let mut long = send(0, &[region.element(0, 33)]);
    long.flags |= INLINE;
    let mut read = send(0, &[]);
    read.opcode = ibv_wr_opcode::IBV_WR_RDMA_READ;
    read.flags |= INLINE;
    other.receive(0, &[]).unwrap();
    for (wrong, error) in [
        (send(0, &[element; 4]), libc::EINVAL),
        (unknown, libc::EOPNOTSUPP),
        (long, libc::EINVAL),
        (read, libc::EINVAL),
    ] {
        let mut before = send(0, &[]);
        before.flags = 0;
        before.opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE;
        assert_eq!(one.post(&[before, wrong, send(0, &[])]), Err((error, 1)));
    }
    assert!(one.polled().is_empty() && other.polled().is_empty());
    assert_eq!(other.receive(0, &[element; 3]), Err(libc::EINVAL));
    for index in 1..8 {
        other.receive(index, &[element]).unwrap();
    }
    assert_eq!(other.receive(8, &[element]), Err(libc::ENOMEM));
    let fresh = device.queue_pair(ptr::null_mut());
    assert_eq!(fresh.receive(0, &[]), Err(libc::EINVAL), "S3");
    assert_eq!(fresh.post(&[send(0, &[])]), Err((libc::EINVAL, 0)));
    fresh.to_init();
    assert_eq!(fresh.receive(0, &[]), Ok(()));
    assert_eq!(fresh.post(&[send(0, &[])]), Err((libc::EINVAL, 0)));
    [one, other, fresh].into_iter().for_each(|end| end.destroy());
    region.release();
    device.close();
}

#[test]
fn without_a_receive_sends_wait_in_order_and_keep_their_inline_bytes() {
    let device = Device::open();
    let (one, other) = device.pair();
    let (source, target) = (device.region(64), device.region(64));
    source.write(0, b"gathered from two");
    let plain = send(1, &[source.element(0, 9), source.element(9, 8)]);
    let mut inline = send(2, &[source.element(32, 4), source.element(36, 3)]);
    inline.flags |= INLINE;
    source.write(32, b"at once");
    let mut write = send(3, &[source.element(0, 8)]);
    write.opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE;
    write.remote = (target.address() + 40, target.key());
    one.post(&[plain, inline]).unwrap();
    source.write(32, b"too late");
    one.post(&[write]).unwrap();
    assert!(
        one.polled().is_empty(),
        "the first one waits, and the others behind it"
    );
    assert_eq!(target.read(40, 8), [0; 8]);
    other
        .receive(7, &[target.element(0, 10), target.element(10, 10)])
        .unwrap();
    assert_eq!(other.polled(), [(7, SUCCESS)]);
    assert_eq!(one.polled(), [(1, SUCCESS)]);
    assert_eq!(target.read(0, 17), b"gathered from two");
    other.receive(8, &[target.element(20, 10)]).unwrap();
    assert_eq!(other.polled(), [(8, SUCCESS)]);
    assert_eq!(target.read(20, 7), b"at once");
    assert_eq!(one.polled(), [(2, SUCCESS), (3, SUCCESS)]);
    assert_eq!(target.read(40, 8), b"gathered");
    one.destroy();
    other.destroy();
    [source, target].into_iter().for_each(|region| region.release());
    device.close();
}

#[test]
fn s12_retries_that_end_fail_the_request_and_flush_the_rest() {
    let device = Device::open();
    let (one, other) = (
        device.queue_pair(ptr::null_mut()),
        device.queue_pair(ptr::null_mut()),
    );
    other.connect(one.number());
    one.to_init();
    one.to_receive(other.number());
    one.to_send(0);
    one.receive(9, &[]).unwrap();
    let mut quiet = send(1, &[]);
    quiet.flags = 0;
    one.post(&[quiet, send(2, &[])]).unwrap();
    let mut polled = wait_for(&one);
    polled.sort_by_key(|(wr_id, _)| *wr_id);
    let exceeded = ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR;
    assert_eq!(polled, [(1, exceeded), (2, FLUSHED), (9, FLUSHED)], "S5, S6");
    // Requests posted later are flushed at once, in both queues (S3).
    one.post(&[send(3, &[])]).unwrap();
    one.receive(10, &[]).unwrap();
    assert_eq!(one.polled(), [(3, FLUSHED), (10, FLUSHED)]);
    one.destroy();
    other.destroy();
    device.close();
}

/// A send under way keeps a drained queue from going on, but no queue from being reset (S1). A refused change
/// changes nothing.
#[test]
fn s01_a_send_queue_with_a_send_under_way_is_reset_and_does_not_go_on() {
    let device = Device::open();
    let (one, other) = device.pair();
    one.post(&[send(1, &[])]).unwrap();
    assert!(one.polled().is_empty(), "it waits for a receive");
    assert_eq!(one.bring(ibv_qp_state::IBV_QPS_SQD), 0);
    let timer = one.rnr_timer();
    let mut back: ibv_qp_attr = zeroed();
    back.qp_state = ibv_qp_state::IBV_QPS_RTS;
    back.min_rnr_timer = timer + 1;
    let mask = ibv_qp_attr_mask::IBV_QP_STATE | ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER;
    assert_eq!(one.modify(&mut back, mask.0), libc::EINVAL);
    assert_eq!(one.rnr_timer(), timer, "S2");
    for end in [one, other] {
        assert_eq!(end.bring(ibv_qp_state::IBV_QPS_RESET), 0);
    }
    one.connect(other.number());
    other.connect(one.number());
    other.receive(7, &[]).unwrap();
    one.post(&[send(2, &[])]).unwrap();
    assert_eq!(one.polled(), [(2, SUCCESS)], "the first was forgotten");
    assert_eq!(other.polled(), [(7, SUCCESS)]);
    one.destroy();
    other.destroy();
    device.close();
}

#[test]
fn a_peer_that_is_not_there_yet_is_waited_for() {
    let device = Device::open();
    let (one, other) = (
        device.queue_pair(ptr::null_mut()),
        device.queue_pair(ptr::null_mut()),
    );
    one.connect(other.number());
    other.to_init();
    other.receive(5, &[]).unwrap();
    one.post(&[send(1, &[])]).unwrap();
    assert!(one.polled().is_empty());
    other.to_receive(one.number());
    // The sender did not have to poll for it.
    assert_eq!(other.polled(), [(5, SUCCESS)]);
    assert_eq!(one.polled(), [(1, SUCCESS)]);
    one.destroy();
    other.destroy();
    device.close();
}

#[test]
fn s14_a_peer_connected_to_another_does_not_answer() {
    let device = Device::open();
    let (one, other) = device.pair();
    let stranger = device.queue_pair(ptr::null_mut());
    stranger.connect(other.number());
    other.receive(1, &[]).unwrap();
    let began = Instant::now();
    stranger.post(&[send(1, &[])]).unwrap();
    // 4.096 us * 2^15, eight times over.
    assert_eq!(wait_for(&stranger), [(1, ibv_wc_status::IBV_WC_RETRY_EXC_ERR)]);
    let waited = began.elapsed();
    assert!(waited.as_secs() >= 1 && waited < PATIENCE, "{waited:?}");
    assert!(other.polled().is_empty());
    [one, other, stranger].into_iter().for_each(|end| end.destroy());
    device.close();
}

#[test]
fn a_queue_pair_brought_back_to_reset_begins_anew() {
    let device = Device::open();
    let (one, other) = device.pair();
    for round in 0..3 {
        one.post(&vec![send(round, &[]); 8]).unwrap();
        assert_eq!(one.post(&[send(round, &[])]), Err((libc::ENOMEM, 0)));
        assert!(one.polled().is_empty(), "they wait for receives");
        assert_eq!(one.bring(ibv_qp_state::IBV_QPS_RESET), 0);
        assert_eq!(other.bring(ibv_qp_state::IBV_QPS_ERR), 0);
        assert_eq!(other.bring(ibv_qp_state::IBV_QPS_RESET), 0);
        one.connect(other.number());
        other.connect(one.number());
        other.receive(100, &[]).unwrap();
        assert!(other.polled().is_empty(), "what was posted before is forgotten");
        one.post(&[send(200, &[])]).unwrap();
        assert_eq!(one.polled(), [(200, SUCCESS)]);
        assert_eq!(other.polled(), [(100, SUCCESS)]);
    }
    one.destroy();
    other.destroy();
    device.close();
}
