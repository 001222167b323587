//! The trader: offers orders, and never waits for any one of them.

use core::fmt::{self, Display};
use core::time::Duration;
use std::thread;
use std::time::Instant;

use doorbell::vocabulary::provider::Provider;
use doorbell::{
    Channel, ChannelConfig, ChannelId, Event, FirstCause, Handle, Network, Node, Operation, SendErrorKind,
    Worker, WorkerConfig,
};
use serde::Serialize;

use super::Load;
use super::around::{Failure, Percentiles, Progress, Report, note_failure, rate};
use super::message::{Answer, MESSAGE_BYTES, Request};
use super::orders::Orders;

/// Orders offered between two looks at the connection, at most.
const BURST: u64 = 16;

/// What a trader found.
#[derive(Debug, Serialize)]
pub(crate) struct Traded {
    pub(crate) role: &'static str,
    /// "closed loop" or "open loop".
    pub(crate) load: &'static str,
    pub(crate) offered: u64,
    pub(crate) answered: u64,
    pub(crate) late: u64,
    pub(crate) lost: u64,
    /// By back-pressure: never sent.
    pub(crate) rejected: u64,
    pub(crate) wrong: u64,
    pub(crate) unasked: u64,
    pub(crate) seconds: f64,
    pub(crate) answers_per_s: f64,
    /// Of all answers, late ones too: in an open loop from when the order was due, else from when it was sent.
    pub(crate) latency: Option<Percentiles>,
    pub(crate) failures: Vec<String>,
}

/// Connects, offers all orders, and tells what became of them.
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
    let inline_bytes_max = channel.limits().inline_bytes_max;
    if (inline_bytes_max as usize) < MESSAGE_BYTES {
        return Err(format!(
            "the device sends {inline_bytes_max} bytes inline; an order has {MESSAGE_BYTES}"
        )
        .into());
    }
    let in_flight_max = channel.limits().send_depth.min(channel.peer().receive_depth());
    if load.rate.is_none() && load.in_flight > in_flight_max {
        return Err(format!("{} orders in flight, where {in_flight_max} fit", load.in_flight).into());
    }
    let mut trader = Trader {
        load,
        orders: Orders::new(load.orders as usize, Duration::from_micros(load.deadline_us))?,
        failed: None,
    };
    let began = Instant::now();
    trader.trade(worker, to.channel, began)?;
    let span = began.elapsed();
    trader.listen(worker)?;
    trader.say_end(worker, to.channel, patience)?;
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
        offered: orders.offered(),
        answered: orders.answered,
        late: orders.late,
        lost: orders.overdue,
        rejected: orders.rejected,
        wrong: orders.wrong,
        unasked: orders.unasked,
        seconds: span.as_secs_f64(),
        answers_per_s: rate(orders.answered + orders.late, span),
        latency: orders.latencies.percentiles(),
        failures,
    })
}

struct Trader<'a> {
    load: &'a Load,
    orders: Orders,
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
        while self.failed.is_none() && (self.orders.offered() < all || self.orders.waiting > 0) {
            let now = Instant::now();
            self.offer(worker.channel(id).ok_or("closed")?, began, now);
            self.poll(worker)?;
            self.orders.expire(now);
            progress.tell(now, || format!("offered {} of {all}", self.orders.offered()));
        }
        if self.failed.is_some() {
            self.orders.give_up();
        }
        Ok(())
    }

    /// Sends the orders that are due.
    fn offer<P: Provider>(&mut self, channel: &mut Channel<P>, began: Instant, now: Instant) {
        let all = u64::from(self.load.orders);
        for _ in 0..BURST {
            let number = self.orders.offered();
            let since = match self.load.rate {
                _ if number == all => return,
                Some(rate) => began + due_after(rate, number),
                None if self.orders.waiting < u64::from(self.load.in_flight) => Instant::now(),
                None => return,
            };
            if since > now && self.load.rate.is_some() {
                return;
            }
            let order = Request::Order(self.orders.next());
            match channel.post_inline(Operation::Send, &order.to_bytes()) {
                Ok(_) => self.orders.note_sent(since),
                // Handed back before anything was sent: that is certain, and known at once.
                Err(SendErrorKind::WouldBlock) => {
                    self.orders.note_rejected();
                    return;
                }
                Err(kind) => {
                    self.failed = Some(kind.to_string());
                    return;
                }
            }
        }
    }

    /// Takes the answers that came.
    fn poll<P: Provider>(&mut self, worker: &mut Worker<P>) -> Result<(), Failure> {
        let Self { orders, failed, .. } = self;
        let count = worker.poll(|mut turn, event| match event {
            Event::Received { message, .. } => {
                orders.note_answer(Instant::now(), Answer::parse(message.payload()));
                turn.release(message);
            }
            Event::Failed { status, .. }
            | Event::ChannelFailed {
                cause: FirstCause { status, .. },
            } => {
                note_failure(failed, status);
            }
            _ => {}
        })?;
        if count == 0 {
            // On a machine with fewer processors than threads, the others get theirs.
            thread::yield_now();
        }
        Ok(())
    }

    /// Listens a while for answers that are overdue.
    fn listen<P: Provider>(&mut self, worker: &mut Worker<P>) -> Result<(), Failure> {
        let until = Instant::now() + Duration::from_millis(self.load.grace_ms);
        while self.failed.is_none() && self.orders.overdue > 0 && Instant::now() < until {
            self.poll(worker)?;
        }
        Ok(())
    }

    /// Tells the gateway that this was all.
    fn say_end<P: Provider>(
        &mut self,
        worker: &mut Worker<P>,
        id: ChannelId,
        patience: Duration,
    ) -> Result<(), Failure> {
        let end = Request::End(self.orders.offered() - self.orders.rejected).to_bytes();
        let until = Instant::now() + patience;
        while self.failed.is_none() {
            let channel = worker.channel(id).ok_or("closed")?;
            match channel.post_inline(Operation::Send, &end) {
                Ok(_) => break,
                Err(SendErrorKind::WouldBlock) if Instant::now() < until => self.poll(worker)?,
                Err(kind) => self.failed = Some(kind.to_string()),
            }
        }
        Ok(())
    }

    fn failures(&self) -> Vec<String> {
        let Orders {
            overdue,
            wrong,
            unasked,
            ..
        } = self.orders;
        let counted = [
            (overdue, "orders were lost: sent, and never answered"),
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
            "{}: {} orders, {} answered in time, {} late, {} lost, {} rejected by back-pressure; {} answers a second",
            self.load, self.offered, self.answered, self.late, self.lost, self.rejected, self.answers_per_s
        )?;
        match &self.latency {
            Some(latency) => writeln!(f, "  latency {latency}"),
            None => writeln!(f, "  no answer at all"),
        }
    }
}
