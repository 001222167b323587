//! Tests of wrong requests: which side answers, and how.

use rdma_sys::*;

use crate::rig::{Device, FLUSHED, QueuePair, Region, SUCCESS, poll, send};

/// Results of one wrong request: completions that each side polled, and the events.
type Seen = (
    Vec<(u64, ibv_wc_status)>,
    Vec<(u64, ibv_wc_status)>,
    Vec<ibv_event_type>,
);

/// Posts on a fresh connection, whose receiver has posted two receives.
fn outcome(device: &Device, receive: &[ibv_sge], request: crate::rig::Send) -> Seen {
    let (one, other) = device.pair();
    other.receive(50, receive).unwrap();
    other.receive(51, receive).unwrap();
    one.post(&[request]).unwrap();
    let seen = (one.polled(), other.polled(), device.events());
    one.destroy();
    other.destroy();
    seen
}

fn one_sided(opcode: ibv_wr_opcode, local: ibv_sge, address: u64, rkey: u32) -> crate::rig::Send {
    let mut request = send(1, &[local]);
    request.opcode = opcode;
    request.remote = (address, rkey);
    // An error makes a completion, signaled or not (S5).
    request.flags = 0;
    request
}

#[test]
fn s9_rights_of_peers() {
    let device = Device::open();
    let (local, window) = (device.region(64), device.region(64));
    let refused = (
        vec![(1, ibv_wc_status::IBV_WC_REM_ACCESS_ERR)],
        vec![(50, FLUSHED), (51, FLUSHED)],
        vec![ibv_event_type::IBV_EVENT_QP_ACCESS_ERR],
    );
    let receive = [local.element(0, 8)];
    let read_only = Region {
        // SAFETY: the domain is there, and the memory of the region is leaked: it stays as long as this registration.
        mr: unsafe { ibv_reg_mr(device.pd, window.start.cast(), 64, 1 | 4) },
        ..window
    };
    let write = ibv_wr_opcode::IBV_WR_RDMA_WRITE;
    let (local_8, address) = (local.element(0, 8), window.address());
    for request in [
        one_sided(write, local_8, address, window.key() ^ 0xff),
        one_sided(write, local_8, address + 57, window.key()),
        one_sided(write, local_8, address - 1, window.key()),
        one_sided(write, local_8, u64::MAX, window.key()),
        one_sided(write, local_8, address, read_only.key()),
        one_sided(
            ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD,
            local_8,
            address,
            read_only.key(),
        ),
    ] {
        assert_eq!(outcome(&device, &receive, request), refused);
    }
    assert_eq!(window.read(0, 64), [0; 64]);
    // A key that was given back opens nothing.
    let key = read_only.key();
    read_only.release();
    let request = one_sided(ibv_wr_opcode::IBV_WR_RDMA_READ, local_8, address, key);
    assert_eq!(outcome(&device, &receive, request), refused);
    // With immediate it is a receive that says so, and no event.
    let request = one_sided(ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM, local_8, address, 0);
    let (at_sender, at_receiver, events) = outcome(&device, &receive, request);
    assert_eq!(at_sender, refused.0);
    let access = ibv_wc_status::IBV_WC_LOC_ACCESS_ERR;
    assert_eq!((at_receiver, events), (vec![(50, access), (51, FLUSHED)], vec![]));
    // Without a byte no key is looked at.
    let request = one_sided(write, local.element(0, 0), 0, 0);
    assert_eq!(outcome(&device, &receive, request), (vec![], vec![], vec![]));
    [local, window].into_iter().for_each(Region::release);
    device.close();
}

#[test]
fn s27_an_atomic_wants_its_word_aligned() {
    let device = Device::open();
    let region = device.region(64);
    let atomic = |offset: u64| {
        one_sided(
            ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD,
            region.element(32, 8),
            region.address() + offset,
            region.key(),
        )
    };
    let (at_sender, at_receiver, events) = outcome(&device, &[], atomic(4));
    assert_eq!(at_sender, [(1, ibv_wc_status::IBV_WC_REM_INV_REQ_ERR)]);
    assert_eq!(at_receiver, [(50, FLUSHED), (51, FLUSHED)]);
    assert_eq!(events, [ibv_event_type::IBV_EVENT_QP_REQ_ERR]);
    region.write(8, &41_u64.to_ne_bytes());
    assert_eq!(outcome(&device, &[], atomic(8)), (vec![], vec![], vec![]));
    assert_eq!(region.read(8, 8), 42_u64.to_ne_bytes());
    assert_eq!(region.read(32, 8), 41_u64.to_ne_bytes());
    region.release();
    device.close();
}

#[test]
fn s10_s11_receives_that_cannot_take_it() {
    let device = Device::open();
    let region = device.region(64);
    let request = || send(1, &[region.element(0, 9)]);
    let small = [region.element(32, 8)];
    let (at_sender, at_receiver, events) = outcome(&device, &small, request());
    assert_eq!(at_sender, [(1, ibv_wc_status::IBV_WC_REM_INV_REQ_ERR)]);
    let length = ibv_wc_status::IBV_WC_LOC_LEN_ERR;
    assert_eq!((at_receiver, events), (vec![(50, length), (51, FLUSHED)], vec![]));
    let mut bad = region.element(32, 16);
    bad.lkey ^= 1;
    let (at_sender, at_receiver, _) = outcome(&device, &[bad], request());
    assert_eq!(at_sender, [(1, ibv_wc_status::IBV_WC_REM_OP_ERR)]);
    assert_eq!(
        at_receiver,
        [(50, ibv_wc_status::IBV_WC_LOC_PROT_ERR), (51, FLUSHED)]
    );
    // S8: the sender's own key harms nobody else.
    let mut wrong = request();
    wrong.elements[0].lkey ^= 1;
    let (at_sender, at_receiver, _) = outcome(&device, &small, wrong);
    assert_eq!(
        (at_sender, at_receiver),
        (vec![(1, ibv_wc_status::IBV_WC_LOC_PROT_ERR)], vec![])
    );
    region.release();
    device.close();
}

#[test]
fn a_peer_that_failed_flushes_its_own_sends_too() {
    let device = Device::open();
    let (one, other) = device.pair();
    let region = device.region(8);
    // It waits: `one` has no receive.
    other.post(&[send(70, &[])]).unwrap();
    one.post(&[one_sided(
        ibv_wr_opcode::IBV_WR_RDMA_WRITE,
        region.element(0, 8),
        8,
        0,
    )])
    .unwrap();
    assert_eq!(one.polled(), [(1, ibv_wc_status::IBV_WC_REM_ACCESS_ERR)]);
    assert_eq!(other.polled(), [(70, FLUSHED)]);
    let mut attributes: ibv_qp_attr = crate::rig::zeroed();
    let mut made_with: ibv_qp_init_attr = crate::rig::zeroed();
    for QueuePair { qp, cq } in [one, other] {
        // SAFETY: the queue pair is there, and both structures are whole and writable.
        unsafe { assert_eq!(ibv_query_qp(qp, &raw mut attributes, 1, &raw mut made_with), 0) };
        assert_eq!(attributes.qp_state, ibv_qp_state::IBV_QPS_ERR);
        assert_eq!((made_with.send_cq, made_with.cap.max_inline_data), (cq, 32));
    }
    one.destroy();
    other.destroy();
    region.release();
    device.close();
}

#[test]
fn s7_a_failed_completion_holds_rubbish() {
    let device = Device::open();
    let (one, other) = device.pair();
    other.receive(1, &[]).unwrap();
    one.post(&[send(2, &[])]).unwrap();
    let success = poll(other.cq).pop().unwrap();
    assert_eq!(
        (success.status, success.opcode),
        (SUCCESS, ibv_wc_opcode::IBV_WC_RECV)
    );
    assert_eq!(
        (success.byte_len, success.wc_flags, success.qp_num),
        (0, 0, other.number())
    );
    other.receive(3, &[]).unwrap();
    assert_eq!(other.bring(ibv_qp_state::IBV_QPS_ERR), 0);
    let failed = poll(other.cq).pop().unwrap();
    assert_eq!(
        (failed.wr_id, failed.status, failed.qp_num),
        (3, FLUSHED, other.number())
    );
    assert_eq!((failed.opcode.0, failed.byte_len), (0xdead_beef, 0xdead_beef));
    one.destroy();
    other.destroy();
    device.close();
}
