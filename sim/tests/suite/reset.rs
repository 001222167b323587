//! Effects of a reset: the slots it returns, and the completions it makes worthless.

use doorbell_core::QpState;
use doorbell_core::provider::{
    Completion as _, Operation, ProviderError, QueuePair, ReceiveQueue, SendQueue,
};

use super::{Rig, SLOTS, Side, USUAL, connected, poll_nothing, poll_until};

fn reset<R: Rig>(side: &mut Side<R::P>) -> Result<(), ProviderError> {
    side.control.reset(&mut side.send, &mut side.receive)
}

pub(crate) fn a_reset_sends_all_slots_home_once<R: Rig>(rig: &R) {
    let [mut near, mut far] = connected(rig);
    for _ in 0..3 {
        near.post_receives(2);
        // Done, and neither polled nor retired; and one that waits for a receive.
        near.post(Operation::Write(far.at(0)), b"done");
        near.post(Operation::Send, b"waits");
        assert_eq!(reset::<R>(&mut near), Ok(()));
        assert_eq!(near.state(), QpState::Reset);
        assert_eq!([near.send.in_flight(), near.receive.in_flight()], [0, 0]);
        assert_eq!(near.slots_home(), SLOTS);
        reset::<R>(&mut far).unwrap();
        near.connect(&USUAL, far.name());
        far.connect(&USUAL, near.name());
    }
    far.post_receives(1);
    near.post(Operation::Send, b"again");
    // Completions from before the reset come first, and name nothing.
    let completions = poll_until(&mut near.send_completions, 4);
    let retired: Vec<bool> = completions
        .into_iter()
        .map(|completion| near.send.retire(completion.lend(), |_, slot| drop(slot)).is_ok())
        .collect();
    assert_eq!(retired, [false, false, false, true]);
    assert_eq!(near.send.rejected(), 3);
    assert_eq!(far.received(1)[0].payload, b"again");
}

pub(crate) fn a_completion_kept_over_a_reset_is_rejected<R: Rig>(rig: &R) {
    let [mut near, mut far] = connected(rig);
    near.post(Operation::Write(far.at(0)), b"kept");
    let kept = poll_until(&mut near.send_completions, 1).remove(0);
    reset::<R>(&mut near).unwrap();
    reset::<R>(&mut far).unwrap();
    near.connect(&USUAL, far.name());
    far.connect(&USUAL, near.name());
    near.post(Operation::Write(far.at(0)), b"fresh");
    assert!(near.send.retire(kept.lend(), |_, _| panic!("of before")).is_err());
    assert_eq!(near.sent(1)[0].slots[0].1, b"fresh");
    poll_nothing(&mut near.send_completions);
}

pub(crate) fn a_reset_wants_both_its_halves<R: Rig>(rig: &R) {
    let [mut near, mut far] = connected(rig);
    near.post_receives(1);
    let refused = [
        near.control.reset(&mut far.send, &mut near.receive),
        near.control.reset(&mut near.send, &mut far.receive),
    ];
    for outcome in refused {
        assert_eq!(outcome.unwrap_err().errno, 22);
    }
    assert_eq!([near.state(), far.state()], [QpState::ReadyToSend; 2]);
    assert_eq!(near.receive.in_flight(), 1);
}
