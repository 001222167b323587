//! Clients that come and go, eight at a time, to a server of default settings, whose memory is in the end what it was.
//!
//! ```text
//! host a$ cargo run --release --example clients -- serve --unauthenticated
//! host b$ cargo run --release --example clients -- come --unauthenticated doorbell:... --count 10000
//! ```
//!
//! `simulated` is both in this process, on a simulated fabric: it needs no device.
//!
//! **The server does nothing for a client that is gone.** Its loop accepts, polls and counts. The Worker itself gives back the place and
//! the memory of a client that closed, that dropped its Worker, or that was killed and is found by a probe.
//!
//! **A steward asks how many clients there are.** It has a channel of its own, and lets the next eight come once the last are gone. So
//! none is ever refused: with 128 receives each, the server's default 2,048 slots are enough for 14 channels.

#[path = "../around/mod.rs"]
#[allow(dead_code, clippy::allow_attributes, reason = "each example uses its part")]
mod around;
mod come;
mod serve;

use core::fmt::{self, Display};
use std::process::ExitCode;

use around::{All, Failure, Output, Report, simulated};
use clap::{Args, Parser, Subcommand};
use come::{Came, Come, Hold};
use doorbell::Handle;
use doorbell_sim::Fabric;
use serve::{Serve, Served};

const PROGRAM: &str = "clients";

/// The messages of a client, and of the steward, which gets an [`Answer`].
const HELLO: u8 = 1;
const ASK: u8 = 2;

/// The server's message to its steward.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Answer {
    /// Channels there are, the steward's among them.
    channels: u32,
    /// Clients that sent a message, since the server began.
    served: u64,
}

impl Answer {
    const BYTES: usize = 12;

    fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let (channels, served) = bytes.split_at_mut(4);
        channels.copy_from_slice(&self.channels.to_be_bytes());
        served.copy_from_slice(&self.served.to_be_bytes());
        bytes
    }

    fn of(bytes: &[u8]) -> Option<Self> {
        let (channels, served) = bytes.split_first_chunk()?;
        Some(Self {
            channels: u32::from_be_bytes(*channels),
            served: u64::from_be_bytes(served.try_into().ok()?),
        })
    }
}

/// Has clients come and go, and shows that the server keeps nothing of them.
#[derive(Parser)]
#[command(name = PROGRAM, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    role: Role,
    #[command(flatten)]
    output: Output,
}

#[derive(Subcommand)]
enum Role {
    Serve(Serve),
    Come {
        /// The handle that the server printed.
        handle: Handle,
        #[command(flatten)]
        come: Come,
    },
    #[command(hide = true)]
    Hold {
        handle: Handle,
        #[command(flatten)]
        hold: Hold,
    },
    Simulated(Simulated),
}

/// Both in this process, on a simulated fabric; clients close or are dropped.
#[derive(Args, Clone, Debug)]
struct Simulated {
    #[command(flatten)]
    come: Come,
}

impl Simulated {
    fn run(&self) -> Result<All<Served, Came>, Failure> {
        if self.come.kill_every > 0 {
            return Err("--kill-every ends processes: there are none of a simulated client".into());
        }
        let come = |_, node: &simulated::Simulated, handle: &Handle| self.come.run(node, handle, None);
        let both = simulated::together(
            &Fabric::new(),
            1,
            |node, announce| Serve::default().run(node, announce),
            come,
        )?;
        Ok(both.into())
    }
}

/// Nothing, and no failure: what is held is killed.
#[derive(Debug, serde::Serialize)]
struct Nothing;

impl Display for Nothing {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ok(())
    }
}

impl Report for Nothing {
    fn failures(&self) -> &[String] {
        &[]
    }
}

fn main() -> ExitCode {
    let Arguments { role, output } = Arguments::parse();
    match role {
        Role::Serve(serve) => {
            let served = output.on_this_host(|node| serve.run(node, &|handle| output.announce(handle)));
            output.conclude(PROGRAM, served)
        }
        Role::Come { handle, come } => {
            let came = output.on_this_host(|node| come.run(node, &handle, Some(&output)));
            output.conclude(PROGRAM, came)
        }
        Role::Hold { handle, hold } => {
            let held = output.on_this_host(|node| hold.run(node, &handle));
            output.conclude(PROGRAM, held.map(|()| Nothing))
        }
        Role::Simulated(simulated) => output.conclude(PROGRAM, simulated.run()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use clap::CommandFactory as _;

    use super::{Answer, Arguments, Simulated};
    use crate::around::Report as _;
    use crate::come::Come;

    /// Held by tests that open descriptors: one of them counts those of the process.
    static DESCRIPTORS: Mutex<()> = Mutex::new(());

    #[test]
    fn clients_come_and_go_and_nothing_is_left_of_them() {
        let _alone = DESCRIPTORS.lock().unwrap_or_else(PoisonError::into_inner);
        let mut come = Come::default();
        (come.count, come.drop_every) = (96, 3);
        let all = Simulated { come }.run().unwrap();
        assert_eq!(all.failures(), &[] as &[String]);
        assert_eq!(all.listener.served, 96);
        assert_eq!((all.listener.closed, all.listener.lost), (97, 0));
    }

    #[test]
    fn an_answer_is_read_as_it_was_said() {
        let answer = Answer {
            channels: 9,
            served: 1 << 40,
        };
        assert_eq!(Answer::of(&answer.to_bytes()), Some(answer));
        assert_eq!(Answer::of(&answer.to_bytes()[1..]), None);
    }

    #[test]
    fn the_commands_of_scenarios_are_understood() {
        let _alone = DESCRIPTORS.lock().unwrap_or_else(PoisonError::into_inner);
        let (faults, commands) =
            crate::around::scenarios::faults("{examples}/clients", &Arguments::command());
        assert!(faults.is_empty() && commands > 0, "{faults:#?}");
    }
}
