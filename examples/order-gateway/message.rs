//! The bodies of requests and answers: 40 bytes each way, in words of eight, little-endian. With the header of a request they are short enough
//! to go inline.

use super::around::{self, mix};

/// The bytes of a body.
pub(crate) const BODY_BYTES: usize = WORDS * size_of::<u64>();

/// Four fields and a checksum.
const WORDS: usize = 5;

/// An order to buy or sell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Order {
    pub(crate) id: u64,
    instrument: u64,
    price: u64,
    quantity: u64,
}

/// Outcome of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) id: u64,
    filled: u64,
    cost: u64,
}

impl Order {
    /// The orders of this made-up trader: each follows from its id.
    pub(crate) const fn of(id: u64) -> Self {
        let value = mix(id);
        Self {
            id,
            instrument: value >> 56,
            price: (value >> 20) & 0xffff,
            quantity: value & 0xfff,
        }
    }

    /// Answer of this made-up gateway: all of it, at its price.
    pub(crate) const fn answer(&self) -> Answer {
        Answer {
            id: self.id,
            filled: self.quantity,
            cost: self.quantity.wrapping_mul(self.price),
        }
    }

    pub(crate) fn to_bytes(self) -> [u8; BODY_BYTES] {
        bytes([self.id, self.instrument, self.price, self.quantity])
    }

    /// `None` where this is no order, or a changed one.
    pub(crate) fn parse(body: &[u8]) -> Option<Self> {
        let [id, instrument, price, quantity] = fields(body)?;
        Some(Self {
            id,
            instrument,
            price,
            quantity,
        })
    }
}

impl Answer {
    pub(crate) fn to_bytes(self) -> [u8; BODY_BYTES] {
        bytes([self.id, self.filled, self.cost, 0])
    }

    /// `None` where this is no answer, or a changed one.
    pub(crate) fn parse(body: &[u8]) -> Option<Self> {
        let [id, filled, cost, _] = fields(body)?;
        Some(Self { id, filled, cost })
    }
}

fn bytes([a, b, c, d]: [u64; 4]) -> [u8; BODY_BYTES] {
    let check = checksum([a, b, c, d]);
    let words: [u64; WORDS] = [a, b, c, d, check];
    let mut body = [0; BODY_BYTES];
    for (bytes, word) in body.chunks_exact_mut(size_of::<u64>()).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    body
}

fn fields(body: &[u8]) -> Option<[u64; 4]> {
    if body.len() != BODY_BYTES {
        return None;
    }
    let mut words = around::words(body);
    let fields = [words.next()?, words.next()?, words.next()?, words.next()?];
    (words.last()? == checksum(fields)).then_some(fields)
}

fn checksum(fields: [u64; 4]) -> u64 {
    fields
        .into_iter()
        .fold(0x006f_7264_6572, |sum: u64, word| mix(sum.rotate_left(7) ^ word))
}
