//! Memory of receives that is lent to a peer: registered once, and out of the peer's reach before its owner has it again.

use core::ffi::c_void;
use core::ptr::null_mut;
use std::sync::Arc;

use doorbell::link::{Links, TransferId, TransferOptions};
use doorbell::memory::Region;
use doorbell::provider::PlacementConfig;
use doorbell_fake::{Call, Control};
use doorbell_nccl::abi::{NcclResult, PTR_HOST};

use super::{CLEAR, Hostile, NET, NetV12, Plugin, SERIAL, eventually, fake, frame, word};

/// Bytes of a registration.
const ROOM: usize = 65_536;

/// Bytes of a message that is a transfer.
const LONG: usize = 5000;

/// Polls in which something that may happen would have happened.
const WHILE: u32 = 1000;

fn control() -> Control {
    Control::of(&doorbell_fake::library_path().unwrap()).unwrap()
}

/// Registrations that were made and withdrawn.
fn calls() -> (u32, u32) {
    let control = control();
    (control.calls(Call::RegMr), control.calls(Call::DeregMr))
}

/// Calls since others.
fn since(before: (u32, u32)) -> (u32, u32) {
    let now = calls();
    (now.0 - before.0, now.1 - before.1)
}

/// Memory of a rank, registered.
struct Memory {
    room: Box<[u8]>,
    handle: *mut c_void,
    comm: *mut c_void,
}

impl Memory {
    fn new(comm: *mut c_void) -> Self {
        let mut room = vec![0x5a; ROOM].into_boxed_slice();
        let mut handle = null_mut();
        let data = room.as_mut_ptr().cast();
        let registered = call!(reg_mr, comm, data, ROOM, PTR_HOST, &raw mut handle);
        assert_eq!(registered, NcclResult::SUCCESS);
        Self { room, handle, comm }
    }

    fn deregister(self) -> Box<[u8]> {
        assert_eq!(call!(dereg_mr, self.comm, self.handle), NcclResult::SUCCESS);
        self.room
    }
}

/// A comm of a peer's, and the peer's number of it.
struct Peer {
    hostile: Hostile,
    comm: *mut c_void,
    number: [u8; 4],
    from: Region,
}

/// A receive, and its number at the plugin.
struct Request {
    handle: *mut c_void,
    number: u32,
}

impl Peer {
    fn new(plugin: &Plugin) -> Self {
        let mut hostile = Hostile::connect(plugin);
        let (comm, number) = hostile.open(plugin);
        let placement = &PlacementConfig::DEFAULT;
        let from = hostile.node.region(&hostile.workers, ROOM, placement).unwrap();
        from.copy_in(0, &[0xa5; ROOM]).unwrap();
        Self {
            hostile,
            comm,
            number,
            from,
        }
    }

    /// One more comm over its link.
    fn beside(&mut self, plugin: &Plugin) -> (*mut c_void, [u8; 4]) {
        self.hostile.open(plugin)
    }

    fn receive(&mut self, memory: &Memory, (offset, bytes): (usize, usize)) -> Request {
        let mut data: [*mut c_void; 1] = [memory.room.as_ptr().wrapping_add(offset).cast_mut().cast()];
        let (mut sizes, mut tags, mut memories) = ([bytes], [0], [memory.handle]);
        let hostile = &mut self.hostile;
        let handle = eventually("a receive is posted", || {
            let mut request = null_mut();
            let (data, sizes) = (data.as_mut_ptr(), sizes.as_mut_ptr());
            let (tags, memories) = (tags.as_mut_ptr(), memories.as_mut_ptr());
            let to = &raw mut request;
            let received = call!(irecv, self.comm, 1, data, sizes, tags, memories, null_mut(), to);
            assert_eq!(received, NcclResult::SUCCESS);
            hostile.poll();
            (!request.is_null()).then_some(request)
        });
        let clear = self
            .hostile
            .hear_beside(CLEAR, || assert_eq!(test(handle), Ok(None)));
        let number = u32::from_be_bytes(word(&clear[8..12]));
        Request { handle, number }
    }

    fn offer(&mut self, request: &Request, bytes: usize) -> TransferId {
        let mut options = TransferOptions::default();
        let comm = u64::from(u32::from_be_bytes(self.number));
        options.tag = comm << 32 | u64::from(request.number) << 3;
        let Self { hostile, from, .. } = self;
        let (links, node): (&mut Links, &Arc<_>) = (&mut hostile.links, &hostile.node);
        let offer = (&*from, 0, bytes as u64);
        links.offer(node, hostile.link, offer, &options).unwrap()
    }

    /// Both sides go on until a request is done or has failed.
    fn end(&mut self, request: &Request) -> Result<i32, NcclResult> {
        eventually("a request ends", || {
            self.hostile.poll();
            test(request.handle).transpose()
        })
    }

    /// A message that is a transfer, into a part of memory.
    fn message(&mut self, memory: &Memory, offset: usize) {
        let request = self.receive(memory, (offset, LONG));
        self.offer(&request, LONG);
        assert_eq!(self.end(&request), Ok(LONG as i32));
        let part = offset..offset + LONG;
        assert!(memory.room[part].iter().all(|byte| *byte == 0xa5));
    }

    /// The plugin's side ends, and nothing is left of its memory.
    fn close(mut self) {
        assert_eq!(call!(close_recv, self.comm), NcclResult::SUCCESS);
        self.hostile.poll();
    }
}

/// How far a request is.
fn test(request: *mut c_void) -> Result<Option<i32>, NcclResult> {
    let (mut done, mut size) = (0, -1);
    match call!(test, request, &raw mut done, &raw mut size) {
        NcclResult::SUCCESS => Ok((done == 1).then_some(size)),
        failed => Err(failed),
    }
}

/// A request stays as it is while devices hold on to memory, and ends as this once they let go.
fn ends_after_the_device_lets_go(peer: &mut Peer, request: &Request, code: NcclResult) {
    for _ in 0..WHILE {
        peer.hostile.poll();
        assert_eq!(
            test(request.handle),
            Ok(None),
            "the peer reaches its memory still"
        );
    }
    control().let_go();
    let ended = eventually("the request ends", || test(request.handle).transpose());
    assert_eq!(ended, Err(code));
}

#[test]
fn memory_is_lent_once_and_out_of_reach_before_it_is_given_back() {
    let _guard = SERIAL.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    fake();
    // Calls are counted from here on.
    control().heal();
    let plugin = Plugin::new();
    once_for_all_messages_and_comms(&plugin);
    no_error_before_the_memory_is_out_of_reach(&plugin);
    an_error_beside_a_transfer(&plugin);
    an_error_beside_new_transfers(&plugin);
    an_error_beside_a_transfer_without_end(&plugin);
    an_end_of_the_link(&plugin);
    deregistered_under_a_transfer(&plugin);
    refused_by_the_device(&plugin);
    beyond_the_limit(&plugin);
    assert_eq!(call!(close_listen, plugin.listener), NcclResult::SUCCESS);
    assert_eq!(call!(finalize, plugin.context), NcclResult::SUCCESS);
    // SAFETY: the threads that run read no variables.
    unsafe { std::env::set_var("DOORBELL_NCCL_LOANS", "false") };
    // Finalized, or it would be polled beside the next one, and take the fault that is meant for that.
    let plugin = Plugin::new();
    without_loans(&plugin);
    assert_eq!(call!(finalize, plugin.context), NcclResult::SUCCESS);
    // SAFETY: as above.
    unsafe { std::env::remove_var("DOORBELL_NCCL_LOANS") };
    of_a_device_that_cannot_be_polled();
}

/// Queue pairs of this process that were made since the fake was healed, without those that were destroyed.
fn queue_pairs() -> i64 {
    let control = control();
    i64::from(control.calls(Call::CreateQp)) - i64::from(control.calls(Call::DestroyQp))
}

/// A context that is of no further use ends its requests, once each. It destroys its queue pairs, so that no peer reaches memory that it
/// lent, and lets go of that.
fn of_a_device_that_cannot_be_polled() {
    let others = queue_pairs();
    let plugin = Plugin::new();
    let mut peer = Peer::new(&plugin);
    let memory = Memory::new(peer.comm);
    peer.message(&memory, 0);
    let moving = peer.receive(&memory, (8192, LONG));
    let waiting = peer.receive(&memory, (32_768, 8));
    peer.offer(&moving, LONG);
    peer.hostile.poll();
    // The transfer is joined, and the peer writes nothing, since it is not polled.
    for _ in 0..WHILE {
        assert_eq!(test(waiting.handle), Ok(None));
    }
    let failed = NcclResult::SYSTEM_ERROR;
    control().fail(Call::PollCq, 0, 5);
    for request in [moving, waiting] {
        assert_eq!(test(request.handle), Err(failed));
        // The test that finds the fault leaves its request to the next one.
        let mut tests = (0..2).map(|_| test(request.handle));
        let ended = Err(NcclResult::INVALID_ARGUMENT);
        assert!(tests.any(|again| again == ended), "a request that failed is over");
    }
    memory.deregister();
    let mut none: *mut c_void = null_mut();
    let again = call!(
        reg_mr,
        peer.comm,
        (&raw mut none).cast(),
        8,
        PTR_HOST,
        &raw mut none
    );
    assert_eq!(again, failed);
    drop(peer);
    eventually("the context has no queue pair", || {
        (queue_pairs() <= others).then_some(())
    });
    assert_eq!(call!(finalize, plugin.context), NcclResult::SUCCESS);
}

fn once_for_all_messages_and_comms(plugin: &Plugin) {
    let mut peer = Peer::new(plugin);
    let memory = Memory::new(peer.comm);
    let before = calls();
    for count in 0..10 {
        peer.message(&memory, 4096 * count + 1);
        // The first one lends it.
        assert_eq!(since(before), (1, 0));
    }
    // Another comm of the link, the same memory.
    let (comm, number) = peer.beside(plugin);
    let first = (peer.comm, peer.number);
    (peer.comm, peer.number) = (comm, number);
    peer.message(&memory, 0);
    assert_eq!(since(before), (1, 0));
    // Another peer: a loan of its own.
    let mut other = Peer::new(plugin);
    let before = calls();
    other.message(&memory, ROOM - LONG);
    other.message(&memory, 0);
    assert_eq!(since(before), (1, 0));
    // A range that was registered twice is two.
    let mut again = null_mut();
    let data = memory.room.as_ptr().cast_mut().cast();
    let registered = call!(reg_mr, comm, data, ROOM, PTR_HOST, &raw mut again);
    assert_eq!(registered, NcclResult::SUCCESS);
    assert_eq!(call!(dereg_mr, comm, again), NcclResult::SUCCESS);
    // A comm that is closed leaves the loan to others.
    let before = calls();
    assert_eq!(call!(close_recv, peer.comm), NcclResult::SUCCESS);
    (peer.comm, peer.number) = first;
    peer.message(&memory, 7);
    assert_eq!(since(before), (0, 0));
    memory.deregister();
    // Its own registration, and both loans.
    assert_eq!(since(before), (0, 3));
    peer.close();
    other.close();
}

fn no_error_before_the_memory_is_out_of_reach(plugin: &Plugin) {
    // The peer has more than fits; the peer gives up a transfer; the peer closes its comm.
    for case in 0..3 {
        let mut peer = Peer::new(plugin);
        let memory = Memory::new(peer.comm);
        peer.message(&memory, 0);
        let request = peer.receive(&memory, (8192, LONG));
        let before = calls();
        let code = match case {
            0 => {
                let number = request.number.to_be_bytes();
                peer.hostile
                    .say(&frame(super::EXCESS, 0, peer.number, number, &[1; 8]));
                NcclResult::INVALID_USAGE
            }
            1 => {
                let transfer = peer.offer(&request, LONG);
                peer.hostile.poll();
                for _ in 0..WHILE {
                    assert_eq!(test(request.handle), Ok(None));
                }
                let Hostile {
                    links, node, link, ..
                } = &mut peer.hostile;
                links.cancel(node, (*link, transfer)).unwrap();
                NcclResult::REMOTE_ERROR
            }
            _ => {
                peer.hostile
                    .say(&frame(super::CLOSE, 0, peer.number, [0; 4], &[]));
                NcclResult::REMOTE_ERROR
            }
        };
        control().hold_destroys();
        ends_after_the_device_lets_go(&mut peer, &request, code);
        assert_eq!(since(before), (0, 1), "{case}");
        let room = memory.deregister();
        assert!(room[8192..].iter().all(|byte| *byte == 0x5a));
        peer.close();
    }
}

/// A loan that ends waits for the transfers into it: they are done, and the link loses no rail.
fn an_error_beside_a_transfer(plugin: &Plugin) {
    let mut peer = Peer::new(plugin);
    let memory = Memory::new(peer.comm);
    peer.message(&memory, 0);
    let failing = peer.receive(&memory, (8192, LONG));
    let moving = peer.receive(&memory, (16_384, LONG));
    let before = calls();
    peer.offer(&moving, LONG);
    let Hostile { links, link, .. } = &mut peer.hostile;
    let number = failing.number.to_be_bytes();
    links
        .send(*link, &frame(super::EXCESS, 0, peer.number, number, &[1; 8]))
        .unwrap();
    peer.hostile.poll();
    // The transfer is joined by the loan, and the other request has failed.
    assert_eq!(test(failing.handle), Ok(None));
    assert_eq!(peer.end(&moving), Ok(LONG as i32));
    assert_eq!(peer.end(&failing), Err(NcclResult::INVALID_USAGE));
    assert_eq!(since(before), (0, 1));
    // The next one lends it anew.
    peer.message(&memory, 8192);
    assert_eq!(since(before), (1, 1));
    assert!(!peer.hostile.was_without_rail);
    memory.deregister();
    peer.close();
}

/// A peer that begins a transfer after the other, and ends none, holds up no error of a request beside them.
fn an_error_beside_new_transfers(plugin: &Plugin) {
    let mut peer = Peer::new(plugin);
    let memory = Memory::new(peer.comm);
    peer.message(&memory, 0);
    let failing = peer.receive(&memory, (8192, LONG));
    let done = peer.receive(&memory, (16_384, LONG));
    let moving = peer.receive(&memory, (32_768, LONG));
    peer.offer(&done, LONG);
    let number = failing.number.to_be_bytes();
    let excess = frame(super::EXCESS, 0, peer.number, number, &[1; 8]);
    peer.hostile.say(&excess);
    assert_eq!(peer.end(&done), Ok(LONG as i32));
    let before = calls();
    control().hold_destroys();
    assert_eq!(test(failing.handle), Ok(None));
    control().let_go();
    // The loan is over, and the next transfer gets another one, while the request is not tested.
    eventually("the loan is over", || {
        assert_eq!(test(moving.handle), Ok(None));
        (since(before).1 > 0).then_some(())
    });
    for _ in 0..WHILE {
        assert_eq!(test(moving.handle), Ok(None));
    }
    let before = calls();
    peer.offer(&moving, LONG);
    eventually("the next transfer is joined by another loan", || {
        peer.hostile
            .links
            .poll(&peer.hostile.node, &mut peer.hostile.workers, |_, _| {})
            .unwrap();
        assert_eq!(test(moving.handle), Ok(None));
        (since(before).0 > 0).then_some(())
    });
    let ended = eventually("the first request ends", || test(failing.handle).transpose());
    assert_eq!(ended, Err(NcclResult::INVALID_USAGE));
    assert_eq!(peer.end(&moving), Ok(LONG as i32));
    memory.deregister();
    peer.close();
}

/// A request of several messages, one of which has failed, and another one of which its peer leaves open.
fn an_error_beside_a_transfer_without_end(plugin: &Plugin) {
    for is_closed in [false, true] {
        let mut peer = Peer::new(plugin);
        let memory = Memory::new(peer.comm);
        let mut at: [*mut c_void; 2] =
            [0, 8192].map(|at| memory.room.as_ptr().wrapping_add(at).cast_mut().cast());
        let (mut sizes, mut tags, mut memories) = ([LONG; 2], [0, 1], [memory.handle; 2]);
        let mut handle = null_mut();
        let (at, sizes) = (at.as_mut_ptr(), sizes.as_mut_ptr());
        let (tags, memories) = (tags.as_mut_ptr(), memories.as_mut_ptr());
        let posted = call!(
            irecv,
            peer.comm,
            2,
            at,
            sizes,
            tags,
            memories,
            null_mut(),
            &raw mut handle
        );
        assert_eq!((posted, handle.is_null()), (NcclResult::SUCCESS, false));
        let clear = peer
            .hostile
            .hear_beside(CLEAR, || assert_eq!(test(handle), Ok(None)));
        let number = word(&clear[8..12]);
        let request = Request {
            handle,
            number: u32::from_be_bytes(number),
        };
        peer.offer(&request, LONG);
        let failure = match is_closed {
            false => frame(super::EXCESS, 1, peer.number, number, &[1; 8]),
            true => frame(super::CLOSE, 0, peer.number, [0; 4], &[]),
        };
        let Hostile { links, link, .. } = &mut peer.hostile;
        links.send(*link, &failure).unwrap();
        peer.hostile.poll();
        // Joined, and nothing comes: the peer is polled no more.
        let ended = eventually("the request ends", || test(handle).transpose());
        let codes = [NcclResult::INVALID_USAGE, NcclResult::REMOTE_ERROR];
        assert!(ended.is_err_and(|code| codes.contains(&code)));
        memory.deregister();
        peer.close();
    }
}

fn an_end_of_the_link(plugin: &Plugin) {
    let mut peer = Peer::new(plugin);
    let memory = Memory::new(peer.comm);
    peer.message(&memory, 0);
    let request = peer.receive(&memory, (8192, LONG));
    control().hold_destroys();
    // No message of a plugin: its link ends.
    peer.hostile.say(b"GET / HTTP/1.1\r\n\r\n");
    ends_after_the_device_lets_go(&mut peer, &request, NcclResult::REMOTE_ERROR);
    memory.deregister();
    peer.close();
}

fn deregistered_under_a_transfer(plugin: &Plugin) {
    let mut peer = Peer::new(plugin);
    let memory = Memory::new(peer.comm);
    peer.message(&memory, 0);
    let request = peer.receive(&memory, (8192, LONG));
    peer.offer(&request, LONG);
    peer.hostile.poll();
    for _ in 0..WHILE {
        // The plugin joins it, and nothing comes: the peer is not polled.
        assert_eq!(test(request.handle), Ok(None));
    }
    let before = calls();
    let room = memory.deregister();
    assert_eq!(since(before), (0, 2));
    assert_eq!(test(request.handle), Err(NcclResult::INVALID_USAGE));
    for _ in 0..WHILE {
        peer.hostile.poll();
    }
    assert!(room[8192..].iter().all(|byte| *byte == 0x5a));
    peer.close();
}

fn refused_by_the_device(plugin: &Plugin) {
    let mut peer = Peer::new(plugin);
    let memory = Memory::new(peer.comm);
    let request = peer.receive(&memory, (0, LONG));
    control().fail(Call::RegMr, 0, 12);
    peer.offer(&request, LONG);
    assert_eq!(peer.end(&request), Err(NcclResult::SYSTEM_ERROR));
    // It is not asked for again: later transfers register their parts.
    let before = calls();
    peer.message(&memory, 100);
    peer.message(&memory, 200);
    assert_eq!(since(before), (2, 2));
    memory.deregister();
    peer.close();
}

/// Loans of a link at most.
const LOANS_MAX: u32 = 64;

fn beyond_the_limit(plugin: &Plugin) {
    let mut peer = Peer::new(plugin);
    let memories: Vec<_> = (0..LOANS_MAX).map(|_| Memory::new(peer.comm)).collect();
    let before = calls();
    for memory in &memories {
        peer.message(memory, 0);
    }
    assert_eq!(since(before), (LOANS_MAX, 0));
    // One more registers memory for each transfer, and withdraws it.
    let more = Memory::new(peer.comm);
    let before = calls();
    for count in 1..=2 {
        peer.message(&more, 0);
        assert_eq!(since(before), (count, count));
    }
    let mut memories = memories.into_iter();
    memories.next().unwrap().deregister();
    let before = calls();
    peer.message(&more, 0);
    peer.message(&more, 9000);
    assert_eq!(since(before), (1, 0));
    memories.for_each(|memory| drop(memory.deregister()));
    more.deregister();
    peer.close();
}

fn without_loans(plugin: &Plugin) {
    let mut peer = Peer::new(plugin);
    let memory = Memory::new(peer.comm);
    let before = calls();
    for count in 1..=3 {
        peer.message(&memory, 0);
        assert_eq!(since(before), (count, count));
    }
    memory.deregister();
    peer.close();
}
