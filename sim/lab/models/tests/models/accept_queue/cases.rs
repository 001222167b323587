// The models of a queue. Included beside each form of `places`; see `queue.rs`.

use loom::sync::Arc;
use loom::thread;

use super::accept_queue::{PollError, AcceptPlace, AcceptQueue, ReserveError, Wakes, poll_until};
use crate::accept_queue::parts::{Bell, Ledger, Thing};

/// Signals that wake either side.
struct Bells {
    handshakes: Bell,
    accepting: Bell,
}

impl Wakes for Bells {
    fn wake_handshakes(&self) {
        self.handshakes.raise();
    }

    fn wake_accepting(&self) {
        self.accepting.raise();
    }

    fn take_accepting(&self) {
        self.accepting.take();
    }
}

type Queue = AcceptQueue<Thing, Thing, Thing, Bells>;
type Reserved = AcceptPlace<Thing, Thing, Thing, Bells>;

fn queue(places: u32) -> (Arc<Queue>, Ledger) {
    let bells = Bells {
        handshakes: Bell::new(),
        accepting: Bell::new(),
    };
    (Arc::new(AcceptQueue::new(places, bells)), Ledger::new())
}

/// Explores; of more than two threads those interleavings that preempt no more often than this.
fn explore(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// Asks for a place for the peer of this number.
fn ask(queue: &Arc<Queue>, ledger: &Ledger, number: u32) -> Result<Reserved, ReserveError> {
    AcceptQueue::ask(queue, ledger.thing(number))
}

/// Waits for the Worker's answer as the handshakes do, which look at each signal.
fn answer(queue: &Queue, place: &Reserved) -> Thing {
    let bell = &queue.signals.handshakes;
    loop {
        bell.take();
        if let Some(answer) = place.answer() {
            return answer;
        }
        bell.wait();
    }
}

/// A whole handshake: the peer is admitted after the Worker's answer, and then accepted.
fn connect(queue: &Arc<Queue>, ledger: &Ledger, number: u32) -> Result<(), ReserveError> {
    let place = ask(queue, ledger, number)?;
    assert_eq!(answer(queue, &place).read(), number, "another's place");
    place.publish(ledger.thing(number));
    Ok(())
}

/// A look of the Worker's thread.
fn look(queue: &Queue, ledger: &Ledger) -> Result<Option<u32>, PollError> {
    let answer = |ledger: &mut &Ledger, wanted: &Thing| ledger.thing(wanted.read());
    let found = queue.poll(&mut &*ledger, |_| true, answer)?;
    Ok(found.map(|connected| connected.read()))
}

/// Accepts one, however long that takes.
fn accept(queue: &Queue, ledger: &Ledger) -> Result<Option<u32>, PollError> {
    let sleep = |_: &mut ()| {
        // A look that met a lock is repeated at once. Without a yield, loom sees a loop that makes no progress.
        thread::yield_now();
        queue.signals.accepting.wait();
        Ok(true)
    };
    poll_until(&mut (), |()| look(queue, ledger), sleep)
}

/// Accepts one with a deadline, which passes after so many looks.
fn accept_within(queue: &Queue, ledger: &Ledger, looks: u32) -> Result<Option<u32>, PollError> {
    let rest = |left: &mut u32| {
        *left -= 1;
        thread::yield_now();
        Ok(*left > 0)
    };
    poll_until(&mut { looks }, |_| look(queue, ledger), rest)
}

/// Lets a thread do something with a queue.
fn beside(
    queue: &Arc<Queue>,
    ledger: &Ledger,
    what: impl FnOnce(&Arc<Queue>, &Ledger) + 'static,
) -> thread::JoinHandle<()> {
    let (queue, ledger) = (Arc::clone(queue), ledger.clone());
    thread::spawn(move || what(&queue, &ledger))
}

/// A handshake and a thread that accepts, each asleep while it has nothing to do. Neither sleeps for ever.
pub(super) fn what_is_asked_for_is_granted_and_accepted() {
    explore(3, || {
        let (queue, ledger) = queue(1);
        let connecting = beside(&queue, &ledger, |queue, ledger| {
            assert_eq!(connect(queue, ledger, 7), Ok(()));
        });
        assert_eq!(accept(&queue, &ledger), Ok(Some(7)));
        connecting.join().unwrap();
        assert_eq!(ledger.count(), 0, "something is left");
        assert_eq!(queue.owners().free(), Some(1), "a place is left");
    });
}

/// Two handshakes, as they advance side by side on their thread.
pub(super) fn of_two_that_ask_each_gets_its_own() {
    explore(2, || {
        let (queue, ledger) = queue(2);
        let connecting = beside(&queue, &ledger, |queue, ledger| {
            let places = [1, 2].map(|number| (ask(queue, ledger, number).ok().unwrap(), number));
            for (place, number) in &places {
                assert_eq!(answer(queue, place).read(), *number, "another's place");
            }
            for (place, number) in places {
                place.publish(ledger.thing(number));
            }
        });
        let accepted = [(); 2].map(|()| accept(&queue, &ledger).unwrap().unwrap());
        assert_eq!(accepted, [1, 2], "in the order of publishing");
        connecting.join().unwrap();
        assert_eq!(ledger.count(), 0, "something is left");
    });
}

/// The accepting thread runs into its deadline and leaves, and so does a handshake without an answer. Both leave nothing behind.
pub(super) fn whoever_is_late_leaves_nothing() {
    explore(3, || {
        let (queue, ledger) = queue(1);
        let connecting = beside(&queue, &ledger, |queue, ledger| {
            let place = ask(queue, ledger, 7).ok().unwrap();
            thread::yield_now();
            if let Some(answer) = place.answer() {
                assert_eq!(answer.read(), 7);
                place.publish(ledger.thing(7));
            }
        });
        let accepted = accept_within(&queue, &ledger, 2);
        assert!(matches!(accepted, Ok(None | Some(7))), "{accepted:?}");
        drop(queue.abandon());
        connecting.join().unwrap();
        assert_eq!(ledger.count(), 0, "something is left");
        assert!(queue.owners().is_over(), "a place is left");
    });
}

/// One handshake gives up, on a thread of its own, while another connects. The other is accepted whichever lock a look meets.
pub(super) fn where_one_gives_up_the_other_is_served() {
    explore(2, || {
        let (queue, ledger) = queue(2);
        let giving_up = beside(&queue, &ledger, |queue, ledger| drop(ask(queue, ledger, 1)));
        let connecting = beside(&queue, &ledger, |queue, ledger| {
            assert_eq!(connect(queue, ledger, 2), Ok(()));
        });
        assert_eq!(accept(&queue, &ledger), Ok(Some(2)));
        giving_up.join().unwrap();
        connecting.join().unwrap();
        assert_eq!(ledger.count(), 0, "something is left");
        assert_eq!(queue.owners().free(), Some(2), "a place is left");
    });
}

/// Two peers ask for one place. The admitted peer is accepted; the other is refused before anything is asked for on its behalf.
pub(super) fn a_place_is_reserved_before_anybody_is_accepted() {
    explore(2, || {
        let (queue, ledger) = queue(1);
        let place = ask(&queue, &ledger, 1).ok().unwrap();
        let other = beside(&queue, &ledger, |queue, ledger| {
            // The place is taken until the first peer is accepted.
            let refused = ask(queue, ledger, 2).err();
            assert!(matches!(refused, None | Some(ReserveError::Full)), "{refused:?}");
        });
        assert_eq!(look(&queue, &ledger), Ok(None));
        // The second peer, on its thread, changes nothing about this.
        assert_eq!(place.answer().map(|answer| answer.read()), Some(1));
        place.publish(ledger.thing(1));
        assert_eq!(look(&queue, &ledger), Ok(Some(1)));
        other.join().unwrap();
        assert_eq!(ledger.count(), 0, "something is left");
        assert_eq!(look(&queue, &ledger), Ok(None));
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
            let (queue, ledger) = queue(1);
            let ending = beside(&queue, &ledger, move |queue, ledger| {
                let place = (last != Last::None).then(|| ask(queue, ledger, 7).ok().unwrap());
                queue.close();
                assert_eq!(ask(queue, ledger, 8).err(), Some(ReserveError::Closed));
                if let Some(place) = place.filter(|_| last == Last::Accepted) {
                    assert_eq!(answer(queue, &place).read(), 7);
                    place.publish(ledger.thing(7));
                }
            });
            if last == Last::Accepted {
                assert_eq!(accept(&queue, &ledger), Ok(Some(7)));
            }
            assert_eq!(accept(&queue, &ledger), Err(PollError::Closed));
            ending.join().unwrap();
            assert_eq!(ledger.count(), 0, "something is left");
        });
    }
}

/// The accepting thread leaves while a connection is published. One of the two sides drops the connection.
pub(super) fn what_is_published_to_nobody_is_let_go() {
    explore(3, || {
        let (queue, ledger) = queue(1);
        let place = ask(&queue, &ledger, 7).ok().unwrap();
        assert_eq!(look(&queue, &ledger), Ok(None));
        let publishing = beside(&queue, &ledger, move |queue, ledger| {
            assert_eq!(answer(queue, &place).read(), 7);
            place.publish(ledger.thing(7));
        });
        drop(queue.abandon());
        publishing.join().unwrap();
        assert_eq!(ledger.count(), 0, "something is left");
        assert!(queue.owners().is_over(), "a place is left");
    });
}

/// All of them, the shortest first.
pub(super) const ALL: &[fn()] = &[
    what_is_asked_for_is_granted_and_accepted,
    a_place_is_reserved_before_anybody_is_accepted,
    whoever_waits_hears_that_none_comes,
    what_is_published_to_nobody_is_let_go,
    whoever_is_late_leaves_nothing,
    of_two_that_ask_each_gets_its_own,
    where_one_gives_up_the_other_is_served,
];
