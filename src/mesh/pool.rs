//! Memory of frames that wait, used again and again.

use std::sync::Arc;

/// Buffers that the mesh does not use now. Each is made when there is none, so there are as many as ever waited at a time.
#[derive(Debug, Default)]
pub(super) struct Pool {
    /// A link may still share some.
    free: Vec<Arc<Vec<u8>>>,
    frame_bytes: usize,
}

impl Pool {
    pub(super) const fn new(frame_bytes: usize) -> Self {
        Self {
            free: Vec::new(),
            frame_bytes,
        }
    }

    /// A buffer that holds these parts, one behind the other.
    pub(super) fn fill(&mut self, parts: &[&[u8]]) -> Arc<Vec<u8>> {
        let free = self.free.iter().rposition(|frame| Arc::strong_count(frame) == 1);
        let mut frame = match free {
            Some(at) => self.free.swap_remove(at),
            None => Arc::new(Vec::with_capacity(self.frame_bytes)),
        };
        let buffer = Arc::make_mut(&mut frame);
        buffer.clear();
        parts.iter().for_each(|part| buffer.extend_from_slice(part));
        frame
    }

    pub(super) fn give_back(&mut self, frame: Arc<Vec<u8>>) {
        self.free.push(frame);
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
