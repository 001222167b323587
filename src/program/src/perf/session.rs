//! A whole measurement, on either side: connecting, agreeing on each test, running it, and exchanging
//! verdicts, so that both sides fail if either detected a wrong byte.
//!
//! Control messages use a separate connection. Each test gets another connection, with the queue depths and
//! memory that it needs, at the same TCP port.

use core::net::SocketAddr;
use core::time::Duration;
use std::thread;
use std::time::Instant;

use doorbell::provider::{Network, Provider, Window};
use doorbell::{
    ConnectError, Connection, Handle, Listener, LocalWindow, Node, RemoteWindow, WindowConfig, Worker,
};

use super::control::{self, Control, NAP, private_data};
use super::dial::dial;
use super::error::{Corruption, PerfError};
use super::link::{Link, Run, Tally};
use super::message::{Message, Purpose, Ready, Setup, Verdict};
use super::metering::Part;
use super::progress::Progress;
use super::report::{Figures, MeasuredEnds, Row};
use super::source::Source;
use super::terms::{Target, Terms};
use super::test::{ITERATIONS_MAX, Kind, Role, Test};
use super::{bandwidth, latency};

/// The results of a measurement, up to its end or its failure.
#[derive(Debug)]
pub(crate) struct Findings {
    /// The two ends, after they were connected.
    pub(crate) between: Option<MeasuredEnds>,
    pub(crate) rows: Vec<Row>,
    /// The reason, if it failed.
    pub(crate) failure: Option<PerfError>,
}

impl Findings {
    pub(crate) const fn nothing() -> Self {
        Self {
            between: None,
            rows: Vec::new(),
            failure: None,
        }
    }

    /// Whether it failed because no client came in time.
    pub(crate) const fn timed_out(&self) -> bool {
        matches!(
            self.failure,
            Some(PerfError::Connect(ConnectError::TimedOut { .. }))
        )
    }

    fn ended(mut self, outcome: Result<(), PerfError>) -> Self {
        self.failure = outcome.err();
        self
    }
}

/// Connects to a listener, and runs the tests one after the other.
///
/// `progress` creates the progress display of each test.
pub(crate) fn drive<P: Provider, N: Network>(
    node: &Node<P, N>,
    target: &Target,
    tests: &[Test],
    terms: &Terms,
    mut progress: impl FnMut(&Test) -> Progress,
) -> Findings {
    let mut findings = Findings::nothing();
    let outcome = (|| {
        for test in tests {
            test.check()?;
        }
        let mut workers = workers(node, terms)?;
        let mut config = terms.patient(control::channel_config());
        // The same limit as in the tests.
        config.mtu_max = tests
            .iter()
            .map(|test| test.mtu_max)
            .fold(config.mtu_max, Ord::min);
        let (connection, target) = dial(node, &mut workers, target, &config, terms)?;
        let worker = worker_of(&mut workers, connection)?;
        // A busy listener states the purpose of the connection that it expects.
        if purpose_of(worker, connection)? != Purpose::Control {
            return Err(PerfError::Busy);
        }
        let _shown = terms.metering.connection(Part::Control, worker, connection)?;
        let mut control = Control::new(workers, connection.worker, connection.channel, terms.timeout);
        findings.between = Some(MeasuredEnds::of(&mut control)?);
        for test in tests {
            let mut run = |test: &Test, rows: &mut Vec<Row>| {
                drive_one(
                    node,
                    &mut control,
                    &target,
                    test,
                    terms,
                    &mut progress(test),
                    rows,
                )
            };
            let test = match terms.duration {
                Some(duration) => lasting(test, duration, &mut run)?,
                None => *test,
            };
            run(&test, &mut findings.rows)?;
        }
        control.send(&Message::Finished)
    })();
    findings.ended(outcome)
}

/// Returns the test with the number of iterations that takes about this long, which shorter tests determine.
fn lasting(
    test: &Test,
    duration: Duration,
    run: &mut impl FnMut(&Test, &mut Vec<Row>) -> Result<(), PerfError>,
) -> Result<Test, PerfError> {
    /// A sample is long enough if it takes at least the duration divided by this.
    const PART: u128 = 20;
    let mut sample = Test {
        iterations: 16,
        warmup: test.warmup.min(16),
        ..*test
    };
    loop {
        let mut rows = Vec::new();
        run(&sample, &mut rows)?;
        let figures = rows.pop().and_then(|row| row.figures);
        let took = figures.map_or(Duration::MAX, |figures| figures.timed());
        let took_ns = took.as_nanos().max(1);
        let fitting = duration
            .as_nanos()
            .saturating_mul(sample.iterations.into())
            .checked_div(took_ns)
            .map_or(1, |fitting| u64::try_from(fitting).unwrap_or(u64::MAX))
            .clamp(1, ITERATIONS_MAX);
        if took_ns.saturating_mul(PART) >= duration.as_nanos() || fitting <= sample.iterations {
            return Ok(Test {
                iterations: fitting,
                ..*test
            });
        }
        // At most a tenth of the estimate for the whole duration.
        sample.iterations = sample
            .iterations
            .saturating_mul(16)
            .min(fitting.div_ceil(10).max(17));
    }
}

fn drive_one<P: Provider, N: Network>(
    node: &Node<P, N>,
    control: &mut Control<P>,
    target: &Target,
    test: &Test,
    terms: &Terms,
    progress: &mut Progress,
    rows: &mut Vec<Row>,
) -> Result<(), PerfError> {
    let token = random()?;
    let mut worker = [node.worker(&control.device(), &terms.worker_config(test, Role::Client))?];
    terms.metering.worker(Part::Test, &worker[0]);
    let window = make_window(&worker[0], test, Role::Client)?;
    control.send(&Message::Setup(Setup {
        token,
        test: *test,
        window: remote_of(window.as_ref()),
    }))?;
    let ready = match control.receive()? {
        Message::Ready(ready) if ready.token == token => ready,
        Message::Refused(reason) => return Err(PerfError::RefusedByListener(reason)),
        other => {
            return Err(PerfError::Unexpected {
                wanted: "its readiness",
                got: other.name(),
            });
        }
    };
    let mut config = terms.patient(test.channel_config(Role::Client));
    config.private_data = private_data(Purpose::UnderTest(token));
    let dialled = dial(node, &mut worker, target, &config, terms);
    let [mut worker] = worker;
    let connection = match dialled {
        Ok((connection, _)) => connection,
        Err(error) => return Err(give_up(control, token, error)),
    };
    let _shown = terms.metering.connection(Part::Test, &mut worker, connection)?;
    let mut link = Link {
        worker,
        id: connection.channel,
        window,
        remote: ready.window,
    };
    let mut run = Run::new(test, Role::Client, token, &mut link, control);
    let figures = match test.kind {
        Kind::Latency => latency::measure(&mut run, progress).map(Figures::Latency),
        Kind::Bandwidth => bandwidth::measure(&mut run, progress).map(Figures::Bandwidth),
    };
    let tally = *run.tally();
    match figures {
        Ok(figures) => {
            let peer = exchange_verdicts(control, token, &tally);
            let judged = peer.and_then(|peer| judge(test, &tally, &peer).map(|()| peer));
            let (seen_by_peer, outcome) = match judged {
                Ok(peer) => (Some(peer.messages_checked), Ok(())),
                Err(error) => (None, Err(error)),
            };
            rows.push(Row::new(test, Some(figures), &tally, seen_by_peer));
            outcome
        }
        Err(error) => Err(give_up(control, token, error)),
    }
}

/// A server that listens for clients.
pub(crate) struct Server<'n, P: Provider, N: Network> {
    node: &'n Node<P, N>,
    terms: Terms,
    /// The Workers for the next client, if they exist already.
    workers: Option<Vec<Worker<P>>>,
    listener: Listener<P, N>,
}

impl<'n, P: Provider, N: Network> Server<'n, P, N> {
    /// Listens at `address`.
    ///
    /// # Errors
    /// No device is usable, or the address cannot be listened at.
    pub(crate) fn bind(node: &'n Node<P, N>, address: SocketAddr, terms: &Terms) -> Result<Self, PerfError> {
        let workers = workers(node, terms)?;
        let config = terms.patient(control::channel_config());
        let listener =
            Listener::bind(node, &workers, address, &config).map_err(|error| PerfError::Listen {
                address: address.to_string(),
                error,
            })?;
        Ok(Self {
            node,
            terms: terms.clone(),
            workers: Some(workers),
            listener,
        })
    }

    /// The TCP address of the listener.
    pub(crate) const fn address(&self) -> SocketAddr {
        self.listener.address()
    }

    /// The handle for clients.
    pub(crate) const fn handle(&self) -> &Handle {
        self.listener.handle()
    }

    /// Waits for one client, and runs its tests.
    pub(crate) fn serve_one(&mut self) -> Findings {
        let mut findings = Findings::nothing();
        let outcome = (|| {
            self.listener
                .reconfigure(&self.terms.patient(control::channel_config()));
            let mut workers = match self.workers.take() {
                Some(workers) => workers,
                None => workers(self.node, &self.terms)?,
            };
            let connection = self.accept_client(&mut workers)?;
            let worker = worker_of(&mut workers, connection)?;
            let _shown = self
                .terms
                .metering
                .connection(Part::Control, worker, connection)?;
            let mut control =
                Control::new(workers, connection.worker, connection.channel, self.terms.timeout);
            findings.between = Some(MeasuredEnds::of(&mut control)?);
            loop {
                match control.receive() {
                    Ok(Message::Setup(setup)) => self.serve_test(&mut control, &setup, &mut findings.rows)?,
                    Ok(Message::Finished) => return Ok(()),
                    Ok(other) => {
                        return Err(PerfError::Unexpected {
                            wanted: "a setup",
                            got: other.name(),
                        });
                    }
                    Err(error) => {
                        if let PerfError::Message(reason) = &error {
                            // The client is notified if possible. The error stays the same.
                            let _told = control.send(&Message::Refused(reason.to_string()));
                        }
                        return Err(error);
                    }
                }
            }
        })();
        findings.ended(outcome)
    }

    /// Waits for a peer that opens a control connection. Other peers are rejected.
    fn accept_client(&mut self, workers: &mut [Worker<P>]) -> Result<Connection, PerfError> {
        let deadline = self.node.within(self.terms.timeout);
        loop {
            let failed = self.listener.failed();
            let accepted = self.listener.accept(self.node, workers, deadline);
            for _ in failed..self.listener.failed() {
                self.terms.metering.handshake_failed();
            }
            let connection = accepted?;
            let Some(worker) = workers.get_mut(connection.worker) else {
                continue;
            };
            let why = match purpose_of(worker, connection) {
                Ok(Purpose::Control) => return Ok(connection),
                Ok(Purpose::UnderTest(_)) => "its test is over".into(),
                Err(error) => error.to_string(),
            };
            turn_away(worker, connection, &why);
        }
    }

    fn serve_test(
        &mut self,
        control: &mut Control<P>,
        setup: &Setup,
        rows: &mut Vec<Row>,
    ) -> Result<(), PerfError> {
        let Setup {
            token,
            test,
            window: remote,
        } = *setup;
        let mut worker = match self.node.worker(
            &control.device(),
            &self.terms.worker_config(&test, Role::Listener),
        ) {
            Ok(worker) => [worker],
            Err(error) => return Err(refuse(control, error.into())),
        };
        self.terms.metering.worker(Part::Test, &worker[0]);
        let mut window = match make_window(&worker[0], &test, Role::Listener) {
            Ok(window) => window,
            Err(error) => return Err(refuse(control, error)),
        };
        // The window is filled before the peer learns its address.
        if let Some(window) = &mut window {
            let source = Source::new(&test, Role::Listener, token);
            source.fill_window(window, 0, source.filled_at_first())?;
        }
        let mut config = self.terms.patient(test.channel_config(Role::Listener));
        config.private_data = private_data(Purpose::UnderTest(token));
        self.listener.reconfigure(&config);
        control.send(&Message::Ready(Ready {
            token,
            window: remote_of(window.as_ref()),
        }))?;
        let connection = match self.accept_under_test(control, &mut worker, token) {
            Ok(connection) => connection,
            Err(error) => return Err(give_up(control, token, error)),
        };
        let [mut worker] = worker;
        let _shown = self
            .terms
            .metering
            .connection(Part::Test, &mut worker, connection)?;
        let mut link = Link {
            worker,
            id: connection.channel,
            window,
            remote,
        };
        let mut run = Run::new(&test, Role::Listener, token, &mut link, control);
        let outcome = match test.kind {
            Kind::Latency => latency::answer(&mut run),
            Kind::Bandwidth => bandwidth::answer(&mut run),
        };
        let tally = *run.tally();
        if let Err(error) = outcome {
            return Err(give_up(control, token, error));
        }
        let peer = exchange_verdicts(control, token, &tally)?;
        rows.push(Row::new(&test, None, &tally, Some(peer.messages_checked)));
        judge(&test, &tally, &peer)
    }

    /// Waits for the connection under test. Other connections are rejected meanwhile.
    fn accept_under_test(
        &mut self,
        control: &mut Control<P>,
        worker: &mut [Worker<P>; 1],
        token: u64,
    ) -> Result<Connection, PerfError> {
        let begun = Instant::now();
        loop {
            match self.listener.poll_accept(self.node, worker) {
                Ok(Some(connection)) => {
                    let [on] = worker;
                    match purpose_of(on, connection) {
                        Ok(Purpose::UnderTest(of)) if of == token => return Ok(connection),
                        _ => turn_away(on, connection, "a test of another client is running"),
                    }
                }
                Ok(None) => {}
                Err(error @ ConnectError::Tcp(_)) => return Err(error.into()),
                // The attempt of one peer failed. If the peer is our client, it reports the failure or
                // retries.
                Err(error) => {
                    self.terms.metering.handshake_failed();
                    eprintln!("doorbell: a peer failed to connect: {error}");
                }
            }
            control.check_peer()?;
            if begun.elapsed() >= self.terms.timeout {
                return Err(PerfError::Stalled {
                    what: "connection to test",
                    waited: self.terms.timeout,
                });
            }
            thread::sleep(NAP);
        }
    }
}

/// The Worker of a connection.
fn worker_of<P: Provider>(
    workers: &mut [Worker<P>],
    connection: Connection,
) -> Result<&mut Worker<P>, ConnectError> {
    let worker = workers.get_mut(connection.worker);
    worker.ok_or(ConnectError::Unreachable("the Worker of a connection is gone"))
}

/// Returns the purpose that the peer of a new connection states.
///
/// # Errors
/// The peer states no purpose: it is another program, or has another version.
fn purpose_of<P: Provider>(worker: &mut Worker<P>, connection: Connection) -> Result<Purpose, PerfError> {
    let channel = worker
        .channel(connection.channel)
        .ok_or(PerfError::Connect(ConnectError::Unreachable(
            "a connected channel is gone",
        )))?;
    Ok(Purpose::parse(channel.peer().private_data())?)
}

fn turn_away<P: Provider>(worker: &mut Worker<P>, connection: Connection, why: &str) {
    eprintln!("doorbell: rejected a peer: {why}");
    // It does not matter whether the channel closes cleanly.
    let deadline = worker.within(Duration::from_secs(1));
    let _closed = worker.close(connection.channel, deadline, |_, event| drop(event));
}

/// The Workers of control connections.
fn workers<P: Provider, N: Network>(node: &Node<P, N>, terms: &Terms) -> Result<Vec<Worker<P>>, PerfError> {
    let config = control::worker_config();
    let workers = match &terms.device {
        Some(device) => vec![node.worker(device, &config)?],
        None => node.workers(&config)?,
    };
    for worker in &workers {
        terms.metering.worker(Part::Control, worker);
    }
    Ok(workers)
}

fn make_window<P: Provider>(
    worker: &Worker<P>,
    test: &Test,
    role: Role,
) -> Result<Option<LocalWindow<P>>, PerfError> {
    let Some((bytes, remote)) = test.window(role) else {
        return Ok(None);
    };
    let window = worker.window(&WindowConfig::new(bytes, remote));
    Ok(Some(window.map_err(PerfError::Window)?))
}

/// Returns the description of a window for the peer; an empty one if there is no window.
fn remote_of<P: Provider>(window: Option<&LocalWindow<P>>) -> RemoteWindow {
    let none = RemoteWindow::new(0, 0, doorbell::provider::Rkey(0));
    window.map_or(none, Window::remote)
}

fn exchange_verdicts<P: Provider>(
    control: &mut Control<P>,
    token: u64,
    tally: &Tally,
) -> Result<Verdict, PerfError> {
    control.send(&Message::Verdict(Verdict {
        token,
        messages_checked: tally.messages,
        bytes_checked: tally.bytes,
        faults: tally.faults,
        first_fault: tally.first_fault,
        gave_up: None,
    }))?;
    match control.receive()? {
        Message::Verdict(Verdict {
            gave_up: Some(reason),
            ..
        }) => Err(PerfError::PeerGaveUp(reason)),
        Message::Verdict(verdict) if verdict.token == token => Ok(verdict),
        other => Err(PerfError::Unexpected {
            wanted: "a verdict",
            got: other.name(),
        }),
    }
}

/// Fails if either side detected a wrong byte, or if a message was not checked by its receiver.
fn judge(test: &Test, tally: &Tally, peer: &Verdict) -> Result<(), PerfError> {
    let seen = [
        (true, tally.faults, tally.first_fault),
        (false, peer.faults, peer.first_fault),
    ];
    for (seen_here, messages, first) in seen {
        if let Some(first) = first {
            return Err(PerfError::Corrupted(Corruption {
                kind: test.kind,
                op: test.op,
                seen_here,
                messages,
                first,
            }));
        }
    }
    let (here, there) = (tally.messages, peer.messages_checked);
    // If messages are sent both ways, each side checks those it receives. Otherwise one side checks them all.
    let checked = if test.kind == Kind::Latency && !test.op.fetches() {
        here.min(there)
    } else {
        here.max(there)
    };
    let total = test.checks();
    if checked < total {
        return Err(PerfError::Unchecked { checked, total });
    }
    Ok(())
}

/// Notifies the peer, if possible, that the test is given up. Returns the error, or the cause that the peer
/// reports.
fn give_up<P: Provider>(control: &mut Control<P>, token: u64, error: PerfError) -> PerfError {
    let told = control.send(&Message::Verdict(Verdict {
        token,
        messages_checked: 0,
        bytes_checked: 0,
        faults: 0,
        first_fault: None,
        gave_up: Some(error.to_string()),
    }));
    // If the peer gave up before, its reason may be the cause of this error.
    match (told, control.check_peer()) {
        (Ok(()), Err(behind @ PerfError::PeerGaveUp(_))) => behind,
        _ => error,
    }
}

/// Refuses the client's test. Returns the error.
fn refuse<P: Provider>(control: &mut Control<P>, error: PerfError) -> PerfError {
    // A failure to send the refusal is ignored.
    let _told = control.send(&Message::Refused(error.to_string()));
    error
}

fn random() -> Result<u64, PerfError> {
    let mut bytes = [0; size_of::<u64>()];
    getrandom::fill(&mut bytes).map_err(|_| PerfError::Entropy)?;
    Ok(u64::from_ne_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use doorbell::provider::Mtu;

    use super::{PerfError, judge};
    use crate::perf::link::Tally;
    use crate::perf::message::Verdict;
    use crate::perf::test::{Kind, Op, Test};

    /// Returns the verdict on a hundred messages, of which the sides checked `here` and `there`.
    fn verdict(kind: Kind, op: Op, here: u64, there: u64) -> Result<(), PerfError> {
        let test = Test {
            kind,
            op,
            message_bytes: 64,
            iterations: 100,
            warmup: 0,
            inline_bytes_max: 0,
            batch: 1,
            depth: 1,
            unsignaled_max: 0,
            buffers: 0,
            traffic_class: 0,
            mtu_max: Mtu::B1024,
            plant: None,
        };
        let tally = Tally {
            messages: here,
            ..Tally::default()
        };
        let peer = Verdict {
            token: 1,
            messages_checked: there,
            bytes_checked: 0,
            faults: 0,
            first_fault: None,
            gave_up: None,
        };
        judge(&test, &tally, &peer)
    }

    #[test]
    fn who_gets_messages_has_to_check_them() {
        for (kind, op, here, there, passes) in [
            (Kind::Latency, Op::Send, 100, 100, true),
            (Kind::Latency, Op::Send, 100, 99, false),
            (Kind::Latency, Op::Write, 0, 100, false),
            (Kind::Latency, Op::Read, 100, 0, true),
            (Kind::Bandwidth, Op::Send, 0, 100, true),
            (Kind::Bandwidth, Op::Read, 100, 0, true),
            (Kind::Bandwidth, Op::Send, 99, 0, false),
        ] {
            let verdict = verdict(kind, op, here, there);
            assert_eq!(verdict.is_ok(), passes, "{kind:?} {op:?} {here} {there}");
        }
    }
}
