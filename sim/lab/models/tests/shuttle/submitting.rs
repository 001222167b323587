//! A Worker that goes while several threads submit to it. Each submitted request is done or reported, once, and all memory is home in
//! the end.
//!
//! Only the Worker is a stand-in. A request that it takes is done, fails, or is in flight when another thread destroys its queue pair.
//! The Worker gives back the requests that it finds when it closes the ring.

use std::collections::BTreeSet;
use std::sync::Arc;

use doorbell_core::free_list::FreeList;
use doorbell_core::sync::AtomicU32;
use doorbell_hotpath::ring::{Consumer, Descriptor, MpscProducer, MpscRing, PushError, Slot};
use doorbell_hotpath::{FailureTaker, Failures, take_late};
use shuttle::sync::Mutex;
use shuttle::thread;

use crate::{explore, slots};

type Ring = Arc<MpscRing<Vec<Slot>>>;

const SUBMITTERS: u16 = 3;
/// Slots of each.
const SLOTS: u32 = 2;
/// Requests that each submits, if it can.
const EACH: u64 = 4;
/// Requests that the Worker takes before it goes, if there are so many.
const TAKEN: usize = 6;
/// Mark of a report without its slot.
const APART: u64 = 1;
/// Attempts at a step that may not be possible yet.
const TRIES: usize = 12;

/// State that the Worker and a submitter share.
struct ReturnPath {
    failures: Failures<Ring, Vec<AtomicU32>>,
    home: FreeList<Vec<AtomicU32>>,
}

struct Shared {
    requests: Ring,
    return_paths: Vec<ReturnPath>,
}

impl Shared {
    fn new() -> Arc<Self> {
        let words = || (0..SLOTS).map(|_| AtomicU32::new(0)).collect();
        let ring = |count| Arc::new(MpscRing::new(slots(count)).unwrap());
        let return_path = |_| ReturnPath {
            failures: Failures::new(ring(SLOTS as usize), words()),
            home: FreeList::new(words()),
        };
        Arc::new(Self {
            requests: ring(4),
            return_paths: (0..SUBMITTERS).map(return_path).collect(),
        })
    }

    fn return_path(&self, request: &Descriptor) -> &ReturnPath {
        &self.return_paths[usize::from(request.kind)]
    }

    fn report(&self, request: Descriptor) {
        let reported = self.return_path(&request).failures.report(request);
        assert_eq!(reported, Ok(()), "there is room for each slot");
    }

    /// Runs the Worker; returns the numbers of the requests that were done.
    fn work(&self, in_flight: &Mutex<Vec<Descriptor>>) -> BTreeSet<u64> {
        let mut requests = Consumer::claim(Arc::clone(&self.requests)).unwrap();
        let mut done = BTreeSet::new();
        let mut taken = 0;
        for _ in 0..TRIES {
            while let Ok(request) = requests.take() {
                let number = number(&request);
                match number % 3 {
                    0 => {
                        assert!(done.insert(number));
                        self.return_path(&request).home.put(request.index);
                    }
                    1 => self.report(request),
                    _ => in_flight.lock().unwrap().push(request),
                }
                taken += 1;
            }
            if taken >= TAKEN {
                break;
            }
            thread::yield_now();
        }
        requests.close();
        while let Ok(request) = requests.take() {
            self.report(request);
        }
        done
    }

    /// Destroys the queue pairs of all requests that are in flight by now.
    fn destroy(&self, in_flight: &Mutex<Vec<Descriptor>>) {
        loop {
            let Some(mut request) = in_flight.lock().unwrap().pop() else {
                return;
            };
            let return_path = self.return_path(&request);
            request.words[1] = APART;
            let reported = return_path.failures.report_apart(request);
            assert_eq!(reported, Ok(()), "there is room for each slot");
            return_path.home.put(request.index);
        }
    }
}

/// The unique number of a request.
fn number(request: &Descriptor) -> u64 {
    request.words[0]
}

struct Submitter {
    shared: Arc<Shared>,
    who: u16,
    requests: MpscProducer<Ring>,
    failures: FailureTaker<Ring, Vec<Option<u32>>>,
    /// Slots that were taken off the list of slots that came home.
    free: Vec<u32>,
    submitted: BTreeSet<u64>,
    reported: BTreeSet<u64>,
}

impl Submitter {
    fn new(shared: &Arc<Shared>, who: u16) -> Self {
        let failures = &shared.return_paths[usize::from(who)].failures;
        Self {
            shared: Arc::clone(shared),
            who,
            requests: MpscProducer::new(Arc::clone(&shared.requests)),
            failures: failures.taker((0..SLOTS).map(|_| None).collect()).unwrap(),
            free: (0..SLOTS).collect(),
            submitted: BTreeSet::new(),
            reported: BTreeSet::new(),
        }
    }

    fn lend(&mut self) -> Option<u32> {
        let return_path = &self.shared.return_paths[usize::from(self.who)];
        let free = &mut self.free;
        let next = || {
            if free.is_empty() {
                return_path.home.take_all(|index| free.push(index));
            }
            free.pop()
        };
        self.failures.lend(&return_path.failures, next, |index| *index)
    }

    fn take_failures(&mut self) {
        if self.requests.is_closed() {
            take_late(&*self.shared.requests, |request| self.shared.report(request));
        }
        let failures = &self.shared.return_paths[usize::from(self.who)].failures;
        while let Ok((reported, home)) = self.failures.take(failures) {
            let number = number(&reported);
            assert!(self.submitted.contains(&number), "nobody submitted {number}");
            assert!(self.reported.insert(number), "{number} was reported twice");
            self.free.extend(home);
            // A slot without its report comes home by itself.
            if reported.words[1] != APART {
                self.free.push(reported.index);
            }
        }
    }

    /// Submits one request; returns whether another may follow.
    fn submit(&mut self, number: u64) -> bool {
        for _ in 0..TRIES {
            self.take_failures();
            if let Some(index) = self.lend() {
                let pushed = self.requests.push(Descriptor {
                    words: [number, 0, 0],
                    index,
                    kind: self.who,
                });
                match pushed {
                    Ok(()) => return self.submitted.insert(number),
                    Err(PushError::Full(_)) => self.free.push(index),
                    Err(_) => {
                        self.free.push(index);
                        return false;
                    }
                }
            }
            thread::yield_now();
        }
        true
    }

    fn run(mut self) -> Self {
        let first = u64::from(self.who) * EACH;
        let _all = (first..first + EACH).all(|number| self.submit(number));
        self
    }

    /// Checks, once all other threads are gone: each request that was not done was reported, and all memory is home.
    fn check(&mut self, done: &BTreeSet<u64>) {
        self.take_failures();
        let settled: BTreeSet<_> = self.reported.union(done).copied().collect();
        assert!(self.reported.is_disjoint(done), "reported, and done");
        assert!(self.submitted.is_subset(&settled), "lost: {:?}", self.submitted);
        let mut home: Vec<_> = core::iter::from_fn(|| self.lend()).collect();
        home.sort_unstable();
        assert!(home.into_iter().eq(0..SLOTS), "each slot is home, and once");
    }
}

#[test]
fn nothing_submitted_is_lost_or_reported_twice_when_the_worker_goes() {
    explore(
        "nothing_submitted_is_lost_or_reported_twice_when_the_worker_goes",
        || {
            let shared = Shared::new();
            let submitters: Vec<_> = (0..SUBMITTERS)
                .map(|who| {
                    let submitter = Submitter::new(&shared, who);
                    thread::spawn(move || submitter.run())
                })
                .collect();
            let in_flight = Arc::new(Mutex::new(Vec::new()));
            let worker = {
                let (shared, in_flight) = (Arc::clone(&shared), Arc::clone(&in_flight));
                thread::spawn(move || shared.work(&in_flight))
            };
            let destroying = {
                let (shared, in_flight) = (Arc::clone(&shared), Arc::clone(&in_flight));
                thread::spawn(move || shared.destroy(&in_flight))
            };
            let done = worker.join().unwrap();
            destroying.join().unwrap();
            shared.destroy(&in_flight);
            // All threads end before any submitter is checked: a submitter that takes late requests takes them for the others, too.
            let submitters: Vec<_> = submitters.into_iter().map(|each| each.join().unwrap()).collect();
            for mut submitter in submitters {
                submitter.check(&done);
            }
        },
    );
}
