//! Operations on the arena of another process, and the names of grants that they use.

use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::descriptor::Report;
use crate::name::{EndpointAddress, NodeNumber};

/// Maximum length of an operation on an arena, in bytes.
pub const OPERATION_BYTES_MAX: u32 = 1 << 16;

/// Maximum number of grants that a process has given at a time.
pub const GRANTS_MAX: u32 = 1024;

/// Size of the target word of an atomic, in bytes.
pub(crate) const WORD_BYTES: u32 = 8;

/// Name of a grant, by which one other endpoint may access a range of its owner's arena. The name is not secret, since the owner's
/// daemon checks which endpoint uses it. The owner sends it in a message ([`ArenaGrant::to_bytes`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ArenaGrant {
    /// The endpoint that owns the arena.
    pub owner: EndpointAddress,
    pub(crate) place: GrantPlace,
}

/// Offer of a range of an arena to one other endpoint. The offer is not secret. The giver sends it in a message
/// ([`ArenaOffer::to_bytes`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ArenaOffer {
    /// The grant by which the taker reads.
    pub grant: ArenaGrant,
    /// The length of the range, up to the whole arena of the giver.
    pub bytes: u64,
}

/// Index of a grant in its owner's table, and its generation. A generation of an entry is not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct GrantPlace {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// A range of the caller's own arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArenaRange {
    /// Offset in the arena, in bytes.
    pub offset: usize,
    /// Length in bytes, up to [`OPERATION_BYTES_MAX`] in an operation.
    pub bytes: usize,
}

/// Operation on a range of another process's arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ArenaOperation {
    /// Writes the bytes of a range of the caller's arena. The caller must not change them until the outcome is reported.
    Write(ArenaRange),
    /// Writes, and then reports the immediate number to the owner: [`EndpointEvent::Written`](crate::EndpointEvent::Written).
    WriteWithImmediate(ArenaRange, u32),
    /// Reads into a range of the caller's arena.
    Read(ArenaRange),
    /// Adds to an aligned word in native byte order, with wrapping, and fetches the previous value.
    FetchAndAdd(u64),
    /// Replaces an aligned word if it equals `compare`, and fetches the previous value.
    CompareAndSwap {
        /// Value that the word has to equal.
        compare: u64,
        /// New value.
        swap: u64,
    },
}

/// Kind of an operation, with its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Write {
        immediate: Option<u32>,
    },
    Read,
    Add(u64),
    Swap {
        compare: u64,
        swap: u64,
    },
    /// Reports the end of a transfer, with a number for the giver.
    End(u32),
}

/// An operation, as the owner's daemon checks and executes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) action: Action,
    pub(crate) place: GrantPlace,
    /// Offset from the beginning of the grant.
    pub(crate) offset: u64,
    pub(crate) bytes: u32,
}

impl Action {
    /// Encodes the kind and two operand words.
    pub(crate) const fn words(self) -> (u32, u64, u64) {
        match self {
            Self::Write { immediate: None } => (1, 0, 0),
            Self::Write {
                immediate: Some(number),
            } => (2, number as u64, 0),
            Self::Read => (3, 0, 0),
            Self::Add(number) => (4, number, 0),
            Self::Swap { compare, swap } => (5, compare, swap),
            Self::End(number) => (6, number as u64, 0),
        }
    }

    /// Decodes an action. Returns `None` for an unknown kind, or if an unused word is not zero.
    pub(crate) fn of((kind, first, second): (u32, u64, u64)) -> Option<Self> {
        let action = match kind {
            1 => Self::Write { immediate: None },
            2 => Self::Write {
                immediate: Some(u32::try_from(first).ok()?),
            },
            3 => Self::Read,
            4 => Self::Add(first),
            5 => Self::Swap {
                compare: first,
                swap: second,
            },
            6 => Self::End(u32::try_from(first).ok()?),
            _ => return None,
        };
        (action.words() == (kind, first, second)).then_some(action)
    }

    pub(crate) const fn is_atomic(self) -> bool {
        matches!(self, Self::Add(_) | Self::Swap { .. })
    }

    /// Whether the operation waits until its report has room in the owner's ring. The report of an end is queued in the daemon
    /// instead.
    pub(crate) const fn waits_for_room(self) -> bool {
        matches!(self, Self::Write { immediate: Some(_) })
    }

    /// Whether this length is valid.
    pub(crate) const fn takes(self, bytes: u32) -> bool {
        if self.is_atomic() {
            bytes == WORD_BYTES
        } else if matches!(self, Self::End(_)) {
            bytes == 0
        } else {
            bytes <= OPERATION_BYTES_MAX
        }
    }

    /// Number of payload bytes that are sent with a request of this length.
    pub(crate) const fn sent(self, bytes: u32) -> u32 {
        if matches!(self, Self::Write { .. }) {
            bytes
        } else {
            0
        }
    }

    /// Number of payload bytes that are returned.
    pub(crate) const fn fetched(self, bytes: u32) -> u32 {
        if matches!(self, Self::Read) { bytes } else { 0 }
    }
}

impl GrantPlace {
    pub(crate) const fn word(self) -> u64 {
        (self.index as u64) << 32 | self.generation as u64
    }

    #[expect(clippy::cast_possible_truncation, reason = "the halves of a word")]
    pub(crate) const fn of(word: u64) -> Self {
        Self {
            index: (word >> 32) as u32,
            generation: word as u32,
        }
    }
}

impl ArenaGrant {
    /// Length of an encoded name.
    pub const BYTES: usize = 16;

    /// Encodes the name for a message: node, endpoint, index and generation, four bytes each, big-endian.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let raw: [U32; 4] = [
            self.owner.node.0.into(),
            self.owner.endpoint.into(),
            self.place.index.into(),
            self.place.generation.into(),
        ];
        zerocopy::transmute!(raw)
    }

    /// Decodes a name. An invalid name is refused when it is used.
    #[must_use]
    pub fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        let raw: [U32; 4] = zerocopy::transmute!(bytes);
        let [node, endpoint, index, generation] = raw.map(U32::get);
        let owner = EndpointAddress {
            node: NodeNumber(node),
            endpoint,
        };
        Self {
            owner,
            place: GrantPlace { index, generation },
        }
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawOffer {
    grant: [u8; ArenaGrant::BYTES],
    bytes: U64,
}

impl ArenaOffer {
    /// Length of an encoded offer.
    pub const BYTES: usize = size_of::<RawOffer>();

    /// Encodes the offer for a message: the grant, then the number of bytes, big-endian.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let raw = RawOffer {
            grant: self.grant.to_bytes(),
            bytes: self.bytes.into(),
        };
        zerocopy::transmute!(raw)
    }

    /// Decodes an offer. An invalid offer is refused when it is taken.
    #[must_use]
    pub fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        let raw: RawOffer = zerocopy::transmute!(bytes);
        Self {
            grant: ArenaGrant::from_bytes(raw.grant),
            bytes: raw.bytes.get(),
        }
    }
}

/// An operation in a frame, before the bytes of a WRITE: 40 bytes, big-endian.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    kind: U32,
    bytes: U32,
    index: U32,
    generation: U32,
    offset: U64,
    first: U64,
    second: U64,
}

/// Length of an operation in a frame.
pub(crate) const ASKED_BYTES: usize = size_of::<Raw>();

impl Asked {
    /// The report to the owner, if the operation has one.
    pub(crate) fn written(&self, from: EndpointAddress) -> Option<Report> {
        let (Action::Write {
            immediate: Some(immediate),
        }
        | Action::End(immediate)) = self.action
        else {
            return None;
        };
        Some(Report::Written {
            from,
            place: self.place,
            offset: self.offset,
            bytes: self.bytes,
            immediate,
        })
    }

    pub(crate) fn to_bytes(self) -> [u8; ASKED_BYTES] {
        let (kind, first, second) = self.action.words();
        let raw = Raw {
            kind: kind.into(),
            bytes: self.bytes.into(),
            index: self.place.index.into(),
            generation: self.place.generation.into(),
            offset: self.offset.into(),
            first: first.into(),
            second: second.into(),
        };
        zerocopy::transmute!(raw)
    }

    /// Decodes an operation, and returns the bytes of a WRITE. Returns `None` if the lengths are inconsistent.
    pub(crate) fn parse(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (raw, payload) = Raw::read_from_prefix(bytes).ok()?;
        let action = Action::of((raw.kind.get(), raw.first.get(), raw.second.get()))?;
        let asked = Self {
            action,
            place: GrantPlace {
                index: raw.index.get(),
                generation: raw.generation.get(),
            },
            offset: raw.offset.get(),
            bytes: raw.bytes.get(),
        };
        let is_right = action.takes(asked.bytes) && payload.len() == action.sent(asked.bytes) as usize;
        is_right.then_some((asked, payload))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::{ASKED_BYTES, Action, ArenaGrant, ArenaOffer, Asked, GrantPlace, OPERATION_BYTES_MAX};
    use crate::name::{EndpointAddress, NodeNumber};

    pub(crate) const ACTIONS: [Action; 6] = [
        Action::Write { immediate: None },
        Action::Write {
            immediate: Some(u32::MAX),
        },
        Action::Read,
        Action::Add(u64::MAX),
        Action::Swap {
            compare: u64::MAX,
            swap: 2,
        },
        Action::End(u32::MAX),
    ];

    /// Returns a valid length for an operation.
    pub(crate) const fn some_bytes(action: Action, bytes: u32) -> u32 {
        match action {
            Action::End(_) => 0,
            _ if action.is_atomic() => 8,
            _ => bytes,
        }
    }

    #[test]
    fn each_operation_is_read_as_it_was_written_and_none_of_another_length() {
        for action in ACTIONS {
            let bytes = some_bytes(action, 3);
            let asked = Asked {
                action,
                place: GrantPlace {
                    index: 5,
                    generation: 6,
                },
                offset: u64::MAX,
                bytes,
            };
            let mut whole = asked.to_bytes().to_vec();
            whole.extend(vec![7; action.sent(bytes) as usize]);
            assert_eq!(Asked::parse(&whole), Some((asked, &whole[ASKED_BYTES..])));
            for length in 0..whole.len() {
                assert_eq!(Asked::parse(&whole[..length]), None, "{action:?}");
            }
            whole.push(0);
            assert_eq!(Asked::parse(&whole), None);
            for kind in [0, 7] {
                let mut wrong = asked.to_bytes();
                wrong[3] = kind;
                assert_eq!(Asked::parse(&wrong), None);
            }
        }
    }

    #[test]
    fn lengths_and_words_that_mean_nothing_are_refused() {
        for action in ACTIONS {
            let takes = [0, 8, OPERATION_BYTES_MAX].map(|bytes| action.takes(bytes));
            let is_end = matches!(action, Action::End(_));
            assert_eq!(
                takes,
                [!action.is_atomic(), !is_end, !action.is_atomic() && !is_end]
            );
            assert!(!action.takes(OPERATION_BYTES_MAX + 1));
            let (kind, first, second) = action.words();
            assert_eq!(Action::of((kind, first, second)), Some(action));
        }
        for words in [
            (1, 1, 0),
            (2, 1 << 32, 0),
            (3, 0, 1),
            (4, 1, 1),
            (0, 0, 0),
            (6, 1 << 32, 0),
            (6, 0, 1),
            (7, 0, 0),
        ] {
            assert_eq!(Action::of(words), None, "{words:?}");
        }
    }

    #[test]
    fn a_name_is_read_as_it_was_written() {
        let grant = ArenaGrant {
            owner: EndpointAddress {
                node: NodeNumber(1),
                endpoint: 2,
            },
            place: GrantPlace {
                index: 3,
                generation: 4,
            },
        };
        assert_eq!(ArenaGrant::from_bytes(grant.to_bytes()), grant);
        let bytes = u64::MAX - 1;
        let offer = ArenaOffer { grant, bytes };
        assert_eq!(ArenaOffer::from_bytes(offer.to_bytes()), offer);
        assert_eq!(GrantPlace::of(grant.place.word()), grant.place);
    }
}
