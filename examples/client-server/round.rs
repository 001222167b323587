//! A round of the all-to-all as one answer: its form on the wire.

/// All that was said in a round.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Round {
    /// Which of the messages is one's own.
    pub(crate) own: usize,
    /// The messages, in the order the clients came; nothing of one that is gone.
    pub(crate) messages: Vec<Option<Vec<u8>>>,
}

impl Round {
    /// In the place of a length: nothing was said.
    const NOTHING: u32 = u32::MAX;

    /// All messages of a round, as one answer: its addressee, then each message behind its length.
    pub(crate) fn join(said: &[Option<&[u8]>]) -> Vec<u8> {
        let mut joined = vec![0; size_of::<u16>()];
        for message in said {
            // No device has messages of 4 GiB.
            let length = message.map_or(Ok(Self::NOTHING), |message| message.len().try_into());
            joined.extend(length.unwrap_or(Self::NOTHING).to_be_bytes());
            joined.extend(message.unwrap_or_default());
        }
        joined
    }

    /// Sets its addressee.
    pub(crate) fn address(joined: &mut [u8], own: u16) {
        if let Some(first) = joined.first_chunk_mut() {
            *first = own.to_be_bytes();
        }
    }

    pub(crate) fn parse(joined: &[u8]) -> Option<Self> {
        let (own, mut rest) = joined.split_first_chunk()?;
        let own = usize::from(u16::from_be_bytes(*own));
        let mut messages = Vec::new();
        while !rest.is_empty() {
            let (length, behind) = rest.split_first_chunk()?;
            let length = u32::from_be_bytes(*length);
            let bytes = if length == Self::NOTHING {
                0
            } else {
                length as usize
            };
            let (message, behind) = behind.split_at_checked(bytes)?;
            messages.push((length != Self::NOTHING).then(|| message.to_vec()));
            rest = behind;
        }
        (own < messages.len()).then_some(Self { own, messages })
    }
}
