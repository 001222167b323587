//! Times at which a rail without a connection is connected again.

use core::time::Duration;

use doorbell_core::session::{
    Action, Epoch, FinalReason, HealthState, Kept, Retained, Role, Sequence, Session, SessionConfig,
    SessionEvent, SessionId,
};
use doorbell_core::wire::{Attach, AttachParameters, Refusal, RefusalReason, SessionFrame};
use doorbell_core::{Deadline, Instant};

type Machine = Session<[Retained; 8], [Kept; 8]>;

const NOW: Instant = Instant::from_ns(0);

/// A session that connects so many rails, and has begun to.
fn initiator(rails: u8) -> Machine {
    let id = SessionId::new(77).unwrap();
    let tables = ([Retained::default(); 8], [Kept::default(); 8]);
    let mut session = Session::new(SessionConfig::default(), Role::Initiator, id, tables, NOW);
    for rail in 0..rails {
        assert_eq!(session.add_rail(1000, NOW), Some(rail));
    }
    for rail in 0..rails {
        let epoch = Epoch::from_wire(u32::from(rail) + 1);
        assert_eq!(session.poll_action(NOW, 0), Some(Action::Connect { rail, epoch }));
    }
    session
}

/// A peer's attach on a connection: it has taken so many fragments.
fn said(epoch: u32, expected: u64) -> AttachParameters {
    AttachParameters {
        session: SessionId::new(77).unwrap(),
        epoch: Epoch::from_wire(epoch),
        rail: 0,
        begins: true,
        oldest: Sequence(0),
        expected: Sequence(expected),
        window: 8,
    }
}

/// A post that failed in doubt may have reached the peer, which acknowledges it on the next connection.
#[test]
fn a_fragment_in_doubt_may_be_acknowledged_and_one_that_was_refused_may_not() {
    for is_in_doubt in [true, false] {
        let tables = ([Retained::default(); 8], [Kept::default(); 8]);
        let id = SessionId::new(77).unwrap();
        let mut session: Machine = Session::new(SessionConfig::default(), Role::Responder, id, tables, NOW);
        session.offered(&said(1, 0), 1000, NOW).unwrap();
        let attach = session.poll_action(NOW, 0).unwrap();
        session.did(&attach, NOW);
        session.push(1, 16).unwrap();
        let transmit = session.poll_action(NOW, 0).unwrap();
        assert!(matches!(transmit, Action::Transmit { .. }), "{transmit:?}");
        if is_in_doubt {
            session.in_doubt(&transmit, NOW);
        }
        session.failed(0, NOW, 0);
        // The fragment is retransmitted if the peer does not have it.
        let mut again = session
            .offered(&said(2, 0), 1000, NOW)
            .map(|_| Vec::new())
            .unwrap();
        while let Some(action) = session.poll_action(NOW, 0) {
            again.push(action);
            if matches!(action, Action::Transmit { .. }) {
                session.blocked(0);
                break;
            }
            session.did(&action, NOW);
        }
        assert!(
            again
                .iter()
                .any(|action| matches!(action, Action::Transmit { .. }))
        );
        session.failed(0, NOW, 0);
        let offered = session.offered(&said(3, 1), 1000, NOW);
        match is_in_doubt {
            true => {
                assert!(offered.is_ok() && session.is_drained(), "{offered:?}");
                let mut events = core::iter::from_fn(|| session.poll_event());
                let done = SessionEvent::Done { through: Sequence(0) };
                assert!(events.any(|event| event == done));
            }
            false => assert_eq!(offered, Err(RefusalReason::CONTRADICTION)),
        }
    }
}

/// Progress of the peer is awaited since then, and not since the last message long before.
#[test]
fn a_fragment_in_doubt_behind_a_silence_is_no_stall() {
    let tables = ([Retained::default(); 8], [Kept::default(); 8]);
    let id = SessionId::new(77).unwrap();
    let config = SessionConfig::default();
    let mut session: Machine = Session::new(config, Role::Responder, id, tables, NOW);
    for rail in [0, 1] {
        let said = AttachParameters { rail, ..said(1, 0) };
        session.offered(&said, 1000, NOW).unwrap();
        let attach = session.poll_action(NOW, 0).unwrap();
        session.did(&attach, NOW);
        session.completed(rail, 1, attach.backlog_bytes(), NOW);
    }
    let later = NOW.after(config.stalled_after * 2);
    session.push(1, 16).unwrap();
    let (transmit, rail) = loop {
        match session.poll_action(later, 0).unwrap() {
            action @ Action::Transmit { rail, .. } => break (action, rail),
            action @ Action::Probe { rail } => {
                session.did(&action, later);
                session.completed(rail, 1, 0, later);
            }
            action => panic!("{action:?}"),
        }
    };
    session.in_doubt(&transmit, later);
    session.failed(rail, later, 0);
    while let Some(action) = session.poll_action(later, 0) {
        session.did(&action, later);
    }
    let mut events = core::iter::from_fn(|| session.poll_event());
    assert!(events.all(|event| !matches!(event, SessionEvent::Stalled)));
}

#[test]
fn a_rail_that_stands_by_is_tried_again_when_the_other_cannot_be_connected() {
    let mut session = initiator(2);
    session.connected(1, NOW);
    let attach = session.poll_action(NOW, 0).unwrap();
    assert!(matches!(attach, Action::Attach { rail: 1, .. }), "{attach:?}");
    session.did(&attach, NOW);
    let refusal = Refusal::new(Epoch::from_wire(2), RefusalReason::PORT_IN_USE).to_bytes();
    session
        .received(1, &SessionFrame::parse(&refusal).unwrap(), NOW)
        .unwrap();
    assert_eq!(session.poll_action(NOW, 0), Some(Action::Shut { rail: 1 }));
    assert_eq!(session.poll_action(NOW, 0), None);
    // The peer may have lost the other rail since, and no other event reports that.
    session.connect_failed(0, false, NOW, 0);
    let epoch = Epoch::from_wire(3);
    assert_eq!(
        session.poll_action(NOW, 0),
        Some(Action::Connect { rail: 1, epoch })
    );
    assert_eq!(session.poll_action(NOW, 0), None);
}

#[test]
fn a_rail_that_stands_by_is_connected_once_the_other_is_lost() {
    let mut session = initiator(2);
    for rail in [0, 1] {
        session.connected(rail, NOW);
        let attach = session.poll_action(NOW, 0).unwrap();
        session.did(&attach, NOW);
    }
    let refusal = Refusal::new(Epoch::from_wire(2), RefusalReason::PORT_IN_USE).to_bytes();
    session
        .received(1, &SessionFrame::parse(&refusal).unwrap(), NOW)
        .unwrap();
    assert_eq!(session.poll_action(NOW, 0), Some(Action::Shut { rail: 1 }));
    assert_eq!(session.poll_action(NOW, 0), None);
    session.failed(0, NOW, 0);
    let epoch = Epoch::from_wire(3);
    assert_eq!(
        session.poll_action(NOW, 0),
        Some(Action::Connect { rail: 1, epoch })
    );
}

#[test]
fn a_rail_that_was_up_is_connected_again_after_the_first_wait() {
    let mut session = initiator(1);
    let mut now = NOW;
    for _ in 0..5 {
        session.connect_failed(0, false, now, 0);
        now = session.wake(now).unwrap().instant();
        assert!(matches!(
            session.poll_action(now, 0),
            Some(Action::Connect { .. })
        ));
    }
    session.connected(0, now);
    let attach = session.poll_action(now, 0).unwrap();
    session.did(&attach, now);
    let answer = Attach::new(&said(6, 0)).to_bytes();
    session
        .received(0, &SessionFrame::parse(&answer).unwrap(), now)
        .unwrap();
    session.completed(0, 1, 0, now);
    session.failed(0, now, 0);
    let wait = session.config().backoff.wait(1, 0);
    let until = Deadline::after(now, wait);
    let just_before = Instant::from_ns(until.instant().to_ns() - 1);
    assert!(!matches!(
        session.poll_action(just_before, 0),
        Some(Action::Connect { .. })
    ));
    let again = session.poll_action(until.instant(), 0);
    assert!(
        matches!(again, Some(Action::Connect { rail: 0, .. })),
        "{again:?}"
    );
}

/// The peer's first word on a rail may be the only acknowledgement.
#[test]
fn a_peer_that_says_on_a_new_rail_that_it_has_all_is_stalled_no_more() {
    let tables = ([Retained::default(); 8], [Kept::default(); 8]);
    let id = SessionId::new(77).unwrap();
    let mut session: Machine = Session::new(SessionConfig::default(), Role::Responder, id, tables, NOW);
    session.offered(&said(1, 0), 1000, NOW).unwrap();
    session.push(1, 16).unwrap();
    while let Some(action) = session.poll_action(NOW, 0) {
        session.did(&action, NOW);
    }
    session.completed(0, 2, 0, NOW);
    let late = NOW.after(session.config().stalled_after);
    session.completed(0, 0, 0, late);
    session.poll_action(late, 0);
    let mut reported = Vec::new();
    reported.extend(core::iter::from_fn(|| session.poll_event()));
    assert_eq!(reported.last(), Some(&SessionEvent::Stalled));
    let on_another = AttachParameters {
        rail: 1,
        ..said(2, 1)
    };
    session.offered(&on_another, 1000, late).unwrap();
    reported.extend(core::iter::from_fn(|| session.poll_event()));
    assert_eq!(reported.last(), Some(&SessionEvent::Resumed));
    assert!(session.is_drained() && !session.is_stalled());
}

#[test]
fn what_the_peer_has_given_up_and_is_lost_here_is_no_attempt_that_failed() {
    let mut session = initiator(1);
    session.connect_failed(0, false, NOW, 0);
    let wait = session.config().backoff.wait(1, 0);
    let again = NOW.after(wait);
    for _ in 0..5 {
        session.given_up(0, Epoch::from_wire(1), NOW, 0);
    }
    assert_eq!(session.wake(NOW), Some(Deadline::at(again)));
    let epoch = Epoch::from_wire(2);
    assert_eq!(
        session.poll_action(again, 0),
        Some(Action::Connect { rail: 0, epoch })
    );
    session.connect_failed(0, false, again, 0);
    let wait = session.config().backoff.wait(2, 0);
    assert_eq!(session.wake(again), Some(Deadline::after(again, wait)));
}

#[test]
fn a_rail_that_could_not_be_connected_waits_as_long_as_chance_says() {
    for (random, drawn_ns) in [(0, 0), (3_000_001, 3_000_001), (7_000_000, 1_999_999)] {
        let mut session = initiator(1);
        session.connect_failed(0, false, NOW, random);
        let backoff = session.config().backoff;
        let wait = backoff.wait(1, random);
        assert_eq!(wait, backoff.first / 2 + Duration::from_nanos(drawn_ns));
        assert_eq!(session.wake(NOW), Some(Deadline::after(NOW, wait)));
    }
}

#[test]
fn another_process_at_one_address_ends_nothing_while_a_rail_may_lead_to_the_peer() {
    let mut session = initiator(2);
    let config = *session.config();
    session.connect_failed(1, false, NOW, 0);
    // A rail that may still lead to the peer is tried at once.
    session.connect_failed(0, true, NOW, 0);
    let connect = |rail, epoch| {
        let epoch = Epoch::from_wire(epoch);
        Some(Action::Connect { rail, epoch })
    };
    assert_eq!(session.poll_action(NOW, 0), connect(1, 3));
    session.connect_failed(1, false, NOW, 0);
    assert_eq!(session.poll_action(NOW, 0), None);
    assert_eq!(session.over(), None);
    // It may do so for as long as there is to recover.
    let mut end = session;
    let last = NOW.after(config.recover_within);
    assert_eq!(end.poll_action(last, 0), None);
    assert_eq!(end.over(), Some(FinalReason::PeerRestarted));
}

#[test]
fn another_process_at_every_address_ends_it_and_only_where_all_say_so_last() {
    let mut session = initiator(2);
    session.connect_failed(0, true, NOW, 0);
    assert_eq!(session.over(), None);
    let soon = NOW.after(session.config().backoff.longest);
    assert!(matches!(
        session.poll_action(soon, 0),
        Some(Action::Connect { rail: 0, .. })
    ));
    // The first is another by now, though not the peer's.
    session.connect_failed(0, false, soon, 0);
    session.connect_failed(1, true, soon, 0);
    assert_eq!(session.over(), None);
    assert!(matches!(
        session.poll_action(soon, 0),
        Some(Action::Connect { rail: 0, .. })
    ));
    session.connect_failed(0, true, soon, 0);
    assert_eq!(session.over(), Some(FinalReason::PeerRestarted));
}

/// A rail that fails back proves itself beside a rail that is up. Another that proves itself, too, is none.
#[test]
fn a_rail_that_comes_back_beside_one_that_proves_itself_is_used_at_once() {
    let tables = ([Retained::default(); 8], [Kept::default(); 8]);
    let id = SessionId::new(77).unwrap();
    let mut session: Machine = Session::new(SessionConfig::default(), Role::Responder, id, tables, NOW);
    let come = |session: &mut Machine, rail, epoch| {
        let said = AttachParameters {
            rail,
            ..said(epoch, 0)
        };
        session.offered(&said, 1000, NOW).unwrap();
        while let Some(action) = session.poll_action(NOW, 0) {
            session.did(&action, NOW);
        }
    };
    for rail in 0..3 {
        come(&mut session, rail, 1);
    }
    session.failed(0, NOW, 0);
    session.failed(1, NOW, 0);
    come(&mut session, 0, 2);
    assert_eq!(session.rail_state(0), HealthState::FailingBack);
    session.failed(2, NOW, 0);
    come(&mut session, 1, 2);
    assert_eq!(session.rail_state(0), HealthState::FailingBack);
    assert_eq!(session.rail_state(1), HealthState::Up);
}
