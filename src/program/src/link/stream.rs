//! The messages on the link, and the account of them. Each message has a number, from which its bytes are determined. The wish of the
//! connecting side determines its length.

use std::collections::VecDeque;

use doorbell::link::{FinalReason, Sequence};

use super::reach::Op;

/// Length of the header of each message, which is also the minimum length of a message.
pub(crate) const HEADER_BYTES: usize = 24;

const MAGIC: u32 = 0x6462_6c31;

/// The connecting side's wish for the other side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PeerSettings {
    /// Whether the other side sends, too, until it receives the last message.
    pub(super) answers: bool,
    /// Length of each message of both sides, or of each piece of its windows.
    pub(super) message_bytes: u32,
    /// Maximum number of messages per second; 0 for no limit.
    pub(super) per_second: u32,
    /// The operation to expect: messages, or one-sided requests to its windows.
    pub(super) op: Op,
}

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The first message of the connecting side.
    Begin(PeerSettings),
    /// A numbered message. Numbers begin at 0.
    Data(u64),
    /// The last message: the number of numbered messages, and of one-sided requests.
    End { messages: u64, requests: u64 },
}

impl Kind {
    fn header(self) -> [u8; HEADER_BYTES] {
        let (kind, flags, number, bytes, per_second) = match self {
            Self::Begin(wish) => {
                let flags = u16::from(wish.answers) | wish.op.to_u16() << 1;
                (1_u16, flags, 0, wish.message_bytes, wish.per_second)
            }
            Self::Data(number) => (2, 0, number, 0, 0),
            Self::End { messages, requests } => {
                // The lower half is where it was when there was no upper one.
                let [a, b, c, d, low @ ..] = requests.to_be_bytes();
                let high = u32::from_be_bytes([a, b, c, d]);
                (3, 0, messages, u32::from_be_bytes(low), high)
            }
        };
        let fields = MAGIC
            .to_be_bytes()
            .into_iter()
            .chain(kind.to_be_bytes())
            .chain(flags.to_be_bytes())
            .chain(number.to_be_bytes())
            .chain(bytes.to_be_bytes())
            .chain(per_second.to_be_bytes());
        let mut header = [0; HEADER_BYTES];
        header.iter_mut().zip(fields).for_each(|(to, from)| *to = from);
        header
    }

    /// Parses a message. Each byte of its header must be as this kind has it, and the first and the last message consist of a header alone.
    fn parse(message: &[u8]) -> Option<(Self, &[u8])> {
        let (header, body) = message.split_first_chunk::<HEADER_BYTES>()?;
        let kind = Self::read(header).filter(|kind| kind.header() == *header)?;
        let is_whole = body.is_empty() || matches!(kind, Self::Data(_));
        is_whole.then_some((kind, body))
    }

    fn read(message: &[u8]) -> Option<Self> {
        let (magic, rest) = message.split_first_chunk()?;
        let (kind, rest) = rest.split_first_chunk()?;
        let (flags, rest) = rest.split_first_chunk()?;
        let (number, rest) = rest.split_first_chunk()?;
        let (bytes, rest) = rest.split_first_chunk()?;
        let (per_second, _) = rest.split_first_chunk()?;
        if u32::from_be_bytes(*magic) != MAGIC {
            return None;
        }
        let (number, bytes) = (u64::from_be_bytes(*number), u32::from_be_bytes(*bytes));
        let per_second = u32::from_be_bytes(*per_second);
        let flags = u16::from_be_bytes(*flags);
        match u16::from_be_bytes(*kind) {
            1 => Some(Self::Begin(PeerSettings {
                answers: flags & 1 != 0,
                message_bytes: bytes,
                per_second,
                op: Op::from_u16(flags >> 1)?,
            })),
            2 => Some(Self::Data(number)),
            3 => Some(Self::End {
                messages: number,
                requests: u64::from(per_second) << 32 | u64::from(bytes),
            }),
            _ => None,
        }
    }
}

/// Eight bytes of a message's body.
fn of(number: u64, at: u64) -> [u8; 8] {
    number
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add(at)
        .to_le_bytes()
}

pub(super) fn fill(body: &mut [u8], number: u64) {
    for (at, chunk) in (0_u64..).zip(body.chunks_mut(8)) {
        for (to, from) in chunk.iter_mut().zip(of(number, at)) {
            *to = from;
        }
    }
}

pub(super) fn is_right(body: &[u8], number: u64) -> bool {
    (0_u64..)
        .zip(body.chunks(8))
        .all(|(at, chunk)| of(number, at).starts_with(chunk))
}

/// The messages that this side sends.
#[derive(Debug)]
pub(super) struct Outgoing {
    message: Vec<u8>,
    /// Number of numbered messages.
    pub(super) messages: u64,
    pub(super) bytes: u64,
    /// The last fragment of each accepted message that has no outcome yet.
    open: VecDeque<Sequence>,
    /// Messages that the link accepted, including the first and the last one.
    pub(super) taken: u64,
    pub(super) done: u64,
    /// The reason for each message whose outcome is unknown.
    pub(super) unknown: Vec<FinalReason>,
    /// Messages with an unknown outcome that were never sent.
    pub(super) not_sent: u64,
    /// Completions that match no open message.
    pub(super) wrong_ends: u64,
}

impl Outgoing {
    /// Creates the state for messages of this length.
    pub(super) fn new(message_bytes: usize) -> Self {
        Self {
            message: vec![0; message_bytes.max(HEADER_BYTES)],
            messages: 0,
            bytes: 0,
            open: VecDeque::new(),
            taken: 0,
            done: 0,
            unknown: Vec::new(),
            not_sent: 0,
            wrong_ends: 0,
        }
    }

    /// The first message of the connecting side.
    pub(super) fn begin(&mut self, wish: PeerSettings) -> &[u8] {
        self.short(Kind::Begin(wish))
    }

    /// The next numbered message. Call [`Outgoing::counted`] after it was accepted.
    pub(super) fn next(&mut self) -> &[u8] {
        let number = self.messages;
        let (header, body) = self.message.split_at_mut(HEADER_BYTES);
        header.copy_from_slice(&Kind::Data(number).header());
        fill(body, number);
        &self.message
    }

    pub(super) fn counted(&mut self) {
        self.messages = self.messages.saturating_add(1);
        let bytes = u64::try_from(self.message.len()).unwrap_or(u64::MAX);
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// The last message, which also reports the number of one-sided requests.
    pub(super) fn end(&mut self, requests: u64) -> &[u8] {
        self.short(Kind::End {
            messages: self.messages,
            requests,
        })
    }

    fn short(&mut self, kind: Kind) -> &[u8] {
        let (header, _) = self.message.split_at_mut(HEADER_BYTES);
        header.copy_from_slice(&kind.header());
        header
    }

    /// Records that the link accepted a message whose last fragment is `last`.
    pub(super) fn taken(&mut self, last: Sequence) {
        self.open.push_back(last);
        self.taken = self.taken.saturating_add(1);
    }

    /// Records that the peer has received everything up to this fragment.
    pub(super) fn done_through(&mut self, through: Sequence) {
        while self.open.front().is_some_and(|last| *last <= through) {
            self.open.pop_front();
            self.done = self.done.saturating_add(1);
        }
    }

    /// Records that the outcome of this message is unknown.
    pub(super) fn unknown(&mut self, last: Sequence, was_sent: bool, reason: FinalReason) {
        if self.open.front() == Some(&last) {
            self.open.pop_front();
            self.unknown.push(reason);
            self.not_sent = self.not_sent.saturating_add(u64::from(!was_sent));
        } else {
            self.wrong_ends = self.wrong_ends.saturating_add(1);
        }
    }

    /// The number of accepted messages that have no outcome yet.
    pub(super) fn open(&self) -> usize {
        self.open.len()
    }
}

/// The messages that arrived.
#[derive(Debug, Default)]
pub(super) struct Incoming {
    /// Length of each numbered message, after the connecting side has determined it.
    message_bytes: Option<usize>,
    /// The peer's wish, after it has arrived.
    pub(super) wish: Option<PeerSettings>,
    /// The number of messages that the peer reported with its last one.
    pub(super) ended: Option<u64>,
    /// The number of one-sided requests that the peer reported with its last message.
    pub(super) requests: u64,
    /// The number of the next message.
    expected: u64,
    /// Messages that arrived, including the first and the last one.
    pub(super) taken: u64,
    pub(super) messages: u64,
    pub(super) bytes: u64,
    /// Numbers that were skipped.
    pub(super) lost: u64,
    /// Numbers that arrived again, or after they were counted as lost.
    pub(super) again: u64,
    /// Messages with a wrong byte or a wrong length.
    pub(super) wrong: u64,
}

impl Incoming {
    /// Creates the state of the connecting side, for messages of this length.
    pub(super) fn of_length(message_bytes: usize) -> Self {
        Self {
            message_bytes: Some(message_bytes.max(HEADER_BYTES)),
            ..Self::default()
        }
    }

    /// Checks and counts the next message.
    pub(super) fn take(&mut self, message: &[u8]) {
        self.taken = self.taken.saturating_add(1);
        let Some((kind, body)) = Kind::parse(message).filter(|_| self.ended.is_none()) else {
            self.wrong = self.wrong.saturating_add(1);
            return;
        };
        match kind {
            Kind::Begin(wish) if self.wish.is_none() && self.message_bytes.is_none() => {
                let bytes = usize::try_from(wish.message_bytes).unwrap_or(usize::MAX);
                self.message_bytes = Some(bytes.max(HEADER_BYTES));
                self.wish = Some(wish);
            }
            Kind::Begin(_) => self.wrong = self.wrong.saturating_add(1),
            Kind::Data(number) => {
                self.messages = self.messages.saturating_add(1);
                let bytes = u64::try_from(message.len()).unwrap_or(u64::MAX);
                self.bytes = self.bytes.saturating_add(bytes);
                if self.message_bytes != Some(message.len()) || !is_right(body, number) {
                    self.wrong = self.wrong.saturating_add(1);
                }
                if number < self.expected {
                    self.again = self.again.saturating_add(1);
                } else {
                    self.lost = self.lost.saturating_add(number.wrapping_sub(self.expected));
                    self.expected = number.saturating_add(1);
                }
            }
            Kind::End { messages, requests } => {
                self.lost = self.lost.saturating_add(messages.saturating_sub(self.expected));
                self.again = self.again.saturating_add(self.expected.saturating_sub(messages));
                (self.ended, self.requests) = (Some(messages), requests);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use doorbell::link::{FinalReason, Sequence};

    use super::{HEADER_BYTES, Incoming, Op, Outgoing, PeerSettings};

    fn message(outgoing: &mut Outgoing) -> Vec<u8> {
        let message = outgoing.next().to_vec();
        outgoing.counted();
        message
    }

    #[test]
    fn what_comes_as_sent_is_well() {
        let (mut outgoing, mut incoming) = (Outgoing::new(100), Incoming::default());
        let wish = PeerSettings {
            answers: true,
            message_bytes: 100,
            per_second: 7,
            op: Op::Read,
        };
        incoming.take(outgoing.begin(wish));
        for _ in 0..3 {
            incoming.take(&message(&mut outgoing));
        }
        let requests = (1 << 40) + 41;
        incoming.take(outgoing.end(requests));
        assert_eq!((incoming.wish, incoming.requests), (Some(wish), requests));
        assert_eq!(
            (incoming.messages, incoming.bytes, incoming.ended),
            (3, 300, Some(3))
        );
        assert_eq!((incoming.lost, incoming.again, incoming.wrong), (0, 0, 0));
        assert_eq!(incoming.taken, 5);
    }

    #[test]
    fn what_is_lost_doubled_changed_or_late_is_found() {
        let mut outgoing = Outgoing::new(HEADER_BYTES + 13);
        let [first, second, third, fourth] = [(); 4].map(|()| message(&mut outgoing));
        let end = outgoing.end(0).to_vec();
        let found = |messages: &[&[u8]]| {
            let mut incoming = Incoming::of_length(HEADER_BYTES + 13);
            messages.iter().for_each(|message| incoming.take(message));
            (incoming.lost, incoming.again, incoming.wrong)
        };
        assert_eq!(found(&[&first, &second, &third, &fourth, &end]), (0, 0, 0));
        assert_eq!(found(&[&first, &third, &fourth, &end]), (1, 0, 0));
        assert_eq!(found(&[&first, &second, &third, &end]), (1, 0, 0));
        assert_eq!(
            found(&[&first, &second, &second, &third, &fourth, &end]),
            (0, 1, 0)
        );
        assert_eq!(found(&[&first, &third, &second, &fourth, &end]), (1, 1, 0));
        assert_eq!(found(&[&first, &end, &second]), (3, 0, 1));
        for at in 0..first.len() {
            let mut changed = first.clone();
            changed[at] ^= 4;
            assert_eq!(found(&[&changed]).2, 1, "{at}");
        }
        for at in 0..end.len() {
            let mut changed = end.clone();
            changed[at] ^= 4;
            let is_number = (8..24).contains(&at);
            assert_eq!(found(&[&changed]).2, u64::from(!is_number), "{at}");
        }
        for bytes in 0..first.len() {
            assert_eq!(found(&[&first[..bytes]]), (0, 0, 1), "{bytes}");
        }
        assert_eq!(found(&[&[&first[..], &[0]].concat()]), (0, 0, 1));
        assert_eq!(found(&[&[&end[..], &[0]].concat()]), (0, 0, 1));
        assert_eq!(found(&[outgoing.begin(PeerSettings::default())]), (0, 0, 1));
        assert_eq!(found(&[b"nonsense of some length, not ours"]), (0, 0, 1));
    }

    #[test]
    fn each_request_has_one_end() {
        let mut outgoing = Outgoing::new(64);
        for last in [0, 3, 4, 9] {
            outgoing.taken(Sequence(last));
        }
        outgoing.done_through(Sequence(2));
        assert_eq!((outgoing.done, outgoing.open()), (1, 3));
        outgoing.done_through(Sequence(4));
        outgoing.unknown(Sequence(9), false, FinalReason::Unreachable);
        assert_eq!((outgoing.done, outgoing.not_sent), (3, 1));
        assert_eq!(outgoing.unknown, [FinalReason::Unreachable]);
        assert_eq!((outgoing.open(), outgoing.wrong_ends), (0, 0));
        outgoing.unknown(Sequence(9), true, FinalReason::Closed);
        assert_eq!((outgoing.unknown.len(), outgoing.wrong_ends), (1, 1));
    }
}
