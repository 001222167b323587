//! Connections that have not attached yet.

use doorbell::Deadline;

use super::socket::PacketSocket;
use crate::name::Credentials;

/// Maximum number of pending connections.
pub(super) const PENDING_MAX: usize = 16;

/// Maximum number of pending connections of one user.
const PENDING_OF_USER_MAX: usize = 8;

/// A connection that has not attached yet.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) socket: PacketSocket,
    pub(super) who: Credentials,
    pub(super) until: Deadline,
}

/// Adds a connection, and returns the connection that is evicted or refused: this one, or the last one of the user with the most. So a
/// few users cannot lock out the others.
pub(super) fn pend(pending: &mut Vec<Pending>, next: Pending) -> Option<Pending> {
    let users: Vec<_> = pending.iter().map(|pending| pending.who.uid).collect();
    match place(&users, next.who.uid) {
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

/// Finds room for a connection of a user among the connections of `users`.
fn place(users: &[u32], next: u32) -> PendingRoom {
    let of = |user: u32| users.iter().filter(|other| **other == user).count();
    if of(next) >= PENDING_OF_USER_MAX {
        return PendingRoom::None;
    }
    if users.len() < PENDING_MAX {
        return PendingRoom::Free;
    }
    let most = users.iter().map(|user| of(*user)).max().unwrap_or(0);
    if most <= of(next).saturating_add(1) {
        return PendingRoom::None;
    }
    let at = users.iter().rposition(|user| of(*user) == most);
    at.map_or(PendingRoom::None, PendingRoom::Of)
}

#[cfg(test)]
mod tests {
    use super::{PENDING_MAX, PENDING_OF_USER_MAX, PendingRoom, place};

    #[test]
    fn two_users_with_all_places_leave_each_other_user_its_part() {
        let mut users = vec![1; PENDING_OF_USER_MAX];
        assert_eq!(place(&users, 1), PendingRoom::None);
        assert_eq!(place(&users, 2), PendingRoom::Free);
        users.extend([2; PENDING_OF_USER_MAX]);
        assert_eq!(users.len(), PENDING_MAX);
        let mut count = 0;
        while let PendingRoom::Of(at) = place(&users, 3) {
            users.remove(at);
            users.push(3);
            count += 1;
        }
        assert_eq!(count, PENDING_MAX / 3);
        assert_eq!(
            (place(&users, 1), place(&users, 3)),
            (PendingRoom::None, PendingRoom::None)
        );
        let all: Vec<_> = (0..PENDING_MAX as u32).collect();
        assert_eq!(place(&all, 99), PendingRoom::None, "nobody has two");
    }
}
