//! A run: a case made into hosts and lines, its operations tried one after the other, everything that is told judged.
//!
//! One thread makes all calls, and time is the fabric's, so the same case gives the same run. `act` does the
//! operations, and `hear` judges events. `connect` opens and closes channels, and `finish` checks the end of a run.

use core::panic::AssertUnwindSafe;
use core::time::Duration;
use std::panic::catch_unwind;

use doorbell::provider::AsyncEvent;
use doorbell::{ChannelId, Event, Turn};
use doorbell_sim::{Fabric, Frame, Host, LinkConfig, Tally, Timeline};

use crate::awaited::Watch;
use crate::bounds::Bounds;
use crate::case::{Case, Excuses, LineCase, Scene, What};
use crate::crowd::CrowdRun;
use crate::datagrams::Mail;
use crate::failure::{Failure, Verdict, ensure, failure};
use crate::full::FullRun;
use crate::hostile::HostileRun;
use crate::line::{Connection, Line};
use crate::linked::LinkedRun;
use crate::mesh::MeshRun;
use crate::panics::Panics;
use crate::requests::RequestsRun;
use crate::sleepy::SleepRun;
use crate::station::Station;
use crate::trace::Trace;

/// Packets and moments of other kinds in a timeline at most: more than anybody looks at.
const MOMENTS_MAX: usize = 5_000;

/// The parts of a run that are kept beside its verdict.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Keep {
    pub(crate) moments: bool,
    /// Packets at most.
    pub(crate) frames: usize,
    /// Whether names in the plan that nothing has are printed. Plans that are drawn have some: not every host is in every subnet.
    pub(crate) names: bool,
}

/// The outcome of a run.
pub(crate) struct Outcome {
    pub(crate) verdict: Verdict,
    pub(crate) hash: u64,
    pub(crate) tally: Tally,
    pub(crate) virtual_ns: u64,
    pub(crate) messages: u64,
    pub(crate) timeline: Timeline,
    pub(crate) frames: Vec<Frame>,
}

/// Whether a host prepares a sleep behind each poll, where ends are to be reported.
pub(crate) const fn prepares_sleep(host: usize) -> bool {
    host % 2 == 1
}

/// Runs a case; a panic is a failure like any other.
pub(crate) fn run_caught(case: &Case, keep: Keep) -> Outcome {
    catch_unwind(AssertUnwindSafe(|| run(case, keep))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("no text");
        Outcome::none(failure("panic", text))
    })
}

impl Outcome {
    /// Returns the outcome of a run of which only the reason of its failure is left.
    fn none(failure: Failure) -> Self {
        Self {
            verdict: Err(failure),
            hash: 0,
            tally: Tally::default(),
            virtual_ns: 0,
            messages: 0,
            timeline: Timeline::default(),
            frames: Vec::new(),
        }
    }
}

/// Runs a case.
fn run(case: &Case, keep: Keep) -> Outcome {
    let mut trace = Trace::new(keep.moments);
    let fabric = match fabric(case, keep) {
        Ok(fabric) => fabric,
        Err(error) => return Outcome::none(failure("set-up", format!("{error:#}"))),
    };
    let (verdict, messages) = if let Some(Scene::Crowd(_)) = &case.scene {
        let made = CrowdRun::new(case, &fabric, &mut trace);
        judged(made, CrowdRun::run, |run| run.messages)
    } else if let Some(Scene::Full(_)) = &case.scene {
        let made = FullRun::new(case, &fabric, &mut trace);
        judged(made, FullRun::run, |run| run.messages)
    } else if let Some(Scene::Sleep(_)) = &case.scene {
        let made = SleepRun::new(case, &fabric, &mut trace);
        judged(made, SleepRun::run, |run| run.messages)
    } else if let Some(Scene::Hostile(_)) = &case.scene {
        let made = HostileRun::new(case, &fabric, &mut trace);
        judged(made, HostileRun::run, |run| run.messages)
    } else if let Some(Scene::Requests(_)) = &case.scene {
        let made = RequestsRun::new(case, &fabric, &mut trace);
        judged(made, RequestsRun::run, |run| run.messages)
    } else if let Some(Scene::Mesh(_)) = &case.scene {
        let made = MeshRun::new(case, &fabric, &mut trace);
        judged(made, MeshRun::run, |run| run.messages)
    } else if case.links.is_some() {
        let made = LinkedRun::new(case, &fabric, &mut trace);
        judged(made, LinkedRun::run, |run| run.messages)
    } else {
        let made = Run::new(case, &fabric, &mut trace);
        let verdict = |run: &mut Run<'_>| run.operate().and_then(|()| run.finish());
        judged(made, verdict, |run| run.messages)
    };
    let virtual_ns = fabric.now().to_ns();
    let mut timeline = fabric.take_timeline();
    let audited = fabric.audit();
    let verdict = verdict
        .and_then(|()| {
            audited
                .map(|_| ())
                .map_err(|violation| failure("audit", violation.to_string()))
        })
        .and_then(|()| nothing_is_left(&fabric));
    let failed = verdict
        .as_ref()
        .err()
        .map(|failure| (virtual_ns, None, format!("FAILED: {failure}")));
    let hash = trace.hash();
    let moments = trace.into_moments().into_iter();
    timeline.extend(moments.map(|moment| (moment.at_ns, Some(format!("h{}", moment.host)), moment.text)));
    timeline.extend(failed);
    Outcome {
        verdict: verdict.map_err(|failure| Failure {
            at_ns: virtual_ns,
            ..failure
        }),
        hash,
        tally: audited.unwrap_or_default(),
        virtual_ns,
        messages,
        timeline,
        frames: fabric.take_captured(),
    }
}

/// Checks that nothing is left on the fabric once all its users are gone.
fn nothing_is_left(fabric: &Fabric) -> Verdict {
    let left = [
        (fabric.queue_pairs(), "queue pairs"),
        (fabric.queues(), "completion and shared receive queues"),
        (fabric.registrations(), "windows and arenas"),
    ];
    left.iter()
        .try_for_each(|(count, what)| ensure(*count == 0, "conserved", || format!("{count} {what} are left")))
}

/// The fabric of a case.
pub(crate) fn fabric(case: &Case, keep: Keep) -> anyhow::Result<Fabric> {
    let link = LinkConfig {
        latency_ns: case.latency_ns,
        bandwidth_mbps: Some(case.bandwidth_mbps),
    };
    let builder = Fabric::builder()
        .seed(case.seed)
        .link(link)
        .quirks(case.device.quirks())
        .calls_take(Duration::from_nanos(case.call_ns));
    let builder = if keep.names {
        builder
    } else {
        builder.allow_unknown_names()
    };
    let fabric = builder.plan(case.plan()?).driven().build();
    if keep.frames > 0 {
        fabric.capture(keep.frames);
    }
    if keep.moments {
        fabric.record(MOMENTS_MAX);
    }
    Ok(fabric)
}

/// Runs a case if it could be set up, and returns the verdict and the number of messages that came.
fn judged<R>(
    made: anyhow::Result<R>,
    run: impl FnOnce(&mut R) -> Verdict,
    messages: impl FnOnce(&R) -> u64,
) -> (Verdict, u64) {
    let mut made = match made {
        Ok(made) => made,
        Err(error) => return (Err(failure("set-up", format!("{error:#}"))), 0),
    };
    let verdict = run(&mut made);
    let messages = messages(&made);
    // The verdict of a failed run stands, even if dropping the run panics.
    let dropped = catch_unwind(AssertUnwindSafe(move || drop(made)));
    let dropped = dropped.map_err(|_| failure("panic", "while everything is dropped"));
    (verdict.and(dropped), messages)
}

/// A run under way.
pub(crate) struct Run<'c> {
    pub(crate) case: &'c Case,
    pub(crate) fabric: Fabric,
    pub(crate) stations: Vec<Station>,
    pub(crate) lines: Vec<Line>,
    /// Windows and arenas that there are while nothing is connected.
    pub(crate) registrations: usize,
    /// Datagrams that each end of each line sent.
    pub(crate) mails: Vec<[Mail; 2]>,
    pub(crate) excuses: Excuses,
    pub(crate) trace: &'c mut Trace,
    pub(crate) connections: u32,
    pub(crate) messages: u64,
    /// Everything that the plan had broken is repaired, and handshakes from before have ended.
    pub(crate) is_calm: bool,
    /// The consequences of those faults are over, too: every established connection works.
    pub(crate) is_settled: bool,
    /// Lines are closed for good: what was sent came.
    pub(crate) is_parting: bool,
    /// All cables are cut, and each end is to find out.
    pub(crate) is_cut: bool,
    /// The time there is for what is awaited, of each line.
    pub(crate) bounds: Vec<Bounds>,
    pub(crate) watch: Watch,
    /// Ends that are to be told of all they posted, whatever their lines leave unsignaled.
    pub(crate) told: Vec<[usize; 2]>,
    pub(crate) panics: Panics,
}

/// An event, with whose it is.
type PolledEvent = (ChannelId, Event<'static, Host>);

impl<'c> Run<'c> {
    fn new(case: &'c Case, fabric: &Fabric, trace: &'c mut Trace) -> anyhow::Result<Self> {
        let ends = case.lines.iter().flat_map(|line| [line.end(0), line.end(1)]);
        let retries = ends.map(|end| end.retry_count).min().unwrap_or(0);
        let mut excuses = Excuses::of(&case.plan()?, retries);
        if let Some(endings) = case.endings {
            excuses.add_impatience(&case.plan()?, endings.probe_timeouts_ms);
        }
        excuses.drops = case
            .operations
            .iter()
            .any(|operation| operation.what == What::DropWorker);
        let stations = (0..case.hosts.len())
            .map(|host| Station::new(fabric, case, host))
            .collect::<anyhow::Result<Vec<Station>>>()?;
        let line = |(index, line): (usize, &LineCase)| {
            Ok(Line {
                listener: stations[line.hosts[1]].listen(index, line)?,
                attempt: None,
                connection: None,
            })
        };
        let lines = case
            .lines
            .iter()
            .enumerate()
            .map(line)
            .collect::<anyhow::Result<_>>()?;
        Ok(Self {
            case,
            fabric: fabric.clone(),
            stations,
            lines,
            registrations: fabric.registrations(),
            mails: case.lines.iter().map(|_| Default::default()).collect(),
            excuses,
            trace,
            connections: 0,
            messages: 0,
            is_calm: false,
            is_settled: false,
            is_parting: false,
            is_cut: false,
            bounds: case
                .lines
                .iter()
                .map(|line| Bounds::of(case, line))
                .collect::<anyhow::Result<_>>()?,
            watch: Watch::default(),
            told: Vec::new(),
            panics: Panics::every(case.panics_every),
        })
    }

    /// Tries every operation.
    fn operate(&mut self) -> Verdict {
        for (number, operation) in self.case.operations.iter().enumerate() {
            let host = self.case.lines[operation.line].hosts[operation.end];
            match operation.what {
                What::Pass { ns } => self.fabric.run_for(Duration::from_nanos(ns)),
                What::Poll => self.poll(host)?,
                What::Load { ns, every_ns, bytes } => self.load(ns, every_ns, bytes)?,
                what => self.act(operation.line, operation.end, what)?,
            }
            if number % 16 == 0 {
                self.audit()?;
            }
        }
        Ok(())
    }

    /// The oracles of the fabric, and of what each end knows of the other.
    pub(crate) fn audit(&mut self) -> Verdict {
        self.fabric
            .audit()
            .map_err(|violation| failure("audit", violation.to_string()))?;
        let is_ready = self.fabric.receivers_not_ready() == 0 || self.took_shared_receives();
        ensure(is_ready, "credits", || {
            "a message was sent that its receiver had no receive for".into()
        })?;
        for line in 0..self.lines.len() {
            self.check_credits(line)?;
        }
        Ok(())
    }

    /// No end believes in more receives than its peer has posted.
    fn check_credits(&mut self, line: usize) -> Verdict {
        let Some(Connection {
            ends: [Some(a), Some(b)],
            ..
        }) = &self.lines[line].connection
        else {
            return Ok(());
        };
        // A device that repeats messages uses up receives, and the peer does not know of that.
        if (0..2).any(|end| self.repeated_to(line, end) > 0) {
            return Ok(());
        }
        let places = [(a.worker, a.id), (b.worker, b.id)];
        let mut known = [(0, 0, 0); 2];
        for end in 0..2 {
            let host = self.case.lines[line].hosts[end];
            let (worker, id) = places[end];
            let Some(channel) = self.stations[host].workers[worker].channel(id) else {
                return Ok(());
            };
            let is_open = channel.state() == doorbell::ChannelState::Open;
            if !is_open {
                return Ok(());
            }
            known[end] = (channel.credits(), channel.receives_posted(), channel.in_flight());
        }
        for end in 0..2 {
            let ((credits, ..), (_, posted, _)) = (known[end], known[1 - end]);
            ensure(credits <= posted, "credits", || {
                format!("{credits} credits, where the peer has {posted} receives posted")
            })?;
        }
        Ok(())
    }

    /// A host does what falls to it: completions, rings, handshakes, closings.
    pub(crate) fn poll(&mut self, host: usize) -> Verdict {
        for worker in 0..self.stations[host].workers.len() {
            self.check_classes(host, worker)?;
            let mut told: Vec<PolledEvent> = Vec::new();
            let endings = self.case.endings;
            let handler = Duration::from_nanos(self.case.handler_ns);
            let Self {
                stations,
                panics,
                fabric,
                ..
            } = self;
            let polled = panics.through(|panics| {
                let worker = &mut stations[host].workers[worker];
                let each = |mut turn: Turn<'_, Host>, event: Event<'_, Host>| {
                    let id = turn.channel.id();
                    panics.hear(&mut turn, event, |event| {
                        told.push((id, event));
                        if !handler.is_zero() {
                            fabric.run_for(handler);
                        }
                    });
                };
                // Half of the hosts are about to sleep behind each poll.
                match endings {
                    Some(_) if prepares_sleep(host) => worker.ready_to_sleep(each).map(drop).map_err(drop),
                    _ => worker.poll_tending(each).map(drop).map_err(drop),
                }
            });
            for (id, event) in told {
                self.hear(host, worker, id, event)?;
            }
            if polled.is_err() {
                self.replace_worker(host, worker)?;
            }
            self.check_classes(host, worker)?;
            while let Some(event) = self.next_event(host, worker)? {
                // A queue that works on after this event has lost completions for good.
                if event == AsyncEvent::CompletionQueueError {
                    self.give_up_channels(host, worker)?;
                }
            }
        }
        self.hear_submitters(host)?;
        self.tend_rings(host)?;
        self.tend_offices(host)?;
        self.shake_hands(host)?;
        self.tend_closings(host)
    }

    fn next_event(&mut self, host: usize, worker: usize) -> Verdict<Option<AsyncEvent>> {
        let event = self.stations[host].workers[worker].next_event();
        event.map_err(|error| failure("event", error.to_string()))
    }

    /// Which line and end a channel of a host is.
    pub(crate) fn find(&self, host: usize, worker: usize, id: ChannelId) -> Option<(usize, usize)> {
        self.lines.iter().enumerate().find_map(|(index, line)| {
            let connection = line.connection.as_ref()?;
            let hosts = self.case.lines[index].hosts;
            let mut ends = (0..2).filter(|end| hosts[*end] == host && connection.is_at(*end, worker, id));
            Some((index, ends.next()?))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Keep, run_caught};
    use crate::case::Case;
    use crate::generate::generate;
    use crate::seed::{Profile, Seed};

    #[test]
    fn the_same_seed_gives_the_same_trace() {
        let (mut linked, mut recorded, mut runs) = (0, 0, 0);
        let others = Profile::ALL
            .into_iter()
            .filter(|profile| *profile != Profile::Quick);
        let others = others.flat_map(|profile| (0..6).map(move |number| Seed { profile, number }));
        for seed in (0..40).map(Seed::quick).chain(others) {
            let case = generate(seed);
            linked += u32::from(seed.profile == Profile::Quick && case.links.is_some());
            let again = Case::parse(&case.to_text().unwrap()).unwrap();
            assert_eq!(again, case);
            let keep = Keep {
                moments: true,
                frames: 1000,
                names: false,
            };
            let (first, second) = (run_caught(&case, Keep::default()), run_caught(&again, keep));
            assert_eq!(first.verdict, Ok(()), "seed {seed}");
            assert_eq!(
                (first.hash, first.tally),
                (second.hash, second.tally),
                "seed {seed}"
            );
            let is_recorded =
                !second.frames.is_empty() && second.timeline != doorbell_sim::Timeline::default();
            (recorded, runs) = (recorded + u32::from(is_recorded), runs + 1);
        }
        assert!((1..20).contains(&linked), "{linked} cases of links");
        // In some case nobody ever connects.
        assert!(recorded + 3 >= runs, "{recorded} of {runs} were recorded");
        let hashes: std::collections::BTreeSet<_> = (0..10)
            .map(|seed| run_caught(&generate(Seed::quick(seed)), Keep::default()).hash)
            .collect();
        assert_eq!(hashes.len(), 10);
    }
}
