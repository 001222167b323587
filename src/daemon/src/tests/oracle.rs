//! The oracle of arenas. It knows which process wrote which byte with which grant. It checks that each operation is executed once, and
//! in order with messages.
//!
//! Each grant has 32 bytes that no other grant ever has: one word for atomics, and three words for WRITEs. Each word of a WRITE encodes
//! the process that wrote it, and the number of the operation.

use std::collections::{BTreeMap, BTreeSet};

use doorbell::RemoteAccess;
use doorbell::interprocess::SharedBytes as _;

use super::world::World;
use crate::endpoint::EndpointRefusal;
use crate::name::EndpointAddress;
use crate::one_sided::{ArenaGrant, ArenaOperation, ArenaRange};
use crate::reason::UndeliveredReason;

/// Number of bytes of a grant.
pub(crate) const GRANT_BYTES: usize = 32;

/// Number of bytes of a WRITE, which follow the word for atomics.
const WRITTEN_BYTES: usize = 24;

/// Offset of the memory that a process uses as source and target of its own operations. It follows its grants.
const OWN: usize = (1 << 14) - 1024;

/// An event about arenas.
pub(crate) enum Seen {
    Completed(EndpointAddress, u64, u64),
    Written(EndpointAddress, ArenaGrant, u64, u32, u32),
    Revoked(ArenaGrant),
}

/// Kind of an operation of the oracle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Write,
    WriteWithImmediate,
    Read,
    Add,
}

#[derive(Clone, Copy, Debug)]
struct Asked {
    kind: Kind,
    grant: ArenaGrant,
    own: usize,
    end: Option<End>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Done(u64),
    Refused(UndeliveredReason),
}

/// A grant, as its owner knows it.
pub(crate) struct Given {
    pub(crate) grant: ArenaGrant,
    pub(crate) to: EndpointAddress,
    access: RemoteAccess,
    offset: usize,
    /// The bytes when the end of the grant was reported.
    ended: Option<[u8; GRANT_BYTES]>,
}

/// The knowledge of one process.
#[derive(Default)]
pub(crate) struct OneSided {
    asked: BTreeMap<u64, Asked>,
    pub(crate) given: Vec<Given>,
    /// The last number that each process wrote with an immediate.
    written: BTreeMap<(EndpointAddress, u64), u32>,
    pub(crate) completed: u64,
    pub(crate) arrivals: u64,
    pub(crate) revoked: u64,
}

impl OneSided {
    /// Returns the operations without an outcome, in order, each with the owner of the arena.
    pub(super) fn open(&self) -> impl Iterator<Item = (u64, EndpointAddress)> {
        let open = self.asked.iter().filter(|(_, asked)| asked.end.is_none());
        open.map(|(number, asked)| (*number, asked.grant.owner))
    }

    /// Records that an operation was not executed. Returns `false` if the number belongs to no operation.
    pub(crate) fn refused(&mut self, to: EndpointAddress, number: u64, reason: UndeliveredReason) -> bool {
        let Some(asked) = self.asked.get_mut(&number) else {
            return false;
        };
        assert_eq!((asked.grant.owner, asked.end), (to, None), "{number}: {reason}");
        asked.end = Some(End::Refused(reason));
        true
    }
}

impl World {
    fn arena_of(&self, process: usize, offset: usize) -> [u8; GRANT_BYTES] {
        let mut bytes = [0; GRANT_BYTES];
        let arena = self.processes[process].endpoint.arena().unwrap();
        assert!(arena.copy_out(offset, &mut bytes));
        bytes
    }

    /// Grants the next 32 bytes.
    pub(crate) fn grant(
        &mut self,
        process: usize,
        to: EndpointAddress,
        access: RemoteAccess,
    ) -> Option<ArenaGrant> {
        let owner = &mut self.processes[process];
        let offset = owner.one_sided.given.len() * GRANT_BYTES;
        let bytes = GRANT_BYTES;
        if offset + bytes > OWN {
            return None;
        }
        match owner.endpoint.grant(to, ArenaRange { offset, bytes }, access) {
            Ok(grant) => {
                owner.one_sided.given.push(Given {
                    grant,
                    to,
                    access,
                    offset,
                    ended: None,
                });
                Some(grant)
            }
            Err(EndpointRefusal::Full) => None,
            Err(refusal) => {
                assert!(owner.is_hostile, "{refusal}");
                None
            }
        }
    }

    pub(crate) fn revoke(&mut self, process: usize, grant: &ArenaGrant) -> bool {
        let owner = &mut self.processes[process];
        owner.endpoint.revoke(grant).is_ok()
    }

    /// Submits an operation, and records its bytes. Returns its number.
    pub(crate) fn operate(&mut self, process: usize, grant: &ArenaGrant, kind: Kind) -> Option<u64> {
        let client = &mut self.processes[process];
        let number = client.endpoint.submitted();
        // Each operation in flight has bytes of its own.
        let own = OWN + (number as usize % 32) * 32;
        let is_busy = client
            .one_sided
            .asked
            .values()
            .any(|asked| asked.own == own && asked.end.is_none());
        if is_busy {
            return None;
        }
        let mut bytes = [0; WRITTEN_BYTES];
        for word in bytes.chunks_mut(8) {
            word.copy_from_slice(&((process as u64 + 1) << 48 | number).to_le_bytes());
        }
        if kind == Kind::Read {
            bytes = [0xff; WRITTEN_BYTES];
        }
        let range = ArenaRange {
            offset: own,
            bytes: WRITTEN_BYTES,
        };
        assert!(client.endpoint.arena().unwrap().copy_in(own, &bytes));
        let (offset, operation) = match kind {
            Kind::Write => (8, ArenaOperation::Write(range)),
            Kind::WriteWithImmediate => (8, ArenaOperation::WriteWithImmediate(range, number as u32)),
            Kind::Read => (8, ArenaOperation::Read(range)),
            Kind::Add => (0, ArenaOperation::FetchAndAdd(1)),
        };
        match client.endpoint.request(grant, offset, &operation) {
            Ok(asked) => {
                assert_eq!(asked, number);
                let asked = Asked {
                    kind,
                    grant: *grant,
                    own,
                    end: None,
                };
                client.one_sided.asked.insert(number, asked);
                Some(number)
            }
            Err(EndpointRefusal::Full) => None,
            Err(refusal) => {
                assert!(client.is_hostile || !client.is_alive, "{refusal}");
                None
            }
        }
    }

    /// Handles an event about arenas.
    pub(super) fn seen(&mut self, process: usize, seen: Seen) {
        if self.processes[process].is_hostile {
            return;
        }
        match seen {
            Seen::Completed(to, number, value) => {
                let client = &mut self.processes[process];
                let asked = client.one_sided.asked.get_mut(&number).unwrap();
                assert_eq!((asked.grant.owner, asked.end), (to, None), "{number}");
                asked.end = Some(End::Done(value));
                let asked = *asked;
                client.one_sided.completed += 1;
                if asked.kind == Kind::Read {
                    let mut bytes = [0; WRITTEN_BYTES];
                    assert!(client.endpoint.arena().unwrap().copy_out(asked.own, &mut bytes));
                    self.check_words(&bytes, to, &asked.grant);
                }
            }
            Seen::Written(from, grant, offset, bytes, immediate) => {
                assert_eq!((offset, bytes as usize), (8, WRITTEN_BYTES));
                let owner = &mut self.processes[process];
                owner.one_sided.arrivals += 1;
                let given = owner.one_sided.given.iter().find(|given| given.grant == grant);
                let given = given.expect("a grant of this process");
                assert_eq!(given.to, from);
                let there = given.offset;
                let word = self.arena_of(process, there)[8..16].try_into().unwrap();
                let word = u64::from_le_bytes(word);
                if self.is_hostile(from, process) {
                    return;
                }
                // The bytes are written before the number is reported: these, or later ones.
                assert!(
                    word & 0xffff_ffff >= u64::from(immediate),
                    "{word:#x} after {immediate}"
                );
                let last = &mut self.processes[process].one_sided.written;
                let last = last.insert((from, word >> 48), immediate);
                assert!(last < Some(immediate), "{immediate} after {last:?}");
            }
            Seen::Revoked(grant) => {
                let owner = &self.processes[process].one_sided;
                let at = owner.given.iter().position(|given| given.grant == grant).unwrap();
                assert!(owner.given[at].ended.is_none(), "revoked twice");
                let bytes = self.arena_of(process, owner.given[at].offset);
                let owner = &mut self.processes[process].one_sided;
                owner.given[at].ended = Some(bytes);
                owner.revoked += 1;
            }
        }
    }

    /// Records that the daemon ended. The outcome of operations from this number on is unknown, and all grants have ended.
    pub(super) fn restarted(&mut self, process: usize, unknown_from: u64) {
        let given = self.processes[process].one_sided.given.len();
        for at in 0..given {
            let bytes = self.arena_of(process, self.processes[process].one_sided.given[at].offset);
            let given = &mut self.processes[process].one_sided.given[at];
            given.ended = given.ended.or(Some(bytes));
        }
        for (number, asked) in &mut self.processes[process].one_sided.asked {
            assert!(
                asked.end.is_some() || *number >= unknown_from,
                "the end of {number} is lost"
            );
            let unknown = End::Refused(UndeliveredReason::Unknown);
            asked.end = asked.end.or(Some(unknown));
        }
    }

    fn is_hostile(&self, address: EndpointAddress, of_job: usize) -> bool {
        let job = self.processes[of_job].job;
        let mut named = self
            .processes
            .iter()
            .filter(|other| other.address == address && other.job == job);
        named.any(|other| other.is_hostile)
    }

    /// Checks that all words are zero, or belong to one operation of a process of the owner's job for which the grant was made.
    fn check_words(&self, bytes: &[u8], owner: EndpointAddress, grant: &ArenaGrant) {
        let words: BTreeSet<_> = bytes
            .chunks(8)
            .map(|word| u64::from_le_bytes(word.try_into().unwrap()))
            .collect();
        let of_grant = |process: &&super::world::Process| {
            process.address == owner && process.one_sided.given.iter().any(|given| given.grant == *grant)
        };
        let owners: Vec<_> = self.processes.iter().filter(of_grant).collect();
        for word in &words {
            let Some(writer) = (*word >> 48).checked_sub(1) else {
                assert_eq!(*word, 0);
                continue;
            };
            let writer = &self.processes[writer as usize];
            let is_granted = owners.iter().any(|owner| {
                let mut given = owner.one_sided.given.iter();
                owner.job == writer.job
                    && given.any(|given| {
                        given.grant == *grant && given.to == writer.address && given.access.write
                    })
            });
            assert!(
                is_granted || writer.is_hostile,
                "{word:#x} by nobody who may write there"
            );
        }
        assert_eq!(words.len(), 1, "torn");
    }

    /// Checks the content of the arenas when everything is at rest, and that each operation has one outcome.
    pub(super) fn check_arenas(&self) {
        for (index, process) in self.processes.iter().enumerate() {
            for (number, asked) in &process.one_sided.asked {
                let is_excused = *number >= self.blocked_at(index)
                    || process.is_hostile
                    || !process.is_alive
                    || self.is_hostile(process.address, index)
                    || self.is_hostile(asked.grant.owner, index);
                assert!(
                    asked.end.is_some() || is_excused,
                    "operation {number} of {index} has no end"
                );
            }
            if process.is_hostile {
                continue;
            }
            for given in &process.one_sided.given {
                let bytes = self.arena_of(index, given.offset);
                let is_spoiled = self.is_hostile(given.to, index);
                if let Some(ended) = given.ended {
                    assert_eq!(bytes, ended, "written after the grant was revoked");
                }
                let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
                if !given.access.write {
                    assert_eq!([word(8), word(16), word(24)], [0; 3], "written without the right");
                } else if !is_spoiled {
                    self.check_words(&bytes[8..], process.address, &given.grant);
                }
                // Each addition is executed once, and each completed one fetched a different value.
                let (mut fetched, mut unknown) = (BTreeSet::new(), 0);
                let adders = self.processes.iter().filter(|other| other.job == process.job);
                for adder in adders {
                    let of_grant = |asked: &&Asked| asked.grant == given.grant && asked.kind == Kind::Add;
                    for asked in adder.one_sided.asked.values().filter(of_grant) {
                        match asked.end {
                            Some(End::Done(value)) => {
                                assert!(fetched.insert(value), "{value} was fetched twice");
                            }
                            Some(End::Refused(UndeliveredReason::Unknown)) | None => unknown += 1,
                            Some(End::Refused(_)) => {}
                        }
                    }
                }
                if !is_spoiled && !self.is_hostile(process.address, index) {
                    let done = fetched.len() as u64;
                    assert!(
                        (done..=done + unknown).contains(&word(0)),
                        "{} of {done}, {unknown} unknown",
                        word(0)
                    );
                }
            }
        }
    }
}
