//! States: which transitions there are, what they check, and when posting is allowed.

use doorbell_core::provider::{
    Operation, PostFlags, PushError, QueuePair, ReadyToReceive, ReadyToSend, ReceiveBatch, ReceiveQueue,
    RemoteAccess, SendBatch, SendQueue,
};
use doorbell_core::{Mtu, QpState, WcStatus};

use super::{INLINE_BYTES, Rig, Side, USUAL, connected, sides, to_send};

const EINVAL: i32 = 22;

pub(crate) fn s01_only_known_transitions<R: Rig>(rig: &R) {
    let [mut near, mut far] = sides(rig, [USUAL; 2]);
    let to_receive = near.to_receive(&USUAL, far.name());
    // Whether INIT, RTR, RTS and ERR can be entered now; each tried only where it must fail.
    let refused = |side: &mut Side<R::P>, which: &[QpState]| {
        let before = side.state();
        for next in which {
            let outcome = match next {
                QpState::Init => side.control.initialize(1, RemoteAccess::ALL),
                QpState::ReadyToReceive => side.control.ready_to_receive(&to_receive),
                QpState::ReadyToSend => side.control.ready_to_send(&to_send(&USUAL)),
                _ => side.control.fail(),
            };
            assert_eq!(outcome.unwrap_err().errno, EINVAL, "{before} -> {next}");
            assert_eq!(side.state(), before);
        }
    };
    use QpState::{Error, Init, ReadyToReceive, ReadyToSend, Reset};
    assert_eq!(near.state(), Reset);
    refused(&mut near, &[ReadyToReceive, ReadyToSend, Error]);
    near.initialize(&USUAL);
    assert_eq!(near.state(), Init);
    refused(&mut near, &[Init, ReadyToSend]);
    near.control.ready_to_receive(&to_receive).unwrap();
    assert_eq!(near.state(), ReadyToReceive);
    refused(&mut near, &[Init, ReadyToReceive]);
    near.control.ready_to_send(&to_send(&USUAL)).unwrap();
    assert_eq!(near.state(), ReadyToSend);
    refused(&mut near, &[Init, ReadyToReceive, ReadyToSend]);
    near.control.fail().unwrap();
    assert_eq!(near.state(), Error);
    refused(&mut near, &[Init, ReadyToReceive, ReadyToSend]);
    near.control.fail().unwrap();
    far.initialize(&USUAL);
    far.control.fail().unwrap();
    assert_eq!(far.state(), Error);
}

pub(crate) fn s02_a_bad_modify_changes_nothing<R: Rig>(rig: &R) {
    let [mut near, far] = sides(rig, [USUAL; 2]);
    assert!(
        near.control.initialize(200, RemoteAccess::ALL).is_err(),
        "no such port"
    );
    assert_eq!(near.state(), QpState::Reset);
    near.initialize(&USUAL);
    let good = near.to_receive(&USUAL, far.name());
    let bad: [fn(&mut ReadyToReceive); 6] = [
        |wanted| wanted.min_rnr_timer = 32,
        |wanted| wanted.address.flow_label = 1 << 20,
        |wanted| wanted.address.service_level = 16,
        |wanted| wanted.address.source_gid_index = 250,
        |wanted| wanted.address.port = 200,
        |wanted| wanted.path_mtu = Mtu::B4096,
    ];
    for spoil in bad {
        let mut wanted = good;
        spoil(&mut wanted);
        assert_eq!(
            near.control.ready_to_receive(&wanted).unwrap_err().errno,
            EINVAL,
            "{wanted:?}"
        );
        assert_eq!(near.state(), QpState::Init);
    }
    near.control.ready_to_receive(&good).unwrap();
    let bad: [fn(&mut ReadyToSend); 4] = [
        |wanted| wanted.timeout = 0,
        |wanted| wanted.timeout = 32,
        |wanted| wanted.retry_count = 8,
        |wanted| wanted.rnr_retry = 8,
    ];
    for spoil in bad {
        let mut wanted = to_send(&USUAL);
        spoil(&mut wanted);
        assert_eq!(
            near.control.ready_to_send(&wanted).unwrap_err().errno,
            EINVAL,
            "{wanted:?}"
        );
        assert_eq!(near.state(), QpState::ReadyToReceive);
    }
    near.control.ready_to_send(&to_send(&USUAL)).unwrap();
}

/// Why a send and a receive cannot be staged now.
fn refusals<R: Rig>(side: &mut Side<R::P>) -> [Option<PushError>; 2] {
    let slot = side.slot(b"x");
    let send = side
        .send
        .stage()
        .push(Operation::Send, [slot], PostFlags::empty());
    let slot = side.slot(b"");
    let receive = side.receive.stage().push([slot]);
    [
        send.err().map(|refused| refused.reason),
        receive.err().map(|refused| refused.reason),
    ]
}

pub(crate) fn s03_posting_is_allowed_by_state<R: Rig>(rig: &R) {
    use QpState::{Init, ReadyToReceive, Reset};
    let [mut near, mut far] = sides(rig, [USUAL; 2]);
    let state = |state| Some(PushError::State(state));
    assert_eq!(refusals::<R>(&mut near), [state(Reset), state(Reset)]);
    near.initialize(&USUAL);
    assert_eq!(refusals::<R>(&mut near), [state(Init), None]);
    let to_receive = near.to_receive(&USUAL, far.name());
    near.control.ready_to_receive(&to_receive).unwrap();
    assert_eq!(refusals::<R>(&mut near), [state(ReadyToReceive), None]);
    near.control.ready_to_send(&to_send(&USUAL)).unwrap();
    assert_eq!(refusals::<R>(&mut near), [None, None]);
    assert_eq!(near.slots_home(), super::SLOTS, "what was not rung went home");

    // A receive posted in INIT is there when the first message comes.
    far.initialize(&USUAL);
    far.post_receives(1);
    let to_receive = far.to_receive(&USUAL, near.name());
    far.control.ready_to_receive(&to_receive).unwrap();
    near.post(Operation::Send, b"early");
    assert!(near.status().is_success());
    assert_eq!(far.received(1)[0].payload, b"early");
}

pub(crate) fn s03_in_error_both_are_accepted_and_flushed<R: Rig>(rig: &R) {
    let [mut near, _far] = connected(rig);
    near.control.fail().unwrap();
    near.post_with(Operation::Send, b"x", PostFlags::empty());
    if rig.quirks().late_requests_vanish {
        super::poll_nothing(&mut near.send_completions);
    } else {
        assert_eq!(near.status(), WcStatus::WR_FLUSH_ERR);
    }
    near.post_receives(1);
    if !rig.quirks().late_receives_are_flushed {
        super::poll_nothing(&mut near.receive_completions);
        near.post_with(Operation::Send, b"y", PostFlags::empty());
    }
    assert_eq!(near.received(1)[0].arrival.status, WcStatus::WR_FLUSH_ERR);
}

pub(crate) fn s04_what_was_staged_before_a_refused_request_is_posted<R: Rig>(rig: &R) {
    let [mut near, mut far] = connected(rig);
    far.post_receives(2);
    let (good, bad) = (near.slot(b"good"), near.slot(&[0; INLINE_BYTES as usize + 1]));
    let mut batch = near.send.stage();
    batch
        .push(Operation::Send, [good], PostFlags::SIGNALED)
        .map_err(|refused| refused.reason)
        .unwrap();
    let refused = batch.push(Operation::Send, [bad], PostFlags::INLINE).unwrap_err();
    let PushError::InlineTooLong { bytes, bytes_max } = refused.reason else {
        panic!("{}", refused.reason);
    };
    assert!(bytes > bytes_max);
    assert_eq!(batch.staged(), 1);
    assert_eq!(batch.ring(), Ok(1));
    assert!(near.status().is_success());
    assert_eq!(far.received(1)[0].payload, b"good");
    let [slot] = refused.item;
    assert_eq!(
        doorbell_core::provider::Slot::len_bytes(&slot),
        INLINE_BYTES as usize + 1
    );
}

pub(crate) fn s29_more_than_was_granted_is_refused<R: Rig>(rig: &R) {
    let [mut near, mut far] = connected(rig);
    let limits = near.control.limits();
    assert!(limits.send_depth >= super::DEPTH && limits.inline_bytes_max >= INLINE_BYTES);

    let slots = [0; 4].map(|_| near.slot(b"x"));
    if limits.gather_max < 4 {
        let refused = near
            .send
            .stage()
            .push(Operation::Send, slots, PostFlags::empty())
            .unwrap_err();
        let expected = PushError::TooManySegments {
            segments: 4,
            segments_max: limits.gather_max,
        };
        assert_eq!(refused.reason, expected);
    }
    let long = vec![0; limits.inline_bytes_max as usize + 1];
    let refused = near
        .send
        .stage()
        .push_inline(Operation::Send, &long, PostFlags::empty())
        .unwrap_err();
    assert!(matches!(refused, PushError::InlineTooLong { .. }));
    let read = Operation::Read(far.at(0));
    let refused = near
        .send
        .stage()
        .push_inline(read, b"", PostFlags::empty())
        .unwrap_err();
    assert_eq!(refused, PushError::NotInline);
    let atomic = Operation::FetchAndAdd {
        remote: far.at(0),
        add: 1,
    };
    let refused = near
        .send
        .stage()
        .push(atomic, [], PostFlags::empty())
        .unwrap_err();
    assert_eq!(refused.reason, PushError::AtomicNeedsEightBytes);

    // As many as fit, and one more.
    let mut batch = near.send.stage();
    for _ in 0..limits.send_depth {
        batch
            .push_inline(Operation::Send, b"x", PostFlags::SIGNALED)
            .unwrap();
    }
    assert_eq!(
        batch.push_inline(Operation::Send, b"x", PostFlags::empty()),
        Err(PushError::Full)
    );
    batch.ring().unwrap();
    assert_eq!(near.send.room(), 0);
    far.post_receives(limits.receive_depth);
    let slot = far.slot(b"");
    assert_eq!(
        far.receive.stage().push([slot]).unwrap_err().reason,
        PushError::Full
    );
    near.sent(limits.send_depth as usize);
    assert_eq!(near.send.room(), limits.send_depth);
}
