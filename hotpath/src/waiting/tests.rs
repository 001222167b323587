use std::vec::Vec;

use super::{POLLS_PER_LOOK, Wait, Waitable, Waiter, Woken, prepare_sleep};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Poll,
    Acknowledge,
    Arm,
    Look,
    Sleep,
}
use Call::{Acknowledge, Arm, Look, Poll, Sleep};

/// Completes something at the given polls, and is over from a look on.
#[derive(Default)]
struct Script {
    completes_at: Vec<u32>,
    over_at: Option<u32>,
    fails: Option<Call>,
    polls: u32,
    looks: u32,
    calls: Vec<Call>,
}

impl Script {
    fn note(&mut self, call: Call) -> Result<(), Call> {
        self.calls.push(call);
        if self.fails == Some(call) {
            Err(call)
        } else {
            Ok(())
        }
    }

    fn count(&self, wanted: Call) -> usize {
        self.calls.iter().filter(|call| **call == wanted).count()
    }
}

impl Waitable for Script {
    type Error = Call;

    fn poll(&mut self) -> Result<u32, Call> {
        self.note(Poll)?;
        self.polls += 1;
        Ok(if self.completes_at.contains(&self.polls) {
            self.polls
        } else {
            0
        })
    }

    fn acknowledge(&mut self) -> Result<(), Call> {
        self.note(Acknowledge)
    }

    fn arm(&mut self) -> Result<(), Call> {
        self.note(Arm)
    }

    fn is_over(&mut self) -> bool {
        self.calls.push(Look);
        self.looks += 1;
        self.over_at.is_some_and(|look| self.looks >= look)
    }

    fn sleep(&mut self) -> Result<(), Call> {
        self.note(Sleep)
    }
}

fn completing_at(polls: &[u32]) -> Script {
    Script {
        completes_at: polls.to_vec(),
        ..Script::default()
    }
}

#[test]
fn what_is_there_is_taken_at_once() {
    for how in [
        Wait::Busy,
        Wait::SPIN_THEN_SLEEP,
        Wait::SpinThenSleep { spins: 0 },
    ] {
        let mut script = completing_at(&[1]);
        assert_eq!(Waiter::new().wait(how, &mut script), Ok(Woken::Progress));
        assert_eq!(script.calls, [Poll], "{how:?}");
    }
}

#[test]
fn a_busy_wait_only_polls_and_seldom_looks_at_the_clock() {
    let last = 10 * POLLS_PER_LOOK + 7;
    let mut script = completing_at(&[last]);
    assert_eq!(Waiter::new().wait(Wait::Busy, &mut script), Ok(Woken::Progress));
    assert_eq!(script.count(Poll), last as usize);
    assert_eq!(script.count(Look), 10);
    assert_eq!(script.calls.len(), last as usize + 10);
}

#[test]
fn a_busy_wait_ends_at_its_deadline() {
    let mut script = Script {
        over_at: Some(2),
        ..Script::default()
    };
    assert_eq!(Waiter::new().wait(Wait::Busy, &mut script), Ok(Woken::Deadline));
    assert_eq!(script.polls, 2 * POLLS_PER_LOOK);
}

#[test]
fn a_deadline_holds_however_much_comes() {
    let mut script = completing_at(&(1..=2 * POLLS_PER_LOOK).collect::<Vec<_>>());
    script.over_at = Some(1);
    let mut waiter = Waiter::new();
    for _ in 1..POLLS_PER_LOOK {
        assert_eq!(waiter.wait(Wait::Busy, &mut script), Ok(Woken::Progress));
    }
    assert_eq!(waiter.wait(Wait::Busy, &mut script), Ok(Woken::Deadline));
}

#[test]
fn what_a_deadline_left_unreported_ends_the_next_wait() {
    let mut script = completing_at(&[POLLS_PER_LOOK]);
    script.over_at = Some(1);
    let mut waiter = Waiter::new();
    assert_eq!(waiter.wait(Wait::Busy, &mut script), Ok(Woken::Deadline));
    script.calls.clear();
    assert_eq!(waiter.wait(Wait::Busy, &mut script), Ok(Woken::Progress));
    assert_eq!(script.calls, [Poll]);
    // Once, and only where something had happened.
    assert_eq!(waiter.wait(Wait::Busy, &mut script), Ok(Woken::Deadline));
    script.calls.clear();
    assert_eq!(waiter.wait(Wait::Busy, &mut script), Ok(Woken::Deadline));
    assert!(script.calls.len() > 1);
}

#[test]
fn it_spins_so_often_and_then_arms_polls_and_sleeps() {
    let how = Wait::SpinThenSleep { spins: 3 };
    // One, three more in vain, one after arming, and one after the sleep.
    let mut script = completing_at(&[6]);
    assert_eq!(Waiter::new().wait(how, &mut script), Ok(Woken::Progress));
    assert_eq!(
        script.calls,
        [Poll, Poll, Poll, Poll, Acknowledge, Arm, Poll, Look, Sleep, Poll]
    );
    let mut script = completing_at(&[4]);
    assert_eq!(Waiter::new().wait(how, &mut script), Ok(Woken::Progress));
    assert_eq!(script.calls, [Poll; 4]);
}

#[test]
fn what_came_before_arming_is_no_reason_to_sleep() {
    let mut script = completing_at(&[2]);
    let how = Wait::SpinThenSleep { spins: 0 };
    assert_eq!(Waiter::new().wait(how, &mut script), Ok(Woken::Progress));
    assert_eq!(script.calls, [Poll, Acknowledge, Arm, Poll]);
}

#[test]
fn woken_for_nothing_it_arms_again() {
    let mut script = completing_at(&[5]);
    let how = Wait::SpinThenSleep { spins: 0 };
    assert_eq!(Waiter::new().wait(how, &mut script), Ok(Woken::Progress));
    let once = [Poll, Acknowledge, Arm, Poll, Look, Sleep];
    assert_eq!(script.calls, [&once[..], &once[..], &[Poll]].concat());
}

#[test]
fn it_does_not_sleep_past_the_deadline() {
    let mut script = Script {
        over_at: Some(2),
        ..Script::default()
    };
    let how = Wait::SpinThenSleep { spins: 0 };
    assert_eq!(Waiter::new().wait(how, &mut script), Ok(Woken::Deadline));
    assert_eq!(script.count(Sleep), 1);
}

#[test]
fn failures_end_it() {
    for call in [Poll, Acknowledge, Arm, Sleep] {
        let mut script = Script {
            fails: Some(call),
            ..Script::default()
        };
        let how = Wait::SpinThenSleep { spins: 1 };
        assert_eq!(Waiter::new().wait(how, &mut script), Err(call));
        assert_eq!(script.calls.last(), Some(&call));
    }
}

#[test]
fn a_sleep_is_prepared_in_one_order() {
    let mut script = completing_at(&[]);
    assert_eq!(prepare_sleep(&mut script), Ok(0));
    assert_eq!(script.calls, [Acknowledge, Arm, Poll]);
}
