//! Connections that have not attached yet.

use doorbell::Deadline;

use super::socket::PacketSocket;
use crate::name::{Credentials, JobNumber};

/// Maximum number of pending connections.
pub(super) const PENDING_MAX: usize = 16;

/// Maximum number of pending connections of one user.
const PENDING_OF_USER_MAX: usize = 8;

/// A share of a user, which is separate from its other shares: one without end delays only itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Share {
    /// Memory of processes that ended.
    Unmapping,
    /// Connections without a packet, or with an invalid one.
    Unknown,
    /// Connections that ask for the status.
    Status,
    /// Processes of a job, and connections that may attach to it.
    Job(JobNumber),
}

/// A connection that has not attached yet.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) socket: PacketSocket,
    pub(super) who: Credentials,
    pub(super) until: Deadline,
    pub(super) share: Share,
}

/// Adds a connection, and returns the connection that is evicted or refused. A few users cannot lock out the others, and a few jobs of a user
/// cannot lock out its other jobs.
pub(super) fn pend(pending: &mut Vec<Pending>, next: Pending) -> Option<Pending> {
    let shares: Vec<_> = pending
        .iter()
        .map(|pending| (pending.who.uid, pending.share))
        .collect();
    match place(&shares, (next.who.uid, next.share)) {
        PendingRoom::None => return Some(next),
        PendingRoom::Free => {}
        PendingRoom::Of(at) if at < pending.len() => {
            let before = pending.remove(at);
            pending.push(next);
            return Some(before);
        }
        PendingRoom::Of(_) => return Some(next),
    }
    pending.push(next);
    None
}

#[derive(Debug, PartialEq, Eq)]
enum PendingRoom {
    None,
    Free,
    /// Takes the place of the connection at this index.
    Of(usize),
}

/// Finds room for a connection among the connections of these users and shares.
fn place(shares: &[(u32, Share)], next: (u32, Share)) -> PendingRoom {
    let users = || shares.iter().map(|(user, _)| *user);
    if users().filter(|user| *user == next.0).count() >= PENDING_OF_USER_MAX {
        // A connection without a packet replaces the first one of its user. A process sends its packet at once.
        let of_user = shares.iter().map(|of| Some(*of).filter(|of| of.0 == next.0));
        let first = shares
            .iter()
            .position(|of| *of == next && next.1 == Share::Unknown);
        return of_most(of_user, &Some(next)).or(first).into();
    }
    if shares.len() < PENDING_MAX {
        return PendingRoom::Free;
    }
    of_most(users().map(Some), &Some(next.0)).into()
}

/// The last connection of the owner with the most, if it has more than the next one's owner would have.
fn of_most<T: PartialEq>(owners: impl Iterator<Item = Option<T>>, next: &Option<T>) -> Option<usize> {
    let owners: Vec<_> = owners.collect();
    let of = |owner: &Option<T>| owners.iter().filter(|other| *other == owner).count();
    let most = owners.iter().filter(|owner| owner.is_some()).map(of).max()?;
    let is_most = |owner: &Option<T>| owner.is_some() && of(owner) == most;
    owners
        .iter()
        .rposition(is_most)
        .filter(|_| most > of(next).saturating_add(1))
}

impl From<Option<usize>> for PendingRoom {
    fn from(at: Option<usize>) -> Self {
        at.map_or(Self::None, Self::Of)
    }
}

#[cfg(test)]
mod tests {
    use super::{PENDING_MAX, PENDING_OF_USER_MAX, PendingRoom, Share, place};
    use crate::name::JobNumber;

    const UNKNOWN: Share = Share::Unknown;

    #[test]
    fn two_users_with_all_places_leave_each_other_user_its_part() {
        let job = |job| Share::Job(JobNumber(job));
        let mut shares = vec![(1, job(0)); PENDING_OF_USER_MAX];
        assert_eq!(place(&shares, (1, job(0))), PendingRoom::None);
        assert_eq!(place(&shares, (2, job(0))), PendingRoom::Free);
        shares.extend([(2, job(0)); PENDING_OF_USER_MAX]);
        assert_eq!(shares.len(), PENDING_MAX);
        let mut count = 0;
        while let PendingRoom::Of(at) = place(&shares, (3, UNKNOWN)) {
            shares.remove(at);
            shares.push((3, UNKNOWN));
            count += 1;
        }
        assert_eq!(count, PENDING_MAX / 3);
        assert_eq!(
            (place(&shares, (1, job(0))), place(&shares, (3, UNKNOWN))),
            (PendingRoom::None, PendingRoom::None)
        );
        let all: Vec<_> = (0..PENDING_MAX as u32).map(|user| (user, UNKNOWN)).collect();
        assert_eq!(place(&all, (99, UNKNOWN)), PendingRoom::None, "nobody has two");
    }

    #[test]
    fn a_job_with_all_places_of_its_user_leaves_the_other_jobs_their_part() {
        let job = |job| (1, Share::Job(JobNumber(job)));
        let mut shares = vec![(2, Share::Job(JobNumber(7)))];
        shares.extend([job(7); PENDING_OF_USER_MAX]);
        assert_eq!(place(&shares, job(7)), PendingRoom::None);
        let mut count = 0;
        while let PendingRoom::Of(at) = place(&shares, job(8)) {
            assert_eq!(shares.remove(at), job(7));
            shares.push(job(8));
            count += 1;
        }
        assert_eq!(count, PENDING_OF_USER_MAX / 2);
    }

    #[test]
    fn connections_without_a_packet_keep_out_nobody_with_one() {
        let mut shares = vec![(1, UNKNOWN); PENDING_OF_USER_MAX];
        shares[0] = (1, Share::Status);
        // One more without a packet replaces the oldest of its kind.
        assert_eq!(place(&shares, (1, UNKNOWN)), PendingRoom::Of(1));
        let next = (1, Share::Job(JobNumber(7)));
        assert_eq!(place(&shares, next), PendingRoom::Of(PENDING_OF_USER_MAX - 1));
    }
}
