//! Traffic between two Workers that were taken apart, on four threads, over any provider.
#![allow(dead_code, clippy::allow_attributes, reason = "each test file uses its part")]

use core::fmt::Debug;
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use doorbell::provider::{ArenaConfig, Provider};
use doorbell::worker::{ReceiveWorker, SendWorker, StatisticsSnapshot};
use doorbell::{ChannelId, ChannelState, Event, Lease, Operation, PostFlags, SendErrorKind, Worker};

/// A thread that is not done by then is stuck.
const PATIENCE: Duration = Duration::from_secs(120);

/// How many messages go out with one doorbell.
const BATCH: usize = 8;

/// A Worker with one channel, taken apart.
pub(crate) struct Halves<P: Provider> {
    pub(crate) sending: SendWorker<P>,
    pub(crate) receiving: ReceiveWorker<P>,
    pub(crate) id: ChannelId,
}

impl<P: Provider + Debug> Halves<P> {
    pub(crate) fn of(worker: Worker<P>) -> Self {
        let id = worker.channels().next().unwrap();
        let (sending, receiving) = worker.split(&ArenaConfig::new(64, 256)).unwrap();
        Self {
            sending,
            receiving,
            id,
        }
    }

    pub(crate) fn join(self) -> Worker<P> {
        self.sending.join(self.receiving).unwrap()
    }

    /// Posts one message, by itself.
    pub(crate) fn send(&mut self, number: u32) -> Result<(), SendErrorKind> {
        let bytes = number.to_be_bytes();
        let channel = self.sending.channel(self.id).unwrap();
        channel.post_inline(Operation::Send, &bytes).map(|_| ())
    }

    /// The numbers that are there now.
    pub(crate) fn received(&mut self) -> Vec<u32> {
        let mut numbers = Vec::new();
        while self
            .receiving
            .poll(|_, event| match event {
                Event::Received { message, .. } => {
                    numbers.push(number_of(message.payload()));
                }
                other => panic!("{other:?}"),
            })
            .unwrap()
            > 0
        {}
        numbers
    }
}

fn number_of(message: &[u8]) -> u32 {
    u32::from_be_bytes(message.try_into().unwrap())
}

/// State that the threads share.
struct Common {
    /// Number of threads that have heard all.
    finished: AtomicU32,
    began: Instant,
}

impl Common {
    fn new() -> Self {
        Self {
            finished: AtomicU32::new(0),
            began: Instant::now(),
        }
    }

    fn all_heard(&self) -> bool {
        self.finished.load(Ordering::Acquire) == 2
    }

    /// Lets others run.
    fn idle(&self, who: &str) {
        assert!(self.began.elapsed() < PATIENCE, "{who} is stuck");
        thread::yield_now();
    }

    /// Hears the numbers up to `count`, in order; `each` gets the messages.
    fn hear<P: Provider + Debug>(
        &self,
        worker: &mut ReceiveWorker<P>,
        count: u32,
        mut each: impl FnMut(Lease<P>) -> Option<Lease<P>>,
    ) {
        let mut next = 0;
        while next < count {
            let polled = worker.poll(|mut turn, event| match event {
                Event::Received { message, .. } => {
                    let message = message.keep();
                    assert_eq!(number_of(message.payload()), next);
                    next += 1;
                    if let Some(message) = each(message) {
                        turn.release(message);
                    }
                }
                other => panic!("{other:?}"),
            });
            if polled.unwrap() == 0 {
                self.idle("who receives");
            }
        }
        self.finished.fetch_add(1, Ordering::AcqRel);
    }

    /// Sends what `next` gives, and announces until everybody has heard all.
    fn tell<P: Provider + Debug>(
        &self,
        worker: &mut SendWorker<P>,
        id: ChannelId,
        mut next: impl FnMut(&mut SendWorker<P>) -> Option<Lease<P>>,
    ) {
        let mut waiting = VecDeque::with_capacity(BATCH);
        loop {
            while waiting.len() < BATCH {
                let Some(lease) = next(worker) else { break };
                waiting.push_back(lease);
            }
            let mut batch = worker.channel(id).unwrap().batch();
            while let Some(lease) = waiting.pop_front() {
                if let Err(refused) = batch.push(Operation::Send, [lease], PostFlags::empty()) {
                    assert_eq!(refused.kind, SendErrorKind::WouldBlock);
                    let [lease] = refused.item.unwrap();
                    waiting.push_front(lease);
                    break;
                }
            }
            let posted = batch.ring().unwrap();
            let done = worker.poll(|_, event| assert!(matches!(event, Event::Done { .. }), "{event:?}"));
            if posted > 0 || done.unwrap() > 0 {
                continue;
            }
            // Messages that went out unsignaled at the end are still in flight, as far as this side knows.
            if waiting.is_empty() && self.all_heard() {
                return;
            }
            self.idle("who sends");
        }
    }
}

/// Numbers each side sends of its own, from its own memory.
fn numbers<P: Provider>(count: u32) -> impl FnMut(&mut SendWorker<P>) -> Option<Lease<P>> {
    let mut number = 0;
    move |worker| {
        if number == count {
            return None;
        }
        let mut lease = worker.lease()?;
        lease.fill(&number.to_be_bytes()).unwrap();
        number += 1;
        Some(lease)
    }
}

/// Messages one way and the other, so many: one thread for each half.
pub(crate) fn exchange<P: Provider + Debug>(a: &mut Halves<P>, b: &mut Halves<P>, counts: [u32; 2]) {
    let common = &Common::new();
    thread::scope(|scope| {
        for (from, to, count) in [
            (&mut a.sending, &mut b.receiving, counts[0]),
            (&mut b.sending, &mut a.receiving, counts[1]),
        ] {
            let id = from.channels().next().unwrap();
            scope.spawn(move || common.tell(from, id, numbers(count)));
            scope.spawn(move || common.hear(to, count, Some));
        }
    });
    for half in [a, b] {
        let id = half.id;
        assert_eq!(half.sending.channel(id).unwrap().state(), ChannelState::Open);
        assert_eq!(half.receiving.channel(id).unwrap().state(), ChannelState::Open);
    }
}

/// The same, and looks at what the first side counted meanwhile: at least one announcement of so many receives.
pub(crate) fn exchange_counted<P: Provider + Debug>(
    a: &mut Halves<P>,
    b: &mut Halves<P>,
    counts: [u32; 2],
    announced_at: u64,
) -> StatisticsSnapshot {
    let before = a.sending.statistics().snapshot();
    exchange(a, b, counts);
    let since = a.sending.statistics().snapshot().since(&before);
    assert_eq!(since.received, u64::from(counts[1]), "no count is lost");
    assert_eq!(since.requests - since.announcements, u64::from(counts[0]));
    assert_eq!((since.rejected, since.orphaned), (0, 0));
    assert!(
        since.announcements >= u64::from(counts[1]) / announced_at,
        "{since}"
    );
    since
}

/// One side sends, the other sends back the very memory it received into.
pub(crate) fn echo<P: Provider + Debug>(a: &mut Halves<P>, b: &mut Halves<P>, count: u32) {
    let common = &Common::new();
    let (a_id, b_id) = (a.id, b.id);
    thread::scope(|scope| {
        scope.spawn(|| common.tell(&mut a.sending, a_id, numbers(count)));
        scope.spawn(|| common.hear(&mut a.receiving, count, Some));
        let (over, from_other_half) = mpsc::channel::<Lease<P>>();
        let (receiving, sending) = (&mut b.receiving, &mut b.sending);
        scope.spawn(move || {
            common.hear(receiving, count, |message| {
                over.send(message).unwrap();
                None
            });
        });
        scope.spawn(move || common.tell(sending, b_id, |_| from_other_half.try_recv().ok()));
    });
}
