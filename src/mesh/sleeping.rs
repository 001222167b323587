//! Sleeping until a mesh has something to do. This includes the sleeping for its links, and the members that are asked for handles.

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
use crate::link::{
    LinkDescriptor, PendingWork, WaitTarget, WatchedNetwork, is_ready_to_sleep, poll_settling,
};
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
        poll_settling(self, is_all, Self::left, |mesh| {
            let mut happened = 0_u32;
            mesh.poll(node, workers, |event| {
                happened = happened.saturating_add(1);
                each(event);
            })?;
            let is_reported = mesh.came || mesh.links.has_refreshed() != has_refreshed;
            Ok(happened.max(u32::from(is_reported)))
        })
    }

    /// Work that the last poll left to the next. A moment that passed since is none: the sleep until then ends at once.
    fn left(&self) -> PendingWork {
        let left = self.links.left();
        let mut mark = DefaultHasher::new();
        (left.mark, self.found.len(), self.state.has_to_say()).hash(&mut mark);
        for sought in &self.sought {
            sought.is_asking().hash(&mut mark);
        }
        PendingWork {
            mark: mark.finish(),
            ..left
        }
    }

    /// Returns the latest time of the next poll, if no descriptor is ready before.
    fn sleeps_until(&self, workers: &[Worker<P>], now: Instant) -> Deadline {
        let links = self.links.sleeps_until(workers, now);
        self.wake_watched(now).map_or(links, |wake| wake.min(links))
    }
}

impl<P: Watched, N: WatchedNetwork> Mesh<P, N> {
    /// Polls until something happened, or until the deadline. Between polls it spins or sleeps, as `how` says.
    ///
    /// The call returns after events, which `each` gets as from [`Mesh::poll`], and after a frame arrived. Then there may be a message
    /// ([`Mesh::receive`]), or room for a message that was refused ([`Mesh::send`]). The call may also return for no visible reason.
    /// Receive all messages before the call: it returns for frames that arrive, and not for messages that were left.
    ///
    /// The thread wakes for the same reasons as in [`Links::wait`](crate::link::Links::wait), and for answers of members that are asked for
    /// their handles.
    ///
    /// # Errors
    /// A Worker was made without notification and the thread is to sleep, or a poll failed ([`Mesh::poll`]).
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
            WaitTarget::new(&mut *self, (node, workers), deadline, (poll, sleep)).wait(how, waiter);
        self.links.waiting.waiter = waiter;
        outcome
    }

    /// Prepares a sleep in an event loop: arms the notification of the Workers' completion queues, and polls again. Returns the latest time
    /// until which the thread may sleep. `None` if something happened meanwhile, as in [`Mesh::wait`]: act on it, and call again.
    ///
    /// The event loop sleeps on the descriptors of [`Mesh::watched`]. It calls this function again before each sleep, and so after each
    /// wake-up and after [`Mesh::send`] and [`Mesh::receive`].
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

    /// Sleeps until a descriptor of [`Mesh::watched`] is ready, or until the time `until`, as
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
    /// Returns every descriptor that ends a sleep for this mesh, including the descriptors of the Workers, as
    /// [`Links::watched`](crate::link::Links::watched) does.
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
