//! What goes over the channel: 64 bytes each way, in words of eight, little-endian.

use super::around::{self, mix};

/// The bytes of a message.
pub(crate) const MESSAGE_BYTES: usize = 64;

const WORDS: usize = MESSAGE_BYTES / size_of::<u64>();

/// The id of no order: its message says how many there were.
const END: u64 = u64::MAX;

/// What a trader sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Order(Order),
    /// That was all: so many orders were sent.
    End(u64),
}

/// An order to buy or sell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Order {
    pub(crate) id: u64,
    instrument: u64,
    price: u64,
    quantity: u64,
}

/// What became of an order.
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

    /// What this made-up gateway answers: all of it, at its price.
    pub(crate) const fn answer(&self) -> Answer {
        Answer {
            id: self.id,
            filled: self.quantity,
            cost: self.quantity.wrapping_mul(self.price),
        }
    }
}

impl Request {
    pub(crate) fn to_bytes(self) -> [u8; MESSAGE_BYTES] {
        match self {
            Self::Order(order) => bytes([order.id, order.instrument, order.price, order.quantity]),
            Self::End(orders) => bytes([END, orders, 0, 0]),
        }
    }

    /// `None` where this is no message of ours, or a changed one.
    pub(crate) fn parse(message: &[u8]) -> Option<Self> {
        let [id, instrument, price, quantity] = fields(message)?;
        Some(match id {
            END => Self::End(instrument),
            id => Self::Order(Order {
                id,
                instrument,
                price,
                quantity,
            }),
        })
    }
}

impl Answer {
    pub(crate) fn to_bytes(self) -> [u8; MESSAGE_BYTES] {
        bytes([self.id, self.filled, self.cost, 0])
    }

    /// `None` where this is no message of ours, or a changed one.
    pub(crate) fn parse(message: &[u8]) -> Option<Self> {
        let [id, filled, cost, _] = fields(message)?;
        Some(Self { id, filled, cost })
    }
}

/// Four fields, words that mean nothing, and a checksum.
fn bytes([a, b, c, d]: [u64; 4]) -> [u8; MESSAGE_BYTES] {
    let check = checksum([a, b, c, d]);
    let words: [u64; WORDS] = [a, b, c, d, 0, 0, 0, check];
    let mut message = [0; MESSAGE_BYTES];
    for (bytes, word) in message.chunks_exact_mut(size_of::<u64>()).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    message
}

fn fields(message: &[u8]) -> Option<[u64; 4]> {
    if message.len() != MESSAGE_BYTES {
        return None;
    }
    let mut words = around::words(message);
    let fields = [words.next()?, words.next()?, words.next()?, words.next()?];
    (words.last()? == checksum(fields)).then_some(fields)
}

fn checksum(fields: [u64; 4]) -> u64 {
    fields
        .into_iter()
        .fold(0x006f_7264_6572, |sum: u64, word| mix(sum.rotate_left(7) ^ word))
}
