//! Decisions from a fuzzer's bytes, one after the other. Once the bytes are used up, all further decisions are zero.

/// Bytes to decide by.
pub(crate) struct Choices<'a> {
    rest: &'a [u8],
}

impl<'a> Choices<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn byte(&mut self) -> u8 {
        let Some((byte, rest)) = self.rest.split_first() else {
            return 0;
        };
        self.rest = rest;
        *byte
    }

    /// A number below `limit`, which is not 0. By one byte up to 256, by two above.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        let mut number = usize::from(self.byte());
        if limit > 256 {
            number = number << 8 | usize::from(self.byte());
        }
        number % limit
    }
}
