//! The ping-pong, over any provider: one message in flight, each answered separately.
//!
//! The client's first message goes back and forth: each side sends the memory into which it
//! received, as the stock program does with its only buffer. A byte that is damaged in any transfer
//! is still damaged at the end, where all bytes are checked, outside the timed section.

use core::fmt;
use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

use doorbell::provider::{
    AddressVector, Arena, ArenaConfig, CompletionQueue, CompletionQueueConfig, Context, Lent, LentCompletion,
    MemoryError, Mtu, PostError, ProtectionDomain, Provider, ProviderError, Psn, PushError, Qpn, QueuePair,
    QueuePairConfig, QueuePairParts, ReadyToReceive, ReadyToSend, ReceiveBatch, ReceiveQueue, Rejected,
    SendBatch, SendQueue, Slot, Waitable, Waiter, WorkKind,
};
use doorbell::{Operation, PostFlags, RemoteAccess, Statistics, Wait, WcStatus, Woken};

use super::source::Source;
use super::wire::Destination;

/// The byte with which the stock program fills its buffer.
const FILL: u8 = 0x7b;

/// The wait with `--events`: sleeps whenever no completion is there, as the stock program does.
const SLEEP: Wait = Wait::SpinThenSleep { spins: 0 };

/// The parameters of the exchange.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) message_bytes: u32,
    pub(super) iterations: u32,
    pub(super) receive_depth: u32,
    pub(super) mtu: Mtu,
    pub(super) service_level: u8,
    /// If set, the first byte of every page of this size is zero.
    pub(super) page_bytes: Option<usize>,
    /// Whether to sleep until a completion arrives.
    pub(super) events: bool,
    /// The longest time without a completion.
    pub(super) stall: Duration,
}

/// The role of this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Server,
    Client,
}

/// Reason why a ping-pong failed.
#[derive(Debug)]
pub(super) enum EngineError {
    Provider(ProviderError),
    /// There is no memory for the messages.
    Memory(MemoryError),
    Push(PushError),
    Post(PostError),
    /// The device reported a request that is not in flight.
    Rejected(Rejected),
    /// A request failed.
    Failed {
        what: &'static str,
        status: WcStatus,
        exchanged: u32,
    },
    /// No request completed for too long.
    Stalled {
        after: Duration,
        sent: u32,
        received: u32,
        iterations: u32,
    },
    /// A message has the wrong length.
    Length {
        number: u32,
        got: u32,
        expected: u32,
    },
    /// The last message has a wrong byte.
    Content {
        offset: usize,
        got: u8,
        expected: u8,
    },
    /// The arena is smaller than requested.
    NoMemory,
}

impl fmt::Display for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Provider(error) => fmt::Display::fmt(error, f),
            Self::Memory(error) => fmt::Display::fmt(error, f),
            Self::Push(error) => write!(f, "not posted: {error}"),
            Self::Post(error) => write!(f, "the device refused the post: {error}"),
            Self::Rejected(error) => fmt::Display::fmt(error, f),
            Self::Failed {
                what,
                status,
                exchanged,
            } => {
                write!(
                    f,
                    "a {what} failed after {exchanged} exchanges: {}",
                    status.describe()
                )?;
                match *status {
                    WcStatus::RETRY_EXC_ERR => {
                        f.write_str("; is the peer still there, with as many --iters and the same --mtu?")
                    }
                    WcStatus::LOC_LEN_ERR | WcStatus::REM_INV_REQ_ERR | WcStatus::REM_OP_ERR => {
                        f.write_str("; do both sides have the same --size and --mtu?")
                    }
                    _ => Ok(()),
                }
            }
            Self::Stalled {
                after,
                sent,
                received,
                iterations,
            } => write!(
                f,
                "nothing happened for {} s: {sent} messages sent and {received} received of {iterations}; is the \
                 peer still there, with as many --iters and the same --mtu?",
                after.as_secs_f64()
            ),
            Self::Length {
                number,
                got,
                expected,
            } => write!(
                f,
                "message {number} has {got} bytes instead of {expected}: do both sides have the same --size?"
            ),
            Self::Content {
                offset,
                got,
                expected,
            } => write!(
                f,
                "the payload is damaged: byte {offset} is {got:#04x} instead of {expected:#04x}"
            ),
            Self::NoMemory => f.write_str("the arena has fewer slots than were asked for"),
        }
    }
}

impl core::error::Error for EngineError {}

macro_rules! from {
    ($($source:ty => $variant:ident),+) => {$(
        impl From<$source> for EngineError {
            fn from(error: $source) -> Self {
                Self::$variant(error)
            }
        }
    )+};
}

from!(ProviderError => Provider, MemoryError => Memory, PushError => Push, PostError => Post, Rejected => Rejected);

/// One end: a queue pair with its memory.
pub(super) struct Engine<P: Provider> {
    control: P::QueuePair,
    wire: Wire<P>,
    completions: P::CompletionQueue,
    psn: Psn,
    source: Source,
}

/// The halves of the queue pair, and the state of the exchange.
struct Wire<P: Provider> {
    send: P::SendQueue,
    receive: P::ReceiveQueue,
    arena: P::Arena,
    plan: Plan,
    flags: PostFlags,
    sent: u32,
    received: u32,
    sending: bool,
    /// The message that arrived last, which is sent next.
    held: Option<P::Slot>,
    statistics: Arc<Statistics>,
}

impl<P: Provider> Engine<P> {
    /// Creates the queue pair, in INIT, and its memory.
    pub(super) fn new(
        context: &P::Context,
        source: Source,
        psn: Psn,
        plan: Plan,
    ) -> Result<Self, EngineError> {
        let domain = context.protection_domain()?;
        // In addition to the receives: one message that is being sent, and one that is held.
        let arena = domain.arena(&ArenaConfig::new(
            plan.receive_depth.saturating_add(2),
            plan.message_bytes,
        ))?;
        let completions = context.completion_queue(&CompletionQueueConfig {
            depth: plan.receive_depth.saturating_add(1),
            notify: plan.events,
        })?;
        let QueuePairParts {
            mut control,
            send,
            receive,
        } = domain.queue_pair(
            &completions,
            &completions,
            &QueuePairConfig {
                channel: 0,
                send_depth: 1,
                receive_depth: plan.receive_depth,
                gather_max: 1,
                scatter_max: 1,
                inline_bytes_max: 0,
            },
        )?;
        let peers_may = RemoteAccess {
            write: false,
            read: false,
            atomic: false,
        };
        control.initialize(source.port, peers_may)?;
        let mut flags = PostFlags::SIGNALED;
        flags.set(
            PostFlags::INLINE,
            control.limits().inline_bytes_max >= plan.message_bytes,
        );
        Ok(Self {
            control,
            wire: Wire {
                send,
                receive,
                arena,
                plan,
                flags,
                sent: 0,
                received: 0,
                sending: false,
                held: None,
                statistics: Arc::default(),
            },
            completions,
            psn,
            source,
        })
    }

    pub(super) fn qpn(&self) -> Qpn {
        self.control.qpn()
    }

    pub(super) const fn source(&self) -> &Source {
        &self.source
    }

    pub(super) const fn plan(&self) -> &Plan {
        &self.wire.plan
    }

    /// The counters, as those of a Worker.
    pub(super) const fn statistics(&self) -> &Arc<Statistics> {
        &self.wire.statistics
    }

    /// Whether messages are sent inline.
    pub(super) const fn is_inline(&self) -> bool {
        self.wire.flags.contains(PostFlags::INLINE)
    }

    /// Connects to the peer: RTR, receives, RTS. So receives are posted before the peer can know
    /// that it may send.
    pub(super) fn connect(&mut self, remote: &Destination) -> Result<(), EngineError> {
        self.control.ready_to_receive(&ReadyToReceive {
            address: AddressVector {
                destination: remote.gid,
                source_gid_index: self.source.gid_index,
                port: self.source.port,
                // The stock program uses 1, with which packets cannot leave the subnet.
                hop_limit: 64,
                traffic_class: 0,
                flow_label: 0,
                service_level: self.wire.plan.service_level,
            },
            path_mtu: self.wire.plan.mtu,
            destination_qpn: remote.qpn,
            receive_psn: remote.psn,
            // There are no READs and atomics; the value is that of the stock program.
            max_dest_rd_atomic: 1,
            min_rnr_timer: 12,
        })?;
        self.wire.replenish()?;
        self.control.ready_to_send(&ReadyToSend {
            send_psn: self.psn,
            max_rd_atomic: 1,
            // 268 ms and six retries. The 67 ms of the stock program are too short for a busy
            // software device, which in turn treats its 7 retries as unlimited.
            timeout: 16,
            retry_count: 6,
            rnr_retry: 7,
        })?;
        Ok(())
    }

    /// Exchanges all messages, then checks the last one. Returns the duration of the exchange.
    pub(super) fn run(&mut self, role: Role) -> Result<Duration, EngineError> {
        if role == Role::Client {
            let mut first = self.wire.arena.lease().ok_or(EngineError::NoMemory)?;
            fill(&mut first, &self.wire.plan);
            self.wire.held = Some(first);
            self.wire.post()?;
        }
        let how = if self.wire.plan.events { SLEEP } else { Wait::Busy };
        let began = Instant::now();
        let mut waiter = Waiter::new();
        let mut watched = Watched::<P> {
            wire: &mut self.wire,
            completions: &mut self.completions,
            quiet_since: began,
            is_quiet: true,
        };
        while !watched.wire.is_done() {
            match waiter.wait(how, &mut watched)? {
                Woken::Progress => watched.wire.post()?,
                _ => return Err(self.wire.stalled()),
            }
        }
        let took = began.elapsed();
        self.wire.check(role)?;
        Ok(took)
    }
}

/// Waits for a completion, and fails after too long a time without one.
struct Watched<'e, P: Provider> {
    wire: &'e mut Wire<P>,
    completions: &'e mut P::CompletionQueue,
    /// Start of the time without a completion, as of the last check of the clock.
    quiet_since: Instant,
    /// Whether no completion has arrived since that check.
    is_quiet: bool,
}

impl<P: Provider> Waitable for Watched<'_, P> {
    type Error = EngineError;

    fn poll(&mut self) -> Result<u32, EngineError> {
        let mut outcome = Ok(());
        let wire = &mut *self.wire;
        let polled = self.completions.poll(|completion| {
            if outcome.is_ok() {
                outcome = wire.complete(completion);
            }
        })?;
        self.is_quiet &= polled == 0;
        outcome.map(|()| polled)
    }

    fn acknowledge(&mut self) -> Result<(), EngineError> {
        self.completions.acknowledge()?;
        Ok(())
    }

    fn arm(&mut self) -> Result<(), EngineError> {
        Ok(self.completions.arm(false)?)
    }

    fn is_over(&mut self) -> bool {
        if !core::mem::replace(&mut self.is_quiet, true) {
            self.quiet_since = Instant::now();
        }
        self.quiet_since.elapsed() >= self.wire.plan.stall
    }

    fn sleep(&mut self) -> Result<(), EngineError> {
        let left = self.wire.plan.stall.saturating_sub(self.quiet_since.elapsed());
        Ok(P::CompletionQueue::sleep([&*self.completions], left)?)
    }
}

impl<P: Provider> Wire<P> {
    fn is_done(&self) -> bool {
        self.sent >= self.plan.iterations && self.received >= self.plan.iterations
    }

    /// Posts receives until their number is as requested.
    fn replenish(&mut self) -> Result<(), EngineError> {
        let missing = self.plan.receive_depth.saturating_sub(self.receive.in_flight());
        let mut batch = self.receive.stage();
        for _ in 0..missing {
            let slot = self.arena.lease().ok_or(EngineError::NoMemory)?;
            batch.push([slot]).map_err(|refused| refused.reason)?;
        }
        batch.ring()?;
        self.statistics.receives_posted.add(missing.into());
        Ok(())
    }

    /// Sends the held message, if the previous send is complete. The very last message is kept.
    fn post(&mut self) -> Result<(), EngineError> {
        // All posted sends are complete unless one is in flight.
        if self.sending || self.sent >= self.plan.iterations {
            return Ok(());
        }
        let Some(slot) = self.held.take() else {
            return Ok(());
        };
        let mut batch = self.send.stage();
        batch
            .push(Operation::Send, [slot], self.flags)
            .map_err(|refused| refused.reason)?;
        batch.ring()?;
        self.sending = true;
        let inline = self.flags.contains(PostFlags::INLINE);
        self.statistics
            .doorbell(1, self.plan.message_bytes.into(), inline.into());
        Ok(())
    }

    /// Handles a completion.
    fn complete(&mut self, completion: Lent<'_, P::Completion>) -> Result<(), EngineError> {
        let exchanged = self.sent.min(self.received);
        let failed = |what, status| EngineError::Failed {
            what,
            status,
            exchanged,
        };
        match completion.work_id().kind() {
            Some(WorkKind::Send) => {
                // The slot of the server's last send is the message that it received last, which is
                // checked.
                let last = self.sent.saturating_add(1) == self.plan.iterations;
                let (arena, held) = (&mut self.arena, &mut self.held);
                let retired = self.send.retire(completion, |_, slot| {
                    if last && held.is_none() {
                        *held = Some(slot);
                    } else {
                        arena.release(slot);
                    }
                })?;
                if !retired.status.is_success() {
                    return Err(failed("send", retired.status));
                }
                self.sent = self.sent.saturating_add(1);
                self.sending = false;
                self.statistics.completions.add(1);
            }
            _ => {
                // The queue pair has its own completion queue: a completion that is not of a send
                // is of a receive, or is rejected.
                let (arena, held) = (&mut self.arena, &mut self.held);
                let arrival = self.receive.retire(completion, |_, slot| {
                    if let Some(earlier) = held.replace(slot) {
                        arena.release(earlier);
                    }
                })?;
                if !arrival.status.is_success() {
                    return Err(failed("receive", arrival.status));
                }
                self.received = self.received.saturating_add(1);
                self.statistics.received.add(1);
                self.statistics.received_bytes.add(arrival.payload_bytes.into());
                if arrival.payload_bytes != self.plan.message_bytes {
                    return Err(EngineError::Length {
                        number: self.received,
                        got: arrival.payload_bytes,
                        expected: self.plan.message_bytes,
                    });
                }
                if self.receive.in_flight() <= 1 {
                    self.replenish()?;
                }
            }
        }
        Ok(())
    }

    fn stalled(&self) -> EngineError {
        EngineError::Stalled {
            after: self.plan.stall,
            sent: self.sent,
            received: self.received,
            iterations: self.plan.iterations,
        }
    }

    /// Checks every byte of the last message, which is the first message of the client after all
    /// transfers.
    fn check(&self, role: Role) -> Result<(), EngineError> {
        // Unless pages are marked, the server does not know the client's bytes.
        if role == Role::Server && self.plan.page_bytes.is_none() {
            return Ok(());
        }
        let last = self.held.as_ref().ok_or(EngineError::NoMemory)?;
        for (offset, got) in last.payload().iter().copied().enumerate() {
            let expected = expected(offset, &self.plan);
            if got != expected {
                return Err(EngineError::Content {
                    offset,
                    got,
                    expected,
                });
            }
        }
        Ok(())
    }
}

fn fill<S: Slot>(slot: &mut S, plan: &Plan) {
    for (offset, byte) in slot.buffer_mut().iter_mut().enumerate() {
        *byte = expected(offset, plan);
    }
    slot.set_len_bytes(usize::try_from(plan.message_bytes).unwrap_or(usize::MAX));
}

/// Returns the byte at an offset of every message.
fn expected(offset: usize, plan: &Plan) -> u8 {
    // The stock program writes the page's number modulo the size of a `char`, which is one.
    match plan.page_bytes {
        Some(page) if offset.checked_rem(page) == Some(0) => 0,
        _ => FILL,
    }
}

#[cfg(test)]
mod tests;
