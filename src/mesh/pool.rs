//! Memory of frames that wait, used again and again.

/// Buffers that nobody uses now. Each is made when there is none, so there are as many as ever waited at a time.
#[derive(Debug, Default)]
pub(super) struct Pool {
    free: Vec<Vec<u8>>,
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
    pub(super) fn fill(&mut self, parts: &[&[u8]]) -> Vec<u8> {
        let mut buffer = self
            .free
            .pop()
            .unwrap_or_else(|| Vec::with_capacity(self.frame_bytes));
        buffer.clear();
        parts.iter().for_each(|part| buffer.extend_from_slice(part));
        buffer
    }

    pub(super) fn give_back(&mut self, buffer: Vec<u8>) {
        self.free.push(buffer);
    }
}
