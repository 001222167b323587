//! A peer that has receives, and takes nothing of what it is sent.

use core::ffi::c_void;
use core::ptr::null_mut;

use doorbell::Handle;
use doorbell::link::LinkEvent;
use doorbell_nccl::abi::{NcclResult, PTR_HOST};

use super::{
    CLEAR, CLOSE, Hostile, NET, NetV12, OPEN, OPENED, Plugin, SERIAL, eventually, fake, frame, word,
};

/// Bytes of a message that is a transfer.
const LONG: usize = 5000;

/// The bytes by which the plugin connects to this.
fn bytes_of(handle: &Handle) -> [u8; 128] {
    let mut bytes = [0; 128];
    let inner = handle.as_bytes();
    bytes[..6].copy_from_slice(&[b'D', b'B', b'N', b'C', 2, inner.len() as u8]);
    bytes[20..20 + inner.len()].copy_from_slice(inner);
    let checked = bytes.iter().enumerate().filter(|(at, _)| !(12..20).contains(at));
    let check = checked.fold(0x811c_9dc5_u32, |hash, (_, byte)| {
        (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
    });
    bytes[12..16].copy_from_slice(&check.to_be_bytes());
    bytes
}

/// Its comm is closed, and the transfer on it has no end: the send ends all the same.
#[test]
fn a_send_ends_after_its_comm_though_the_peer_leaves_its_transfer_open() {
    let _guard = SERIAL.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    fake();
    let plugin = Plugin::new();
    let mut hostile = Hostile::connect(&plugin);
    let at = "0.0.0.0:0".parse().unwrap();
    let handle = hostile.links.listen(&hostile.node, &hostile.workers, at).unwrap();
    let mut bytes = bytes_of(&handle);
    let to: *mut c_void = bytes.as_mut_ptr().cast();
    let mut comm: *mut c_void = null_mut();
    let connect = |comm: &mut *mut c_void| {
        let connected = call!(connect, plugin.context, 0, to, &raw mut *comm, null_mut());
        assert_eq!(connected, NcclResult::SUCCESS);
    };
    hostile.link = eventually("a link of the plugin's", || {
        connect(&mut comm);
        let Hostile {
            links,
            node,
            workers,
            heard,
            ..
        } = &mut hostile;
        let mut link = None;
        let each = |of, event: LinkEvent<'_>| match event {
            LinkEvent::Accepted => link = Some(of),
            LinkEvent::Received { message } => heard.push(message.to_vec()),
            _ => {}
        };
        links.poll(node, workers, each).unwrap();
        link
    });
    let open = hostile.hear_beside(OPEN, || connect(&mut comm));
    let number = word(&open[8..12]);
    hostile.say(&frame(OPENED, 0, number, [0, 0, 0, 9], &[]));
    eventually("a comm", || {
        hostile.poll();
        connect(&mut comm);
        (!comm.is_null()).then_some(())
    });
    let receive = [&[0; 4], &(LONG as u64).to_be_bytes()[..]].concat();
    hostile.say(&frame(CLEAR, 1, number, [0, 0, 0, 32], &receive));
    let mut room = vec![7_u8; LONG];
    let data: *mut c_void = room.as_mut_ptr().cast();
    let (mut memory, mut request): (*mut c_void, *mut c_void) = (null_mut(), null_mut());
    let registered = call!(reg_mr, comm, data, LONG, PTR_HOST, &raw mut memory);
    assert_eq!(registered, NcclResult::SUCCESS);
    eventually("a send", || {
        hostile.poll();
        let (no, result) = (null_mut(), &raw mut request);
        let sent = call!(isend, comm, data, LONG, 0, memory, no, result);
        assert_eq!(sent, NcclResult::SUCCESS);
        (!request.is_null()).then_some(())
    });
    let (mut done, mut size) = (0, 0);
    let mut test = || call!(test, request, &raw mut done, &raw mut size);
    assert_eq!(test(), NcclResult::SUCCESS);
    hostile.say(&frame(CLOSE, 0, number, [0; 4], &[]));
    let ended = eventually("the send ends", || {
        hostile.poll();
        Some(test()).filter(|ended| *ended != NcclResult::SUCCESS)
    });
    assert_eq!(ended, NcclResult::REMOTE_ERROR);
    assert_eq!(call!(dereg_mr, comm, memory), NcclResult::SUCCESS);
    assert_eq!(call!(close_send, comm), NcclResult::SUCCESS);
    assert_eq!(call!(finalize, plugin.context), NcclResult::SUCCESS);
}
