//! Ranges of windows: how long a window is there, and what its slots are.

use doorbell_core::WcStatus;
use doorbell_core::provider::{
    Arena, Attacher as _, CellsError, Completion, Operation, PostFlags, ProtectionDomain, Provider,
    RemoteAccess, RemoteAddress, SendBatch, SendQueue, Slot, Window, WindowConfig, WindowRange,
};

use super::{Rig, SLOTS, Side, connected, poll_until};

/// Posts a message of eight bytes of a window.
fn post<P: Provider>(side: &mut Side<P>, window: &P::Window) {
    let range = WindowRange {
        window,
        offset: 8,
        bytes: 8,
    };
    let mut batch = side.send.stage();
    batch
        .push_ranges(Operation::Send, [range], PostFlags::SIGNALED)
        .unwrap();
    batch.ring().unwrap();
}

/// The slot of the range of a message that a side sent.
fn given_back<P: Provider>(side: &mut Side<P>) -> P::Slot {
    let completion = poll_until(&mut side.send_completions, 1).remove(0);
    let mut back = None;
    side.send
        .retire(completion.lend(), |_, slot| back = Some(slot))
        .unwrap();
    back.unwrap()
}

fn window<P: Provider>(side: &Side<P>) -> P::Window {
    let config = WindowConfig::new(64, RemoteAccess::ALL);
    side.domain.window(&config).unwrap()
}

pub(crate) fn a_window_is_there_while_a_request_is_in_flight<R: Rig>(rig: &R) {
    let [mut near, mut far] = connected(rig);
    let ours = window(&near);
    let remote = RemoteAddress::new(ours.remote().address(), ours.remote().rkey());
    // It waits for a receive.
    post(&mut near, &ours);
    drop(ours);
    // The window has its key to itself.
    let others: Vec<_> = (0..4).map(|_| window(&near)).collect();
    assert!(others.iter().all(|other| other.remote().rkey() != remote.rkey()));
    far.post(
        Operation::Write(RemoteAddress::new(remote.address() + 8, remote.rkey())),
        b"by a peer",
    );
    assert_eq!(far.status(), WcStatus::SUCCESS);
    far.post_receives(1);
    assert_eq!(far.received(1)[0].payload, b"by a pee");
    let slot = given_back(&mut near);
    far.post(Operation::Write(remote), b"again");
    assert_eq!(far.status(), WcStatus::SUCCESS, "its slot is kept");
    drop(slot);
    far.post(Operation::Write(remote), b"late");
    assert_eq!(far.status(), WcStatus::REM_ACCESS_ERR);
}

pub(crate) fn the_slot_of_a_range_has_no_bytes<R: Rig>(rig: &R) {
    let [mut near, mut far] = connected(rig);
    let ours = window(&near);
    ours.copy_in(8, b"secret..").unwrap();
    let mut slot = || {
        far.post_receives(1);
        post(&mut near, &ours);
        assert_eq!(far.received(1)[0].payload, b"secret..");
        given_back(&mut near)
    };
    let [mut first, second, third] = [(); 3].map(|()| slot());
    let cells: Vec<_> = (0..16).map(|_| slot()).collect();
    first.set_len_bytes(8);
    assert_eq!(
        (
            first.capacity_bytes(),
            first.len_bytes(),
            first.buffer_mut().len()
        ),
        (0, 0, 0)
    );
    assert_eq!((first.payload(), first.domain()), (&[][..], ours.domain()));
    let attacher = near.arena.attacher();
    assert!(!attacher.owns(&first));
    let detached = first.detach();
    assert!(near.arena.attach(detached).is_none() && attacher.attach(detached).is_none());
    near.arena.release(second);
    assert_eq!(near.slots_home(), SLOTS);
    // Posted as a slot it is a message without bytes.
    far.post_receives(1);
    near.post_slots(Operation::Send, [third], PostFlags::SIGNALED);
    assert_eq!(far.received(1)[0].payload, b"");
    near.sent(1);
    assert_eq!(near.send.furnish(cells), Err(CellsError::NoBytes));
    assert!(!ours.is_in_flight());
}
