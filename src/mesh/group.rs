//! Collectives over a mesh.

use core::fmt;

use doorbell_core::Deadline;
use doorbell_core::collective::{Collective, CollectiveError, Data, Exchange, Progress};
use doorbell_core::network::Network;
use doorbell_core::provider::{Provider, ProviderError};
use doorbell_core::rank::{Rank, Ranks};
use doorbell_ffi::Rdma;

use super::config::MeshSendError;
use super::membership::Mesh;
use crate::{Node, Tcp, Worker};

/// All members of a mesh, doing the same collectives in the same order.
///
/// It holds to the members as they were when it was made: one that is started again, or cannot be reached any more,
/// ends the collective that is under way on every rank that waits for it, and the group is of no further use.
#[derive(Debug)]
pub struct Group {
    started: Vec<u64>,
    operation: u32,
}

/// What is polled while a collective is waited for.
#[derive(Debug)]
pub struct Polled<'a, P: Provider = Rdma, N: Network = Tcp> {
    /// The mesh.
    pub mesh: &'a mut Mesh<P, N>,
    /// The node it was made on.
    pub node: &'a Node<P, N>,
    /// The Workers it was made on, in the same order.
    pub workers: &'a mut [Worker<P>],
}

/// A collective under way.
#[derive(Debug)]
#[must_use = "it advances by being polled"]
pub struct Running {
    progress: Progress,
}

/// Why a collective came to nothing.
#[derive(Debug)]
#[non_exhaustive]
pub enum GroupError {
    /// Some members cannot be reached: no group of all can be made.
    Missing(Ranks),
    /// It was not done by the deadline. Others may still wait: the group is of no further use.
    TimedOut,
    /// Why the collective cannot be done.
    Collective(CollectiveError<MeshSendError>),
    /// A Worker cannot be polled.
    Provider(ProviderError),
}

impl fmt::Display for GroupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(ranks) => write!(f, "no way leads to ranks {ranks:?}"),
            Self::TimedOut => f.write_str("the collective was not done by the deadline"),
            Self::Collective(error) => fmt::Display::fmt(error, f),
            Self::Provider(error) => fmt::Display::fmt(error, f),
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
    /// All members of a mesh. Every one of them makes its group, and makes as many, in the same order.
    ///
    /// # Errors
    /// [`GroupError::Missing`]: poll the mesh until all are reached.
    pub fn new<P: Provider, N: Network>(mesh: &Mesh<P, N>) -> Result<Self, GroupError> {
        let missing = Ranks::first(mesh.ranks()).and_not(mesh.reached());
        if !missing.is_empty() {
            return Err(GroupError::Missing(missing));
        }
        let all = Ranks::first(mesh.ranks());
        Ok(Self {
            started: all.iter().map(|rank| mesh.started(rank).unwrap_or(0)).collect(),
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
        let progress = Progress::begin(collective, self.operation, at, data)?;
        self.operation = self.operation.wrapping_add(1);
        Ok(Running { progress })
    }

    /// Does a collective, polling the mesh until it is done, or the deadline.
    ///
    /// # Errors
    /// It is not done, and why.
    pub fn run<P: Provider, N: Network>(
        &mut self,
        polled: &mut Polled<'_, P, N>,
        collective: Collective,
        data: &mut Data<'_>,
        mut combine: impl FnMut(&mut [u8], &[u8]),
        deadline: Deadline,
    ) -> Result<(), GroupError> {
        let Polled { mesh, node, workers } = polled;
        let mut running = self.begin(mesh, collective, data)?;
        while !running.poll(self, mesh, data, &mut combine)? {
            mesh.poll(node, workers, |_| {}).map_err(GroupError::Provider)?;
            if deadline.has_passed(node.network().now()) {
                return Err(GroupError::TimedOut);
            }
        }
        Ok(())
    }
}

impl Running {
    /// Goes on as far as it can; `true` once it is done here. The mesh is to be polled in between, and afterwards until
    /// what others still wait for is sent: [`Mesh::poll`] does both.
    ///
    /// # Errors
    /// It came to nothing, and the group with it.
    pub fn poll<P: Provider, N: Network>(
        &mut self,
        group: &Group,
        mesh: &mut Mesh<P, N>,
        data: &mut Data<'_>,
        combine: impl FnMut(&mut [u8], &[u8]),
    ) -> Result<bool, GroupError> {
        let mut members = Members { group, mesh };
        Ok(self.progress.poll(&mut members, data, combine)?)
    }
}

/// A mesh, as long as its members are those of the group.
struct Members<'a, P: Provider = Rdma, N: Network = Tcp> {
    group: &'a Group,
    mesh: &'a mut Mesh<P, N>,
}

impl<P: Provider, N: Network> Members<'_, P, N> {
    fn check(&self, rank: Rank) -> Result<(), MeshSendError> {
        if self.mesh.started(rank) == self.group.started.get(rank.index()).copied() {
            Ok(())
        } else {
            Err(MeshSendError::Restarted(rank))
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
        self.mesh.receive(from, look)
    }
}
