//! The trader: offers orders, and never waits for any one of them.

use core::fmt::{self, Display};
use core::time::Duration;
use std::thread;
use std::time::Instant;

use doorbell::provider::{Clock as _, Network, Provider};
use doorbell::requests::{Heard, RequestFailure, Requests};
use doorbell::worker::FirstCause;
use doorbell::{ChannelConfig, ChannelId, Event, Handle, Node, Worker, WorkerConfig};
use serde::Serialize;

use super::Load;
use super::around::{Failure, Percentiles, Progress, Report, note_failure, rate};
use super::message::{BODY_BYTES, Order};
use super::orders::{Orders, Sent};

/// Orders offered between two looks at the connection, at most.
const BURST: u64 = 16;

/// Report of a trader.
#[derive(Debug, Serialize)]
pub(crate) struct Traded {
    pub(crate) role: &'static str,
    /// "closed loop" or "open loop".
    pub(crate) load: &'static str,
    pub(crate) offered: u64,
    pub(crate) answered: u64,
    pub(crate) late: u64,
    pub(crate) lost: u64,
    /// By backpressure: never sent.
    pub(crate) rejected: u64,
    pub(crate) wrong: u64,
    pub(crate) unasked: u64,
    pub(crate) seconds: f64,
    pub(crate) answers_per_s: f64,
    /// Latencies of all answers, late ones too: in an open loop from when the order was due, else from when it was sent.
    pub(crate) latency: Option<Percentiles>,
    pub(crate) failures: Vec<String>,
}

/// Connects, offers all orders, and reports their outcomes.
///
/// # Errors
/// There is no device, the gateway cannot be reached, or a Worker cannot be used.
pub(crate) fn run<P: Provider>(
    node: &Node<P, impl Network>,
    handle: &Handle,
    load: &Load,
    patience_s: u64,
) -> Result<Traded, Failure> {
    let patience = Duration::from_secs(patience_s);
    let mut workers = node.workers(&WorkerConfig::default())?;
    let to = node.connect(
        &mut workers,
        handle,
        &ChannelConfig::default(),
        node.within(patience),
    )?;
    let worker = workers.get_mut(to.worker).ok_or("no such worker")?;
    let channel = worker.channel(to.channel).ok_or("closed")?;
    let in_flight_max = channel.limits().send_depth.min(channel.peer().receive_depth());
    if load.rate.is_none() && load.in_flight > in_flight_max {
        return Err(format!("{} orders in flight, where {in_flight_max} fit", load.in_flight).into());
    }
    let mut trader = Trader {
        load,
        orders: Orders::new()?,
        requests: Requests::new(load.waiting_max(), BODY_BYTES),
        failed: None,
    };
    let began = Instant::now();
    trader.trade(worker, to.channel, began)?;
    let span = began.elapsed();
    trader.listen(worker)?;
    let mut failures = trader.failures();
    if let Err(error) = worker.close(to.channel, worker.within(patience), |_, _| {}) {
        failures.push(error.to_string());
    }
    let orders = &trader.orders;
    Ok(Traded {
        role: "trader",
        load: if load.rate.is_some() {
            "open loop"
        } else {
            "closed loop"
        },
        offered: orders.offered,
        answered: orders.answered,
        late: orders.late,
        lost: orders.overdue() as u64,
        rejected: orders.rejected,
        wrong: orders.wrong,
        unasked: orders.unasked,
        seconds: span.as_secs_f64(),
        answers_per_s: rate(orders.answered + orders.late, span),
        latency: orders.latencies.percentiles(),
        failures,
    })
}

impl Load {
    /// Orders that wait for their answers at the same time, at most: in an open loop all that are offered before the first one's deadline.
    fn waiting_max(&self) -> u32 {
        let due = |rate| u128::from(rate) * u128::from(self.deadline_us) / 1_000_000 + u128::from(BURST);
        self.rate.map_or(self.in_flight, |rate| {
            u32::try_from(due(rate)).unwrap_or(u32::MAX).min(self.orders)
        })
    }
}

struct Trader<'a> {
    load: &'a Load,
    orders: Orders,
    requests: Requests<Sent>,
    failed: Option<String>,
}

impl Trader<'_> {
    /// Offers all orders, and goes on until none waits any more.
    fn trade<P: Provider>(
        &mut self,
        worker: &mut Worker<P>,
        id: ChannelId,
        began: Instant,
    ) -> Result<(), Failure> {
        let all = u64::from(self.load.orders);
        let mut progress = Progress::new();
        while self.failed.is_none() && (self.orders.offered < all || self.requests.in_flight() > 0) {
            let now = Instant::now();
            self.offer(worker, id, began, now);
            self.poll(worker)?;
            progress.tell(now, || format!("offered {} of {all}", self.orders.offered));
        }
        let Self { orders, requests, .. } = self;
        // Nothing more comes, where it failed.
        requests.fail(RequestFailure::GivenUp, |sent, _| orders.note_overdue(sent));
        Ok(())
    }

    /// Sends the orders that are due.
    fn offer<P: Provider>(&mut self, worker: &mut Worker<P>, id: ChannelId, began: Instant, now: Instant) {
        let span = Duration::from_micros(self.load.deadline_us);
        for _ in 0..BURST {
            let number = self.orders.offered;
            let since = match self.load.rate {
                _ if number == u64::from(self.load.orders) => return,
                Some(rate) => began + due_after(rate, number),
                None if self.requests.room() > 0 => Instant::now(),
                None => return,
            };
            if since > now && self.load.rate.is_some() {
                return;
            }
            let order = Order::of(number);
            let deadline = worker.within(span.saturating_sub(now.saturating_duration_since(since)));
            let sent = Sent { order, since };
            let outcome = self.requests.send(worker, id, &order.to_bytes(), deadline, sent);
            match outcome {
                Ok(_) => self.orders.offered += 1,
                // Handed back before anything was sent: that is certain, and known at once.
                Err(refused) if refused.kind.is_temporary() => {
                    self.orders.offered += 1;
                    self.orders.rejected += 1;
                    return;
                }
                Err(refused) => {
                    self.failed = Some(refused.kind.to_string());
                    return;
                }
            }
        }
    }

    /// Takes the answers that came, and ends the orders whose deadlines have passed.
    fn poll<P: Provider>(&mut self, worker: &mut Worker<P>) -> Result<(), Failure> {
        let Self {
            orders,
            requests,
            failed,
            ..
        } = self;
        let count = worker.poll(|mut turn, event| match event {
            Event::Received { message, .. } => match requests.hear_from(turn.channel.id(), message.payload())
            {
                Heard::Answer(sent, answer) => orders.note_answer(Instant::now(), sent, answer),
                Heard::Late(_, answer) => orders.note_late(Instant::now(), answer),
                _ => orders.unasked += 1,
            },
            event => match requests.take(&mut turn, event, |sent, _| orders.note_overdue(sent)) {
                Some(
                    Event::Failed { status, .. }
                    | Event::ChannelFailed {
                        cause: FirstCause { status, .. },
                    },
                ) => note_failure(failed, status),
                Some(Event::PeerClosed { .. }) => *failed = Some("the gateway closed the connection".into()),
                _ => {}
            },
        })?;
        requests.expire(worker.context().now(), |sent, _| orders.note_overdue(sent));
        if count == 0 {
            // On a machine with fewer processors than threads, the others get theirs.
            thread::yield_now();
        }
        Ok(())
    }

    /// Listens a while for answers that are overdue.
    fn listen<P: Provider>(&mut self, worker: &mut Worker<P>) -> Result<(), Failure> {
        let until = Instant::now() + Duration::from_millis(self.load.grace_ms);
        while self.failed.is_none() && self.orders.overdue() > 0 && Instant::now() < until {
            self.poll(worker)?;
        }
        Ok(())
    }

    fn failures(&self) -> Vec<String> {
        let Orders { wrong, unasked, .. } = self.orders;
        let counted = [
            (
                self.orders.overdue() as u64,
                "orders were lost: sent, and never answered",
            ),
            (wrong, "answers are wrong"),
            (unasked, "answers came to no order that waited"),
        ];
        let counted = counted.into_iter().filter(|(count, _)| *count > 0);
        let counted = counted.map(|(count, what)| format!("{count} {what}"));
        counted.chain(self.failed.clone()).collect()
    }
}

/// When, after the first, an order is due.
fn due_after(per_second: u64, number: u64) -> Duration {
    let ns = u128::from(number) * 1_000_000_000 / u128::from(per_second.max(1));
    Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
}

impl Report for Traded {
    fn failures(&self) -> &[String] {
        &self.failures
    }
}

impl Display for Traded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{}: {} orders, {} answered in time, {} late, {} lost, {} rejected by backpressure; {} answers a second",
            self.load, self.offered, self.answered, self.late, self.lost, self.rejected, self.answers_per_s
        )?;
        match &self.latency {
            Some(latency) => writeln!(f, "  latency {latency}"),
            None => writeln!(f, "  no answer at all"),
        }
    }
}
