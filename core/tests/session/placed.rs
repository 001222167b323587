//! Fragments that are written into memory of the peer's: over which rail they go, and what follows from them.

use doorbell_core::Instant;
use doorbell_core::session::{
    Action, Epoch, Kept, Received, Retained, Role, Sequence, Session, SessionConfig, SessionId, Violation,
};
use doorbell_core::wire::{AttachParameters, Placed, PlacedFrame, SessionFrame, SessionHeader};

type Machine = Session<[Retained; 8], [Kept; 8]>;

const NOW: Instant = Instant::from_ns(0);

/// A session that a peer connected over so many rails, with nothing left to say.
fn responder(rails: u8) -> Machine {
    let (id, config) = (SessionId::new(77).unwrap(), SessionConfig::default());
    let tables = ([Retained::default(); 8], [Kept::default(); 8]);
    let mut session = Session::new(config, Role::Responder, id, tables, NOW);
    for rail in 0..rails {
        let said = AttachParameters {
            session: id,
            epoch: Epoch::from_wire(u32::from(rail) + 1),
            rail,
            begins: true,
            oldest: Sequence(0),
            expected: Sequence(0),
            window: 8,
        };
        session.offered(&said, 1000, NOW).unwrap();
    }
    while let Some(action) = session.poll_action(NOW, 0) {
        session.did(&action, NOW);
    }
    session
}

/// The rails of the fragments that go now, and their kinds.
fn transmitted(session: &mut Machine) -> Vec<(u8, u8)> {
    let mut transmitted = Vec::new();
    while let Some(action) = session.poll_action(NOW, 0) {
        if let Action::Transmit { rail, header, .. } = action {
            transmitted.push((rail, header.to_bytes()[1]));
        }
        session.did(&action, NOW);
    }
    transmitted
}

#[test]
fn they_wait_for_a_rail_over_which_memory_was_lent() {
    let mut session = responder(2);
    session.push(8, 16).unwrap();
    session.push_placed(20_000, 10_000).unwrap();
    session.push(8, 16).unwrap();
    // Fragments behind them wait, too: the peer takes them in order.
    assert_eq!(transmitted(&mut session), [(0, 1)]);
    session.lent(1, Epoch::from_wire(9));
    assert_eq!(transmitted(&mut session), [], "that was another connection");
    session.lent(1, Epoch::from_wire(2));
    assert_eq!(transmitted(&mut session), [(1, 16), (1, 16), (0, 1)]);
    assert_eq!((session.counts().sent, session.counts().placed), (4, 2));
    // Its loss is that of the memory, and the next rail has them.
    session.failed(1, NOW, 0);
    assert_eq!(transmitted(&mut session), []);
    session.lent(0, Epoch::from_wire(1));
    assert_eq!(transmitted(&mut session), [(0, 16), (0, 16)]);
    assert_eq!((session.counts().sent_again, session.counts().placed), (2, 4));
}

fn placed(sequence: u64, is_first: bool, is_last: bool) -> Vec<u8> {
    let (epoch, expected) = (Epoch::from_wire(1), Sequence(0));
    let header = SessionHeader::placed(epoch, Sequence(sequence), expected, is_first, is_last);
    let placed = Placed {
        offset: 0,
        bytes: 70_000,
    };
    PlacedFrame::new(header, placed).to_bytes().to_vec()
}

fn take(session: &mut Machine, bytes: &[u8]) -> Result<Received, Violation> {
    session.received(0, &SessionFrame::parse(bytes).unwrap(), NOW)
}

#[test]
fn they_are_taken_in_order_and_the_last_of_a_message_is_acknowledged_at_once() {
    let mut session = responder(1);
    assert_eq!(
        take(&mut session, &placed(1, false, false)),
        Ok(Received::Early { place: 1 })
    );
    assert_eq!(
        take(&mut session, &placed(1, false, false)),
        Ok(Received::Nothing)
    );
    assert_eq!(session.poll_action(NOW, 0), None);
    assert_eq!(take(&mut session, &placed(0, true, false)), Ok(Received::InOrder));
    let held = session.take_held().unwrap().unwrap();
    assert!(held.is_placed && held.bytes == 70_000 && held.place == 1);
    assert_eq!(session.poll_action(NOW, 0), None);
    assert_eq!(take(&mut session, &placed(2, false, true)), Ok(Received::InOrder));
    let Some(Action::Acknowledge { header, .. }) = session.poll_action(NOW, 0) else {
        panic!("it waits");
    };
    assert_eq!(header.expected(), Sequence(3));
    // One that is out of place ends the session as any fragment does.
    assert_eq!(
        take(&mut session, &placed(3, false, true)),
        Err(Violation::OutOfPlace)
    );
}
