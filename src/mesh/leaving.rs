//! Leaving a mesh, when it is certain that no other member needs this one any more.
//!
//! A member is needed while another member may lack its last messages, or needs it as a relay for last messages. So a member first waits
//! until all others have acknowledged its messages. Then it waits in a barrier until all others have waited in the same way. A member
//! that passed the barrier may close its links while another still waits in it, and may be the only relay of that other. But no member
//! closes a link before it has passed the barrier. So a link that the peer closed proves that all members have entered the barrier.

use core::mem;

use doorbell_core::Deadline;
use doorbell_core::collective::{Collective, Data};
use doorbell_core::network::Network;
use doorbell_core::provider::Provider;
use doorbell_core::rank::Ranks;

use super::group::{Group, GroupError, Running};
use super::membership::Mesh;
use crate::connect::node::Node;

/// The leaving of a mesh, by all members together: begun by [`Group::leave`].
///
/// It waits for a peer that is stopped for a while. It does not wait for a peer without a route: its link ends after
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
    /// Some member has not acknowledged all messages of this member.
    Words,
    /// This member waits in the barrier.
    Others(Running),
    /// A member is lost, so the barrier cannot complete. Until the deadline, this member still relays the retransmissions of others.
    Without(GroupError, Deadline),
    /// The links are being closed.
    Links,
}

impl Group {
    /// Leaves the mesh together with all other members, which have to do the same. No collective is possible any more. The
    /// links are closed when no member needs them. The leaving ends at the deadline in any case.
    pub const fn leave(self, deadline: Deadline) -> Leaving {
        Leaving {
            group: self,
            deadline,
            phase: Phase::Words,
        }
    }
}

impl Leaving {
    /// Advances the leaving without waiting. Returns `true` when no member needs this one any more and its links are closed. Poll the mesh
    /// between calls.
    ///
    /// # Errors
    /// [`GroupError::TimedOut`] at the deadline: [`Mesh::member_counts`] returns the unacknowledged messages of each member. Or a
    /// member was lost. Then the error is returned after twice [`resend_after`](crate::mesh::MeshConfig::resend_after), in which this
    /// member relayed retransmissions of others.
    pub fn poll<P: Provider, N: Network>(
        &mut self,
        node: &Node<P, N>,
        mesh: &mut Mesh<P, N>,
    ) -> Result<bool, GroupError> {
        let now = node.network().now();
        // Messages of earlier groups are received and dropped. Otherwise their senders would wait for room, and this member for them.
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
            // All members have entered the barrier, so none was lost before.
            Phase::Without(..) if mesh.state.was_left => {
                mesh.close(now, self.deadline);
                self.phase = Phase::Links;
            }
            Phase::Without(error, until) if until.has_passed(now) => {
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

    /// Returns the latest time of the next poll, if nothing happens in the mesh before. Use it as the deadline of [`Mesh::wait`].
    #[must_use]
    pub fn wake(&self) -> Deadline {
        match &self.phase {
            Phase::Without(_, until) => self.deadline.min(*until),
            _ => self.deadline,
        }
    }
}

/// Returns the data of a barrier: none.
const fn nothing() -> Data<'static> {
    Data {
        input: None,
        output: &mut [],
        element_bytes: 1,
    }
}
