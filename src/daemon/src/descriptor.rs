//! Descriptors of both rings: eight words each.
//!
//! ```text
//! word 0   kind (32 bits), bytes or rights (32)     word 1   node (32), endpoint (32)
//! word 2   the submitter's number                   word 3   a reason, or index (32) and generation (32) of a grant
//! word 4   offset in a grant or an arena, or a value that was fetched
//! word 5   offset in the submitter's own arena, or bytes of a grant
//! word 6   immediate, or first word of an atomic    word 7   second word of an atomic
//! ```
//!
//! Unused words are zero. Kinds from 16 up are operations: 16 plus the number of the [`Action`].

use doorbell::RemoteAccess;
use doorbell::interprocess::DESCRIPTOR_WORDS;

use crate::grants::Granted;
use crate::layout::EndpointLayout;
use crate::name::{EndpointAddress, NodeNumber};
use crate::one_sided::{Action, Asked, GrantPlace};
use crate::reason::{CutReason, GoneReason, UndeliveredReason};

const SEND: u32 = 1;
const GRANT: u32 = 2;
const REVOKE: u32 = 3;
const OPERATIONS: u32 = 16;

const MESSAGE: u32 = 1;
const UNDELIVERED: u32 = 2;
const GONE: u32 = 3;
const COMPLETED: u32 = 4;
const WRITTEN: u32 = 5;
const REVOKED: u32 = 6;

type Words = [u64; DESCRIPTOR_WORDS];

/// An entry of the ring to the daemon. The payload of a message is in the cell of its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Submission {
    Message(Message),
    Operation(Requested),
    Grant(GrantPlace, Granted),
    Revoke(GrantPlace),
}

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) to: EndpointAddress,
    pub(crate) bytes: u32,
    /// The client's own number for the message.
    pub(crate) number: u64,
}

/// An operation on the arena of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Requested {
    pub(crate) to: EndpointAddress,
    /// The client's own number for the operation.
    pub(crate) number: u64,
    pub(crate) asked: Asked,
    /// Offset of the bytes of a WRITE or a READ in the client's own arena.
    pub(crate) own: u64,
}

/// An entry of the ring to the client. The payload of a message is in the cell of its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    Message {
        from: EndpointAddress,
        bytes: u32,
    },
    Undelivered {
        to: EndpointAddress,
        number: u64,
        reason: UndeliveredReason,
    },
    Gone {
        who: EndpointAddress,
        reason: GoneReason,
    },
    Completed {
        to: EndpointAddress,
        number: u64,
        value: u64,
    },
    Written {
        from: EndpointAddress,
        place: GrantPlace,
        offset: u64,
        bytes: u32,
        immediate: u32,
    },
    Revoked(GrantPlace),
}

fn pair(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

#[expect(clippy::cast_possible_truncation, reason = "the halves of a word")]
const fn halves(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, word as u32)
}

fn address(word: u64) -> EndpointAddress {
    let (node, endpoint) = halves(word);
    EndpointAddress {
        node: NodeNumber(node),
        endpoint,
    }
}

fn word(address: EndpointAddress) -> u64 {
    pair(address.node.0, address.endpoint)
}

const fn rights(access: RemoteAccess) -> u32 {
    access.write as u32 | (access.read as u32) << 1 | (access.atomic as u32) << 2
}

fn access(rights: u32) -> Option<RemoteAccess> {
    let is_set = |bit: u32| rights & bit != 0;
    (rights < 8).then(|| RemoteAccess {
        write: is_set(1),
        read: is_set(2),
        atomic: is_set(4),
    })
}

impl Message {
    #[inline]
    pub(crate) fn words(&self) -> Words {
        let head = pair(SEND, self.bytes);
        [head, word(self.to), self.number, 0, 0, 0, 0, 0]
    }
}

impl Submission {
    pub(crate) fn words(&self) -> Words {
        match *self {
            Self::Message(message) => message.words(),
            Self::Grant(place, granted) => [
                pair(GRANT, rights(granted.access)),
                word(granted.to),
                0,
                place.word(),
                granted.offset,
                granted.bytes,
                0,
                0,
            ],
            Self::Revoke(place) => [pair(REVOKE, 0), 0, 0, place.word(), 0, 0, 0, 0],
            Self::Operation(Requested {
                to,
                number,
                asked,
                own,
            }) => {
                let (kind, first, second) = asked.action.words();
                let kind = OPERATIONS.wrapping_add(kind);
                let (head, place) = (pair(kind, asked.bytes), asked.place.word());
                [head, word(to), number, place, asked.offset, own, first, second]
            }
        }
    }

    /// Validates the copy of a descriptor from a client with this layout.
    #[inline]
    pub(crate) fn parse(words: &Words, layout: &EndpointLayout) -> Result<Self, CutReason> {
        let [head, to, number, rest @ ..] = words;
        let (kind, bytes) = halves(*head);
        if kind != SEND {
            return Self::parse_other(words, layout);
        }
        if bytes > layout.message_bytes() {
            return Err(CutReason::Length);
        }
        if rest.iter().fold(0, |all, word| all | word) != 0 {
            return Err(CutReason::Descriptor);
        }
        let (to, number) = (address(*to), *number);
        Ok(Self::Message(Message { to, bytes, number }))
    }

    fn parse_other(words: &Words, layout: &EndpointLayout) -> Result<Self, CutReason> {
        let [head, to, number, place, offset, own, first, second] = *words;
        let (kind, low) = halves(head);
        let submission = match kind {
            GRANT => {
                let granted = Granted {
                    to: address(to),
                    offset,
                    bytes: own,
                    access: access(low).ok_or(CutReason::Descriptor)?,
                };
                Self::Grant(GrantPlace::of(place), granted)
            }
            REVOKE => Self::Revoke(GrantPlace::of(place)),
            _ => {
                let action = kind
                    .checked_sub(OPERATIONS)
                    .and_then(|kind| Action::of((kind, first, second)))
                    .ok_or(CutReason::Descriptor)?;
                if !action.takes(low) {
                    return Err(CutReason::Length);
                }
                let end = own.checked_add(low.into());
                let is_within = end.is_some_and(|end| end <= layout.arena_bytes());
                if !action.is_atomic() && !is_within {
                    return Err(CutReason::Range);
                }
                let asked = Asked {
                    action,
                    place: GrantPlace::of(place),
                    offset,
                    bytes: low,
                };
                if action.is_atomic() && own != 0 {
                    return Err(CutReason::Descriptor);
                }
                Self::Operation(Requested {
                    to: address(to),
                    number,
                    asked,
                    own,
                })
            }
        };
        // Each meaning has exactly one encoding.
        if submission.words() == *words {
            Ok(submission)
        } else {
            Err(CutReason::Descriptor)
        }
    }
}

/// The words of the report of a message.
#[inline]
pub(crate) fn message_report(from: EndpointAddress, bytes: u32) -> Words {
    [pair(MESSAGE, bytes), word(from), 0, 0, 0, 0, 0, 0]
}

impl Report {
    pub(crate) fn words(&self) -> Words {
        match *self {
            Self::Message { from, bytes } => message_report(from, bytes),
            Self::Undelivered { to, number, reason } => {
                let reason = reason.number().into();
                [pair(UNDELIVERED, 0), word(to), number, reason, 0, 0, 0, 0]
            }
            Self::Gone { who, reason } => [pair(GONE, 0), word(who), 0, reason.number().into(), 0, 0, 0, 0],
            Self::Completed { to, number, value } => {
                [pair(COMPLETED, 0), word(to), number, 0, value, 0, 0, 0]
            }
            Self::Written {
                from,
                place,
                offset,
                bytes,
                immediate,
            } => [
                pair(WRITTEN, bytes),
                word(from),
                0,
                place.word(),
                offset,
                0,
                immediate.into(),
                0,
            ],
            Self::Revoked(place) => [pair(REVOKED, 0), 0, 0, place.word(), 0, 0, 0, 0],
        }
    }

    /// Reads the sender and the bytes of a message from the first words of its report. `None` for anything else.
    #[inline]
    pub(crate) fn message([head, who]: [u64; 2], message_bytes: u32) -> Option<(EndpointAddress, u32)> {
        // One comparison checks both kind and length.
        let bytes = head.wrapping_sub(pair(MESSAGE, 0));
        let (_, length) = halves(bytes);
        (bytes <= message_bytes.into()).then(|| (address(who), length))
    }

    /// Parses the copy of a descriptor from the daemon. Returns `None` if it is invalid in this version.
    pub(crate) fn parse(words: &Words, message_bytes: u32) -> Option<Self> {
        let [head, who, number, reason, value, _, immediate, _] = *words;
        let (kind, bytes) = halves(head);
        let first = [head, who];
        let (who, place) = (address(who), GrantPlace::of(reason));
        let reason = || u32::try_from(reason).ok();
        match kind {
            MESSAGE => Self::message(first, message_bytes).map(|(from, bytes)| Self::Message { from, bytes }),
            UNDELIVERED => {
                let reason = UndeliveredReason::of(reason()?)?;
                Some(Self::Undelivered {
                    to: who,
                    number,
                    reason,
                })
            }
            GONE => {
                let reason = GoneReason::of(reason()?)?;
                Some(Self::Gone { who, reason })
            }
            COMPLETED => Some(Self::Completed {
                to: who,
                number,
                value,
            }),
            WRITTEN => Some(Self::Written {
                from: who,
                place,
                offset: value,
                bytes,
                immediate: u32::try_from(immediate).ok()?,
            }),
            REVOKED => Some(Self::Revoked(place)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use doorbell::RemoteAccess;

    use super::{Message, Report, Requested, Submission};
    use crate::grants::Granted;
    use crate::layout::EndpointLayout;
    use crate::name::{EndpointAddress, NodeNumber};
    use crate::one_sided::tests::{ACTIONS, some_bytes};
    use crate::one_sided::{Asked, GrantPlace};
    use crate::reason::{CutReason, GoneReason, UndeliveredReason};

    const WHO: EndpointAddress = EndpointAddress {
        node: NodeNumber(7),
        endpoint: u32::MAX,
    };

    const PLACE: GrantPlace = GrantPlace {
        index: 5,
        generation: u32::MAX,
    };

    fn layout() -> EndpointLayout {
        EndpointLayout::new(4, 64).unwrap().with_arena(4096).unwrap()
    }

    fn submissions() -> Vec<Submission> {
        let granted = Granted {
            to: WHO,
            offset: u64::MAX,
            bytes: u64::MAX,
            access: RemoteAccess::ALL,
        };
        let operation = |action: crate::one_sided::Action| {
            let bytes = some_bytes(action, 64);
            let asked = Asked {
                action,
                place: PLACE,
                offset: u64::MAX,
                bytes,
            };
            let own = if action.is_atomic() { 0 } else { 4096 - 64 };
            Submission::Operation(Requested {
                to: WHO,
                number: 9,
                asked,
                own,
            })
        };
        let mut all = vec![
            Submission::Message(Message {
                to: WHO,
                bytes: 64,
                number: 9,
            }),
            Submission::Grant(PLACE, granted),
            Submission::Revoke(PLACE),
        ];
        all.extend(ACTIONS.map(operation));
        all
    }

    #[test]
    fn a_submission_is_read_as_it_was_written_and_nothing_else_is() {
        for submission in submissions() {
            let words = submission.words();
            assert_eq!(Submission::parse(&words, &layout()), Ok(submission));
            for word in 0..8 {
                let mut wrong = words;
                wrong[word] ^= 1 << 63;
                let read = Submission::parse(&wrong, &layout());
                assert_ne!(read, Ok(submission));
                // The word then has another meaning, or is refused.
                assert!(
                    read.is_err() || read.unwrap().words() == wrong,
                    "{submission:?} {word}"
                );
            }
        }
        let words = |head: u64| [head, 0, 0, 0, 0, 0, 0, 0];
        for kind in [0, 4, 15, 16, 23, u64::from(u32::MAX)] {
            let read = Submission::parse(&words(kind << 32), &layout());
            assert_eq!(read, Err(CutReason::Descriptor), "{kind}");
        }
    }

    #[test]
    fn lengths_and_ranges_beyond_its_own_memory_are_refused() {
        let parse = |words| Submission::parse(&words, &layout());
        assert_eq!(parse([1 << 32 | 65, 0, 0, 0, 0, 0, 0, 0]), Err(CutReason::Length));
        for kind in [17, 18, 19] {
            let read = |bytes: u64, own| parse([kind << 32 | bytes, 0, 0, 0, 0, own, 0, 0]).err();
            assert_eq!((read(64, 4096 - 64), read(0, 4096)), (None, None));
            let out = Some(CutReason::Range);
            assert_eq!((read(64, 4033), read(0, 4097), read(4097, 0)), (out, out, out));
            assert_eq!((read(1, u64::MAX), read(0, u64::MAX)), (out, out));
            assert_eq!(read((1 << 16) + 1, 0), Some(CutReason::Length));
        }
        assert_eq!(parse([20 << 32 | 4, 0, 0, 0, 0, 0, 1, 0]), Err(CutReason::Length));
        assert_eq!(
            parse([20 << 32 | 8, 0, 0, 0, 0, 8, 1, 0]),
            Err(CutReason::Descriptor)
        );
        let no_arena = EndpointLayout::new(4, 64).unwrap();
        let read = Submission::parse(&[17 << 32 | 1, 0, 0, 0, 0, 0, 0, 0], &no_arena);
        assert_eq!(read, Err(CutReason::Range));
    }

    #[test]
    fn a_report_is_read_as_it_was_written() {
        let undelivered = UndeliveredReason::TooLong;
        let reports = [
            Report::Message { from: WHO, bytes: 64 },
            Report::Undelivered {
                to: WHO,
                number: 3,
                reason: undelivered,
            },
            Report::Gone {
                who: WHO,
                reason: GoneReason::Died,
            },
            Report::Completed {
                to: WHO,
                number: 3,
                value: u64::MAX,
            },
            Report::Written {
                from: WHO,
                place: PLACE,
                offset: 1 << 40,
                bytes: 3,
                immediate: u32::MAX,
            },
            Report::Revoked(PLACE),
        ];
        for report in reports {
            assert_eq!(Report::parse(&report.words(), 64), Some(report));
            let mut words = report.words();
            words[0] |= 1 << 63;
            assert_eq!(Report::parse(&words, 64), None);
        }
        assert_eq!(Report::parse(&reports[0].words(), 63), None);
    }
}
