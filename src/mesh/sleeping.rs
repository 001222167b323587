//! Sleeping for a mesh: that for its links, and for the members that are asked for their handles.

use core::hash::{Hash as _, Hasher as _};
use std::hash::DefaultHasher;

use doorbell_core::network::Network;
use doorbell_core::provider::{Provider, ProviderError};
use doorbell_core::{Deadline, Instant};
use doorbell_hotpath::{Wait, Woken};

use super::membership::{Mesh, MeshEvent};
use super::seek::Sought;
use crate::connect::node::Node;
use crate::link::{LinkDescriptor, SETTLING_POLLS, WaitedFor, WatchedNetwork, is_ready_to_sleep};
use crate::machine::tcp::Tcp;
use crate::worker::{WaitError, Watched, Worker};

impl<P: Provider, N: Network> Mesh<P, N> {
    /// Polls, and says whether anything is to be reported to the caller. If `is_all`, it polls until a poll leaves
    /// nothing to the next.
    fn poll_settling(
        &mut self,
        (node, workers): (&Node<P, N>, &mut [Worker<P>]),
        is_all: bool,
        mut each: impl FnMut(MeshEvent),
    ) -> Result<u32, ProviderError> {
        let has_refreshed = self.links.has_refreshed();
        let mut mark = is_all.then(|| self.mark());
        for _ in 0..SETTLING_POLLS {
            let mut happened = 0_u32;
            self.poll(node, workers, |event| {
                happened = happened.saturating_add(1);
                each(event);
            })?;
            if happened > 0 || self.came || self.links.has_refreshed() != has_refreshed {
                return Ok(happened.max(1));
            }
            let Some(before) = mark else {
                return Ok(0);
            };
            let after = self.mark();
            let now = node.network().now();
            let is_due = self.wake_watched(now).is_some_and(|wake| wake.has_passed(now));
            if before == after && !self.links.is_behind() && !is_due {
                return Ok(0);
            }
            mark = Some(after);
        }
        // It may go on for ever: the caller looks at its deadline.
        Ok(1)
    }

    /// A mark of all that a poll begins or ends, and that only another poll looks at.
    fn mark(&self) -> u64 {
        let mut mark = DefaultHasher::new();
        (self.links.mark(), self.found.len(), self.state.has_to_say()).hash(&mut mark);
        for sought in &self.sought {
            sought.is_asking().hash(&mut mark);
        }
        mark.finish()
    }

    /// When to poll again at the latest, whatever the descriptors report.
    fn sleeps_until(&self, workers: &[Worker<P>], now: Instant) -> Deadline {
        let links = self.links.sleeps_until(workers, now);
        self.wake_watched(now).map_or(links, |wake| wake.min(links))
    }
}

impl<P: Watched, N: WatchedNetwork> Mesh<P, N> {
    /// Polls until something happened, or until the deadline. In between it polls without rest, or sleeps, as `how` says.
    ///
    /// It returns for events, which `each` gets as from [`Mesh::poll`], and if a frame came: then a message may be there
    /// ([`Mesh::receive`]), and there may be room for one that was refused ([`Mesh::send`]). It may return for nothing. Receive all
    /// that is there before: it returns once for each frame that comes, and not for messages that were left.
    ///
    /// The thread wakes for what wakes it in [`Links::wait`](crate::link::Links::wait), and for members that are asked for their handles.
    ///
    /// # Errors
    /// A Worker was made without notification and the thread is to sleep, or a completion queue failed.
    ///
    /// # Panics
    /// As for [`Mesh::poll`].
    pub fn wait(
        &mut self,
        node: &Node<P, N>,
        workers: &mut [Worker<P>],
        how: Wait,
        deadline: Deadline,
        mut each: impl FnMut(MeshEvent),
    ) -> Result<Woken, WaitError> {
        let waiter = self.links.waiting.waiter;
        let poll = |mesh: &mut Self, workers: &mut [Worker<P>], is_all| {
            mesh.poll_settling((node, workers), is_all, &mut each)
        };
        let sleep = |mesh: &Self, workers: &[Worker<P>], until| mesh.sleep(node, workers, until);
        let (waiter, outcome) =
            WaitedFor::new(&mut *self, (node, workers), deadline, (poll, sleep)).wait(how, waiter);
        self.links.waiting.waiter = waiter;
        outcome
    }

    /// Makes the Workers' completion queues wake the thread that sleeps at them, and polls once more. Returns until when the thread
    /// may sleep at the latest, or `None` if something happened meanwhile, as in [`Mesh::wait`]: act on it, and ask again.
    ///
    /// It is for event loops. The sleep is at [`Mesh::watched`]. After each wake-up the loop asks again, and so it does after
    /// [`Mesh::send`] and [`Mesh::receive`].
    ///
    /// # Errors
    /// As for [`Mesh::wait`].
    pub fn ready_to_sleep(
        &mut self,
        node: &Node<P, N>,
        workers: &mut [Worker<P>],
        mut each: impl FnMut(MeshEvent),
    ) -> Result<Option<Deadline>, WaitError> {
        let poll = |mesh: &mut Self, workers: &mut [Worker<P>], is_all| {
            mesh.poll_settling((node, workers), is_all, &mut each)
        };
        let is_ready = is_ready_to_sleep(self, (node, &mut *workers), poll)?;
        Ok(is_ready.then(|| self.sleeps_until(workers, node.network().now())))
    }

    /// Sleeps until one of [`Mesh::watched`] is ready, or until this moment, as
    /// [`Links::sleep`](crate::link::Links::sleep) does.
    ///
    /// # Errors
    /// As for [`Links::sleep`](crate::link::Links::sleep).
    pub fn sleep(
        &self,
        node: &Node<P, N>,
        workers: &[Worker<P>],
        until: Deadline,
    ) -> Result<Woken, WaitError> {
        let asked = self.sought.iter().filter_map(Sought::waited);
        let streams = self.links.streams().chain(asked);
        let until = until.min(self.sleeps_until(workers, node.network().now()));
        self.links.sleep_with(node, workers, streams, until)
    }
}

impl<P: Watched> Mesh<P, Tcp> {
    /// Every descriptor that ends a sleep for this mesh, those of the Workers among them, as
    /// [`Links::watched`](crate::link::Links::watched) lists them.
    ///
    /// # Errors
    /// A Worker was made without notification.
    pub fn watched<'m>(
        &'m self,
        workers: &'m [Worker<P>],
    ) -> Result<impl Iterator<Item = LinkDescriptor<'m>>, WaitError> {
        let asked = self.sought.iter().filter_map(Sought::waited);
        let asked = asked.map(|waited| LinkDescriptor::of_stream(&waited));
        Ok(self.links.watched(workers)?.chain(asked))
    }
}
