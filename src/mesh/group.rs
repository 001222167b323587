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

/// All members of a mesh, doing the same collectives in the same order.
///
/// A group holds to the members as they were when it was made. If one is started again, or cannot be reached any more, the
/// collective under way ends on every rank that is not done with it, and the group is of no further use. All members then make
/// another group, and begin where all of them can: the data that each brings to its first collective is up to the members.
///
/// Messages left over from a group are not taken in a later one. Members distinguish groups without an exchange of messages: by
/// the starts of their members, and groups of the same starts by their number.
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
}

/// Reason why a collective failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum GroupError {
    /// Some members are unreachable, so no group of all members can be made.
    Missing(Ranks),
    /// Not all members were done by the deadline.
    TimedOut,
    /// Why the collective cannot be done.
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
    /// All members of a mesh. Every member makes its group, and makes as many, in the same order, since the last of them was
    /// started: of groups made before the last one none is of use.
    ///
    /// A collective may take too long for one member alone, which then makes the next group. Its peers end theirs with
    /// [`MeshSendError::Regrouped`] once it sends them something in that group, and make the next one, too. So a member that gives up alone
    /// begins with a collective in which it sends to all at once: [`Collective::AllToAll`], of no bytes where there is nothing to say.
    /// In a [`Collective::Barrier`] a member sends to most others only after it heard of some, which may wait for that.
    ///
    /// # Errors
    /// [`GroupError::Missing`]: poll the mesh until all are reached.
    pub fn new<P: Provider, N: Network>(mesh: &mut Mesh<P, N>) -> Result<Self, GroupError> {
        let missing = Ranks::first(mesh.ranks()).and_not(mesh.reached());
        if !missing.is_empty() {
            return Err(GroupError::Missing(missing));
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

    /// Begins a collective; see [`Collective`] for what each brings and gets.
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
        Ok(Running { progress })
    }

    /// Takes what is left over of groups before this one, for nobody.
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
    /// Goes on as far as it can; `true` once it is done here. The mesh is to be polled in between, and afterwards until
    /// what others still wait for is sent: [`Mesh::poll`] does both.
    ///
    /// # Errors
    /// It came to nothing, and the group with it.
    ///
    /// # Panics
    /// If `combine` does. The collective then comes to nothing: later calls return
    /// [`CollectiveError::Interrupted`](doorbell_core::collective::CollectiveError::Interrupted).
    pub fn poll<P: Provider, N: Network>(
        &mut self,
        group: &Group,
        mesh: &mut Mesh<P, N>,
        data: &mut Data<'_>,
        combine: impl FnMut(&mut [u8], &[u8]),
    ) -> Result<bool, GroupError> {
        let mut members = Members { group, mesh };
        let is_done = self.progress.poll(&mut members, data, combine)?;
        // A member that is needed may wait for one that is lost, or may have given up on it. While members leave, some are gone
        // once they are not needed, and that is no error.
        if !is_done && !members.mesh.state.is_parting {
            members.check_all().map_err(CollectiveError::Exchange)?;
        }
        Ok(is_done)
    }
}

/// A mesh, as long as its members are those of the group.
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

    /// Whether all are there as they were.
    fn check_all(&mut self) -> Result<(), MeshSendError> {
        let all = Ranks::first(self.mesh.ranks());
        all.iter().try_for_each(|rank| self.check(rank))?;
        match all.and_not(self.mesh.reached()).iter().next() {
            None => Ok(()),
            Some(rank) => Err(MeshSendError::Unreachable(rank)),
        }
    }

    /// Takes what a member sent in groups before this one, for nobody; what it sent in a later one stays for that.
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
