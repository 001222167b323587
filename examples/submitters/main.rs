//! Threads that send through one Worker, by a submitter each: one side gathers, the other is given its handle and
//! submits. One of their channels is closed while they submit to it, and in the end their Worker goes.
//!
//! ```text
//! host a$ cargo run --example submitters
//! host b$ cargo run --example submitters -- doorbell:...
//! ```
//!
//! With `--simulated` both are in this process, each a host of a simulated fabric: that needs no device.
//!
//! **A request that is done says nothing**: its memory comes home, to be leased again. One that failed comes
//! back with its message and the reason, and its memory is taken until then ([`submit`]). So a submitter is done
//! when all of its memory is home, and nothing is lost: each submission was done, or reported as failed.
//!
//! **The side that gathers** receives from all channels in one queue, and hears from the device when few receives are
//! left in it ([`gather`]). It checks that the messages of each thread come in order on each channel, and all of
//! them on those that were not closed.

mod gather;
#[path = "../around/simulated.rs"]
mod simulated;
mod submit;

use core::error::Error;
use core::time::Duration;
use std::env;

use doorbell::{Node, Notify, Trust, WorkerConfig};
use doorbell_sim::Fabric;

/// Why a program cannot go on.
type Failure = Box<dyn Error + Send + Sync>;

/// Threads that submit.
const SUBMITTERS: u32 = 4;

/// Channels between the two Workers.
const CHANNELS: u32 = 3;

/// The one of them that is closed while messages are submitted to it.
const CLOSED: u32 = 1;

/// Messages of each thread on each channel, unless that is closed before.
const MESSAGES: u32 = 500;

/// The longest either side takes.
const PATIENCE: Duration = Duration::from_secs(120);

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Message {
    /// A counted message: its submitter, its channel, and its number there.
    Counted { who: u32, channel: u32, number: u32 },
    /// Submitted while the Worker goes: it may come or not.
    Late,
    /// All counted messages were done or reported: so many were submitted to the channel that was closed, and so many
    /// of them were done.
    End { submitted: u32, done: u32 },
}

/// Bytes of a message.
const MESSAGE_BYTES: usize = 16;

impl Message {
    fn to_bytes(self) -> [u8; MESSAGE_BYTES] {
        let words = match self {
            Self::Counted { who, channel, number } => [0, who, channel, number],
            Self::Late => [1, 0, 0, 0],
            Self::End { submitted, done } => [2, submitted, done, 0],
        };
        let mut bytes = [0; MESSAGE_BYTES];
        for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_be_bytes());
        }
        bytes
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; MESSAGE_BYTES] = bytes.try_into().ok()?;
        let mut words = bytes
            .chunks_exact(4)
            .map(|word| word.try_into().map_or(0, u32::from_be_bytes));
        let words: [u32; 4] = core::array::from_fn(|_| words.next().unwrap_or_default());
        Some(match words {
            [0, who, channel, number] => Self::Counted { who, channel, number },
            [1, ..] => Self::Late,
            [2, submitted, done, _] => Self::End { submitted, done },
            _ => return None,
        })
    }
}

/// A Worker that can sleep, for short messages.
fn worker_config() -> WorkerConfig {
    let mut config = WorkerConfig::default();
    config.notify = Notify::Every;
    config.slots = 512;
    config.slot_bytes = 64;
    config
}

fn main() -> Result<(), Failure> {
    let argument = env::args().nth(1);
    if argument.as_deref() == Some("--simulated") {
        return on_a_simulated_fabric();
    }
    // For a network without strangers; elsewhere, `Trust::keys`.
    let node = Node::open(Trust::unauthenticated_on_purpose())?;
    match argument {
        None => gather::run(&node, &|handle| {
            println!("{handle}");
            Ok(())
        }),
        Some(handle) => submit::run(&node, &handle.parse()?),
    }
}

/// Both sides, each a host and a thread.
fn on_a_simulated_fabric() -> Result<(), Failure> {
    simulated::together(&Fabric::new(), 1, gather::run, |_, node, handle| {
        submit::run(node, handle)
    })
    .map(drop)
}

#[cfg(test)]
mod tests {
    #[test]
    fn nothing_is_lost_over_the_simulated_fabric() {
        super::on_a_simulated_fabric().unwrap();
    }
}
