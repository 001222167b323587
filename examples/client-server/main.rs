//! A server and up to 64 clients that know nothing of verbs: they use [`endpoint`] alone, with questions and answers by
//! `doorbell::requests`.
//!
//! ```text
//! host a$ cargo run --release --example client-server -- serve --key-file keys --clients 2
//! host b$ cargo run --release --example client-server -- join --key-file keys doorbell:...
//! host c$ cargo run --release --example client-server -- join --key-file keys doorbell:...
//! ```
//!
//! The server waits for all clients and sends them their task by **broadcast**, which each confirms. Then there are rounds of the
//! sequential **all-to-all**: each client sends a message, and the server receives one after the other and answers each with the messages
//! of all. At last every client **asks** some questions, and leaves.
//!
//! **The verb is SEND**: both sides want each message, in order, and a server that is not quick enough has to slow its clients down. Credits do
//! that: a question that is not answered yet stays in the memory it came in, which takes nothing else meanwhile.
//!
//! All 64 clients wait for the server in each round, and it serves one at a time. `doorbell::mesh::Mesh` has an all-to-all
//! without anybody in the middle.

#[path = "../around/mod.rs"]
#[expect(
    dead_code,
    reason = "it is of several examples; this one's API tells of failures"
)]
mod around;
mod endpoint;
mod round;
#[cfg(test)]
mod tests;

use core::fmt::{self, Display};
use core::time::Duration;
use std::process::ExitCode;
use std::time::Instant;

use clap::{Args, Parser, Subcommand};
use doorbell::provider::{Network, Provider};
use doorbell::{Handle, Node};
use doorbell_sim::Fabric;
use serde::Serialize;

use around::{All, Failure, Latencies, Output, Percentiles, Progress, Report, mix, simulated, words};
use endpoint::{Endpoint, Error, Why};
use round::Round;

const PROGRAM: &str = "client-server";

/// A server and its clients over RDMA, by an API without verbs.
///
/// Start `serve` on one host, and `join` with the handle it prints on others. Every byte of each round and of
/// each answer is checked. The exit code is 1 where one is wrong or missing.
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
    /// Serve clients, and print the handle they are started with.
    Serve(Serve),
    /// Be a client.
    Join(Join),
    /// All of it in one process, on a simulated fabric: needs no device.
    Simulated(Simulated),
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Serve {
    /// Clients to wait for.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub(crate) clients: u8,
    /// Rounds of the all-to-all.
    #[arg(long, default_value_t = 100)]
    pub(crate) rounds: u32,
    /// Bytes each client sends in a round. The bytes of all clients have to fit into 8 KiB.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(8..=8000))]
    pub(crate) size: u32,
    /// Seconds to wait for all clients, and for anything one of them has to do.
    #[arg(long, default_value_t = 60)]
    pub(crate) patience_s: u64,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Join {
    /// Handle that the server printed.
    pub(crate) handle: Handle,
    #[command(flatten)]
    pub(crate) manner: Manner,
    /// Seconds to wait for the server.
    #[arg(long, default_value_t = 60)]
    pub(crate) patience_s: u64,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Manner {
    /// Questions to ask.
    #[arg(long, default_value_t = 10)]
    pub(crate) questions: u32,
    /// Leave after so many rounds, to see that the others go on.
    #[arg(long, value_name = "ROUNDS")]
    pub(crate) leave_after: Option<u32>,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Simulated {
    #[command(flatten)]
    pub(crate) serve: Serve,
    #[command(flatten)]
    pub(crate) manner: Manner,
    /// How many of the clients leave, where --leave-after says when.
    #[arg(long, default_value_t = 1)]
    pub(crate) leavers: usize,
}

/// Report of a server.
#[derive(Debug, Serialize)]
pub(crate) struct Served {
    pub(crate) role: &'static str,
    pub(crate) clients: usize,
    pub(crate) rounds: u32,
    pub(crate) answered: u64,
    /// Clients that left before the last round.
    pub(crate) left_early: usize,
    pub(crate) failures: Vec<String>,
}

/// Report of a client.
#[derive(Debug, Serialize)]
pub(crate) struct Joined {
    pub(crate) role: &'static str,
    pub(crate) rounds: u32,
    /// Messages of all clients, checked.
    pub(crate) heard: u64,
    pub(crate) answers: u32,
    pub(crate) round: Option<Percentiles>,
    pub(crate) failures: Vec<String>,
}

fn main() -> ExitCode {
    let Arguments { role, output } = Arguments::parse();
    let announce = |handle: &Handle| output.announce(handle);
    match role {
        Role::Serve(arguments) => {
            let served = output.on_this_host(|node| serve(node, &arguments, announce));
            output.conclude(PROGRAM, served)
        }
        Role::Join(Join {
            handle,
            manner,
            patience_s,
        }) => {
            let joined = output.on_this_host(|node| join(node, &handle, &manner, patience_s));
            output.conclude(PROGRAM, joined)
        }
        Role::Simulated(arguments) => output.conclude(PROGRAM, all(&arguments)),
    }
}

/// A server and its clients, each a host.
fn all(arguments: &Simulated) -> Result<All<Served, Joined>, Failure> {
    let found = simulated::together(
        &Fabric::new(),
        arguments.serve.clients,
        |node, announce| serve(node, &arguments.serve, announce),
        |number, node, handle| {
            let mut manner = arguments.manner.clone();
            manner.leave_after = manner.leave_after.filter(|_| number < arguments.leavers);
            join(node, handle, &manner, arguments.serve.patience_s)
        },
    )?;
    Ok(found.into())
}

/// Serves clients until all have left.
///
/// # Errors
/// There is no device, or not all clients came in time.
fn serve<P: Provider>(
    node: &Node<P, impl Network>,
    arguments: &Serve,
    announce: impl FnOnce(&Handle) -> Result<(), Failure>,
) -> Result<Served, Failure> {
    let patience = Duration::from_secs(arguments.patience_s);
    let within = || node.within(patience);
    let mut endpoint = Endpoint::init(node, arguments.clients.into())?;
    announce(endpoint.listen("[::]:0".parse()?)?)?;
    for _ in 0..arguments.clients {
        endpoint.accept(within())?;
    }
    let mut served = Served {
        role: "server",
        clients: endpoint.peers().count(),
        rounds: 0,
        answered: 0,
        left_early: 0,
        failures: Vec::new(),
    };
    let plan = [arguments.rounds.to_le_bytes(), arguments.size.to_le_bytes()].concat();
    endpoint.ask_all(&plan, within())?;
    for _ in 0..arguments.rounds {
        match endpoint.serve_all_to_all(within()) {
            Ok(gone) => served.left_early = gone.len(),
            Err(error) => {
                served.failures.push(format!("round {}: {error}", served.rounds));
                break;
            }
        }
        // A round that no client is left to hear does not count.
        if served.left_early == served.clients {
            break;
        }
        served.rounds += 1;
    }
    while endpoint.peers().next().is_some() && served.failures.is_empty() {
        match endpoint.next(within()) {
            Ok((client, question)) => {
                let mut answer = question.body().to_vec();
                answer.reverse();
                endpoint.answer(client, question, &answer, within())?;
                served.answered += 1;
            }
            // It says why, of one that did not leave.
            Err(Error {
                peer: Some(peer),
                why: Why::Left | Why::Lost(_),
            }) => {
                let lost = endpoint.disconnect(peer, within()).err();
                served.failures.extend(lost.map(|error| error.to_string()));
            }
            Err(error) => served.failures.push(error.to_string()),
        }
    }
    Ok(served)
}

/// Connects, does as the server says, asks, and leaves.
///
/// # Errors
/// There is no device, or the server cannot be reached, or does not answer.
fn join<P: Provider>(
    node: &Node<P, impl Network>,
    handle: &Handle,
    manner: &Manner,
    patience_s: u64,
) -> Result<Joined, Failure> {
    let patience = Duration::from_secs(patience_s);
    let within = || node.within(patience);
    let mut endpoint = Endpoint::init(node, 1)?;
    let server = endpoint.connect(handle, within())?;
    let (_, plan) = endpoint.next(within())?;
    let Some([rounds, size]) = plan.body().first_chunk().copied().map(plan_of) else {
        return Err("the server has no plan".into());
    };
    endpoint.answer(server, plan, &[], within())?;
    let mut name = [0; size_of::<u64>()];
    node.network()
        .random(&mut name)
        .map_err(|error| format!("no name can be drawn: {error:?}"))?;
    let mut hearing = Hearing::new(u64::from_le_bytes(name), size as usize);
    let (mut times, mut progress) = (Latencies::new()?, Progress::new());
    let rounds = manner.leave_after.map_or(rounds, |leave| leave.min(rounds));
    for number in 0..rounds {
        let said = statement(hearing.name, number, hearing.bytes);
        let began = Instant::now();
        let round = endpoint.all_to_all(server, &said, within())?;
        times.note(began.elapsed());
        hearing.check(number, &round);
        progress.tell(Instant::now(), || format!("round {number} of {rounds}"));
    }
    let is_leaving = manner.leave_after.is_some();
    let mut answers = 0;
    for number in 0..if is_leaving { 0 } else { manner.questions } {
        let mut expected = statement(hearing.name, number, hearing.bytes);
        let answer = endpoint.ask(server, &expected, within())?;
        expected.reverse();
        if answer == expected {
            answers += 1;
        } else {
            hearing
                .failures
                .push(format!("question {number} has another's answer"));
        }
    }
    endpoint.disconnect(server, within())?;
    Ok(Joined {
        role: "client",
        rounds,
        heard: hearing.heard,
        answers,
        round: times.percentiles(),
        failures: hearing.failures,
    })
}

/// How many rounds, and how many bytes each says.
fn plan_of(plan: [u8; 8]) -> [u32; 2] {
    let plan = u64::from_le_bytes(plan);
    [plan as u32, (plan >> 32) as u32]
}

/// Statement and question of a client in a round: its name first; the rest follows from that.
pub(crate) fn statement(name: u64, number: u32, bytes: usize) -> Vec<u8> {
    let rest = (1..).map(|at: u64| mix(name ^ mix(u64::from(number)).wrapping_add(at)));
    let said = core::iter::once(name).chain(rest).flat_map(u64::to_le_bytes);
    said.take(bytes).collect()
}

/// A client's check of what it hears.
pub(crate) struct Hearing {
    name: u64,
    bytes: usize,
    /// Names of the senders in a round, by their places in it, as heard in the first one.
    names: Vec<Option<u64>>,
    pub(crate) heard: u64,
    pub(crate) failures: Vec<String>,
}

impl Hearing {
    pub(crate) fn new(name: u64, bytes: usize) -> Self {
        Self {
            name,
            bytes,
            names: Vec::new(),
            heard: 0,
            failures: Vec::new(),
        }
    }

    /// Looks at every byte of a round.
    pub(crate) fn check(&mut self, number: u32, round: &Round) {
        let names: Vec<_> = round
            .messages
            .iter()
            .map(|message| message.as_deref().and_then(|message| words(message).next()))
            .collect();
        for (place, (message, name)) in round.messages.iter().zip(&names).enumerate() {
            let expected = name.map(|name| statement(name, number, self.bytes));
            if *message != expected {
                self.failures
                    .push(format!("round {number}: message {place} is not what was said"));
            }
            self.heard += u64::from(message.is_some());
        }
        if names.get(round.own) != Some(&Some(self.name)) {
            self.failures
                .push(format!("round {number}: it lacks what this client said"));
        }
        // A client that left does not come back, and no other has its place.
        let is_same = |(before, now): (&Option<u64>, &Option<u64>)| now.is_none() || now == before;
        let is_first = self.names.is_empty();
        if !is_first && (self.names.len() != names.len() || !self.names.iter().zip(&names).all(is_same)) {
            self.failures.push(format!("round {number}: somebody else spoke"));
        }
        self.names = names;
    }
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
            "{} clients, {} rounds, {} questions answered; {} left before the last round",
            self.clients, self.rounds, self.answered, self.left_early
        )
    }
}

impl Report for Joined {
    fn failures(&self) -> &[String] {
        &self.failures
    }
}

impl Display for Joined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} rounds, {} messages heard and checked, {} answers",
            self.rounds, self.heard, self.answers
        )?;
        match &self.round {
            Some(round) => writeln!(f, "  a round took {round}"),
            None => Ok(()),
        }
    }
}
