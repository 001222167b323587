//! Memory for long messages that is refused or short: messages go in fragments of slots, and are written once there is some.

use core::time::Duration;

use crate::placed::{LONG, later, lent, send_and_settle, two_with, with_places};
use crate::processes::{A, B, Process, Two, errno_of, ms};

/// Both send a long message, twice. Returns the fragments of each that were written.
fn exchanged(two: &mut Two) -> [u64; 2] {
    let before = [A, B].map(|at| two.counts(at).placed);
    for _ in 0..2 {
        for at in [A, B] {
            send_and_settle(two, at, 60_000);
        }
        // So that memory is there which they have brought about.
        let until = later(two, 5);
        two.run(until, |_| false);
    }
    [A, B].map(|at| two.counts(at).placed - before[at])
}

#[test]
fn a_device_that_refuses_it_is_asked_again_after_a_while_and_told_of_once() {
    const ENOMEM: i32 = 12;
    let mut two = two_with(&with_places(8), 2, "");
    let before = two.fabric.registrations();
    let plan = "fail every 1st registration of b with 12";
    two.fabric.follow(&plan.parse().unwrap());
    let memory = |two: &Two| two.process(B).links.placed_memory();
    for _ in 0..3 {
        assert_eq!(exchanged(&mut two), [0, 0]);
        let memory = memory(&two);
        let errno = memory.refusal.map(errno_of);
        // The memory that it would lend, and that it would send from.
        assert_eq!((memory.bytes, memory.refused, errno), (0, 2, Some(ENOMEM)));
    }
    // A lends by two devices.
    assert_eq!(two.fabric.registrations(), before + 2);
    let until = later(&two, 9_000);
    two.run(until, |_| false);
    assert_eq!((exchanged(&mut two), memory(&two).refused), ([0, 0], 2));
    // For a long message that came meanwhile the device is asked once more, and never without one.
    for _ in 0..2 {
        let until = later(&two, 11_000);
        two.run(until, |_| false);
        assert_eq!(memory(&two).refused, 4);
    }
    assert_eq!((exchanged(&mut two), memory(&two).refused), ([0, 0], 6));
    let calm = format!("at {}us calm", two.fabric.now().to_ns() / 1000 + 1);
    two.fabric.follow(&calm.parse().unwrap());
    let until = later(&two, 11_000);
    two.run(until, |_| false);
    exchanged(&mut two);
    let written = exchanged(&mut two);
    assert!(written.iter().all(|written| *written >= 4), "{written:?}");
    let memory = memory(&two);
    assert_eq!((memory.refused, memory.refusal), (6, None));
    assert_eq!(memory.bytes, 16 << 16);
    two.fabric.audit().unwrap();
}

#[test]
fn memory_that_one_of_two_devices_refuses_is_given_back_by_the_other() {
    let mut two = two_with(&with_places(8), 2, "");
    let before = two.fabric.registrations();
    let plan = "fail every 2nd registration of b with 12";
    two.fabric.follow(&plan.parse().unwrap());
    assert_eq!(exchanged(&mut two), [0, 0]);
    let memory = two.process(B).links.placed_memory();
    assert_eq!((memory.bytes, memory.refused), (0, 2));
    assert_eq!(two.fabric.registrations(), before + 2, "of A alone");
    two.fabric.audit().unwrap();
}

#[test]
fn links_have_no_more_of_it_than_all_may_have() {
    let mut config = with_places(8);
    for places in [7, 8, 15, 16] {
        config.placed_bytes_all = places << 16;
        let mut two = two_with(&config, 2, "");
        // A's long message comes first, so B lends, and A has memory to send from. There may be no more for the other way.
        for bytes in [LONG + 1, 60_000] {
            send_and_settle(&mut two, A, bytes);
            let until = later(&two, 5);
            two.run(until, |_| false);
        }
        let written = exchanged(&mut two);
        assert_eq!(
            written.map(|written| written > 0),
            [places >= 8, places >= 16],
            "{places}"
        );
        for at in [A, B] {
            let memory = two.process(at).links.placed_memory();
            let bytes = (places / 8 * 8) << 16;
            assert_eq!((memory.bytes, memory.refused), (bytes, 0), "{places}");
        }
        let waiting = [A, B].map(|at| two.process(at).links.placed_memory().links_waiting);
        let expected = match places {
            7 => [1, 1],
            // B has nothing to send to.
            8 | 15 => [1, 0],
            _ => [0, 0],
        };
        assert_eq!(waiting, expected, "{places}");
        two.fabric.audit().unwrap();
    }
}

/// Ends the link of A, which is another process then, with another link.
fn replaced(two: &mut Two, config: &doorbell::link::LinkConfig) {
    let deadline = two.deadline(ms(50));
    let a = two.process_mut(A);
    a.links.close(a.link.unwrap(), deadline);
    let until = later(two, 100);
    assert!(two.run(until, |two| {
        [A, B].iter().all(|at| two.process(*at).over.is_some())
    }));
    let handle = two.process(B).handle.unwrap();
    two.processes[A] = Some(Process::on(&two.hosts[A], config, false));
    let b = two.process_mut(B);
    (b.sent, b.done, b.delivered, b.over) = (0, 0, 0, None);
    two.process_mut(A).connect(&handle);
    let until = later(two, 50);
    let is_up = |two: &Two| {
        [A, B].iter().all(|at| {
            two.process(*at)
                .link
                .is_some_and(|link| two.process(*at).links.is_connected(link))
        })
    };
    assert!(two.run(until, is_up));
}

/// Only memory to send from is given back, since the peer may write into lent memory at any time.
#[test]
fn memory_to_send_from_that_a_link_has_not_used_for_a_minute_is_given_back() {
    let mut two = two_with(&with_places(8), 2, "");
    lent(&mut two);
    let places = |two: &Two| [A, B].map(|at| two.process(at).links.placed_memory().bytes >> 16);
    assert_eq!(places(&two), [16, 16]);
    let until = later(&two, 40_000);
    two.run(until, |_| false);
    let placed = two.counts(A).placed;
    send_and_settle(&mut two, A, 60_000);
    assert!(two.counts(A).placed > placed);
    // B has sent none, so it has kept the memory for shorter.
    for (ms, expected) in [(19_000, [16, 16]), (2_000, [16, 8]), (40_000, [8, 8])] {
        let until = later(&two, ms);
        two.run(until, |_| false);
        assert_eq!(places(&two), expected, "{ms}");
    }
    // The next message goes in slots, and there is memory for those after it.
    let placed = two.counts(A).placed;
    send_and_settle(&mut two, A, 60_000);
    assert_eq!(two.counts(A).placed, placed);
    let until = later(&two, 5);
    two.run(until, |_| false);
    assert_eq!(places(&two), [16, 8]);
    send_and_settle(&mut two, A, 60_000);
    assert!(two.counts(A).placed > placed);
    two.fabric.audit().unwrap();
}

/// Memory that a link lent is there for a while after its end. One link after another has no more of it than links at a time.
#[test]
fn memory_of_links_that_are_over_counts_until_it_is_given_back() {
    let mut config = with_places(8);
    config.placed_bytes_all = 16 << 16;
    let mut two = two_with(&config, 1, "");
    lent(&mut two);
    assert_eq!(two.process(B).links.placed_memory().bytes, 16 << 16);
    for _ in 0..3 {
        let before = two.fabric.now();
        replaced(&mut two, &config);
        // Its memory to send from is gone, and what it lent is not.
        assert_eq!(two.process(B).links.placed_memory().bytes, 8 << 16);
        for _ in 0..2 {
            for at in [B, A] {
                send_and_settle(&mut two, at, 60_000);
            }
        }
        let since = Duration::from_nanos(two.fabric.now().to_ns() - before.to_ns());
        assert!(since < config.session.dead_after, "{since:?}");
        // The rest was for either way; none is left for the other.
        let memory = two.process(B).links.placed_memory();
        assert_eq!((memory.bytes, memory.links_waiting), (16 << 16, 1));
        let until = later(&two, 200);
        two.run(until, |_| false);
        // It is the waiting link's by now.
        let memory = two.process(B).links.placed_memory();
        assert_eq!((memory.bytes, memory.links_waiting), (16 << 16, 0));
        exchanged(&mut two);
        let written = exchanged(&mut two);
        assert!(written.iter().all(|written| *written >= 2), "{written:?}");
        assert_eq!(two.process(B).links.placed_memory().bytes, 16 << 16);
    }
    two.fabric.audit().unwrap();
}
