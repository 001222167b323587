//! Descriptors of both rings, as their eight words.
//!
//! ```text
//! word 0   kind (32 bits), bytes of the payload (32)      word 1   node (32), endpoint (32)
//! word 2   the sender's number of the message             word 3   a reason
//! ```
//!
//! The other words are zero.

use doorbell::interprocess::DESCRIPTOR_WORDS;

use crate::name::{EndpointAddress, NodeNumber};
use crate::reason::{CutReason, GoneReason, UndeliveredReason};

const SEND: u32 = 1;
const MESSAGE: u32 = 1;
const UNDELIVERED: u32 = 2;
const GONE: u32 = 3;

type Words = [u64; DESCRIPTOR_WORDS];

/// A message that a client hands to the daemon; its payload is in the cell of its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Submission {
    pub(crate) to: EndpointAddress,
    pub(crate) bytes: u32,
    /// The client's own number of the message.
    pub(crate) number: u64,
}

/// Something that the daemon reports to a client; the payload of a message is in the cell of its slot.
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

impl Submission {
    pub(crate) fn words(&self) -> Words {
        [pair(SEND, self.bytes), word(self.to), self.number, 0, 0, 0, 0, 0]
    }

    /// Reads the copy of a descriptor of a client.
    pub(crate) fn parse(words: &Words, message_bytes: u32) -> Result<Self, CutReason> {
        let [head, to, number, rest @ ..] = *words;
        let (kind, bytes) = halves(head);
        if kind != SEND || rest != [0; 5] {
            return Err(CutReason::Descriptor);
        }
        if bytes > message_bytes {
            return Err(CutReason::Length);
        }
        Ok(Self {
            to: address(to),
            bytes,
            number,
        })
    }
}

impl Report {
    pub(crate) fn words(&self) -> Words {
        match *self {
            Self::Message { from, bytes } => [pair(MESSAGE, bytes), word(from), 0, 0, 0, 0, 0, 0],
            Self::Undelivered { to, number, reason } => {
                let reason = reason.number().into();
                [pair(UNDELIVERED, 0), word(to), number, reason, 0, 0, 0, 0]
            }
            Self::Gone { who, reason } => [pair(GONE, 0), word(who), 0, reason.number().into(), 0, 0, 0, 0],
        }
    }

    /// Reads the copy of a descriptor of the daemon. `None` if it is none of this version.
    pub(crate) fn parse(words: &Words, message_bytes: u32) -> Option<Self> {
        let [head, who, number, reason, ..] = *words;
        let (kind, bytes) = halves(head);
        let (who, reason) = (address(who), u32::try_from(reason).ok()?);
        match kind {
            MESSAGE if bytes <= message_bytes => Some(Self::Message { from: who, bytes }),
            UNDELIVERED => {
                let reason = UndeliveredReason::of(reason)?;
                Some(Self::Undelivered {
                    to: who,
                    number,
                    reason,
                })
            }
            GONE => {
                let reason = GoneReason::of(reason)?;
                Some(Self::Gone { who, reason })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Report, Submission};
    use crate::name::{EndpointAddress, NodeNumber};
    use crate::reason::{CutReason, GoneReason, UndeliveredReason};

    const WHO: EndpointAddress = EndpointAddress {
        node: NodeNumber(7),
        endpoint: u32::MAX,
    };

    #[test]
    fn a_submission_is_read_as_it_was_written_and_nothing_else_is() {
        let sent = Submission {
            to: WHO,
            bytes: 64,
            number: 9,
        };
        assert_eq!(Submission::parse(&sent.words(), 64), Ok(sent));
        assert_eq!(Submission::parse(&sent.words(), 63), Err(CutReason::Length));
        for word in [0, 3, 4, 5, 6, 7] {
            let mut words = sent.words();
            words[word] ^= 1 << 63;
            assert_eq!(
                Submission::parse(&words, 64),
                Err(CutReason::Descriptor),
                "{word}"
            );
        }
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
