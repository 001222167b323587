//! Memory of frames that wait, used again and again.

use std::collections::VecDeque;
use std::sync::Arc;

/// How many free buffers are looked at for one that no link shares.
const LOOKS: usize = 4;

/// Buffers that the mesh does not use now. Each is made when no free one is found, so there are about as many as ever waited at a time, and
/// were shared by links at that time.
#[derive(Debug, Default)]
pub(super) struct Pool {
    /// Links may still share some: rather those that came back last.
    free: VecDeque<Arc<Vec<u8>>>,
    frame_bytes: usize,
}

impl Pool {
    pub(super) const fn new(frame_bytes: usize) -> Self {
        Self {
            free: VecDeque::new(),
            frame_bytes,
        }
    }

    /// A buffer that holds these parts, one behind the other.
    pub(super) fn fill(&mut self, parts: &[&[u8]]) -> Arc<Vec<u8>> {
        let mut frame = self
            .unshared()
            .unwrap_or_else(|| Arc::new(Vec::with_capacity(self.frame_bytes)));
        let buffer = Arc::make_mut(&mut frame);
        buffer.clear();
        parts.iter().for_each(|part| buffer.extend_from_slice(part));
        frame
    }

    /// Takes out one that no link shares, if it is among the next ones. Shared ones go behind all others.
    fn unshared(&mut self) -> Option<Arc<Vec<u8>>> {
        for _ in 0..LOOKS {
            let frame = self.free.pop_front()?;
            if Arc::strong_count(&frame) == 1 {
                return Some(frame);
            }
            self.free.push_back(frame);
        }
        None
    }

    pub(super) fn give_back(&mut self, frame: Arc<Vec<u8>>) {
        self.free.push_back(frame);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::Pool;

    #[test]
    fn a_buffer_is_filled_again_once_no_link_shares_it() {
        let mut pool = Pool::new(8);
        let frame = pool.fill(&[b"one", b"two"]);
        let shared = Arc::clone(&frame);
        pool.give_back(frame);
        let other = pool.fill(&[b"other"]);
        assert!((&shared[..], &other[..]) == (b"onetwo", b"other"));
        assert_eq!(pool.free.len(), 1);
        drop(shared);
        assert_eq!(pool.fill(&[b"again"])[..], *b"again");
        assert!(pool.free.is_empty());
    }
}
