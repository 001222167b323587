//! Arming, draining and sleeping, against devices that complete and notify at any moment.
//!
//! A wake-up is lost if the thread sleeps although the device has written its last completion. Each possible fault in the
//! protocol is made here once, and must lose a wake-up. A fault sits between the shipped code and the queues.

use core::convert::Infallible;

use doorbell_hotpath::{Wait, Waitable, Waiter, Woken};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

/// No spinning: it only makes the model larger.
const SLEEP: Wait = Wait::SpinThenSleep { spins: 0 };

/// One completion queue with its notifications.
#[derive(Default)]
struct Queue {
    completions: usize,
    armed: bool,
    /// Written to its descriptor, and not taken.
    notifications: u32,
    /// An edge of its descriptor that the event loop has seen, and nobody has cleared.
    edge: bool,
}

#[derive(Default)]
struct State {
    queues: Vec<Queue>,
    /// No completion will come any more.
    done: bool,
}

/// The queues, and the notification on which the waiting thread sleeps. Each step of the device and of that thread is atomic.
struct Device {
    state: Mutex<State>,
    notified: Condvar,
}

impl Device {
    fn new(queues: usize) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State {
                queues: (0..queues).map(|_| Queue::default()).collect(),
                done: false,
            }),
            notified: Condvar::new(),
        })
    }

    /// Writes a completion, then notifies if the queue is armed. Source: `ibv_req_notify_cq(3)`.
    fn complete(&self, queue: usize) {
        self.state.lock().unwrap().queues[queue].completions += 1;
        let queue = &mut self.state.lock().unwrap().queues[queue];
        if queue.armed {
            queue.armed = false;
            queue.notifications += 1;
            queue.edge = true;
            self.notified.notify_one();
        }
    }

    fn finish(&self) {
        self.state.lock().unwrap().done = true;
        self.notified.notify_one();
    }
}

/// The event that wakes the waiting thread.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    /// By a descriptor that is readable: poll(2), epoll(7) by levels.
    Level,
    /// By an edge that is cleared once woken: tokio's `AsyncFd`.
    Edge,
}

/// A fault in the protocol.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// The queues are not polled between arming and sleeping.
    NoSecondPoll,
    /// They are armed after the last poll.
    ArmLast,
    /// Notifications are taken after the last poll.
    AcknowledgeLast,
    /// They are armed once and for all.
    ArmOnce,
    /// Only the first of them is armed.
    ArmOne,
    /// The edge is cleared before sleeping, instead of once woken.
    ClearLast,
}

struct Watched {
    device: Arc<Device>,
    queues: usize,
    by: By,
    fault: Fault,
    just_armed: bool,
    armed_before: bool,
    /// Completions polled so far.
    taken: usize,
}

impl Watched {
    fn each(&self, mut step: impl FnMut(&mut Queue)) {
        for index in 0..self.queues {
            step(&mut self.device.state.lock().unwrap().queues[index]);
        }
    }

    fn really_arm(&mut self) {
        if self.fault == Fault::ArmOne {
            self.device.state.lock().unwrap().queues[0].armed = true;
        } else if self.fault != Fault::ArmOnce || !self.armed_before {
            self.each(|queue| queue.armed = true);
        }
        self.armed_before = true;
    }

    fn is_awake(&self, queue: &Queue) -> bool {
        match self.by {
            By::Level => queue.notifications > 0,
            By::Edge => queue.edge,
        }
    }
}

impl Waitable for Watched {
    type Error = Infallible;

    fn poll(&mut self) -> Result<u32, Infallible> {
        if core::mem::take(&mut self.just_armed) && self.fault == Fault::NoSecondPoll {
            return Ok(0);
        }
        let mut count = 0;
        self.each(|queue| count += core::mem::take(&mut queue.completions));
        self.taken += count;
        Ok(u32::try_from(count).unwrap())
    }

    fn acknowledge(&mut self) -> Result<(), Infallible> {
        if self.fault != Fault::AcknowledgeLast {
            self.each(|queue| queue.notifications = 0);
        }
        Ok(())
    }

    fn arm(&mut self) -> Result<(), Infallible> {
        self.just_armed = true;
        if self.fault != Fault::ArmLast {
            self.really_arm();
        }
        Ok(())
    }

    fn is_over(&mut self) -> bool {
        false
    }

    fn sleep(&mut self) -> Result<(), Infallible> {
        match self.fault {
            Fault::ArmLast => self.really_arm(),
            Fault::AcknowledgeLast => self.each(|queue| queue.notifications = 0),
            Fault::ClearLast => self.each(|queue| queue.edge = false),
            _ => {}
        }
        let mut state = self.device.state.lock().unwrap();
        while !state.queues.iter().any(|queue| self.is_awake(queue)) {
            if state.done {
                drop(state);
                panic!("a wake-up was lost");
            }
            state = self.device.notified.wait(state).unwrap();
        }
        if self.by == By::Edge && self.fault != Fault::ClearLast {
            state.queues.iter_mut().for_each(|queue| queue.edge = false);
        }
        Ok(())
    }
}

/// Waits for completions, as many as are written: one after the other, into these queues.
fn wait_for(written: &'static [usize], by: By, fault: Fault) {
    loom::model(move || {
        let queues = written.iter().max().unwrap() + 1;
        let device = Device::new(queues);
        let thread = {
            let device = Arc::clone(&device);
            thread::spawn(move || {
                written.iter().for_each(|queue| device.complete(*queue));
                device.finish();
            })
        };
        let mut watched = Watched {
            device,
            queues,
            by,
            fault,
            just_armed: false,
            armed_before: false,
            taken: 0,
        };
        let mut waiter = Waiter::new();
        while watched.taken < written.len() {
            assert_eq!(waiter.wait(SLEEP, &mut watched), Ok(Woken::Progress));
        }
        thread.join().unwrap();
    });
}

/// Twice into the one queue there is.
const TWICE: &[usize] = &[0, 0];

/// Once into each of two queues.
const EACH: &[usize] = &[0, 1];

#[test]
fn every_completion_wakes() {
    wait_for(TWICE, By::Level, Fault::None);
}

#[test]
fn a_completion_of_either_queue_wakes() {
    wait_for(EACH, By::Level, Fault::None);
}

#[test]
fn every_completion_wakes_by_edges() {
    wait_for(TWICE, By::Edge, Fault::None);
}

#[test]
fn a_completion_of_either_queue_wakes_by_edges() {
    wait_for(EACH, By::Edge, Fault::None);
}

#[test]
#[should_panic(expected = "a wake-up was lost")]
fn not_to_poll_again_loses_a_completion() {
    wait_for(TWICE, By::Level, Fault::NoSecondPoll);
}

#[test]
#[should_panic(expected = "a wake-up was lost")]
fn to_arm_after_polling_loses_a_completion() {
    wait_for(TWICE, By::Level, Fault::ArmLast);
}

#[test]
#[should_panic(expected = "a wake-up was lost")]
fn to_take_notifications_after_polling_loses_one() {
    wait_for(TWICE, By::Level, Fault::AcknowledgeLast);
}

#[test]
#[should_panic(expected = "a wake-up was lost")]
fn to_arm_but_once_loses_the_second_completion() {
    wait_for(TWICE, By::Level, Fault::ArmOnce);
}

#[test]
#[should_panic(expected = "a wake-up was lost")]
fn to_arm_but_one_queue_loses_those_of_the_other() {
    wait_for(EACH, By::Level, Fault::ArmOne);
}

#[test]
#[should_panic(expected = "a wake-up was lost")]
fn to_clear_the_edge_before_sleeping_loses_one() {
    wait_for(TWICE, By::Edge, Fault::ClearLast);
}
