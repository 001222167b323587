//! Many that connect, some that think better of it, several that accept, and a queue that is closed meanwhile.

use std::sync::Arc;

use doorbell_core::accept_queue::{AcceptQueue, AcceptSlot, ReserveError, TakeError};
use shuttle::sync::Mutex;
use shuttle::thread;

use crate::explore;

const CONNECTING: u32 = 4;
const EACH: u32 = 3;
const ACCEPTING: u32 = 2;
const PLACES: usize = 3;

struct Shared {
    queue: AcceptQueue<Vec<AcceptSlot>>,
    table: Vec<Mutex<Option<u32>>>,
}

impl Shared {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            queue: AcceptQueue::new((0..PLACES).map(|_| AcceptSlot::new()).collect()),
            table: (0..PLACES).map(|_| Mutex::new(None)).collect(),
        })
    }

    /// Connects until all are in, or no more are wanted; gives those whose peers were told yes.
    fn connect_all(&self, from: u32) -> Vec<u32> {
        let mut connected = Vec::new();
        let mut number = 0;
        while number < EACH {
            let place = match AcceptQueue::reserve(&self.queue) {
                Ok(place) => place,
                Err(ReserveError::Closed) => break,
                Err(_) => {
                    thread::yield_now();
                    continue;
                }
            };
            let connection = from * EACH + number;
            let entry = &self.table[place.index() as usize];
            let before = entry.lock().unwrap().replace(connection);
            assert_eq!(before, None, "a place has one owner");
            if number == 1 {
                *entry.lock().unwrap() = None;
                drop(place);
            } else {
                place.publish();
                connected.push(connection);
            }
            number += 1;
        }
        connected
    }

    /// Accepts until none comes any more.
    fn accept_all(&self) -> Vec<u32> {
        let mut accepted = Vec::new();
        loop {
            match AcceptQueue::take(&self.queue) {
                Ok(taken) => {
                    let connection = self.table[taken.index() as usize].lock().unwrap().take();
                    accepted.push(connection.expect("an empty place was published"));
                }
                Err(TakeError::Closed) => return accepted,
                Err(_) => thread::yield_now(),
            }
        }
    }

    /// Starts all of them; gives those that connect and those that accept.
    fn start(self: &Arc<Self>) -> [Vec<thread::JoinHandle<Vec<u32>>>; 2] {
        let connecting = (0..CONNECTING).map(|from| {
            let shared = Arc::clone(self);
            thread::spawn(move || shared.connect_all(from))
        });
        let connecting = connecting.collect();
        let accepting = (0..ACCEPTING).map(|_| {
            let shared = Arc::clone(self);
            thread::spawn(move || shared.accept_all())
        });
        [connecting, accepting.collect()]
    }
}

fn sorted(threads: Vec<thread::JoinHandle<Vec<u32>>>) -> Vec<u32> {
    let mut all: Vec<u32> = threads
        .into_iter()
        .flat_map(|thread| thread.join().unwrap())
        .collect();
    all.sort_unstable();
    all
}

#[test]
fn all_that_connect_are_accepted() {
    explore("all_that_connect_are_accepted", || {
        let shared = Shared::new();
        let [connecting, accepting] = shared.start();
        let connected = sorted(connecting);
        shared.queue.close();
        assert_eq!(sorted(accepting), connected);
        assert_eq!(connected.len() as u32, CONNECTING * (EACH - 1));
        assert!(shared.queue.is_over());
    });
}

#[test]
fn those_told_yes_before_it_was_closed_are_accepted() {
    explore("those_told_yes_before_it_was_closed_are_accepted", || {
        let shared = Shared::new();
        let [connecting, accepting] = shared.start();
        shared.queue.close();
        let connected = sorted(connecting);
        assert_eq!(sorted(accepting), connected);
        assert!(shared.queue.is_over());
    });
}
