//! A Worker of a host that sleeps, whole or taken apart: what it is told, and when it may sleep.

use core::time::Duration;
use std::os::fd::BorrowedFd;

use doorbell::provider::ArenaConfig;
use doorbell::worker::{ReceiveWorker, SendWorker};
use doorbell::{ChannelId, Event, Lease, Operation, PostFlags, SendErrorKind, Worker};
use doorbell_sim::Host;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::failure::{Verdict, failure};
use crate::panics::Panics;

type PolledEvents = Vec<(ChannelId, Event<'static, Host>)>;

/// A Worker.
pub(super) enum Body {
    Whole(Box<Worker<Host>>),
    Halves(Box<SendWorker<Host>>, Box<ReceiveWorker<Host>>),
    /// It is being taken apart, or put together.
    Between,
}

/// A request that was not taken: the reason, and its lease.
pub(super) struct Refused {
    pub(super) kind: SendErrorKind,
    pub(super) lease: Option<Lease<Host>>,
}

impl Body {
    /// How many threads it has: each sleeps by itself.
    pub(super) const fn threads(&self) -> usize {
        match self {
            Self::Halves(..) => 2,
            _ => 1,
        }
    }

    /// Asks for leave to sleep, and for how long at most; none where something happened.
    pub(super) fn ready_to_sleep(
        &mut self,
        thread: usize,
        panics: &mut Panics,
        told: &mut PolledEvents,
    ) -> Verdict<Option<Option<Duration>>> {
        let asked = panics.through(|panics| match (&mut *self, thread) {
            (Self::Whole(worker), _) => worker
                .ready_to_sleep(|mut turn, event| {
                    let id = turn.channel.id();
                    panics.hear(&mut turn, event, |event| told.push((id, event)));
                })
                .map(|sleep| sleep.map(|sleep| sleep.at_most())),
            (Self::Halves(sending, _), 0) => sending
                .ready_to_sleep(|mut turn, event| {
                    let id = turn.channel.id();
                    panics.hear(&mut turn, event, |event| told.push((id, event)));
                })
                .map(|sleep| sleep.map(|sleep| sleep.at_most())),
            (Self::Halves(_, receiving), _) => receiving
                .ready_to_sleep(|mut turn, event| {
                    let id = turn.channel.id();
                    panics.hear(&mut turn, event, |event| told.push((id, event)));
                })
                .map(|sleep| sleep.map(|sleep| sleep.at_most())),
            (Self::Between, _) => Ok(None),
        });
        asked.map_err(|error| failure("sleep", error.to_string()))
    }

    /// Polls as one that never sleeps.
    pub(super) fn poll(&mut self, thread: usize, panics: &mut Panics, told: &mut PolledEvents) -> Verdict {
        let polled = panics.through(|panics| match (&mut *self, thread) {
            (Self::Whole(worker), _) => worker.poll_tending(|mut turn, event| {
                let id = turn.channel.id();
                panics.hear(&mut turn, event, |event| told.push((id, event)));
            }),
            (Self::Halves(sending, _), 0) => sending.poll(|mut turn, event| {
                let id = turn.channel.id();
                panics.hear(&mut turn, event, |event| told.push((id, event)));
            }),
            (Self::Halves(_, receiving), _) => receiving.poll(|mut turn, event| {
                let id = turn.channel.id();
                panics.hear(&mut turn, event, |event| told.push((id, event)));
            }),
            (Self::Between, _) => Ok(0),
        });
        polled
            .map(drop)
            .map_err(|error| failure("poll", error.to_string()))
    }

    /// Whether a descriptor of a thread is readable.
    pub(super) fn is_woken(&self, thread: usize) -> Verdict<bool> {
        let descriptors: Option<Vec<BorrowedFd<'_>>> = match (self, thread) {
            (Self::Whole(worker), _) => worker.descriptors().map(Into::into),
            (Self::Halves(sending, _), 0) => sending.descriptors().map(Into::into),
            (Self::Halves(_, receiving), _) => receiving.descriptor().map(|one| vec![one]),
            (Self::Between, _) => Some(Vec::new()),
        };
        let descriptors = descriptors.ok_or_else(|| failure("sleep", "no descriptors"))?;
        is_readable(&descriptors)
    }

    pub(super) fn split(&mut self, slots: u32, slot_bytes: u32) -> Verdict<bool> {
        let Self::Whole(whole) = core::mem::replace(self, Self::Between) else {
            return Err(failure("owner", "a Worker that is apart is taken apart"));
        };
        let mut arena = ArenaConfig::new(slots, slot_bytes);
        arena.placement = Default::default();
        match whole.split(&arena) {
            Ok((sending, receiving)) => {
                *self = Self::Halves(Box::new(sending), Box::new(receiving));
                Ok(true)
            }
            Err(refused) => {
                *self = Self::Whole(refused.worker);
                Ok(false)
            }
        }
    }

    pub(super) fn join(&mut self) -> Verdict {
        match core::mem::replace(self, Self::Between) {
            Self::Halves(sending, receiving) => {
                let whole = sending.join(*receiving);
                *self = Self::Whole(Box::new(
                    whole.map_err(|error| failure("join", error.to_string()))?,
                ));
                Ok(())
            }
            other => {
                *self = other;
                Ok(())
            }
        }
    }

    pub(super) fn lease(&mut self) -> Option<Lease<Host>> {
        match self {
            Self::Whole(worker) => worker.lease(),
            Self::Halves(sending, _) => sending.lease(),
            Self::Between => None,
        }
    }

    /// Gives memory back where it is from, or drops it.
    pub(super) fn release(&mut self, lease: Lease<Host>, is_received: bool) {
        match self {
            Self::Whole(worker) => worker.release(lease),
            Self::Halves(_, receiving) if is_received => receiving.release(lease),
            Self::Halves(sending, _) => sending.release(lease),
            Self::Between => drop(lease),
        }
    }

    /// Posts or submits one message; none where there is no such channel.
    pub(super) fn send(
        &mut self,
        id: ChannelId,
        lease: Lease<Host>,
        flags: PostFlags,
        is_deferred: bool,
    ) -> Option<Result<(), Refused>> {
        let half = match self {
            Self::Whole(worker) => {
                let channel = worker.channel(id)?;
                let sent = if is_deferred {
                    channel.submit(Operation::Send, lease, flags)
                } else {
                    channel.post(Operation::Send, lease, flags).map(drop)
                };
                return Some(sent.map_err(|error| Refused {
                    kind: error.kind,
                    lease: error.item,
                }));
            }
            Self::Halves(sending, _) => sending.channel(id)?,
            Self::Between => return None,
        };
        let sent = if is_deferred {
            half.submit(Operation::Send, lease, flags)
        } else {
            half.post(Operation::Send, lease, flags).map(drop)
        };
        Some(sent.map_err(|error| Refused {
            kind: error.kind,
            lease: error.item,
        }))
    }

    /// Whether a channel is there, and so for both halves.
    pub(super) fn has(&mut self, id: ChannelId) -> bool {
        match self {
            Self::Whole(worker) => worker.channel(id).is_some(),
            Self::Halves(sending, _) => sending.channel(id).is_some(),
            Self::Between => true,
        }
    }

    pub(super) fn whole(&mut self) -> Option<&mut Worker<Host>> {
        match self {
            Self::Whole(worker) => Some(worker),
            _ => None,
        }
    }
}

/// Whether one of these descriptors is readable now.
pub(crate) fn is_readable(descriptors: &[BorrowedFd<'_>]) -> Verdict<bool> {
    let mut watched: Vec<_> = descriptors
        .iter()
        .map(|one| PollFd::new(one, PollFlags::IN))
        .collect();
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let found = poll(&mut watched, Some(&at_once));
    found
        .map(|found| found > 0)
        .map_err(|error| failure("sleep", error.to_string()))
}
