//! Messages whose bytes a link shares with its caller until the peer has acknowledged them, instead of a copy.

use std::collections::VecDeque;
use std::sync::Arc;

use doorbell_core::session::{Fragment, Sequence, Unsent};

/// A shared message, and the numbers of its first and its last fragment.
#[derive(Debug)]
struct SharedMessage {
    first: Sequence,
    last: Sequence,
    bytes: Arc<Vec<u8>>,
}

/// Shared messages that the peer has not acknowledged, in order.
#[derive(Debug, Default)]
pub(super) struct SharedMessages {
    messages: VecDeque<SharedMessage>,
}

impl SharedMessages {
    pub(super) fn put(&mut self, taken: &Unsent, message: &Arc<Vec<u8>>) {
        self.messages.push_back(SharedMessage {
            first: taken.first,
            last: taken.last,
            bytes: Arc::clone(message),
        });
    }

    /// Returns the bytes of a fragment; `None` if it belongs to no shared message. Each fragment of a message has `each` bytes, except for the
    /// last one.
    #[inline]
    pub(super) fn get(&self, fragment: &Fragment, each: u32) -> Option<&[u8]> {
        if self.messages.is_empty() {
            return None;
        }
        self.find(fragment, each)
    }

    fn find(&self, fragment: &Fragment, each: u32) -> Option<&[u8]> {
        let sequence = fragment.sequence;
        let at = self.messages.partition_point(|message| message.last < sequence);
        let message = self
            .messages
            .get(at)
            .filter(|message| message.first <= sequence)?;
        let start = sequence.since(message.first).saturating_mul(each.into());
        let end = start.saturating_add(fragment.bytes.into());
        let range = usize::try_from(start).ok()?..usize::try_from(end).ok()?;
        message.bytes.get(range)
    }

    /// Releases the messages whose last fragment is acknowledged.
    #[inline]
    pub(super) fn let_go(&mut self, is_kept: impl Fn(Sequence) -> bool) {
        while self
            .messages
            .front()
            .is_some_and(|message| !is_kept(message.last))
        {
            self.messages.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::vec::Vec;

    use doorbell_core::session::{Outbox, Retained, Sequence, Unsent};

    use super::SharedMessages;

    /// Messages of 10, 3 and 4 bytes in fragments of 4, as an outbox numbers them.
    fn three(outbox: &mut Outbox<[Retained; 8]>) -> (SharedMessages, [Arc<Vec<u8>>; 3]) {
        let (mut shared, mut first) = (SharedMessages::default(), Sequence(0));
        let messages = [(0..10), (10..13), (13..17)].map(|bytes| Arc::new(bytes.collect::<Vec<u8>>()));
        for message in &messages {
            let lengths: Vec<_> = message.chunks(4).map(<[u8]>::len).collect();
            lengths.iter().enumerate().for_each(|(at, length)| {
                outbox.push(*length as u32, at == 0, at + 1 == lengths.len(), false);
            });
            let last = outbox.next().before();
            shared.put(&Unsent { first, last }, message);
            first = outbox.next();
        }
        (shared, messages)
    }

    #[test]
    fn fragments_are_cut_from_the_message_they_are_of() {
        let mut outbox = Outbox::new([Retained::default(); 8]);
        let (shared, _) = three(&mut outbox);
        let cut: Vec<_> = (0..5)
            .map(|number| shared.get(&outbox.get(Sequence(number)).unwrap(), 4).unwrap())
            .collect();
        let all: Vec<u8> = (0..17).collect();
        assert_eq!(
            cut,
            [&all[..4], &all[4..8], &all[8..10], &all[10..13], &all[13..]]
        );
        // A fragment of a message that the link stores.
        outbox.push(4, true, true, false);
        assert_eq!(shared.get(&outbox.get(Sequence(5)).unwrap(), 4), None);
    }

    #[test]
    fn a_message_is_let_go_with_its_last_fragment() {
        let mut outbox = Outbox::new([Retained::default(); 8]);
        let (mut shared, messages) = three(&mut outbox);
        (0..5).for_each(|number| outbox.sent(Sequence(number), 0));
        let mut counts = |expected| {
            outbox.acknowledge(Sequence(expected)).unwrap();
            shared.let_go(|sequence| outbox.get(sequence).is_some());
            messages.each_ref().map(Arc::strong_count)
        };
        assert_eq!(counts(2), [2, 2, 2]);
        assert_eq!(counts(3), [1, 2, 2]);
        assert_eq!(counts(5), [1, 1, 1]);
    }
}
