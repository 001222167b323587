//! Collectives over a mesh.

use core::cmp::Ordering;
use core::fmt;

use doorbell_core::collective::{
    Collective, CollectiveError, CollectiveHeader, Data, Exchange, GroupId, Progress,
};
use doorbell_core::network::Network;
use doorbell_core::provider::Provider;
use doorbell_core::rank::{Rank, Ranks};
use doorbell_ffi::Rdma;

use super::config::MeshSendError;
use super::membership::Mesh;
use crate::machine::tcp::Tcp;

/// All members of a mesh, which run the same collectives in the same order.
///
/// A group consists of the members at the starts that they had when it was made. If a member restarts or becomes unreachable, the
/// collective in progress fails on every member that has not finished it, and the group is not usable afterwards. All members then make a
/// new group. The application decides from which point on the members repeat their work.
///
/// Messages of an earlier group are dropped in a later one. Members identify a group without an exchange of messages: by the starts of
/// all members, and by a number among groups of the same starts.
#[derive(Debug)]
pub struct Group {
    id: GroupId,
    started: Vec<Option<u64>>,
    operation: u32,
}

/// A collective in progress.
#[derive(Debug)]
#[must_use = "it advances by being polled"]
pub struct Running {
    progress: Progress,
    /// The failure that ended it, which later polls return again.
    failed: Option<CollectiveError<MeshSendError>>,
}

/// Reason why a collective failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum GroupError {
    /// Some members are unreachable, so no group of all members can be made.
    Missing(Ranks),
    /// Not all members were done by the deadline.
    TimedOut,
    /// The collective failed.
    Collective(CollectiveError<MeshSendError>),
}

impl fmt::Display for GroupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(ranks) => write!(f, "no way leads to ranks {ranks:?}: see Mesh::not_linked"),
            Self::TimedOut => f.write_str(
                "the collective was not done by the deadline: see Mesh::not_linked, or give it more time",
            ),
            Self::Collective(error) => fmt::Display::fmt(error, f),
        }
    }
}

impl core::error::Error for GroupError {}

impl From<CollectiveError<MeshSendError>> for GroupError {
    fn from(error: CollectiveError<MeshSendError>) -> Self {
        Self::Collective(error)
    }
}

impl Group {
    /// Makes a group of all members. Since the latest start of any member, all members have to make the same number of groups. Only the
    /// last group of a member is usable.
    ///
    /// A single member may give up a collective, for example because it takes too long, and make the next group. The collectives of the
    /// other members fail with [`MeshSendError::Regrouped`] when they receive a message of that group. Then they make the next group, too.
    /// So a member that gives up should begin with a collective that sends to all members at once: [`Collective::AllToAll`], which may have
    /// no bytes. In a [`Collective::Barrier`] a member sends to most others only after it received messages, and those members may
    /// still wait in the old group.
    ///
    /// # Errors
    /// [`GroupError::Missing`]: poll the mesh until all are reached.
    pub fn new<P: Provider, N: Network>(mesh: &mut Mesh<P, N>) -> Result<Self, GroupError> {
        let missing = Ranks::first(mesh.ranks()).and_not(mesh.reached());
        if !missing.is_empty() {
            return Err(GroupError::Missing(missing));
        }
        if !mesh.is_closing() {
            // An earlier group may have tried to leave in vain.
            (mesh.state.is_parting, mesh.state.was_left) = (false, false);
        }
        let all = Ranks::first(mesh.ranks()).iter();
        let started: Vec<_> = all.map(|rank| mesh.started(rank)).collect();
        mesh.state.group = mesh.state.group.next(started.iter().copied().flatten());
        Ok(Self {
            id: mesh.state.group,
            started,
            operation: 0,
        })
    }

    /// Begins a collective. [`Collective`] documents the input and output of each.
    ///
    /// # Errors
    /// The data does not fit the collective.
    pub fn begin<P: Provider, N: Network>(
        &mut self,
        mesh: &Mesh<P, N>,
        collective: Collective,
        data: &mut Data<'_>,
    ) -> Result<Running, GroupError> {
        let at = (mesh.rank(), mesh.ranks());
        let progress = Progress::begin(collective, (self.id, self.operation), at, data)?;
        self.operation = self.operation.wrapping_add(1);
        Ok(Running {
            progress,
            failed: None,
        })
    }

    /// Receives and drops messages of earlier groups from all members.
    pub(super) fn pass_over<P: Provider, N: Network>(&self, mesh: &mut Mesh<P, N>) {
        let others = Ranks::first(mesh.ranks()).without(mesh.rank());
        let mut members = Members { group: self, mesh };
        for from in others.iter() {
            // Neither a message of a later group nor a lost member is an error here.
            let _ = members.pass_over(from);
        }
    }
}

impl Running {
    /// Advances the collective without waiting. Returns `true` when it is done on this member. Call [`Mesh::poll`] between calls, and also
    /// afterwards, so that the messages that other members still wait for are sent.
    ///
    /// # Errors
    /// The collective failed. The group is not usable afterwards, and later calls return the same error.
    ///
    /// # Panics
    /// If `combine` panics. The collective has failed then: later calls return
    /// [`CollectiveError::Interrupted`](doorbell_core::collective::CollectiveError::Interrupted).
    pub fn poll<P: Provider, N: Network>(
        &mut self,
        group: &Group,
        mesh: &mut Mesh<P, N>,
        data: &mut Data<'_>,
        combine: impl FnMut(&mut [u8], &[u8]),
    ) -> Result<bool, GroupError> {
        if let Some(failed) = self.failed {
            return Err(failed.into());
        }
        let polled = self.advance(group, mesh, data, combine);
        self.failed = polled.err();
        Ok(polled?)
    }

    fn advance<P: Provider, N: Network>(
        &mut self,
        group: &Group,
        mesh: &mut Mesh<P, N>,
        data: &mut Data<'_>,
        combine: impl FnMut(&mut [u8], &[u8]),
    ) -> Result<bool, CollectiveError<MeshSendError>> {
        let mut members = Members { group, mesh };
        let is_done = self.progress.poll(&mut members, data, combine)?;
        // If any member is lost, the collective cannot be done, since a member that this one needs may wait for the lost member. While
        // members leave, a member that is gone is not needed any more, which is no error.
        if !is_done && !members.mesh.state.is_parting {
            members.check_all().map_err(CollectiveError::Exchange)?;
        }
        Ok(is_done)
    }
}

/// The mesh as a collective uses it. Every call fails if a member is not that of the group any more.
struct Members<'a, P: Provider = Rdma, N: Network = Tcp> {
    group: &'a Group,
    mesh: &'a mut Mesh<P, N>,
}

impl<P: Provider, N: Network> Members<'_, P, N> {
    fn check(&self, rank: Rank) -> Result<(), MeshSendError> {
        if self.group.started.get(rank.index()) == Some(&self.mesh.started(rank)) {
            Ok(())
        } else {
            Err(MeshSendError::Restarted(rank))
        }
    }

    /// Checks that all members are reachable, and that none was restarted.
    fn check_all(&mut self) -> Result<(), MeshSendError> {
        let all = Ranks::first(self.mesh.ranks());
        all.iter().try_for_each(|rank| self.check(rank))?;
        match all.and_not(self.mesh.reached()).iter().next() {
            None => Ok(()),
            Some(rank) => Err(MeshSendError::Unreachable(rank)),
        }
    }

    /// Receives and drops messages of a member that belong to earlier groups. A message of a later group is kept, and is an error here.
    fn pass_over(&mut self, from: Rank) -> Result<(), MeshSendError> {
        loop {
            let next = self.mesh.state.next_from(from).map(CollectiveHeader::parse);
            // The collective itself reports a message that is not of a collective.
            let Some(Ok((header, _))) = next else {
                return Ok(());
            };
            match header.group().cmp(&self.group.id) {
                Ordering::Less => drop(self.mesh.receive(from, |_| ())?),
                Ordering::Equal => return Ok(()),
                Ordering::Greater => return Err(MeshSendError::Regrouped(from)),
            }
        }
    }
}

impl<P: Provider, N: Network> Exchange for Members<'_, P, N> {
    type Error = MeshSendError;

    fn message_bytes_max(&self) -> usize {
        self.mesh.message_bytes_max()
    }

    fn send(&mut self, to: Rank, header: &[u8], payload: &[u8]) -> Result<bool, MeshSendError> {
        self.check(to)?;
        match self.mesh.send(to, header, payload) {
            Ok(()) => Ok(true),
            Err(MeshSendError::WouldBlock) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn receive<R>(&mut self, from: Rank, look: impl FnOnce(&[u8]) -> R) -> Result<Option<R>, MeshSendError> {
        self.check(from)?;
        self.pass_over(from)?;
        self.mesh.receive(from, look)
    }
}
