//! Encoding of a request in a ring descriptor.
//!
//! | field of the descriptor | contents |
//! |---|---|
//! | first word | index and generation of the channel |
//! | second word | length in bytes and tag of the slot |
//! | third word | the remote address of a WRITE, or the immediate of a SEND |
//! | index | the index of the slot |
//! | kind | operation 2 bits, flags 4 bits, index of the submitter in its ring 10 bits |
//!
//! The key of a remote address, and the immediate of a WRITE, do not fit into the descriptor. They are stored in a word that the
//! return path has for each slot.

use doorbell_core::Rkey;
use doorbell_core::provider::{DetachedSlot, Operation, PostFlags, RemoteAddress};
use doorbell_hotpath::ring::Descriptor;

use crate::worker::channel::ChannelId;

/// Maximum number of submitters that share a ring.
pub(crate) const SHARING_MAX: usize = 1 << 10;

const SEND: u16 = 0;
const SEND_WITH_IMMEDIATE: u16 = 1;
const WRITE: u16 = 2;
const WRITE_WITH_IMMEDIATE: u16 = 3;
const OPERATION_MASK: u16 = 3;
const FLAGS_SHIFT: u32 = 2;
const FLAGS_MASK: u16 = 0xf;
const WHO_SHIFT: u32 = 6;

/// A request in the form of a ring descriptor.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Request(Descriptor);

impl Request {
    /// Packs a request into a descriptor. Returns the request, and the detail word of its slot if the operation needs one. `None`
    /// if the operation brings data back.
    pub(super) fn pack(
        who: u16,
        channel: ChannelId,
        operation: Operation,
        slot: DetachedSlot,
        flags: PostFlags,
    ) -> Option<(Self, Option<u64>)> {
        let (code, word, detail) = match operation {
            Operation::Send => (SEND, 0, None),
            Operation::SendWithImmediate(immediate) => (SEND_WITH_IMMEDIATE, immediate.into(), None),
            Operation::Write(remote) => (WRITE, remote.address(), Some(pair(remote.rkey().0, 0))),
            Operation::WriteWithImmediate(remote, immediate) => (
                WRITE_WITH_IMMEDIATE,
                remote.address(),
                Some(pair(remote.rkey().0, immediate)),
            ),
            Operation::Read(_) | Operation::FetchAndAdd { .. } | Operation::CompareAndSwap { .. } => {
                return None;
            }
        };
        let flags = u16::from(flags.bits()) & FLAGS_MASK;
        let descriptor = Descriptor {
            words: [
                pair(channel.index, channel.generation),
                pair(slot.len_bytes, slot.tag),
                word,
            ],
            index: slot.index,
            kind: code | flags << FLAGS_SHIFT | who << WHO_SHIFT,
        };
        Some((Self(descriptor), detail))
    }

    pub(super) const fn descriptor(self) -> Descriptor {
        self.0
    }

    pub(super) const fn of(descriptor: Descriptor) -> Self {
        Self(descriptor)
    }

    /// Index of its submitter among those that share the ring.
    #[inline]
    pub(crate) const fn who(&self) -> usize {
        (self.0.kind >> WHO_SHIFT) as usize
    }

    /// Returns the channel of the request.
    #[inline]
    pub(crate) const fn channel(&self) -> ChannelId {
        let [channel, ..] = self.0.words;
        let (index, generation) = halves(channel);
        ChannelId { index, generation }
    }

    /// The detached slot of the request.
    #[inline]
    pub(crate) const fn slot(&self) -> DetachedSlot {
        let [_, slot, _] = self.0.words;
        let (len_bytes, tag) = halves(slot);
        DetachedSlot {
            index: self.0.index,
            len_bytes,
            tag,
        }
    }

    /// Whether the request uses a receive of the peer, and so a credit.
    #[inline]
    pub(crate) const fn takes_receive(&self) -> bool {
        self.0.kind & OPERATION_MASK != WRITE
    }

    /// Returns the operation of the request. `detail` returns the detail word of its slot.
    #[inline]
    pub(crate) fn operation(&self, detail: impl FnOnce() -> u64) -> Operation {
        let [_, _, word] = self.0.words;
        let remote = || {
            let (rkey, immediate) = halves(detail());
            let rkey = Rkey(rkey);
            (RemoteAddress::new(word, rkey), immediate)
        };
        match self.0.kind & OPERATION_MASK {
            SEND => Operation::Send,
            SEND_WITH_IMMEDIATE => Operation::SendWithImmediate(halves(word).1),
            WRITE => Operation::Write(remote().0),
            _ => {
                let (remote, immediate) = remote();
                Operation::WriteWithImmediate(remote, immediate)
            }
        }
    }

    /// Returns the posting flags.
    #[inline]
    pub(crate) fn flags(&self) -> PostFlags {
        let [bits, _] = (self.0.kind >> FLAGS_SHIFT & FLAGS_MASK).to_le_bytes();
        PostFlags::from_bits_truncate(bits)
    }
}

/// Combines two halves into a word.
#[inline]
pub(super) const fn pair(high: u32, low: u32) -> u64 {
    (high as u64) << 32 | low as u64
}

/// Splits a word into its high and its low half.
#[inline]
#[expect(
    clippy::cast_possible_truncation,
    reason = "each takes the half that is its own"
)]
pub(super) const fn halves(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, word as u32)
}

#[cfg(test)]
mod tests {
    use super::{Request, SHARING_MAX};
    use crate::worker::channel::ChannelId;
    use doorbell_core::Rkey;
    use doorbell_core::provider::{DetachedSlot, Operation, PostFlags, RemoteAddress};

    const REMOTE: RemoteAddress = RemoteAddress::new(0xfedc_ba98_7654_3210, Rkey(0xffff_fff1));

    #[test]
    fn a_request_is_unpacked_as_it_was() {
        let operations = [
            Operation::Send,
            Operation::SendWithImmediate(0xdead_beef),
            Operation::Write(REMOTE),
            Operation::WriteWithImmediate(REMOTE, u32::MAX),
        ];
        let slot = DetachedSlot {
            index: 0xffff,
            len_bytes: 1 << 31,
            tag: 0x8000_0001,
        };
        let channel = ChannelId {
            index: 0xf_ffff,
            generation: u32::MAX - 3,
        };
        for who in [0, 1, u16::try_from(SHARING_MAX - 1).unwrap()] {
            for operation in operations {
                for flags in (0..16).map(PostFlags::from_bits_truncate) {
                    let (request, detail) = Request::pack(who, channel, operation, slot, flags).unwrap();
                    let request = Request::of(request.descriptor());
                    assert_eq!(request.who(), usize::from(who));
                    assert_eq!(request.channel(), channel);
                    assert_eq!(request.slot(), slot);
                    assert_eq!(request.operation(|| detail.unwrap()), operation);
                    assert_eq!(request.flags(), flags);
                    assert_eq!(request.takes_receive(), operation.takes_receive());
                }
            }
        }
        let read = Operation::Read(REMOTE);
        assert!(Request::pack(0, channel, read, slot, PostFlags::empty()).is_none());
    }
}
