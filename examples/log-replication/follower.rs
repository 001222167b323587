//! A follower: woken by each batch, it checks and applies the entries in its window, and acknowledges.

use core::fmt::{self, Display};
use core::time::Duration;
use std::time::Instant;

use doorbell::provider::{Network, Provider, Window};
use doorbell::worker::FirstCause;
use doorbell::{
    Channel, ChannelConfig, Event, Handle, LocalWindow, Node, Notify, RemoteAccess, SendErrorKind, Turn,
    Wait, WindowConfig, Woken, WorkerConfig,
};
use serde::Serialize;

use super::Manner;
use super::around::{Failure, Progress, Report, note_failure, words};
use super::entry::Applied;
use super::leader::GIVEN_UP;
use super::log::place;

/// Report of a follower.
#[derive(Debug, Serialize)]
pub(crate) struct Followed {
    pub(crate) role: &'static str,
    /// Entries applied, each the next one and undamaged.
    pub(crate) applied: u64,
    pub(crate) bytes: u64,
    pub(crate) batches: u64,
    /// Whether the leader said that this was all.
    pub(crate) ended: bool,
    pub(crate) failures: Vec<String>,
}

struct Copy<P: Provider> {
    window: LocalWindow<P>,
    applied: Applied,
    /// A batch, copied out of the window in order.
    scratch: Vec<u8>,
    batches: u64,
    /// Whether what was applied is not acknowledged yet.
    owes: bool,
    /// How many entries there are, and what they come to, as the leader says at the end.
    end: Option<[u64; 2]>,
    failed: Option<String>,
}

impl<P: Provider> Copy<P> {
    fn note(&mut self, turn: Turn<'_, P>, event: Event<'_, P>) {
        match event {
            // The completion ends the leader's turn: what it wrote is all there, and stays as it is until
            // it is acknowledged.
            Event::Written { immediate, .. } => {
                self.take(immediate);
                self.acknowledge(turn.channel);
            }
            Event::Received { message, .. } => match *words(message.payload()).collect::<Vec<_>>() {
                _ if message.payload() == GIVEN_UP => self.fail("the leader has given this copy up"),
                [entries, digest] => self.end = Some([entries, digest]),
                _ => self.fail("a message came that means nothing"),
            },
            Event::Failed { status, .. }
            | Event::ChannelFailed {
                cause: FirstCause { status, .. },
            } => {
                note_failure(&mut self.failed, status);
            }
            _ => {}
        }
    }

    /// Applies what was written, up to the place with this low half.
    fn take(&mut self, word: u32) {
        let [a, b, c, d, ..] = self.applied.bytes.to_le_bytes();
        let count = word.wrapping_sub(u32::from_le_bytes([a, b, c, d])) as usize;
        if count > self.window.bytes() {
            return self.fail("the leader wrote more than there is room for");
        }
        self.scratch.resize(count, 0);
        let (first, second) = place(self.applied.bytes, count, self.window.bytes());
        let (head, tail) = self.scratch.split_at_mut(first.len());
        let head = self.window.copy_out(first.start, head);
        if let Err(error) = head.and_then(|()| self.window.copy_out(second.start, tail)) {
            return self.fail(error.to_string());
        }
        if let Err(damage) = self.applied.apply(&self.scratch) {
            return self.fail(damage.to_string());
        }
        self.batches += 1;
        self.owes = true;
    }

    /// Tells the leader how far the log is here.
    fn acknowledge(&mut self, channel: &mut Channel<P>) {
        if !self.owes || self.failed.is_some() {
            return;
        }
        match channel.send(&self.applied.bytes.to_le_bytes()) {
            Ok(_) => self.owes = false,
            // Tried again at the next turn; a later one says all that an earlier one would have.
            Err(SendErrorKind::WouldBlock) => {}
            Err(kind) => self.fail(kind.to_string()),
        }
    }

    fn fail(&mut self, why: impl Into<String>) {
        self.failed.get_or_insert_with(|| why.into());
    }

    /// Returns the differences between the expected end and the real one.
    fn failures(&self) -> Vec<String> {
        let mut failures: Vec<String> = self.failed.iter().cloned().collect();
        failures.extend(self.end.and_then(|end| self.applied.lacks(end)));
        failures
    }
}

/// Connects, and keeps a copy of the log until the leader says that this was all.
///
/// # Errors
/// There is no device, the leader cannot be reached, or a Worker cannot be used.
pub(crate) fn run<P: Provider>(
    node: &Node<P, impl Network>,
    handle: &Handle,
    manner: &Manner,
) -> Result<Followed, Failure> {
    let silence = Duration::from_secs(manner.silence_s);
    let mut config = WorkerConfig::default();
    config.slot_bytes = 64;
    config.notify = if manner.sleep {
        Notify::Every
    } else {
        Notify::Never
    };
    let mut workers = node.workers(&config)?;
    let mut config = ChannelConfig::default();
    config.send_depth = 16;
    config.receive_depth = 16;
    config.repost_batch = 4;
    let to = node.connect(&mut workers, handle, &config, node.within(silence))?;
    let worker = workers.get_mut(to.worker).ok_or("no such worker")?;
    let channel = worker.channel(to.channel).ok_or("closed")?;
    let window_bytes = channel.peer().private_data().try_into().map(u32::from_le_bytes);
    let window_bytes = window_bytes.map_err(|_| "the peer is no leader")? as usize;
    let window = worker.window(&WindowConfig::new(window_bytes, RemoteAccess::WRITE))?;
    let channel = worker.channel(to.channel).ok_or("closed")?;
    channel.send(&window.remote().to_bytes())?;

    let mut copy = Copy::<P> {
        window,
        applied: Applied::default(),
        scratch: Vec::new(),
        batches: 0,
        owes: false,
        end: None,
        failed: None,
    };
    let how = if manner.sleep {
        Wait::SPIN_THEN_SLEEP
    } else {
        Wait::Busy
    };
    let mut progress = Progress::new();
    while copy.end.is_none() && copy.failed.is_none() {
        let woken = worker.wait(how, worker.within(silence), |turn, event| copy.note(turn, event))?;
        if woken == Woken::Deadline {
            copy.fail(format!("nothing came for {} s", manner.silence_s));
        }
        if let Some(channel) = worker.channel(to.channel) {
            copy.acknowledge(channel);
        }
        if manner
            .leave_after
            .is_some_and(|entries| copy.applied.entries >= entries)
        {
            break;
        }
        progress.tell(Instant::now(), || {
            format!("applied {} entries", copy.applied.entries)
        });
    }
    let mut failures = copy.failures();
    if copy.end.is_some() {
        if let Err(error) = worker.close(to.channel, worker.within(silence), |_, _| {}) {
            failures.push(error.to_string());
        }
    }
    Ok(Followed {
        role: "follower",
        applied: copy.applied.entries,
        bytes: copy.applied.bytes,
        batches: copy.batches,
        ended: copy.end.is_some(),
        failures,
    })
}

impl Report for Followed {
    fn failures(&self) -> &[String] {
        &self.failures
    }
}

impl Display for Followed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.ended { "all there were" } else { "and left" };
        writeln!(
            f,
            "applied {} entries in {} batches, {how}",
            self.applied, self.batches
        )
    }
}
