//! The side that gathers: all channels receive in one queue.

use core::time::Duration;
use std::time::Instant;

use doorbell::provider::{AsyncEvent, Network, Provider};
use doorbell::worker::{FirstCause, SharedReceivesConfig};
use doorbell::{ChannelConfig, Event, Handle, Lease, Listener, Node, Wait, Worker};

use super::{CHANNELS, CLOSED, Failure, MESSAGES, Message, PATIENCE, SUBMITTERS, worker_config};

/// Receives of each channel.
const SHARE: u32 = 32;

/// How often the device is to say that few receives are left, before messages are looked at as they come.
const LIMITS: u32 = 2;

/// Silence after which a gathering with an announced end is complete.
const SILENCE: Duration = Duration::from_secs(1);

/// The device said it within this, or never will.
const SAID_WITHIN: Duration = Duration::from_secs(5);

/// What came.
#[derive(Default)]
struct Gathered {
    /// The next number of each thread on each channel.
    next: [[u32; SUBMITTERS as usize]; CHANNELS as usize],
    late: u32,
    end: Option<(u32, u32)>,
    /// The first message that should not have come.
    wrong: Option<String>,
}

impl Gathered {
    fn note(&mut self, message: Option<Message>) {
        match message {
            Some(Message::Counted { who, channel, number }) => {
                let row = self.next.get_mut(channel as usize);
                match row.and_then(|row| row.get_mut(who as usize)) {
                    Some(next) if *next == number => *next = number.wrapping_add(1),
                    _ => self.is_wrong(format!("{message:?} is not the next")),
                }
            }
            Some(Message::Late) => self.late = self.late.wrapping_add(1),
            Some(Message::End { submitted, done }) => self.end = Some((submitted, done)),
            None => self.is_wrong("a message of another kind".into()),
        }
    }

    fn is_wrong(&mut self, why: String) {
        self.wrong.get_or_insert(why);
    }

    fn came(&self, channel: u32) -> u32 {
        let row = self.next.get(channel as usize);
        row.map_or(0, |row| row.iter().sum())
    }

    /// Whether it is what the other side says.
    fn check(&self) -> Result<(), Failure> {
        for channel in (0..CHANNELS).filter(|channel| *channel != CLOSED) {
            let came = self.came(channel);
            if came != SUBMITTERS * MESSAGES {
                return Err(format!("{came} messages came on channel {channel}").into());
            }
        }
        let (submitted, done) = self.end.ok_or("the end was not told")?;
        // Flushed messages may have come all the same.
        let came = self.came(CLOSED);
        if !(done..=submitted).contains(&came) {
            return Err(format!("{done} of {submitted} were done where {came} came").into());
        }
        Ok(())
    }
}

/// Messages that are kept until the device says that few receives are left.
struct Held<P: Provider> {
    messages: Vec<Lease<P>>,
    /// How often the device reported few receives.
    limits: u32,
    /// Since when everything there is was held.
    full_since: Option<Instant>,
}

impl<P: Provider> Held<P> {
    const fn new() -> Self {
        Self {
            messages: Vec::new(),
            limits: 0,
            full_since: None,
        }
    }

    /// Asks the device; what it said lets go of all that is held.
    fn ask(&mut self, worker: &mut Worker<P>) -> Result<(), Failure> {
        while let Some(event) = worker.next_event()? {
            if matches!(event, AsyncEvent::SharedReceiveLimit(_)) {
                self.limits += 1;
                self.full_since = None;
                self.messages
                    .drain(..)
                    .for_each(|message| worker.release(message));
            }
        }
        if self.messages.len() < (SHARE * CHANNELS) as usize {
            return Ok(());
        }
        let since = *self.full_since.get_or_insert_with(Instant::now);
        if since.elapsed() > SAID_WITHIN {
            return Err("no receive is left, and the device did not say that few were".into());
        }
        Ok(())
    }
}

/// Listens, gathers until the end was announced and all has come, and compares.
pub(super) fn run<P: Provider, N: Network>(
    node: &Node<P, N>,
    announce: &dyn Fn(&Handle) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut config = worker_config();
    let mut receives = SharedReceivesConfig::default();
    receives.depth = SHARE * CHANNELS;
    receives.repost_batch = 8;
    receives.limit = SHARE;
    config.shared_receives = Some(receives);
    let mut workers = node.workers(&config)?;
    let mut config = ChannelConfig::default();
    config.receive_depth = SHARE;
    let mut listener = Listener::bind(node, &workers, "[::]:0".parse()?, &config)?;
    announce(listener.handle())?;
    let mut ids = Vec::new();
    let mut at = None;
    for _ in 0..CHANNELS {
        let peer = listener.accept(node, &mut workers, node.within(PATIENCE))?;
        ids.push(peer.channel);
        if *at.get_or_insert(peer.worker) != peer.worker {
            return Err("the channels are on different Workers".into());
        }
    }
    let worker = at.and_then(|at| workers.get_mut(at)).ok_or("no such worker")?;
    let closed = ids.get(CLOSED as usize).copied();

    let (mut gathered, mut held) = (Gathered::default(), Held::new());
    let deadline = Instant::now() + PATIENCE;
    let mut last = Instant::now();
    while gathered.end.is_none() || last.elapsed() < SILENCE {
        let sleep = worker.within(Duration::from_millis(20));
        worker.wait_tending(Wait::SPIN_THEN_SLEEP, sleep, |turn, event| match event {
            Event::Received { message, .. } => {
                last = Instant::now();
                gathered.note(Message::parse(message.payload()));
                if held.limits < LIMITS {
                    held.messages.push(message.keep());
                }
            }
            // Receives cannot be announced on the channel that the peer closed, and on no channel once the
            // peer is gone.
            Event::Failed { status, .. }
            | Event::ChannelFailed {
                cause: FirstCause { status, .. },
            } if gathered.end.is_none() && Some(turn.channel.id()) != closed => {
                gathered.is_wrong(format!("a channel failed: {status}"));
            }
            Event::Overdrawn => gathered.is_wrong("a peer took more receives than it had".into()),
            _ => {}
        })?;
        held.ask(worker)?;
        if let Some(wrong) = gathered.wrong {
            return Err(wrong.into());
        }
        if Instant::now() > deadline {
            return Err("the end was not told in time".into());
        }
    }
    gathered.check()?;
    if held.limits < LIMITS {
        return Err(format!(
            "the device said {} times that few receives were left",
            held.limits
        )
        .into());
    }
    let came: u32 = (0..CHANNELS).map(|channel| gathered.came(channel)).sum();
    println!(
        "{came} messages came in order, {} on the channel that was closed, {} as the Worker went",
        gathered.came(CLOSED),
        gathered.late
    );
    println!("told {} times that few receives were left", held.limits);
    Ok(())
}
