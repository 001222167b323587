//! The one word that atomics work on: what it is before each of them, and in the end.

use doorbell::{Operation, RemoteAddress};

use super::pattern::Pattern;
use super::test::Op;

/// The word as it must be, given what was last seen of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counter {
    op: Op,
    operands: Pattern,
    value: u64,
    /// The value that the next compare and swap expects: the word's value if nothing went wrong.
    compare: u64,
}

impl Counter {
    /// The word before the first atomic; `operands` is the client's pattern.
    pub(super) const fn new(op: Op, operands: Pattern) -> Self {
        let value = operands.word(u64::MAX);
        Self {
            op,
            operands,
            value,
            compare: value,
        }
    }

    /// The current value of the word.
    pub(super) const fn value(&self) -> u64 {
        self.value
    }

    /// Takes over the observed value, so that one wrong value is reported once.
    pub(super) const fn see(&mut self, value: u64) {
        self.value = value;
    }

    /// Applies the atomic of this sequence to the current value.
    #[inline]
    pub(super) const fn step(&mut self, sequence: u64) {
        let operand = self.operands.word(sequence);
        match self.op {
            Op::FetchAdd => self.value = self.value.wrapping_add(operand),
            _ if self.value == self.compare => self.value = operand,
            _ => {}
        }
        self.compare = operand;
    }

    /// The request of this sequence, to be made before [`Counter::step`]. A corrupt one has one
    /// bit of its operand wrong.
    #[inline]
    pub(super) const fn request(&self, sequence: u64, remote: RemoteAddress, corrupt: bool) -> Operation {
        let operand = self.operands.word(sequence) ^ corrupt as u64;
        match self.op {
            Op::FetchAdd => Operation::FetchAndAdd { remote, add: operand },
            _ => Operation::CompareAndSwap {
                remote,
                compare: self.compare,
                swap: operand,
            },
        }
    }
}
