//! Windows that the two sides of a link let each other reach: ours, told on every connection, and the peer's, with the key
//! each connection has for them.

use doorbell_core::provider::{RemoteAccess, RemoteAddress};
use doorbell_core::session::{Epoch, SESSION_GRANTS_MAX, SESSION_RAILS_MAX};
use doorbell_core::wire::{Granted, RemoteWindow};

const RAILS: usize = SESSION_RAILS_MAX as usize;

/// Windows of ours.
#[derive(Debug, Default)]
pub(super) struct Ours {
    grants: Vec<Grant>,
    next: u32,
}

#[derive(Debug)]
struct Grant {
    number: u32,
    /// The same memory, as the devices of these Workers know it.
    windows: Vec<(usize, RemoteWindow)>,
    access: RemoteAccess,
    is_withdrawn: bool,
    /// For each rail, the connection on which it was told last.
    told: [Epoch; RAILS],
    /// For each rail, the connection on which it was told that it is withdrawn.
    told_withdrawn: [Epoch; RAILS],
}

impl Ours {
    /// Grants a window; its number, or `None` where there are as many as may be, or it is one that cannot be told: with
    /// nothing that may be done there, or no length.
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
            told: [Epoch::NONE; RAILS],
            told_withdrawn: [Epoch::NONE; RAILS],
        });
        Some(number)
    }

    pub(super) fn withdraw(&mut self, number: u32) {
        for grant in self.grants.iter_mut().filter(|grant| grant.number == number) {
            grant.is_withdrawn = true;
        }
    }

    /// What is to be told on a rail's connection, on this Worker's device.
    pub(super) fn untold(&self, rail: u8, worker: usize, epoch: Epoch) -> Option<Granted> {
        let index = usize::from(rail);
        self.grants.iter().find_map(|grant| {
            let was_told = grant.told.get(index) == Some(&epoch);
            let window = if grant.is_withdrawn {
                let was_told_so = grant.told_withdrawn.get(index) == Some(&epoch);
                (was_told && !was_told_so).then_some(None)
            } else {
                let window = grant.windows.iter().find(|(of, _)| *of == worker);
                window
                    .filter(|_| !was_told)
                    .map(|(_, window)| Some((*window, grant.access)))
            };
            Some(Granted {
                epoch,
                number: grant.number,
                window: window?,
            })
        })
    }

    pub(super) fn did_tell(&mut self, rail: u8, granted: &Granted) {
        let index = usize::from(rail);
        let mut grants = self.grants.iter_mut();
        let Some(grant) = grants.find(|grant| grant.number == granted.number) else {
            return;
        };
        let told = match granted.window {
            Some(_) => &mut grant.told,
            None => &mut grant.told_withdrawn,
        };
        if let Some(told) = told.get_mut(index) {
            *told = granted.epoch;
        }
    }

    /// Forgets what was withdrawn on every connection that knows of it; `epochs` are those of the connections there are.
    pub(super) fn forget(&mut self, epochs: &[Option<Epoch>; RAILS]) {
        self.grants.retain(|grant| {
            let is_known = |(rail, epoch): (usize, &Option<Epoch>)| {
                let epoch = epoch.as_ref();
                epoch.is_some() && grant.told.get(rail) == epoch && grant.told_withdrawn.get(rail) != epoch
            };
            !grant.is_withdrawn || epochs.iter().enumerate().any(is_known)
        });
    }
}

/// Windows of the peer's.
#[derive(Debug, Default)]
pub(super) struct Theirs {
    grants: Vec<Their>,
}

#[derive(Debug)]
struct Their {
    number: u32,
    bytes: u64,
    access: RemoteAccess,
    /// For each rail, the connection and the key it has there.
    keys: [Option<(Epoch, RemoteWindow)>; RAILS],
}

/// What a grant changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// There is another window.
    New { bytes: u64, access: RemoteAccess },
    /// There is one less.
    Withdrawn,
    /// Another way leads to one that is known, or nothing is new.
    None,
    /// The peer grants more than a side may.
    TooMany,
}

impl Theirs {
    /// Takes what the peer said on a rail.
    pub(super) fn hear(&mut self, rail: u8, granted: &Granted) -> Change {
        let known = self
            .grants
            .iter()
            .position(|their| their.number == granted.number);
        let Some((window, access)) = granted.window else {
            return match known {
                Some(at) => {
                    self.grants.swap_remove(at);
                    Change::Withdrawn
                }
                None => Change::None,
            };
        };
        let is_new = known.is_none();
        if is_new {
            if self.grants.len() >= usize::from(SESSION_GRANTS_MAX) {
                return Change::TooMany;
            }
            self.grants.push(Their {
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

    /// How long a window is, and what is granted of it.
    pub(super) fn get(&self, number: u32) -> Option<(u64, RemoteAccess)> {
        let their = self.grants.iter().find(|their| their.number == number)?;
        Some((their.bytes, their.access))
    }

    /// Where bytes of a window are, over a rail's connection.
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
mod tests {
    use super::{Change, Ours, RAILS, Theirs};
    use doorbell_core::Rkey;
    use doorbell_core::provider::RemoteAccess;
    use doorbell_core::session::{Epoch, SESSION_GRANTS_MAX};
    use doorbell_core::wire::RemoteWindow;

    fn epoch(number: u32) -> Epoch {
        Epoch::from_wire(number)
    }

    fn window(rkey: u32) -> RemoteWindow {
        RemoteWindow::new(4096, 64, Rkey(rkey))
    }

    #[test]
    fn each_connection_is_told_once_and_its_key_is_of_it_alone() {
        let (mut ours, mut theirs) = (Ours::default(), Theirs::default());
        let number = ours
            .grant(&[(0, window(7)), (1, window(8))], RemoteAccess::READ)
            .unwrap();
        let first = ours.untold(0, 0, epoch(1)).unwrap();
        let new = Change::New {
            bytes: 64,
            access: RemoteAccess::READ,
        };
        assert_eq!(theirs.hear(0, &first), new);
        ours.did_tell(0, &first);
        assert_eq!(ours.untold(0, 0, epoch(1)), None);
        // On the other Worker's device it has another key; on a third there is none.
        let second = ours.untold(1, 1, epoch(2)).unwrap();
        assert_eq!(theirs.hear(1, &second), Change::None);
        ours.did_tell(1, &second);
        assert_eq!(ours.untold(2, 2, epoch(3)), None);
        let key = |theirs: &Theirs, rail, of| Some(theirs.address(number, (rail, of), (8, 8))?.rkey.0);
        assert_eq!(
            (key(&theirs, 0, epoch(1)), key(&theirs, 1, epoch(2))),
            (Some(7), Some(8))
        );
        assert_eq!(theirs.address(number, (0, epoch(1)), (57, 8)), None);
        // The rail's next connection has none until it is told again.
        assert_eq!(key(&theirs, 0, epoch(4)), None);
        let again = ours.untold(0, 0, epoch(4)).unwrap();
        assert_eq!(theirs.hear(0, &again), Change::None);
        assert_eq!(key(&theirs, 0, epoch(4)), Some(7));
    }

    #[test]
    fn what_is_withdrawn_is_told_to_who_knows_and_forgotten() {
        let (mut ours, mut theirs) = (Ours::default(), Theirs::default());
        let number = ours.grant(&[(0, window(7))], RemoteAccess::ALL).unwrap();
        let told = ours.untold(0, 0, epoch(1)).unwrap();
        theirs.hear(0, &told);
        ours.did_tell(0, &told);
        ours.withdraw(number);
        assert_eq!(ours.untold(1, 0, epoch(2)), None);
        let mut epochs = [None; RAILS];
        (epochs[0], epochs[1]) = (Some(epoch(1)), Some(epoch(2)));
        ours.forget(&epochs);
        let withdrawn = ours.untold(0, 0, epoch(1)).unwrap();
        assert_eq!(withdrawn.window, None);
        assert_eq!(theirs.hear(0, &withdrawn), Change::Withdrawn);
        assert_eq!(theirs.hear(0, &withdrawn), Change::None);
        assert_eq!(theirs.get(number), None);
        ours.did_tell(0, &withdrawn);
        ours.forget(&epochs);
        assert!(ours.grants.is_empty());
        assert_ne!(ours.grant(&[], RemoteAccess::ALL), Some(number));
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
        assert_eq!(ours.untold(0, 0, epoch(1)), None);
        assert_eq!(ours.untold(0, 1, epoch(1)), None);
    }

    #[test]
    fn neither_side_has_more_than_may_be() {
        let (mut ours, mut theirs) = (Ours::default(), Theirs::default());
        for _ in 0..SESSION_GRANTS_MAX {
            assert!(ours.grant(&[(0, window(7))], RemoteAccess::ALL).is_some());
            let told = ours.untold(0, 0, epoch(1)).unwrap();
            assert!(matches!(theirs.hear(0, &told), Change::New { .. }));
            ours.did_tell(0, &told);
        }
        assert_eq!(ours.grant(&[(0, window(7))], RemoteAccess::ALL), None);
        let mut other = Ours {
            next: 1000,
            ..Ours::default()
        };
        other.grant(&[(0, window(7))], RemoteAccess::ALL).unwrap();
        let told = other.untold(0, 0, epoch(1)).unwrap();
        assert_eq!(theirs.hear(0, &told), Change::TooMany);
    }
}
