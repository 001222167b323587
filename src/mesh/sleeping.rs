//! Sleeping for a mesh: that for its links, and for the members that are asked for their handles.

use core::hash::{Hash as _, Hasher as _};
use std::hash::DefaultHasher;

use doorbell_core::network::Network;
use doorbell_core::provider::{Provider, ProviderError};
use doorbell_core::{Deadline, Instant};
use doorbell_hotpath::{Wait, Woken};

use super::discovery::Discovery;
use super::event::MeshEvent;
use super::membership::Mesh;
use crate::connect::node::Node;
use crate::link::{Left, LinkDescriptor, WaitedFor, WatchedNetwork, is_ready_to_sleep, poll_settling};
use crate::machine::tcp::Tcp;
use crate::worker::{WaitError, Watched, Worker};

impl<P: Provider, N: Network> Mesh<P, N> {
    /// Polls as [`poll_settling`] does.
    fn poll_settling(
        &mut self,
        (node, workers): (&Node<P, N>, &mut [Worker<P>]),
        is_all: bool,
        mut each: impl FnMut(MeshEvent),
    ) -> Result<u32, ProviderError> {
        let has_refreshed = self.links.has_refreshed();
        let left = |mesh: &Self| {
            let now = node.network().now();
            let is_due = mesh.wake_watched(now).is_some_and(|wake| wake.has_passed(now));
            Left {
                mark: mesh.mark(),
                is_behind: mesh.links.is_behind() || is_due,
            }
        };
        poll_settling(self, is_all, left, |mesh| {
            let mut happened = 0_u32;
            mesh.poll(node, workers, |event| {
                happened = happened.saturating_add(1);
                each(event);
            })?;
            let is_reported = mesh.came || mesh.links.has_refreshed() != has_refreshed;
            Ok(happened.max(u32::from(is_reported)))
        })
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
        let asked = self.sought.iter().filter_map(Discovery::waited);
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
        let asked = self.sought.iter().filter_map(Discovery::waited);
        let asked = asked.map(|waited| LinkDescriptor::of_stream(&waited));
        Ok(self.links.watched(workers)?.chain(asked))
    }
}
