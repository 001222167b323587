//! Divides a file into chunks, and determines how many of them are in memory.

/// Maximum number of chunks in memory, and of open transfers.
const SLOTS_MAX: u64 = 8;

/// A file's chunks, and the memory for them. Each chunk is one transfer, in one slot of a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) bytes: u64,
    pub(super) chunk_bytes: u64,
    pub(super) slots: usize,
    /// Whether both sides compare a checksum of all bytes.
    pub(super) has_checksum: bool,
}

impl Plan {
    /// Plans a file of `bytes`, of which at most `memory_bytes` are in memory. There has to be room for at least two chunks.
    ///
    /// # Errors
    /// The memory is too small.
    pub(super) fn of(
        bytes: u64,
        memory_bytes: u64,
        chunk_bytes: Option<u64>,
        piece_bytes: u32,
    ) -> Result<Self, String> {
        let piece_bytes = u64::from(piece_bytes);
        let whole = bytes.min(memory_bytes);
        let chosen = whole.div_ceil(SLOTS_MAX).max(1).next_multiple_of(piece_bytes);
        let chunk_bytes = chunk_bytes.unwrap_or(chosen).min(bytes.max(1));
        let most = memory_bytes.checked_div(chunk_bytes).unwrap_or(0).min(SLOTS_MAX);
        let chunks = bytes.div_ceil(chunk_bytes);
        if most < chunks.min(2) {
            return Err(format!(
                "--memory {memory_bytes}: less than two chunks of {chunk_bytes} bytes; raise --memory, or lower --chunk and --piece"
            ));
        }
        Ok(Self::with_slots(bytes, chunk_bytes, most.min(chunks)))
    }

    /// The receiver's plan, which uses the sender's chunks.
    ///
    /// # Errors
    /// There is not enough memory for one chunk, or the chunks are invalid.
    pub(super) fn of_peer(bytes: u64, chunk_bytes: u64, memory_bytes: u64) -> Result<Self, String> {
        if chunk_bytes == 0 || chunk_bytes > bytes.max(1) {
            return Err(format!(
                "the sender broke the protocol: chunks of {chunk_bytes} bytes for a file of {bytes}"
            ));
        }
        let most = memory_bytes.checked_div(chunk_bytes).unwrap_or(0).min(SLOTS_MAX);
        let chunks = bytes.div_ceil(chunk_bytes);
        if most < chunks.min(1) {
            return Err(format!(
                "a chunk of {chunk_bytes} bytes exceeds the receiver's --memory {memory_bytes}: raise it there, or lower --chunk at the sender"
            ));
        }
        Ok(Self::with_slots(bytes, chunk_bytes, most.min(chunks)))
    }

    fn with_slots(bytes: u64, chunk_bytes: u64, slots: u64) -> Self {
        Self {
            bytes,
            chunk_bytes,
            slots: usize::try_from(slots).unwrap_or(0),
            has_checksum: true,
        }
    }

    /// The number of chunks.
    pub(super) const fn chunks(&self) -> u64 {
        match self.chunk_bytes {
            0 => 0,
            chunk_bytes => self.bytes.div_ceil(chunk_bytes),
        }
    }

    /// The length of a chunk. The last one may be shorter than the others.
    pub(super) fn length(&self, chunk: u64) -> u64 {
        let begin = chunk.saturating_mul(self.chunk_bytes);
        self.bytes.saturating_sub(begin).min(self.chunk_bytes)
    }

    /// The size of the memory for all slots.
    pub(super) fn memory_bytes(&self) -> usize {
        self.slot(self.slots)
    }

    /// The offset of a slot.
    pub(super) fn slot(&self, slot: usize) -> usize {
        usize::try_from(self.chunk_bytes)
            .unwrap_or(usize::MAX)
            .saturating_mul(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::Plan;

    const PIECE: u32 = 256 << 10;

    #[test]
    fn chunks_cover_the_file_and_their_memory_is_bounded() {
        for bytes in [1, 2, 4096, 262_144, 262_145, 10_000_001, 1 << 28, 5 << 30] {
            for memory in [1_u64 << 19, 1 << 22, 1 << 28] {
                for chunk in [None, Some(4096), Some(100_000)] {
                    let plan = Plan::of(bytes, memory, chunk, PIECE).unwrap();
                    let sum: u64 = if plan.chunks() > 100_000 {
                        bytes
                    } else {
                        (0..plan.chunks()).map(|chunk| plan.length(chunk)).sum()
                    };
                    assert_eq!(sum, bytes, "{plan:?}");
                    assert!(plan.memory_bytes() as u64 <= memory, "{plan:?}");
                    assert!(plan.slots >= plan.chunks().min(2) as usize, "{plan:?}");
                    let theirs = Plan::of_peer(bytes, plan.chunk_bytes, memory).unwrap();
                    assert_eq!(theirs, plan);
                }
            }
        }
        let none = Plan::of(0, 1 << 28, None, PIECE).unwrap();
        assert_eq!((none.chunks(), none.memory_bytes()), (0, 0));
    }

    #[test]
    fn memory_that_is_too_small_is_refused_at_its_limit() {
        assert!(Plan::of(1 << 30, 8192, Some(4096), PIECE).is_ok());
        let error = Plan::of(1 << 30, 8191, Some(4096), PIECE).unwrap_err();
        assert!(
            error.contains("--memory 8191") && error.contains("--chunk"),
            "{error}"
        );
        assert!(Plan::of_peer(1 << 30, 4096, 4096).is_ok());
        let error = Plan::of_peer(1 << 30, 4096, 4095).unwrap_err();
        assert!(error.contains("the receiver's --memory 4095"), "{error}");
        assert!(Plan::of_peer(10, 0, 1 << 20).is_err());
        assert!(Plan::of_peer(10, 11, 1 << 20).is_err());
    }
}
