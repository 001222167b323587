//! Frames of a peer that lies: the session refuses them, and nothing worse happens.

use core::time::Duration;

use doorbell_core::session::{
    Action, Epoch, FinalReason, Kept, Received, Retained, Role, Sequence, Session, SessionConfig, SessionId,
    Violation,
};
use doorbell_core::wire::{Attach, AttachParameters, Refusal, RefusalReason, SessionFrame, SessionHeader};
use doorbell_core::{Deadline, Instant};
use proptest::collection::vec;
use proptest::prelude::{Strategy, any, prop_oneof, proptest};

type Machine = Session<[Retained; 8], [Kept; 8]>;

const EPOCH: Epoch = Epoch::from_wire(1);
const NOW: Instant = Instant::from_ns(0);

fn id() -> SessionId {
    SessionId::new(77).unwrap()
}

fn said(epoch: Epoch) -> AttachParameters {
    AttachParameters {
        session: id(),
        epoch,
        rail: 0,
        begins: true,
        oldest: Sequence(0),
        expected: Sequence(0),
        window: 8,
    }
}

/// A session that accepted a connection, and has sent so many messages.
fn responder(sent: u64) -> Machine {
    let tables = ([Retained::default(); 8], [Kept::default(); 8]);
    let mut session = Session::new(SessionConfig::default(), Role::Responder, id(), tables, NOW);
    session.offered(&said(EPOCH), 1000, NOW).unwrap();
    for _ in 0..sent {
        session.push(1, 16).unwrap();
    }
    while let Some(action) = session.poll_action(NOW, 0) {
        session.did(&action, NOW);
    }
    session
}

fn hear(session: &mut Machine, bytes: &[u8]) -> Result<Received, Violation> {
    session.received(0, &SessionFrame::parse(bytes).unwrap(), NOW)
}

fn data(epoch: u32, sequence: u64, expected: u64, first: bool, last: bool) -> Vec<u8> {
    let header = SessionHeader::data(
        Epoch::from_wire(epoch),
        Sequence(sequence),
        Sequence(expected),
        first,
        last,
    );
    [&header.to_bytes()[..], b"x"].concat()
}

#[test]
fn a_message_that_comes_again_is_counted_and_taken_once() {
    let mut session = responder(0);
    let message = data(1, 0, 0, true, true);
    let taken = hear(&mut session, &message).unwrap();
    assert!(!matches!(taken, Received::Nothing), "{taken:?}");
    assert_eq!(session.counts().duplicates, 0);
    assert_eq!(hear(&mut session, &message), Ok(Received::Nothing));
    assert_eq!(session.counts().duplicates, 1);
}

#[test]
fn a_session_that_its_caller_fails_is_over_for_that_reason() {
    let mut session = responder(1);
    session.fail(FinalReason::Unsuitable);
    assert_eq!(session.over(), Some(FinalReason::Unsuitable));
    assert_eq!(session.poll_action(NOW, 0), Some(Action::Shut { rail: 0 }));
    session.fail(FinalReason::Closed);
    assert_eq!(
        session.over(),
        Some(FinalReason::Unsuitable),
        "the first one counts"
    );
}

#[test]
fn a_frame_of_another_epoch_is_refused_and_counted() {
    let mut session = responder(0);
    for epoch in [2, 7, u32::MAX] {
        assert_eq!(
            hear(&mut session, &data(epoch, 0, 0, true, true)),
            Ok(Received::Nothing)
        );
    }
    assert_eq!(session.counts().old_epoch, 3);
    assert_eq!(
        hear(&mut session, &data(1, 0, 0, true, true)),
        Ok(Received::InOrder)
    );
    // A later connection replaces it; frames of the earlier one no longer count.
    let mut later = said(Epoch::from_wire(4));
    later.expected = Sequence(0);
    assert!(session.offered(&later, 1000, NOW).unwrap().replaces);
    assert_eq!(
        hear(&mut session, &data(1, 1, 0, true, true)),
        Ok(Received::Nothing)
    );
    assert_eq!(session.counts().old_epoch, 4);
    for old in [1, 3, 4] {
        assert!(session.offered(&said(Epoch::from_wire(old)), 1000, NOW).is_err());
    }
}

#[test]
fn each_lie_has_its_name() {
    let cases = [
        (data(1, 8, 0, true, true), Violation::OutOfPlace),
        (data(1, u64::MAX, 0, true, true), Violation::OutOfPlace),
        (data(1, 0, 0, false, true), Violation::OutOfPlace),
        (data(1, 0, 4, true, true), Violation::AcknowledgedUnsent),
        (data(1, 0, u64::MAX, true, true), Violation::AcknowledgedUnsent),
        (
            SessionHeader::acknowledgement_only(EPOCH, Sequence(4))
                .to_bytes()
                .to_vec(),
            Violation::AcknowledgedUnsent,
        ),
        (
            Attach::new(&said(EPOCH)).to_bytes().to_vec(),
            Violation::Malformed,
        ),
    ];
    for (bytes, violation) in cases {
        let mut session = responder(3);
        assert_eq!(hear(&mut session, &bytes), Err(violation));
        assert_eq!(session.over(), Some(FinalReason::Violation(violation)));
        assert_eq!(session.poll_action(NOW, 0), Some(Action::Shut { rail: 0 }));
        assert_eq!(session.poll_action(NOW, 0), None);
    }
    let mut session = responder(0);
    hear(&mut session, &data(1, 0, 0, true, true)).unwrap();
    let early = SessionHeader::farewell(EPOCH, Sequence(0), Sequence(0)).to_bytes();
    assert_eq!(hear(&mut session, &early), Err(Violation::FarewellEarly));
    let mut session = responder(0);
    let farewell = SessionHeader::farewell(EPOCH, Sequence(2), Sequence(0)).to_bytes();
    assert_eq!(hear(&mut session, &farewell), Ok(Received::Nothing));
    assert_eq!(
        hear(&mut session, &data(1, 2, 0, true, true)),
        Err(Violation::FarewellEarly)
    );
}

#[test]
fn a_peer_that_has_ended_it_says_why_and_nothing_else_of_a_rail_that_stands() {
    let refusal = |epoch, reason| Refusal::new(Epoch::from_wire(epoch), reason).to_bytes();
    for reason in 0..=u8::MAX {
        let reason = RefusalReason(reason);
        let mut session = responder(1);
        assert_eq!(
            hear(&mut session, &refusal(2, reason)).is_ok(),
            reason.is_end(),
            "{reason:?}"
        );
        // The refusal is of an earlier connection, so it changes nothing.
        assert_eq!(session.over().is_none(), reason.is_end());
        let mut session = responder(1);
        let heard = hear(&mut session, &refusal(1, reason));
        let ended = match reason {
            RefusalReason::OVER => FinalReason::PeerClosed,
            reason if reason.is_end() => FinalReason::EndedByPeer(reason),
            _ => FinalReason::Violation(Violation::Malformed),
        };
        assert_eq!(heard.is_ok(), reason.is_end());
        assert_eq!(session.over(), Some(ended));
        // The side that the refusal ended sends no refusal back.
        assert_eq!(session.last_word().is_none(), reason.is_end());
    }
    // A side that has nothing unacknowledged, and closes, has closed the session.
    let mut session = responder(0);
    session.close(Deadline::after(NOW, Duration::from_secs(1)));
    hear(&mut session, &refusal(1, RefusalReason::OVER)).unwrap();
    assert_eq!(session.over(), Some(FinalReason::Closed));
}

#[test]
fn a_session_is_not_taken_over_by_one_that_contradicts_it() {
    let mut session = responder(3);
    hear(&mut session, &data(1, 0, 0, true, true)).unwrap();
    let mut gone = said(Epoch::from_wire(2));
    gone.oldest = Sequence(2);
    assert!(session.offered(&gone, 0, NOW).is_err());
    let mut unsent = said(Epoch::from_wire(2));
    unsent.expected = Sequence(4);
    assert!(session.offered(&unsent, 0, NOW).is_err());
    let mut other = said(Epoch::from_wire(2));
    other.session = SessionId::new(78).unwrap();
    assert!(session.offered(&other, 0, NOW).is_err());
    assert_eq!(session.over(), None);
    assert_eq!(session.rail_epoch(0), EPOCH);
    let mut right = said(Epoch::from_wire(2));
    (right.oldest, right.expected) = (Sequence(1), Sequence(3));
    assert!(session.offered(&right, 0, NOW).unwrap().replaces);
    assert!(session.is_drained());
}

fn frame() -> impl Strategy<Value = Vec<u8>> {
    let small = || prop_oneof![0..12_u64, any::<u64>()];
    let header = (0..6_u8, 0..8_u8, 0..4_u32, small(), small()).prop_map(
        |(kind, flags, epoch, sequence, expected)| {
            let mut bytes = vec![1, kind, flags, 0];
            bytes.extend(epoch.to_be_bytes());
            bytes.extend(sequence.to_be_bytes());
            bytes.extend(expected.to_be_bytes());
            bytes
        },
    );
    (header, vec(any::<u8>(), 0..20)).prop_map(|(header, rest)| [header, rest].concat())
}

proptest! {
    #[test]
    fn nothing_a_peer_sends_makes_it_panic_or_go_back(
        frames in vec((frame(), 0..9_u8, 0..3_u8), 0..60),
        sent in 0..8_u64,
    ) {
        let mut session = responder(sent);
        let (mut expected, mut now_ns) = (0, 0_u64);
        for (bytes, rail, delay) in frames {
            now_ns += u64::from(delay) * 30_000_000;
            let now = Instant::from_ns(now_ns);
            let Ok(frame) = SessionFrame::parse(&bytes) else { continue };
            if let SessionFrame::Attach(said) = frame {
                let _ = session.offered(&said, 1, now);
            }
            if let Ok(Received::InOrder) = session.received(rail, &frame, now) {
                expected += 1;
                while let Ok(Some(held)) = session.take_held() {
                    assert!(held.place < 8);
                    expected += 1;
                }
            }
            session.begin_turn();
            let mut actions = 0;
            while let Some(action) = session.poll_action(now, 5) {
                if let Action::Acknowledge { header, .. } = action {
                    assert_eq!(header.expected(), Sequence(expected));
                }
                session.did(&action, now);
                actions += 1;
                assert!(actions < 100, "{action:?}");
            }
            while session.poll_event().is_some() {}
            assert!(session.wake(now).is_none_or(|wake| wake.instant() > now));
        }
    }
}
