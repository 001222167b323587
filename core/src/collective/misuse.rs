//! Misuse of a collective: the argument that does not fit, with its value.

use core::fmt;

use super::COLLECTIVE_HEADER_BYTES;
use crate::rank::{RANKS_MAX, Rank};

/// The argument of a collective that does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CollectiveMisuse {
    /// The group has no such rank, which is the own rank or the root of a broadcast. Or the group is too large.
    Rank {
        /// The rank.
        rank: Rank,
        /// The number of ranks in the group.
        ranks: u8,
    },
    /// The output is not a whole number of elements, or an element has no bytes.
    PartOfElement {
        /// Bytes of the output.
        bytes: usize,
        /// Bytes of an element.
        element_bytes: usize,
    },
    /// The output has 4 GiB or more.
    TooLong {
        /// Bytes of the output.
        bytes: usize,
    },
    /// [`Collective::AllToAll`](super::Collective::AllToAll) has no input.
    NoInput,
    /// Only [`Collective::AllToAll`](super::Collective::AllToAll) takes an input.
    UnneededInput,
    /// The input and the output differ in length.
    InputLength {
        /// Bytes of the input.
        input: usize,
        /// Bytes of the output.
        output: usize,
    },
    /// The blocks of [`Collective::AllToAll`](super::Collective::AllToAll) would differ in length.
    UnevenBlocks {
        /// Elements of the output.
        elements: usize,
        /// The number of ranks in the group.
        ranks: u8,
    },
    /// The output or the input has another length than at the beginning of the collective.
    OtherLength {
        /// Bytes of the output or the input now.
        bytes: usize,
        /// Bytes of the output at the beginning.
        begun: usize,
    },
    /// An element does not fit in a message.
    LongElement {
        /// Bytes of an element.
        element_bytes: usize,
        /// The maximum bytes of a message, of which the header takes [`COLLECTIVE_HEADER_BYTES`].
        message_bytes: usize,
    },
}

impl fmt::Display for CollectiveMisuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Rank { ranks, .. } if ranks > RANKS_MAX => {
                write!(
                    f,
                    "a group of {ranks} ranks is too large: the maximum is {RANKS_MAX}"
                )
            }
            Self::Rank { rank, ranks } => write!(
                f,
                "the group has ranks 0 to {}, and no rank {rank}",
                ranks.saturating_sub(1)
            ),
            Self::PartOfElement { bytes, element_bytes } => write!(
                f,
                "an output of {bytes} bytes is not a whole number of elements of {element_bytes} bytes"
            ),
            Self::TooLong { bytes } => write!(
                f,
                "an output of {bytes} bytes is too long: the maximum is {} bytes",
                u32::MAX
            ),
            Self::NoInput => {
                f.write_str("AllToAll has no input: set Data::input, with the length of the output")
            }
            Self::UnneededInput => f.write_str("only AllToAll takes an input: set Data::input to None"),
            Self::InputLength { input, output } => write!(
                f,
                "the input has {input} bytes and the output {output}: AllToAll needs equal lengths"
            ),
            Self::UnevenBlocks { elements, ranks } => write!(
                f,
                "{elements} elements give no equal blocks for {ranks} ranks: AllToAll needs a multiple of {ranks}"
            ),
            Self::OtherLength { bytes, begun } => write!(
                f,
                "data of {bytes} bytes in a collective that began with {begun} bytes: poll with the same data until it is done"
            ),
            Self::LongElement {
                element_bytes,
                message_bytes,
            } => write!(
                f,
                "an element of {element_bytes} bytes does not fit in a message of {message_bytes} bytes, with its header of {COLLECTIVE_HEADER_BYTES}"
            ),
        }
    }
}
