//! The word on which atomics operate: its expected value before each of them, and at the end.

use doorbell::{Operation, RemoteAddress};

use super::pattern::Pattern;
use super::test::Op;

/// The expected value of the word, based on the value that was last observed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counter {
    op: Op,
    operands: Pattern,
    value: u64,
    /// The value that the next compare and swap expects, which is the word's value unless an error
    /// occurred.
    compare: u64,
}

impl Counter {
    /// The word before the first atomic. `operands` is the client's pattern.
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

    /// Sets the observed value, so that one wrong value is reported only once.
    pub(super) const fn see(&mut self, value: u64) {
        self.value = value;
    }

    /// Applies the atomic with this sequence number to the current value.
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

    /// The request with this sequence number. Call it before [`Counter::step`]. A corrupt request
    /// has one wrong bit in its operand.
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
