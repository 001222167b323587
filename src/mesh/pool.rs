//! Reusable buffers for frames.

use std::collections::VecDeque;
use std::sync::Arc;

use super::frame::SHORT_BYTES_MAX;

/// How many free buffers are checked for one that no link shares.
const LOOKS: usize = 4;

/// Buffers that the mesh does not use now. A buffer is allocated when no free one of its size is found. So the number of buffers of each
/// size is about the largest number that was ever in use at the same time, by the mesh or by links. Buffers are never dropped:
/// otherwise frames of mixed sizes would allocate again and again.
///
/// A buffer has at most twice the length of its frame. So the frames that a link shares while its peer acknowledges nothing take at most
/// twice their length.
#[derive(Debug, Default)]
pub(super) struct Pool {
    /// The free buffers by size class: class n holds buffers of 2^n bytes, or of the longest frame. Links may still share some of them,
    /// most likely those at the back.
    free: Vec<VecDeque<Arc<Vec<u8>>>>,
    frame_bytes: usize,
}

impl Pool {
    /// Makes a pool for frames of messages up to `frame_bytes` bytes, and for the short frames that are no messages.
    pub(super) fn new(frame_bytes: usize) -> Self {
        Self {
            free: Vec::new(),
            frame_bytes: frame_bytes.max(SHORT_BYTES_MAX as usize),
        }
    }

    /// Returns a buffer that holds these parts, one after the other.
    pub(super) fn fill(&mut self, parts: &[&[u8]]) -> Arc<Vec<u8>> {
        let length = parts
            .iter()
            .fold(0_usize, |sum, part| sum.saturating_add(part.len()));
        let bytes = length.next_power_of_two().min(self.frame_bytes);
        let mut frame = self
            .unshared(bytes)
            .unwrap_or_else(|| Arc::new(Vec::with_capacity(bytes)));
        let buffer = Arc::make_mut(&mut frame);
        buffer.clear();
        parts.iter().for_each(|part| buffer.extend_from_slice(part));
        frame
    }

    /// Takes a buffer that no link shares, if one of the first [`LOOKS`] free buffers of its size is such a buffer. Shared buffers are moved
    /// to the back.
    fn unshared(&mut self, bytes: usize) -> Option<Arc<Vec<u8>>> {
        let free = self.free.get_mut(class(bytes))?;
        for _ in 0..LOOKS {
            let frame = free.pop_front()?;
            if Arc::strong_count(&frame) == 1 {
                return Some(frame);
            }
            free.push_back(frame);
        }
        None
    }

    pub(super) fn give_back(&mut self, frame: Arc<Vec<u8>>) {
        let class = class(frame.capacity());
        if self.free.len() <= class {
            self.free.resize_with(class.saturating_add(1), VecDeque::new);
        }
        if let Some(free) = self.free.get_mut(class) {
            free.push_back(frame);
        }
    }
}

/// Returns the size class of a buffer.
fn class(bytes: usize) -> usize {
    bytes.next_power_of_two().trailing_zeros() as usize
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use doorbell_core::rank::Rank;
    use doorbell_core::route::{ANNOUNCEMENT_BYTES, RELAY_HEADER_BYTES};

    use super::Pool;
    use crate::mesh::config::MeshConfig;

    fn free(pool: &Pool) -> usize {
        pool.free.iter().map(|free| free.len()).sum()
    }

    #[test]
    fn a_buffer_is_filled_again_once_no_link_shares_it() {
        let mut pool = Pool::new(8);
        let frame = pool.fill(&[b"one", b"two"]);
        let shared = Arc::clone(&frame);
        pool.give_back(frame);
        let other = pool.fill(&[b"other"]);
        assert!((&shared[..], &other[..]) == (b"onetwo", b"other"));
        assert_eq!(free(&pool), 1);
        drop(shared);
        assert_eq!(pool.fill(&[b"again"])[..], *b"again");
        assert_eq!(free(&pool), 0);
    }

    #[test]
    fn a_short_frame_holds_no_buffer_of_a_long_one() {
        let mut pool = Pool::new(10_000);
        let all = vec![7; 10_000];
        for lengths in [
            [10_000, 8193, 8192, 4097, 100, 1],
            [1, 100, 4097, 8192, 8193, 10_000],
        ] {
            let frames = lengths.map(|length| pool.fill(&[&all[..length]]));
            for (frame, length) in frames.iter().zip(lengths) {
                assert_eq!(frame.len(), length);
                assert!(
                    frame.capacity() <= 2 * length,
                    "{} for {length}",
                    frame.capacity()
                );
            }
            frames.into_iter().for_each(|frame| pool.give_back(frame));
        }
        assert_eq!(free(&pool), 6, "each was used again");
    }

    #[test]
    fn a_frame_that_is_no_message_is_filled_again_however_short_messages_are() {
        let mut config = MeshConfig::new(Rank::new(0).unwrap(), 2, 1);
        for message_bytes_max in 1..=4 {
            config.message_bytes_max = message_bytes_max;
            let mut pool = Pool::new(config.frame_bytes_max());
            for _ in 0..3 {
                let frame = pool.fill(&[&[7; RELAY_HEADER_BYTES], &[7; ANNOUNCEMENT_BYTES]]);
                pool.give_back(frame);
            }
            assert_eq!(free(&pool), 1, "{message_bytes_max}");
        }
    }
}
