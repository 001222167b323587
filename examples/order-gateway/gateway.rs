//! The gateway: answers each order as it comes.

use core::fmt::{self, Display};
use core::time::Duration;
use std::collections::VecDeque;
use std::time::Instant;

use doorbell::provider::{Network, Provider};
use doorbell::requests::{Asked, Framing};
use doorbell::worker::FirstCause;
use doorbell::{
    Channel, ChannelConfig, Event, Handle, Lease, Listener, Message, Node, SendErrorKind, Turn, Woken,
};
use serde::Serialize;

use super::Serve;
use super::around::{Failure, Progress, Report, note_failure};
use super::message::{Answer, BODY_BYTES, Order};

/// Report of a gateway.
#[derive(Debug, Serialize)]
pub(crate) struct Served {
    pub(crate) role: &'static str,
    /// Orders that came.
    pub(crate) orders: u64,
    pub(crate) answered: u64,
    /// Left without an answer, as was asked for.
    pub(crate) muted: u64,
    /// Answers that had to wait for room on the way back.
    pub(crate) answers_delayed: u64,
    pub(crate) failures: Vec<String>,
}

/// State between two orders.
struct Desk<'a, P: Provider> {
    arguments: &'a Serve,
    served: Served,
    /// Orders whose answers could not go yet, oldest first, in the memory the next orders would come into. So a trader
    /// that does not listen is refused new ones, and this does not grow beyond the registered memory.
    unsent: VecDeque<(Asked<P>, Answer)>,
    framing: Framing,
    /// The trader closed the connection, and all its orders had come.
    is_at_end: bool,
    failed: Option<String>,
}

impl<P: Provider> Desk<'_, P> {
    fn note(&mut self, turn: Turn<'_, P>, event: Event<'_, P>) {
        match event {
            Event::Received { message, .. } => self.take(turn, message),
            Event::Failed { status, .. }
            | Event::ChannelFailed {
                cause: FirstCause { status, .. },
            } => {
                note_failure(&mut self.failed, status);
            }
            Event::PeerClosed { all_arrived: true } => self.is_at_end = true,
            Event::PeerClosed { all_arrived: false } => {
                self.failed = Some("the trader closed the connection, and not all its orders came".into());
            }
            _ => {}
        }
    }

    fn take(&mut self, mut turn: Turn<'_, P>, message: Message<'_, P>) {
        let order = |asked: &Asked<P>| Order::parse(asked.body());
        let Ok(asked) = Asked::of(message) else { return };
        let asked = match order(&asked) {
            Some(order) => {
                self.served.orders += 1;
                self.work();
                if self.is_muted(&order) {
                    self.served.muted += 1;
                    turn.release(asked.into_lease());
                    return;
                }
                (asked, order.answer())
            }
            None => {
                self.failed = Some("an order came that is damaged".into());
                turn.release(asked.into_lease());
                return;
            }
        };
        self.unsent.push_back(asked);
        while let Some(answered) = self.send(turn.channel) {
            turn.release(answered);
        }
    }

    /// Sends the oldest answer, if there is room; gives the memory of its order.
    fn send(&mut self, channel: &mut Channel<P>) -> Option<Lease<P>> {
        let (asked, answer) = self.unsent.front()?;
        let sent = channel.send(self.framing.answer(asked.id(), &answer.to_bytes())?);
        match sent {
            Ok(_) => {
                self.served.answered += 1;
                self.unsent.pop_front().map(|(asked, _)| asked.into_lease())
            }
            Err(SendErrorKind::WouldBlock) => {
                self.served.answers_delayed += 1;
                None
            }
            Err(kind) => {
                self.failed.get_or_insert_with(|| kind.to_string());
                None
            }
        }
    }

    /// Does the made-up work of an order.
    fn work(&self) {
        let until = Instant::now() + Duration::from_micros(self.arguments.work_us);
        while self.arguments.work_us > 0 && Instant::now() < until {
            core::hint::spin_loop();
        }
    }

    fn is_muted(&self, order: &Order) -> bool {
        let next = order.id.wrapping_add(1);
        self.arguments
            .mute_every
            .is_some_and(|every| next.checked_rem(every) == Some(0))
    }

    fn is_over(&self) -> bool {
        self.failed.is_some() || self.is_at_end
    }
}

/// Waits for a trader, and answers its orders until it closes the connection.
///
/// # Errors
/// There is no device, no trader came in time, or a Worker cannot be used.
pub(crate) fn run<P: Provider>(
    node: &Node<P, impl Network>,
    arguments: &Serve,
    announce: impl FnOnce(&Handle) -> Result<(), Failure>,
) -> Result<Served, Failure> {
    let patience = Duration::from_secs(arguments.patience_s);
    let mut workers = node.workers(&arguments.worker_config())?;
    let mut config = ChannelConfig::default();
    config.receive_depth = arguments.backlog;
    // As deep: all that wait can be answered.
    config.send_depth = arguments.backlog;
    config.repost_batch = (arguments.backlog / 8).max(1);
    let mut listener = Listener::bind(node, &workers, "[::]:0".parse()?, &config)?;
    announce(listener.handle())?;
    let trader = listener.accept(node, &mut workers, node.within(patience))?;
    let worker = workers.get_mut(trader.worker).ok_or("no such worker")?;
    let mut desk = Desk {
        arguments,
        served: Served {
            role: "gateway",
            orders: 0,
            answered: 0,
            muted: 0,
            answers_delayed: 0,
            failures: Vec::new(),
        },
        unsent: VecDeque::with_capacity(arguments.backlog as usize),
        framing: Framing::new(BODY_BYTES),
        is_at_end: false,
        failed: None,
    };
    let mut progress = Progress::new();
    while !desk.is_over() {
        let woken = worker.wait(arguments.how(), worker.within(patience), |turn, event| {
            desk.note(turn, event)
        })?;
        if woken == Woken::Deadline {
            desk.failed = Some(format!("nothing came for {} s", arguments.patience_s));
        }
        // Answers refused for want of room are sent again: a wait ends when there is some.
        while let Some(answered) = worker
            .channel(trader.channel)
            .and_then(|channel| desk.send(channel))
        {
            worker.release(answered);
        }
        progress.tell(Instant::now(), || {
            format!("{} orders answered", desk.served.answered)
        });
    }
    let Desk {
        mut served, failed, ..
    } = desk;
    served.failures.extend(failed);
    if let Err(error) = worker.close(trader.channel, worker.within(patience), |_, _| {}) {
        served.failures.push(error.to_string());
    }
    Ok(served)
}

impl Report for Served {
    fn failures(&self) -> &[String] {
        &self.failures
    }
}

impl Display for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} orders came, {} answered, {} left without an answer; {} answers had to wait",
            self.orders, self.answered, self.muted, self.answers_delayed
        )
    }
}
