//! Messages of eight processes through a node daemon, beside direct channels on the same processors; and what others notice of a process that
//! is killed every 50 ms: `daemon_rates [ROUNDS]`. Both are ratios of alternating rounds of one run.
//!
//! Direct channels are over the fake libibverbs, whose device copies a message as the daemon does. Four threads send 64 bytes to four others.
//! The processes are threads with a client each: rings, sockets and the daemon are those that ship. A thread that finds nothing to do yields,
//! or sleeps.
#![expect(clippy::unwrap_used, reason = "it fails by panicking")]

use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use std::thread;
use std::time::Instant;

use doorbell::{Event, SendErrorKind, within};
use doorbell_daemon::{
    AttachRequest, Client, EndpointAddress, EndpointEvent, EndpointLayout, EndpointRefusal, JobKey,
    JobNumber, NodeNumber, Server, ServerConfig,
};
use doorbell_proofs::{End, Pair};

const PAIRS: u32 = 4;
const MESSAGES: u32 = 50_000;
const DEPTH: u32 = 64;
const MESSAGE: [u8; 64] = [7; 64];
const SOON: Duration = Duration::from_secs(60);

/// How long round trips are taken, and how often a process is killed meanwhile.
const A_WHILE: Duration = Duration::from_secs(2);
const KILL_EVERY: Duration = Duration::from_millis(50);

/// A client that finds nothing to do.
#[derive(Clone, Copy, Debug)]
enum Idle {
    Yields,
    Sleeps,
}

fn attach(socket: &Path, endpoint: u32, depth: u32) -> Client {
    let request = AttachRequest {
        job: JobNumber(1),
        key: JobKey([1; 16]),
        endpoint,
        layout: EndpointLayout::new(depth, 4096).unwrap(),
    };
    Client::attach(socket, &request, within(SOON)).unwrap()
}

fn at(endpoint: u32) -> EndpointAddress {
    EndpointAddress {
        node: NodeNumber(0),
        endpoint,
    }
}

/// Runs `what` beside a daemon.
fn beside_a_daemon<R>(folder: &Path, what: impl FnOnce(&Path) -> R) -> R {
    let socket = folder.join("socket");
    let mut server = Server::bind(&ServerConfig::new(&socket)).unwrap();
    let (stop, stopped) = UnixStream::pair().unwrap();
    thread::scope(|scope| {
        scope.spawn(move || server.run(stopped.as_fd()).unwrap());
        let result = what(&socket);
        drop(stop);
        result
    })
}

/// Seconds in which all messages come through a daemon.
fn through_a_daemon(folder: &Path, how: Idle, depth: u32) -> f64 {
    beside_a_daemon(folder, |socket| {
        let mut clients: Vec<_> = (0..2 * PAIRS)
            .map(|number| attach(socket, number, depth))
            .collect();
        let begun = Instant::now();
        thread::scope(|scope| {
            for (number, client) in (0..).zip(&mut clients) {
                scope.spawn(move || {
                    if number % 2 == 0 {
                        send(client, at(number + 1), how);
                    } else {
                        receive(client, how);
                    }
                });
            }
        });
        begun.elapsed().as_secs_f64()
    })
}

/// Waits for something to do. Returns how many events came meanwhile.
fn idle(client: &mut Client, how: Idle) -> u32 {
    let mut events = 0;
    match how {
        Idle::Yields => thread::yield_now(),
        Idle::Sleeps => drop(client.wait(within(SOON), |_| events += 1).unwrap()),
    }
    events
}

fn send(client: &mut Client, to: EndpointAddress, how: Idle) {
    let mut left = MESSAGES;
    while left > 0 {
        match client.send(to, &MESSAGE) {
            Ok(_) => left -= 1,
            Err(EndpointRefusal::Full) => {
                client.poll(|event| panic!("{event:?}")).unwrap();
                idle(client, how);
            }
            Err(refusal) => panic!("{refusal}"),
        }
    }
    client.poll(|event| panic!("{event:?}")).unwrap();
}

fn receive(client: &mut Client, how: Idle) {
    let mut left = MESSAGES;
    while left > 0 {
        let before = left;
        let polled = client.poll(|event| match event {
            EndpointEvent::Received { message, .. } => left -= u32::from(message.len() == MESSAGE.len()),
            event => panic!("{event:?}"),
        });
        polled.unwrap();
        if left == before {
            left -= idle(client, how);
        }
    }
}

/// Seconds in which as many messages go over channels.
fn over_channels() -> f64 {
    let mut pairs: Vec<_> = (0..PAIRS).map(|_| Pair::connect().unwrap()).collect();
    let begun = Instant::now();
    thread::scope(|scope| {
        for pair in &mut pairs {
            let Pair { a, b, .. } = pair;
            scope.spawn(|| {
                let mut left = MESSAGES;
                while left > 0 {
                    match a.channel().unwrap().send(&MESSAGE) {
                        Ok(_) => left -= 1,
                        Err(SendErrorKind::WouldBlock) => yield_after(a, &mut 0),
                        Err(error) => panic!("{error}"),
                    }
                }
                while a.channel().unwrap().in_flight() > 0 {
                    yield_after(a, &mut 0);
                }
            });
            scope.spawn(|| {
                let mut received = 0;
                while received < MESSAGES {
                    yield_after(b, &mut received);
                }
            });
        }
    });
    begun.elapsed().as_secs_f64()
}

/// Polls, counts what comes, and yields if nothing did.
fn yield_after(end: &mut End, received: &mut u32) {
    let polled = end.worker.poll(|_, event| {
        *received += u32::from(matches!(event, Event::Received { .. }));
    });
    if polled.unwrap() == 0 {
        thread::yield_now();
    }
}

/// A process that does nothing but attach, or not even that. It is this program again.
fn victim(socket: &Path, attaches: bool) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.arg(if attaches { "attach" } else { "sleep" }).arg(socket);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut byte = [0];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut byte).unwrap();
    child
}

fn be_a_victim(kind: &str, socket: &Path) {
    let mut client = (kind == "attach").then(|| attach(socket, 9, DEPTH));
    std::io::Write::write_all(&mut std::io::stdout(), b"R").unwrap();
    std::io::Write::flush(&mut std::io::stdout()).unwrap();
    loop {
        match &mut client {
            // A message of its own is on its way when it is killed.
            Some(client) => {
                let _ = client.send(at(9), &MESSAGE);
                if client.wait(within(Duration::from_millis(1)), |_| {}).is_err() {
                    return;
                }
            }
            None => thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// The times of round trips between two clients, sorted, while processes are killed that had attached or not.
fn round_trips(folder: &Path, attaches: bool) -> Vec<Duration> {
    beside_a_daemon(folder, |socket| {
        let is_over = AtomicBool::new(false);
        let mut times = Vec::new();
        let [mut one, mut other] = [0, 1].map(|number| attach(socket, number, DEPTH));
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let mut child = victim(socket, attaches);
                    thread::sleep(KILL_EVERY);
                    child.kill().unwrap();
                    child.wait().unwrap();
                }
            });
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let mut asked = 0;
                    let _ = other.wait(within(Duration::from_millis(100)), |_| asked += 1);
                    for _ in 0..asked {
                        other.send(at(0), &MESSAGE).unwrap();
                    }
                    other.poll(|event| panic!("{event:?}")).unwrap();
                }
            });
            let until = within(A_WHILE);
            while !until.has_passed(doorbell::now()) {
                let begun = Instant::now();
                one.send(at(1), &MESSAGE).unwrap();
                let mut is_back = false;
                while !is_back {
                    one.wait(within(SOON), |_| is_back = true).unwrap();
                }
                times.push(begun.elapsed());
            }
            is_over.store(true, Ordering::Relaxed);
        });
        times.sort_unstable();
        times
    })
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [kind, socket] = &words[..] {
        be_a_victim(kind, &PathBuf::from(socket));
    }
    let rounds: u32 = words.first().map_or(5, |word| word.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let rate = |seconds: f64| f64::from(PAIRS * MESSAGES) / seconds / 1e6;
    for (how, depth) in [(Idle::Sleeps, DEPTH), (Idle::Yields, DEPTH), (Idle::Yields, 1024)] {
        let mut both = Vec::new();
        for _ in 0..rounds {
            both.push((through_a_daemon(folder.path(), how, depth), over_channels()));
        }
        both.sort_unstable_by(|one, other| (one.1 / one.0).total_cmp(&(other.1 / other.0)));
        let (daemon, direct) = both[both.len() / 2];
        println!(
            "a client {how:?}, {depth} slots: {:.2} M messages a second through the daemon, {:.2} over channels; ratio {:.2}, from {:.2} to {:.2}",
            rate(daemon),
            rate(direct),
            direct / daemon,
            both[0].1 / both[0].0,
            both[both.len() - 1].1 / both[both.len() - 1].0
        );
    }
    for _ in 0..rounds.div_ceil(2) {
        let [killed, apart] = [true, false].map(|attaches| round_trips(folder.path(), attaches));
        let p99 = |times: &[Duration]| times[times.len() * 99 / 100];
        println!(
            "round trips: median {:?}, p99 {:?} while clients are killed; {:?}, {:?} while other processes are",
            killed[killed.len() / 2],
            p99(&killed),
            apart[apart.len() / 2],
            p99(&apart)
        );
    }
}
