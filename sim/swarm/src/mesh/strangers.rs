//! Processes that are no members, and streams that say nothing.

use core::net::SocketAddr;
use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::Context as _;
use doorbell::connect::Cause;
use doorbell::mesh::{Mesh, MeshEvent, NotLinked};
use doorbell::provider::{Instant, Io as _, IoError, Network as _};
use doorbell::wire::{Frame, FrameHeader, RejectReason};
use doorbell::{ConnectError, Node, Worker, WorkerConfig};
use doorbell_sim::{Host, Stream};

use super::case::{Strange, rank};
use super::{KEY, MeshRun, SECRET, TCP_PORT, WRONG_SECRET, address, port, trust};
use crate::failure::{Verdict, ensure, failure};

/// The first number of a stranger's host in its subnet.
const FIRST_NUMBER: usize = 100;

/// Somebody who links to a member.
pub(super) struct Stranger {
    mesh: Mesh<Host, Host>,
    workers: Vec<Worker<Host>>,
    node: Arc<Node<Host, Host>>,
}

impl Stranger {
    pub(super) fn poll(&mut self) {
        // It may be treated in any way.
        let _ = self.mesh.poll(&self.node, &mut self.workers, |_| {});
    }

    pub(super) fn wakes_at(&self, now: Instant) -> u64 {
        self.mesh
            .wake(now)
            .map_or(u64::MAX, |wake| wake.instant().to_ns())
    }
}

impl MeshRun<'_> {
    /// A host beside a member.
    fn strange_host(&mut self, beside: usize) -> anyhow::Result<(usize, Host)> {
        let subnet = self.mesh.subnets_of(beside).next().context("in no subnet")?;
        let number = FIRST_NUMBER + self.strange_hosts;
        self.strange_hosts += 1;
        let ports = vec![port(subnet, number)?];
        Ok((subnet, self.fabric.host(&format!("s{number}"), ports)?))
    }

    /// Somebody who is no member links to one, who turns it away; everything else is as before.
    pub(super) fn stranger(&mut self, target: usize, what: Strange) -> Verdict {
        let is_of_keys = matches!(what, Strange::WrongKey | Strange::UnknownKey | Strange::NoKey);
        let ranks = self.mesh.ranks();
        let claimed = match what {
            Strange::Taken { rank } => usize::from(rank),
            _ => ranks - 1,
        };
        let is_linked = |run: &Self| {
            let process = run.seats[target].process.as_ref();
            process.is_some_and(|process| process.mesh.is_linked(rank(claimed)))
        };
        let can_be = claimed > target && claimed < ranks && (!is_of_keys || self.mesh.has_keys);
        // Its peers are up, and none of them just comes or goes.
        let stops_ns = self
            .seats
            .iter()
            .map(|seat| seat.stops_until_ns)
            .max()
            .unwrap_or(0);
        if !can_be || !self.is_untroubled() || stops_ns > self.now_ns() || self.unsettled().is_some() {
            return Ok(());
        }
        if matches!(what, Strange::Taken { .. }) && !is_linked(self) {
            return Ok(());
        }
        self.is_pristine = false;
        self.expected.strangers = true;
        let (_, host) = self
            .strange_host(target)
            .map_err(|error| failure("set-up", format!("{error:#}")))?;
        let starts = &self.seats[claimed].starts;
        let mut config = self.mesh.config(claimed, starts.last().copied().unwrap_or(0));
        match what {
            Strange::OtherMesh => config.mesh += 1,
            Strange::OtherCount => config.ranks += 1,
            _ => {}
        }
        let key = match what {
            Strange::WrongKey => Some((KEY, WRONG_SECRET)),
            Strange::UnknownKey => Some((KEY + 1, SECRET)),
            Strange::NoKey => None,
            _ => self.mesh.has_keys.then_some((KEY, SECRET)),
        };
        let Some(handle) = self.seats[target].process.as_ref().map(|process| process.handle) else {
            return Ok(());
        };
        let made = || -> anyhow::Result<Stranger> {
            let node = Arc::new(Node::with(host.clone(), host.clone(), trust(key)?)?);
            let mut own = WorkerConfig::default();
            own.slots = 2 * (config.link.channel.send_depth + config.link.channel.receive_depth);
            own.slot_bytes = 4096;
            let workers = node.workers(&own)?;
            let mut mesh = Mesh::new(&node, &workers, &config)?;
            mesh.connect(&node, &workers, rank(target), &handle)?;
            Ok(Stranger { mesh, workers, node })
        };
        let made = made().map_err(|error| failure("set-up", format!("{error:#}")))?;
        self.note(target, format_args!("{what:?} links to it"));
        let before = self.refusals(target);
        let mark = self.seats[target]
            .process
            .as_ref()
            .map_or(0, |process| process.events.len());
        self.strangers.push(made);
        let within_ns = self.joined_ns() + 1_000_000_000;
        let is_refused =
            self.pass_until(
                within_ns,
                |run| Ok(run.is_turned_away(target, what, mark, before)),
            )?;
        ensure(is_refused, "refused", || {
            format!("rank {target} does not turn {what:?} away")
        })?;
        let is_alone = self
            .strangers
            .iter()
            .all(|stranger| stranger.mesh.reached().len() == 1);
        ensure(is_alone, "refused", || format!("{what:?} is let in by {target}"))?;
        // It is told, and its link is over.
        self.pass(self.joined_ns())?;
        self.strangers.clear();
        // A link that came back shortly before may be held down meanwhile.
        let bound_ns = self.settle_ns();
        self.settles(bound_ns, "view")?;
        self.pass(self.joined_ns())?;
        self.expected.strangers = false;
        Ok(())
    }

    /// Peers that a member refused for their keys, by each reason.
    fn refusals(&self, at: usize) -> [u64; 3] {
        let process = self.seats[at].process.as_ref();
        let untrusted = process.map(|process| process.mesh.links().handshakes().untrusted);
        let untrusted = untrusted.unwrap_or_default();
        [
            untrusted.wrong_key,
            untrusted.unknown_key,
            untrusted.unauthenticated,
        ]
    }

    fn is_turned_away(&self, target: usize, what: Strange, mark: usize, before: [u64; 3]) -> bool {
        let counted = |kind: usize, is_due: fn(&Cause) -> bool| {
            let refusals = self.refusals(target);
            let others = (0..3).filter(|other| *other != kind);
            let is_alone = others.into_iter().all(|other| refusals[other] == before[other]);
            let told = self.strangers.iter().any(|stranger| {
                let mut reasons = stranger.mesh.not_linked(rank(target));
                reasons.any(|reason| match reason {
                    NotLinked::NotConnected(rail) => match &rail.why {
                        ConnectError::Handshake(error) => is_due(&error.cause),
                        _ => false,
                    },
                    _ => false,
                })
            });
            refusals[kind] > before[kind] && is_alone && told
        };
        match what {
            // The stranger finds that itself: each side proves that it has the key.
            Strange::WrongKey => counted(0, |cause| *cause == Cause::WrongKey),
            Strange::UnknownKey => counted(
                1,
                |cause| matches!(cause, Cause::RejectedByPeer(reject) if reject.reason == RejectReason::UNKNOWN_KEY),
            ),
            Strange::NoKey => counted(
                2,
                |cause| matches!(cause, Cause::RejectedByPeer(reject) if reject.reason == RejectReason::UNAUTHENTICATED),
            ),
            _ => {
                let process = self.seats[target].process.as_ref();
                process.is_some_and(|process| {
                    process
                        .events
                        .get(mark..)
                        .unwrap_or_default()
                        .contains(&MeshEvent::TurnedAway)
                })
            }
        }
    }

    /// Opens streams that say nothing. As many as an address may have wait until their time is over. Each further one
    /// displaces an older one, which is rejected at once as busy.
    ///
    /// None is left in the end. A member that starts meanwhile is let in.
    pub(super) fn flood(&mut self, target: usize, streams: usize) -> Verdict {
        let is_up =
            self.seats[target].process.is_some() && self.seats[target].stops_until_ns <= self.now_ns();
        if !self.is_untroubled() || !is_up || self.unsettled().is_some() {
            return Ok(());
        }
        self.is_pristine = false;
        let (subnet, host) = self
            .strange_host(target)
            .map_err(|error| failure("set-up", format!("{error:#}")))?;
        let counts = |run: &Self| {
            run.seats[target]
                .process
                .as_ref()
                .map(|process| process.mesh.links().handshakes())
        };
        let Some(before) = counts(self) else { return Ok(()) };
        let at = SocketAddr::new(address(subnet, target + 1), TCP_PORT);
        let mut open: Vec<Stream> = Vec::new();
        for _ in 0..streams {
            let stream = host.connect(at);
            open.push(stream.map_err(|error| failure("set-up", format!("{error}")))?);
        }
        let mut water = Water::new(open);
        self.pass_until(self.joined_ns(), |_| water.poll().map(|()| false))?;
        let most = self.mesh.per_address as usize;
        let turned_away = streams.saturating_sub(most);
        // The oldest make room.
        ensure(
            water.refused.iter().copied().eq(0..turned_away),
            "refused",
            || {
                let refused = &water.refused;
                format!("{refused:?} of {streams} streams are told, with {most} of an address")
            },
        )?;
        // All have had their time.
        let stage_ns = self
            .mesh
            .config(target, 0)
            .link
            .channel
            .handshake_stage
            .as_nanos() as u64;
        self.pass_until(stage_ns + self.joined_ns(), |_| water.poll().map(|()| false))?;
        let Some(after) = counts(self) else { return Ok(()) };
        let refused = (after.refused - before.refused) as usize;
        let failed = (after.failed - before.failed) as usize;
        // With more than half of its places taken, the time of those that prove nothing is short.
        let patient = streams.min(most / 2);
        ensure(
            (refused, failed) == (streams - patient, patient),
            "refused",
            || format!("{refused} refused and {failed} failed of {streams}, with {most} of an address"),
        )?;
        ensure(
            water.refused.len() == streams && water.ended == streams,
            "refused",
            || {
                format!(
                    "{} told and {} ended of {streams}",
                    water.refused.len(),
                    water.ended
                )
            },
        )?;
        let done = after.connected - before.connected + after.failed - before.failed;
        let begun = after.begun - before.begun;
        ensure(begun >= done, "conserved", || {
            format!("{after:?} after {before:?}")
        })
    }
}

/// The streams of a flood.
struct Water {
    open: Vec<Option<Stream>>,
    heard: Vec<Vec<u8>>,
    /// Streams that were told why.
    refused: BTreeSet<usize>,
    ended: usize,
}

impl Water {
    fn new(open: Vec<Stream>) -> Self {
        Self {
            heard: vec![Vec::new(); open.len()],
            open: open.into_iter().map(Some).collect(),
            refused: BTreeSet::new(),
            ended: 0,
        }
    }

    fn poll(&mut self) -> Verdict {
        for (at, place) in self.open.iter_mut().enumerate() {
            let Some(stream) = place else { continue };
            let mut buffer = [0; 512];
            match stream.read(&mut buffer) {
                Err(IoError::WouldBlock) => continue,
                Ok(bytes) if bytes > 0 => self.heard[at].extend_from_slice(&buffer[..bytes]),
                _ => {
                    *place = None;
                    self.ended += 1;
                    continue;
                }
            }
            let heard = &self.heard[at];
            let Ok(header) = FrameHeader::parse(heard) else {
                continue;
            };
            let Some(frame) = heard.get(..header.frame_bytes()) else {
                continue;
            };
            let Ok(Frame::Reject(reject)) = Frame::parse(frame) else {
                return Err(failure("refused", format!("a stream is told {frame:?}")));
            };
            let is_busy = reject.reason == RejectReason::BUSY && (50..=5000).contains(&reject.detail);
            let is_late = reject.reason == RejectReason::TIMED_OUT;
            ensure(is_busy || is_late, "refused", || {
                format!("a stream is told {reject:?}")
            })?;
            self.refused.insert(at);
        }
        Ok(())
    }
}
