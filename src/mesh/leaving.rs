//! Leaving of a mesh once no other member needs this one any more, which is known and not guessed.
//!
//! A member is needed while somebody may lack its last messages, or is reached only through it and has last messages of its
//! own. So a member first waits until all have acknowledged its messages, and then until all others have waited for the same: a
//! barrier says so. Behind the barrier one of two members goes first, and may be the other's way to the rest. But no member
//! closes a link before it has passed the barrier, so a closed link proves that all have reached it.

use core::mem;

use doorbell_core::Deadline;
use doorbell_core::collective::{Collective, Data};
use doorbell_core::network::Network;
use doorbell_core::provider::Provider;
use doorbell_core::rank::Ranks;

use super::group::{Group, GroupError, Running};
use super::membership::Mesh;
use crate::connect::node::Node;

/// A member on its way out of a mesh, with all others: begun by [`Group::leave`].
///
/// A peer that is stopped for a while is waited for. A peer to which no way leads any more is not: its link reports that after
/// [`recover_within`](doorbell_core::session::SessionConfig::recover_within).
#[derive(Debug)]
#[must_use = "it advances by being polled"]
pub struct Leaving {
    group: Group,
    deadline: Deadline,
    phase: Phase,
}

#[derive(Debug)]
enum Phase {
    /// Some member does not have all of this member's messages yet.
    Words,
    /// Some member may still wait for that.
    Others(Running),
    /// A member is lost, so the barrier cannot pass. Members whose messages are not acknowledged retransmit until then, through
    /// this member.
    Without(GroupError, Deadline),
    /// The links are being closed.
    Links,
}

impl Group {
    /// Leaves the mesh together with all other members, which have to do the same. No collective is possible any more, and
    /// links are closed once no member needs them. By the deadline the leaving is over in any case.
    pub const fn leave(self, deadline: Deadline) -> Leaving {
        Leaving {
            group: self,
            deadline,
            phase: Phase::Words,
        }
    }
}

impl Leaving {
    /// Goes on as far as it can; `true` once no member needs this one any more and its links are closed. The mesh is to be
    /// polled in between.
    ///
    /// # Errors
    /// [`GroupError::TimedOut`] at the deadline: [`Mesh::member_counts`] gives the unacknowledged messages of each member. Or a
    /// member was lost. Then this member waited for twice [`resend_after`](crate::mesh::MeshConfig::resend_after), in which members
    /// that still had messages to pass through this one have sent them.
    pub fn poll<P: Provider, N: Network>(
        &mut self,
        node: &Node<P, N>,
        mesh: &mut Mesh<P, N>,
    ) -> Result<bool, GroupError> {
        let now = node.network().now();
        // Messages left over from earlier groups are taken: their senders wait until they are, and this member waits for its
        // senders.
        self.group.pass_over(mesh);
        if let Phase::Words = self.phase {
            let others = Ranks::first(mesh.ranks()).and(mesh.reached());
            let mut others = others.without(mesh.rank()).iter();
            if others.all(|rank| mesh.member_counts(rank).waiting == 0) {
                mesh.state.is_parting = true;
                self.phase = Phase::Others(self.group.begin(mesh, Collective::Barrier, &mut nothing())?);
            }
        }
        if let Phase::Others(running) = &mut self.phase {
            let passed = match running.poll(&self.group, mesh, &mut nothing(), |_, _| {}) {
                _ if mesh.state.was_left => Ok(true),
                outcome => outcome,
            };
            match passed {
                Ok(false) => {}
                Ok(true) => {
                    mesh.close(now, self.deadline);
                    self.phase = Phase::Links;
                }
                Err(error) => {
                    let again = mesh.state.config.resend_after.saturating_mul(2);
                    self.phase = Phase::Without(error, Deadline::after(now, again));
                }
            }
        }
        match &mut self.phase {
            Phase::Without(error, until) if until.has_passed(now) || mesh.state.was_left => {
                return Err(mem::replace(error, GroupError::TimedOut));
            }
            Phase::Links if mesh.state.neighbours.is_empty() => return Ok(true),
            _ => {}
        }
        if self.deadline.has_passed(now) {
            return Err(GroupError::TimedOut);
        }
        Ok(false)
    }

    /// When to poll again at the latest, if nothing happens in the mesh before: the deadline of a [`Mesh::wait`] in between.
    #[must_use]
    pub fn wake(&self) -> Deadline {
        match &self.phase {
            Phase::Without(_, until) => self.deadline.min(*until),
            _ => self.deadline,
        }
    }
}

/// The data of a barrier: none.
const fn nothing() -> Data<'static> {
    Data {
        input: None,
        output: &mut [],
        element_bytes: 1,
    }
}
