// The models of a desk. Included beside each form of `places`; see `desk.rs`.

use loom::sync::Arc;
use loom::thread;

use super::places::{LookError, Place, Places, ReserveError, Wakes, look_until};
use crate::desk::parts::{Bell, Ledger, Thing};

/// Signals that wake either side.
struct Bells {
    handshakes: Bell,
    accepting: Bell,
}

impl Wakes for Bells {
    fn tell_handshakes(&self) {
        self.handshakes.raise();
    }

    fn tell_accepting(&self) {
        self.accepting.raise();
    }

    fn take_accepting(&self) {
        self.accepting.take();
    }
}

type Desk = Places<Thing, Thing, Thing, Bells>;
type Seat = Place<Thing, Thing, Thing, Bells>;

fn desk(places: u32) -> (Arc<Desk>, Ledger) {
    let bells = Bells {
        handshakes: Bell::new(),
        accepting: Bell::new(),
    };
    (Arc::new(Places::new(places, bells)), Ledger::new())
}

/// Explores; of more than two threads those interleavings that preempt no more often than this.
fn explore(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// Asks for a place for the peer of this number.
fn ask(desk: &Arc<Desk>, ledger: &Ledger, number: u32) -> Result<Seat, ReserveError> {
    Places::ask(desk, ledger.thing(number))
}

/// Waits for the Worker's answer as the handshakes do, which look at each signal.
fn answer(desk: &Desk, seat: &Seat) -> Thing {
    let bell = &desk.signals.handshakes;
    loop {
        bell.take();
        if let Some(answer) = seat.answer() {
            return answer;
        }
        bell.wait();
    }
}

/// A whole handshake: the peer is admitted after the Worker's answer, and then accepted.
fn connect(desk: &Arc<Desk>, ledger: &Ledger, number: u32) -> Result<(), ReserveError> {
    let seat = ask(desk, ledger, number)?;
    assert_eq!(answer(desk, &seat).read(), number, "another's place");
    seat.publish(ledger.thing(number));
    Ok(())
}

/// A look of the Worker's thread.
fn look(desk: &Desk, ledger: &Ledger) -> Result<Option<u32>, LookError> {
    let answer = |ledger: &mut &Ledger, wanted: &Thing| ledger.thing(wanted.read());
    let found = desk.look(&mut &*ledger, |_| true, answer)?;
    Ok(found.map(|connected| connected.read()))
}

/// Accepts one, however long that takes.
fn accept(desk: &Desk, ledger: &Ledger) -> Result<Option<u32>, LookError> {
    let sleep = |_: &mut ()| {
        // A look that met a lock is repeated at once. Without a yield, loom sees a loop that makes no progress.
        thread::yield_now();
        desk.signals.accepting.wait();
        Ok(true)
    };
    look_until(&mut (), |()| look(desk, ledger), sleep)
}

/// Accepts one with a deadline, which passes after so many looks.
fn accept_within(desk: &Desk, ledger: &Ledger, looks: u32) -> Result<Option<u32>, LookError> {
    let rest = |left: &mut u32| {
        *left -= 1;
        thread::yield_now();
        Ok(*left > 0)
    };
    look_until(&mut { looks }, |_| look(desk, ledger), rest)
}

/// Lets a thread do something with a desk.
fn beside(
    desk: &Arc<Desk>,
    ledger: &Ledger,
    what: impl FnOnce(&Arc<Desk>, &Ledger) + 'static,
) -> thread::JoinHandle<()> {
    let (desk, ledger) = (Arc::clone(desk), ledger.clone());
    thread::spawn(move || what(&desk, &ledger))
}

/// A handshake and a thread that accepts, each asleep while it has nothing to do. Neither sleeps for ever.
pub(super) fn what_is_asked_for_is_granted_and_accepted() {
    explore(3, || {
        let (desk, ledger) = desk(1);
        let connecting = beside(&desk, &ledger, |desk, ledger| {
            assert_eq!(connect(desk, ledger, 7), Ok(()));
        });
        assert_eq!(accept(&desk, &ledger), Ok(Some(7)));
        connecting.join().unwrap();
        assert_eq!(ledger.count(), 0, "something is left");
        assert_eq!(desk.turns().free(), Some(1), "a place is left");
    });
}

/// Two handshakes, as they advance side by side on their thread.
pub(super) fn of_two_that_ask_each_gets_its_own() {
    explore(2, || {
        let (desk, ledger) = desk(2);
        let connecting = beside(&desk, &ledger, |desk, ledger| {
            let seats = [1, 2].map(|number| (ask(desk, ledger, number).ok().unwrap(), number));
            for (seat, number) in &seats {
                assert_eq!(answer(desk, seat).read(), *number, "another's place");
            }
            for (seat, number) in seats {
                seat.publish(ledger.thing(number));
            }
        });
        let accepted = [(); 2].map(|()| accept(&desk, &ledger).unwrap().unwrap());
        assert_eq!(accepted, [1, 2], "in the order of publishing");
        connecting.join().unwrap();
        assert_eq!(ledger.count(), 0, "something is left");
    });
}

/// The accepting thread runs into its deadline and leaves, and so does a handshake without an answer. Both leave nothing behind.
pub(super) fn whoever_is_late_leaves_nothing() {
    explore(3, || {
        let (desk, ledger) = desk(1);
        let connecting = beside(&desk, &ledger, |desk, ledger| {
            let seat = ask(desk, ledger, 7).ok().unwrap();
            thread::yield_now();
            if let Some(answer) = seat.answer() {
                assert_eq!(answer.read(), 7);
                seat.publish(ledger.thing(7));
            }
        });
        let accepted = accept_within(&desk, &ledger, 2);
        assert!(matches!(accepted, Ok(None | Some(7))), "{accepted:?}");
        drop(desk.abandon());
        connecting.join().unwrap();
        assert_eq!(ledger.count(), 0, "something is left");
        assert!(desk.turns().is_over(), "a place is left");
    });
}

/// One handshake gives up, on a thread of its own, while another connects. The other is accepted whichever lock a look meets.
pub(super) fn where_one_gives_up_the_other_is_served() {
    explore(2, || {
        let (desk, ledger) = desk(2);
        let giving_up = beside(&desk, &ledger, |desk, ledger| drop(ask(desk, ledger, 1)));
        let connecting = beside(&desk, &ledger, |desk, ledger| {
            assert_eq!(connect(desk, ledger, 2), Ok(()));
        });
        assert_eq!(accept(&desk, &ledger), Ok(Some(2)));
        giving_up.join().unwrap();
        connecting.join().unwrap();
        assert_eq!(ledger.count(), 0, "something is left");
        assert_eq!(desk.turns().free(), Some(2), "a place is left");
    });
}

/// Two peers ask for one place. The admitted peer is accepted; the other is refused before anything is asked for on its behalf.
pub(super) fn a_place_is_reserved_before_anybody_is_told_yes() {
    explore(2, || {
        let (desk, ledger) = desk(1);
        let seat = ask(&desk, &ledger, 1).ok().unwrap();
        let other = beside(&desk, &ledger, |desk, ledger| {
            // The place is taken until the first peer is accepted.
            let refused = ask(desk, ledger, 2).err();
            assert!(matches!(refused, None | Some(ReserveError::Full)), "{refused:?}");
        });
        assert_eq!(look(&desk, &ledger), Ok(None));
        // The second peer, on its thread, changes nothing about this.
        assert_eq!(seat.answer().map(|answer| answer.read()), Some(1));
        seat.publish(ledger.thing(1));
        assert_eq!(look(&desk, &ledger), Ok(Some(1)));
        other.join().unwrap();
        assert_eq!(ledger.count(), 0, "something is left");
        assert_eq!(look(&desk, &ledger), Ok(None));
    });
}

/// The handshake under way when the handshakes are closed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Last {
    None,
    GivenUp,
    Accepted,
}

/// The handshakes are closed while one or none is under way. Such a handshake is accepted or given up, and the accepting thread learns of
/// the end.
pub(super) fn whoever_waits_hears_that_none_comes() {
    for last in [Last::None, Last::GivenUp, Last::Accepted] {
        explore(2, move || {
            let (desk, ledger) = desk(1);
            let ending = beside(&desk, &ledger, move |desk, ledger| {
                let seat = (last != Last::None).then(|| ask(desk, ledger, 7).ok().unwrap());
                desk.close();
                assert_eq!(ask(desk, ledger, 8).err(), Some(ReserveError::Closed));
                if let Some(seat) = seat.filter(|_| last == Last::Accepted) {
                    assert_eq!(answer(desk, &seat).read(), 7);
                    seat.publish(ledger.thing(7));
                }
            });
            if last == Last::Accepted {
                assert_eq!(accept(&desk, &ledger), Ok(Some(7)));
            }
            assert_eq!(accept(&desk, &ledger), Err(LookError::Closed));
            ending.join().unwrap();
            assert_eq!(ledger.count(), 0, "something is left");
        });
    }
}

/// The accepting thread leaves while a connection is published. One of the two sides drops the connection.
pub(super) fn what_is_published_to_nobody_is_let_go() {
    explore(3, || {
        let (desk, ledger) = desk(1);
        let seat = ask(&desk, &ledger, 7).ok().unwrap();
        assert_eq!(look(&desk, &ledger), Ok(None));
        let publishing = beside(&desk, &ledger, move |desk, ledger| {
            assert_eq!(answer(desk, &seat).read(), 7);
            seat.publish(ledger.thing(7));
        });
        drop(desk.abandon());
        publishing.join().unwrap();
        assert_eq!(ledger.count(), 0, "something is left");
        assert!(desk.turns().is_over(), "a place is left");
    });
}

/// All of them, the shortest first.
pub(super) const ALL: &[fn()] = &[
    what_is_asked_for_is_granted_and_accepted,
    a_place_is_reserved_before_anybody_is_told_yes,
    whoever_waits_hears_that_none_comes,
    what_is_published_to_nobody_is_let_go,
    whoever_is_late_leaves_nothing,
    of_two_that_ask_each_gets_its_own,
    where_one_gives_up_the_other_is_served,
];
