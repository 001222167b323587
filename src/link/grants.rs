//! Windows that the two sides of a link grant each other. This side announces its grants on every connection. Each connection has its
//! own key for a window of the peer.

use core::mem;
use std::collections::VecDeque;

use doorbell_core::Ticket;
use doorbell_core::provider::{RemoteAccess, RemoteAddress};
use doorbell_core::session::{Epoch, SESSION_GRANTS_MAX, SESSION_RAILS_MAX};
use doorbell_core::wire::{Granted, RemoteWindow};

use super::rail::is_through;

const RAILS: usize = SESSION_RAILS_MAX as usize;

/// Limit on numbers of the peer's withdrawn grants that are remembered. A grant may arrive after its withdrawal, over another rail, and
/// is recognised by its number. So the limit is several times that of grants.
const WITHDRAWN_MAX: usize = 4 * SESSION_GRANTS_MAX as usize;

/// Limit on windows of the peer. A grant may arrive over one rail before the withdrawal, over another, that made room for it. So
/// the limit is twice that of the side that grants.
const THEIRS_MAX: usize = 2 * SESSION_GRANTS_MAX as usize;

/// The bits that are zero in the address of an aligned word.
const WORD_ALIGN_MASK: u64 = 7;

/// Windows that this side grants.
#[derive(Debug, Default)]
pub(super) struct Ours {
    grants: Vec<Grant>,
    /// The last withdrawn grants whose withdrawal the peer's device acknowledged. If the connection is lost before the peer's process
    /// reads the frame, the withdrawal has to be announced again.
    ended: VecDeque<Grant>,
    next: u32,
}

#[derive(Debug)]
struct Grant {
    number: u32,
    /// The memory as registered with the device of each Worker, by the Worker's index. Empty while the memory is being registered.
    windows: Vec<(usize, RemoteWindow)>,
    access: RemoteAccess,
    is_withdrawn: bool,
    /// For each rail, the connection that announced it last.
    sent: [Epoch; RAILS],
    /// For each rail, the connection that announced its withdrawal last, and the request that carried it.
    sent_withdrawn: [Option<(Epoch, Ticket)>; RAILS],
    /// The rail and connection on which the frame of the withdrawal completed: the peer's device has received it.
    withdrawal_done: Option<(u8, Epoch)>,
}

impl Grant {
    /// Whether the peer may know the grant.
    fn was_sent(&self) -> bool {
        self.sent.iter().any(|sent| *sent != Epoch::NONE)
    }
}

impl Ours {
    /// Grants a window, and returns its number. Returns `None` at the limit on grants, if `access` allows nothing, or if a window has no
    /// length.
    pub(super) fn grant(&mut self, windows: &[(usize, RemoteWindow)], access: RemoteAccess) -> Option<u32> {
        let number = self.next;
        let is_nothing = !(access.write || access.read || access.atomic)
            || windows.iter().any(|(_, window)| window.length_bytes() == 0);
        if is_nothing || self.grants.len() >= usize::from(SESSION_GRANTS_MAX) {
            return None;
        }
        self.next = number.checked_add(1)?;
        self.grants.push(Grant {
            number,
            windows: windows.into(),
            access,
            is_withdrawn: false,
            sent: [Epoch::NONE; RAILS],
            sent_withdrawn: [None; RAILS],
            withdrawal_done: None,
        });
        Some(number)
    }

    /// Adds the registered memory of a window that was granted before it was registered.
    pub(super) fn announce(&mut self, number: u32, windows: impl Iterator<Item = (usize, RemoteWindow)>) {
        let mut grants = self.grants.iter_mut();
        if let Some(grant) = grants.find(|grant| grant.number == number) {
            grant.windows = windows.collect();
        }
    }

    /// Whether this side ever granted a window.
    pub(super) const fn has_granted(&self) -> bool {
        self.next > 0
    }

    /// Whether no withdrawal remains to be delivered. Grants are announced as soon as a rail is connected, so they need no check.
    pub(super) fn is_at_rest(&self) -> bool {
        !self.grants.iter().any(|grant| grant.is_withdrawn)
    }

    pub(super) fn withdraw(&mut self, number: u32) {
        for grant in self.grants.iter_mut().filter(|grant| grant.number == number) {
            grant.is_withdrawn = true;
        }
    }

    /// Returns the next grant or withdrawal to announce on a rail's connection, with the key of this Worker's device. A withdrawal is
    /// announced on every connection until it completed on one of them, since the peer may have learned of the grant on a connection
    /// that is gone. If that connection is lost, the withdrawal is announced again.
    pub(super) fn unsent(&self, rail: u8, worker: usize, epoch: Epoch) -> Option<Granted> {
        let index = usize::from(rail);
        self.grants.iter().find_map(|grant| {
            let window = if grant.is_withdrawn {
                let sent_so = grant.sent_withdrawn.get(index).copied().flatten();
                let was_withdrawal_sent = sent_so.is_some_and(|(of, _)| of == epoch);
                (grant.was_sent() && grant.withdrawal_done.is_none() && !was_withdrawal_sent).then_some(None)
            } else {
                let was_sent = grant.sent.get(index) == Some(&epoch);
                let window = grant.windows.iter().find(|(of, _)| *of == worker);
                window
                    .filter(|_| !was_sent)
                    .map(|(_, window)| Some((*window, grant.access)))
            };
            Some(Granted {
                epoch,
                number: grant.number,
                window: window?,
            })
        })
    }

    /// Notes that a grant or a withdrawal was sent on a rail's connection, as this request.
    pub(super) fn note_sent(&mut self, rail: u8, granted: &Granted, ticket: Ticket) {
        let index = usize::from(rail);
        let mut grants = self.grants.iter_mut();
        let Some(grant) = grants.find(|grant| grant.number == granted.number) else {
            return;
        };
        match granted.window {
            Some(_) => {
                if let Some(sent) = grant.sent.get_mut(index) {
                    *sent = granted.epoch;
                }
            }
            None => {
                if let Some(sent) = grant.sent_withdrawn.get_mut(index) {
                    *sent = Some((granted.epoch, ticket));
                }
            }
        }
    }

    /// Notes that all requests up to this one on a rail's connection are done.
    pub(super) fn completed(&mut self, rail: u8, epoch: Epoch, through: Ticket) {
        for grant in &mut self.grants {
            let sent = grant.sent_withdrawn.get(usize::from(rail)).copied().flatten();
            if sent.is_some_and(|(of, ticket)| of == epoch && is_through(through, ticket)) {
                grant.withdrawal_done = Some((rail, epoch));
            }
        }
    }

    /// Notes that a rail's connection is lost. Withdrawals that completed on it are announced again.
    pub(super) fn lost(&mut self, rail: u8) {
        for mut ended in mem::take(&mut self.ended) {
            if ended.withdrawal_done.is_some_and(|(of, _)| of == rail) {
                ended.withdrawal_done = None;
                // Before later grants: the peer may still count the withdrawn ones towards its limit.
                self.grants.insert(0, ended);
            } else {
                self.ended.push_back(ended);
            }
        }
    }

    /// Removes withdrawn grants that were never announced. Moves those whose withdrawal completed to `ended`, if the connection is still
    /// one of these, which rails have now.
    pub(super) fn forget(&mut self, connections: &[Option<Epoch>]) {
        let is_there =
            |(rail, epoch): &(u8, Epoch)| connections.get(usize::from(*rail)) == Some(&Some(*epoch));
        let mut place = 0_usize;
        while let Some(grant) = self.grants.get_mut(place) {
            grant.withdrawal_done = grant.withdrawal_done.filter(is_there);
            if !grant.is_withdrawn || grant.was_sent() && grant.withdrawal_done.is_none() {
                place = place.saturating_add(1);
                continue;
            }
            let over = self.grants.remove(place);
            if over.was_sent() {
                if self.ended.len() >= usize::from(SESSION_GRANTS_MAX) {
                    self.ended.pop_front();
                }
                self.ended.push_back(over);
            }
        }
    }
}

/// Windows that the peer grants.
#[derive(Debug, Default)]
pub(super) struct Theirs {
    grants: Vec<PeerGrant>,
    /// The last withdrawn numbers. A grant may arrive after its withdrawal, over another rail. The peer uses no number twice.
    withdrawn: VecDeque<u32>,
}

#[derive(Debug)]
struct PeerGrant {
    number: u32,
    bytes: u64,
    access: RemoteAccess,
    /// For each rail, its connection and the key of the window on it.
    keys: [Option<(Epoch, RemoteWindow)>; RAILS],
}

/// Whether an atomic may access this address, which has to be aligned to a word (S27).
pub(super) const fn is_of_word(address: u64) -> bool {
    address & WORD_ALIGN_MASK == 0
}

/// Effect of a grant or withdrawal that was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// The peer granted a window.
    New { bytes: u64, access: RemoteAccess },
    /// The peer withdrew a window.
    Withdrawn,
    /// A known window has a key on a further connection, or nothing changes.
    None,
    /// The peer exceeds the limit on grants.
    TooMany,
}

impl Theirs {
    /// Handles a grant or a withdrawal that arrived on a rail.
    pub(super) fn hear(&mut self, rail: u8, granted: &Granted) -> Change {
        let known = self
            .grants
            .iter()
            .position(|their| their.number == granted.number);
        let was_withdrawn = self.withdrawn.contains(&granted.number);
        let Some((window, access)) = granted.window else {
            if !was_withdrawn {
                if self.withdrawn.len() >= WITHDRAWN_MAX {
                    self.withdrawn.pop_front();
                }
                self.withdrawn.push_back(granted.number);
            }
            return match known {
                Some(at) => {
                    self.grants.swap_remove(at);
                    Change::Withdrawn
                }
                None => Change::None,
            };
        };
        if was_withdrawn {
            return Change::None;
        }
        let is_new = known.is_none();
        if is_new {
            if self.grants.len() >= THEIRS_MAX {
                return Change::TooMany;
            }
            self.grants.push(PeerGrant {
                number: granted.number,
                bytes: window.length_bytes(),
                access,
                keys: [None; RAILS],
            });
        }
        let mut theirs = self.grants.iter_mut();
        let their = theirs.find(|their| their.number == granted.number);
        if let Some(key) = their.and_then(|their| their.keys.get_mut(usize::from(rail))) {
            *key = Some((granted.epoch, window));
        }
        match is_new {
            true => Change::New {
                bytes: window.length_bytes(),
                access,
            },
            false => Change::None,
        }
    }

    /// Returns the length of a window, and the granted access.
    pub(super) fn get(&self, number: u32) -> Option<(u64, RemoteAccess)> {
        let their = self.grants.iter().find(|their| their.number == number)?;
        Some((their.bytes, their.access))
    }

    /// Whether the address at this offset in a window is aligned to a word, by the key of any rail.
    pub(super) fn has_word_at(&self, number: u32, offset: u64) -> bool {
        let their = self.grants.iter().find(|their| their.number == number);
        let mut keys = their.into_iter().flat_map(|their| their.keys.iter().flatten());
        keys.any(|(_, window)| is_of_word(window.address().wrapping_add(offset)))
    }

    /// Returns the remote address of a range of a window, over a rail's connection. `None` without a key, or outside the window.
    pub(super) fn address(
        &self,
        number: u32,
        (rail, epoch): (u8, Epoch),
        (offset, bytes): (u64, u64),
    ) -> Option<RemoteAddress> {
        let their = self.grants.iter().find(|their| their.number == number)?;
        let (of, window) = their.keys.get(usize::from(rail))?.as_ref()?;
        (*of == epoch).then(|| RemoteAddress::within(window, offset, bytes))?
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::{Change, Ours, Theirs};
    use doorbell_core::in_flight::{InFlight, Request, storage_for};
    use doorbell_core::provider::RemoteAccess;
    use doorbell_core::session::{Epoch, SESSION_GRANTS_MAX};
    use doorbell_core::wire::{Granted, RemoteWindow};
    use doorbell_core::{Rkey, Ticket, WorkKind};

    fn epoch(number: u32) -> Epoch {
        Epoch::from_wire(number)
    }

    pub(in crate::link) fn ticket(position: u64) -> Ticket {
        let requests: Vec<Request<()>> = (0..storage_for(1).unwrap()).map(|_| Request::default()).collect();
        let first = InFlight::new(requests, WorkKind::Send, 0, 1, 0).unwrap().next();
        first.back(first.position().wrapping_sub(position))
    }

    fn window(rkey: u32) -> RemoteWindow {
        RemoteWindow::new(4096, 64, Rkey(rkey))
    }

    #[test]
    fn each_connection_is_notified_once_and_its_key_is_of_it_alone() {
        let (mut ours, mut theirs) = (Ours::default(), Theirs::default());
        let number = ours
            .grant(&[(0, window(7)), (1, window(8))], RemoteAccess::READ)
            .unwrap();
        let first = ours.unsent(0, 0, epoch(1)).unwrap();
        let new = Change::New {
            bytes: 64,
            access: RemoteAccess::READ,
        };
        assert_eq!(theirs.hear(0, &first), new);
        ours.note_sent(0, &first, ticket(1));
        assert_eq!(ours.unsent(0, 0, epoch(1)), None);
        // The window has another key on the other Worker's device, and none on a third one.
        let second = ours.unsent(1, 1, epoch(2)).unwrap();
        assert_eq!(theirs.hear(1, &second), Change::None);
        ours.note_sent(1, &second, ticket(1));
        assert_eq!(ours.unsent(2, 2, epoch(3)), None);
        let key = |theirs: &Theirs, rail, of| Some(theirs.address(number, (rail, of), (8, 8))?.rkey().0);
        assert_eq!(
            (key(&theirs, 0, epoch(1)), key(&theirs, 1, epoch(2))),
            (Some(7), Some(8))
        );
        assert_eq!(theirs.address(number, (0, epoch(1)), (57, 8)), None);
        // On the rail's next connection the window has no key until the grant is announced again.
        assert_eq!(key(&theirs, 0, epoch(4)), None);
        let again = ours.unsent(0, 0, epoch(4)).unwrap();
        assert_eq!(theirs.hear(0, &again), Change::None);
        assert_eq!(key(&theirs, 0, epoch(4)), Some(7));
    }

    #[test]
    fn words_are_aligned_where_they_are_and_not_where_the_window_begins() {
        let mut theirs = Theirs::default();
        let mut hear = |rail, address| {
            let granted = Granted {
                epoch: epoch(1),
                number: 3,
                window: Some((RemoteWindow::new(address, 64, Rkey(7)), RemoteAccess::ALL)),
            };
            theirs.hear(rail, &granted);
            (0..16)
                .filter(|offset| theirs.has_word_at(3, *offset))
                .collect::<Vec<_>>()
        };
        assert_eq!(hear(0, 4100), [4, 12]);
        assert_eq!(hear(1, 4098), [4, 6, 12, 14]);
        assert_eq!(hear(0, 4096), [0, 6, 8, 14]);
        assert!(!theirs.has_word_at(4, 0));
    }

    #[test]
    fn a_withdrawal_is_sent_to_a_peer_that_knows_and_forgotten() {
        let (mut ours, mut theirs) = (Ours::default(), Theirs::default());
        let number = ours.grant(&[(0, window(7))], RemoteAccess::ALL).unwrap();
        let sent = ours.unsent(0, 0, epoch(1)).unwrap();
        theirs.hear(0, &sent);
        ours.note_sent(0, &sent, ticket(5));
        ours.withdraw(number);
        ours.forget(&[Some(epoch(1))]);
        let withdrawn = ours.unsent(0, 0, epoch(1)).unwrap();
        assert_eq!(withdrawn.window, None);
        assert_eq!(theirs.hear(0, &withdrawn), Change::Withdrawn);
        assert_eq!(theirs.hear(0, &withdrawn), Change::None);
        assert_eq!(theirs.get(number), None);
        ours.note_sent(0, &withdrawn, ticket(6));
        assert_eq!(ours.unsent(0, 0, epoch(1)), None);
        ours.completed(0, epoch(1), ticket(5));
        ours.forget(&[Some(epoch(1))]);
        assert_eq!(ours.grants.len(), 1);
        ours.completed(0, epoch(1), ticket(6));
        assert_eq!(ours.unsent(1, 0, epoch(2)), None);
        ours.forget(&[Some(epoch(1))]);
        assert!(ours.grants.is_empty());
        let next = ours.grant(&[], RemoteAccess::ALL).unwrap();
        assert_ne!(next, number);
        // A grant that was never announced needs no withdrawal.
        ours.withdraw(next);
        assert_eq!(ours.unsent(0, 0, epoch(1)), None);
        ours.forget(&[Some(epoch(1))]);
        assert!(ours.grants.is_empty());
    }

    #[test]
    fn a_withdrawal_is_sent_on_later_connections_until_it_completed() {
        let (mut ours, mut theirs) = (Ours::default(), Theirs::default());
        let number = ours.grant(&[(0, window(7))], RemoteAccess::ALL).unwrap();
        let sent = ours.unsent(0, 0, epoch(1)).unwrap();
        theirs.hear(0, &sent);
        ours.note_sent(0, &sent, ticket(1));
        // First no rail is connected. Then the connection is lost on which the withdrawal was sent, before the request completed.
        ours.withdraw(number);
        ours.forget(&[None, Some(epoch(4))]);
        let lost = ours.unsent(0, 0, epoch(2)).unwrap();
        ours.note_sent(0, &lost, ticket(3));
        ours.completed(0, epoch(3), ticket(9));
        ours.forget(&[None, Some(epoch(4))]);
        let withdrawn = ours.unsent(1, 4, epoch(4)).unwrap();
        assert_eq!((withdrawn.number, withdrawn.window), (number, None));
        assert_eq!(theirs.hear(1, &withdrawn), Change::Withdrawn);
        ours.note_sent(1, &withdrawn, ticket(2));
        ours.completed(1, epoch(4), ticket(2));
        ours.forget(&[None, Some(epoch(4))]);
        assert!(ours.grants.is_empty());
    }

    #[test]
    fn a_withdrawal_is_sent_again_where_its_connection_is_lost() {
        let (mut ours, mut theirs) = (Ours::default(), Theirs::default());
        let number = ours.grant(&[(0, window(7))], RemoteAccess::ALL).unwrap();
        let sent = ours.unsent(0, 0, epoch(1)).unwrap();
        theirs.hear(0, &sent);
        ours.note_sent(0, &sent, ticket(1));
        ours.withdraw(number);
        // The peer's device receives the frame, and the peer's process does not read it before the queue pair is gone.
        let unseen = ours.unsent(0, 0, epoch(1)).unwrap();
        ours.note_sent(0, &unseen, ticket(2));
        ours.completed(0, epoch(1), ticket(2));
        ours.forget(&[Some(epoch(1))]);
        assert!(ours.grants.is_empty());
        ours.lost(1);
        assert_eq!(ours.unsent(1, 0, epoch(2)), None);
        ours.lost(0);
        let again = ours.unsent(1, 0, epoch(2)).unwrap();
        assert_eq!(theirs.hear(1, &again), Change::Withdrawn);
        ours.note_sent(1, &again, ticket(1));
        // The completion is seen after the connection was lost.
        ours.completed(1, epoch(2), ticket(1));
        ours.forget(&[None, None]);
        let again = ours.unsent(0, 0, epoch(3)).unwrap();
        assert_eq!(theirs.hear(0, &again), Change::None);
        ours.note_sent(0, &again, ticket(1));
        ours.completed(0, epoch(3), ticket(1));
        ours.forget(&[Some(epoch(3))]);
        assert_eq!((ours.grants.len(), ours.unsent(1, 0, epoch(4))), (0, None));
    }

    #[test]
    fn no_more_is_kept_of_what_was_withdrawn_than_a_peer_has() {
        let mut ours = Ours::default();
        for position in 1..=u64::from(SESSION_GRANTS_MAX) * 2 {
            let number = ours.grant(&[(0, window(7))], RemoteAccess::ALL).unwrap();
            let sent = ours.unsent(0, 0, epoch(1)).unwrap();
            ours.note_sent(0, &sent, ticket(position));
            ours.withdraw(number);
            let withdrawn = ours.unsent(0, 0, epoch(1)).unwrap();
            ours.note_sent(0, &withdrawn, ticket(position));
            ours.completed(0, epoch(1), ticket(position));
            ours.forget(&[Some(epoch(1))]);
        }
        assert_eq!(ours.ended.len(), usize::from(SESSION_GRANTS_MAX));
        assert!(ours.grants.is_empty());
    }

    #[test]
    fn a_grant_that_comes_after_its_end_is_not_reported() {
        let (mut ours, mut theirs) = (Ours::default(), Theirs::default());
        let number = ours.grant(&[(0, window(7))], RemoteAccess::ALL).unwrap();
        let late = ours.unsent(0, 0, epoch(1)).unwrap();
        ours.note_sent(0, &late, ticket(1));
        ours.withdraw(number);
        let withdrawn = ours.unsent(1, 0, epoch(2)).unwrap();
        assert_eq!(theirs.hear(1, &withdrawn), Change::None);
        assert_eq!(theirs.hear(0, &late), Change::None);
        assert_eq!(theirs.get(number), None);
        for number in 0..1000 {
            let other = Granted { number, ..withdrawn };
            theirs.hear(0, &other);
        }
        assert_eq!(theirs.withdrawn.len(), super::WITHDRAWN_MAX);
    }

    #[test]
    fn what_a_peer_would_take_for_malformed_is_not_granted() {
        let mut ours = Ours::default();
        let nothing = RemoteAccess {
            write: false,
            ..RemoteAccess::WRITE
        };
        let empty = RemoteWindow::new(4096, 0, Rkey(8));
        assert_eq!(ours.grant(&[(0, window(7))], nothing), None);
        assert_eq!(ours.grant(&[(0, window(7)), (1, empty)], RemoteAccess::ALL), None);
        assert_eq!(ours.unsent(0, 0, epoch(1)), None);
        assert_eq!(ours.unsent(0, 1, epoch(1)), None);
    }

    #[test]
    fn neither_side_has_more_than_may_be() {
        let (mut ours, mut theirs) = (Ours::default(), Theirs::default());
        let connections = [Some(epoch(1)), Some(epoch(2))];
        for _ in 0..SESSION_GRANTS_MAX {
            assert!(ours.grant(&[(0, window(7))], RemoteAccess::ALL).is_some());
            for rail in [0, 1] {
                let sent = ours.unsent(rail, 0, epoch(1 + u32::from(rail))).unwrap();
                let is_new = matches!(theirs.hear(rail, &sent), Change::New { .. });
                assert_eq!(is_new, rail == 0);
                ours.note_sent(rail, &sent, ticket(1));
            }
        }
        assert_eq!(ours.grant(&[(0, window(7))], RemoteAccess::ALL), None);
        // The withdrawal completes on rail 0 while rail 1 is blocked. The peer reads rail 1 first.
        ours.withdraw(0);
        let withdrawn = ours.unsent(0, 0, epoch(1)).unwrap();
        ours.note_sent(0, &withdrawn, ticket(2));
        ours.completed(0, epoch(1), ticket(2));
        ours.forget(&connections);
        ours.grant(&[(0, window(7))], RemoteAccess::ALL).unwrap();
        let next = ours.unsent(1, 0, epoch(2)).unwrap();
        assert!(matches!(theirs.hear(1, &next), Change::New { .. }));
        assert_eq!(theirs.hear(0, &withdrawn), Change::Withdrawn);
        // A peer that withdraws nothing is at the limit after as many again.
        let mut more = (1000..).map(|number| theirs.hear(0, &Granted { number, ..next }));
        let first = more.position(|change| change == Change::TooMany);
        assert_eq!(first, Some(usize::from(SESSION_GRANTS_MAX)));
    }
}
