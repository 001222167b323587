//! The one word that atomics work on: what it is before each of them, and in the end.

use doorbell::{Operation, RemoteAddress};

use super::pattern::Pattern;
use super::test::Op;

/// The word as it must be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counter {
    op: Op,
    operands: Pattern,
    value: u64,
}

impl Counter {
    /// The word before the first atomic; `operands` is the client's pattern.
    pub(super) const fn new(op: Op, operands: Pattern) -> Self {
        Self {
            op,
            operands,
            value: operands.word(u64::MAX),
        }
    }

    /// What it is now.
    pub(super) const fn value(&self) -> u64 {
        self.value
    }

    /// Takes the step of this sequence; says what was there before.
    #[inline]
    pub(super) const fn step(&mut self, sequence: u64) -> u64 {
        let before = self.value;
        let operand = self.operands.word(sequence);
        self.value = match self.op {
            Op::FetchAdd => before.wrapping_add(operand),
            _ => operand,
        };
        before
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
                compare: self.value,
                swap: operand,
            },
        }
    }
}
