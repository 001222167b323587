//! Classes of service: which traffic goes first, its share, its limit, and its marks on the wire.

use core::num::NonZeroU64;

use doorbell_core::wire::EndpointParameters;

/// Maximum number of classes of a Worker.
pub const CLASSES_MAX: usize = 8;

/// A traffic class. Start from [`Class::default`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Class {
    /// Strict priority: classes of lower priority wait as long as this class has anything to send. Default 0.
    pub priority: u8,
    /// The share of the class among those of its priority that have something to send, in bytes. Default 1, and 0 counts as 1.
    pub weight: u16,
    /// Rate limit of the class in bytes per second: for all links together, and for all submitted requests on a Worker. Default: no
    /// limit.
    pub bytes_per_second_max: Option<NonZeroU64>,
    /// The bytes that a class with such a limit may send at once after a pause. A request more may go beyond it, and is paid
    /// back. Default 0: the bytes of 10 ms.
    pub burst_bytes: u32,
    /// The IP traffic class of its channels: DSCP in the upper six bits. Default 0.
    pub traffic_class: u8,
    /// The service level of its channels, 4 bits. Default 0.
    pub service_level: u8,
}

impl Class {
    /// The defaults.
    pub const DEFAULT: Self = Self {
        priority: 0,
        weight: 1,
        bytes_per_second_max: None,
        burst_bytes: 0,
        traffic_class: 0,
        service_level: 0,
    };

    const fn is_marked_as(&self, peer: &EndpointParameters) -> bool {
        self.traffic_class == peer.traffic_class && self.service_level == peer.service_level
    }
}

impl Default for Class {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// The classes of a Worker. A class is named by its place in the table; numbers from [`CLASSES_MAX`] on name the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Classes {
    /// The classes. Default: all are [`Class::DEFAULT`].
    pub table: [Class; CLASSES_MAX],
    /// A link or a channel posts only while fewer bytes of its own and of higher priorities are under way on a Worker. So a message of a
    /// high class waits on the port for no more than this, and one request, of each lower priority. Default 128 KiB, which
    /// 100 Gbit/s carry in 10 us. Fewer bytes than the port carries in a round trip, polls included, leave it idle in between.
    pub bytes_ahead_max: u32,
}

impl Default for Classes {
    fn default() -> Self {
        Self {
            table: [Class::DEFAULT; CLASSES_MAX],
            bytes_ahead_max: 128 << 10,
        }
    }
}

impl Classes {
    /// The place of a class in tables.
    pub(crate) fn place(class: u8) -> usize {
        usize::from(class).min(CLASSES_MAX.saturating_sub(1))
    }

    /// The bytes of a piece of a transfer at most: a power of two, and a quarter of what may be under way.
    pub(crate) fn piece_bytes_max(&self) -> u32 {
        let quarter = self.bytes_ahead_max / 4;
        1 << quarter.checked_ilog2().unwrap_or(0)
    }

    /// Returns the class of this number.
    #[must_use]
    pub fn class(&self, class: u8) -> &Class {
        self.table.get(Self::place(class)).unwrap_or(&Class::DEFAULT)
    }

    /// The class in which a peer's channel is accepted that announced these marks: this one, if it has the marks, or else the first
    /// that has, or else this one.
    pub(crate) fn accepted(&self, class: u8, peer: &EndpointParameters) -> u8 {
        if self.class(class).is_marked_as(peer) {
            return class;
        }
        let mut classes = (0_u8..).zip(&self.table);
        let found = classes.find(|(_, class)| class.is_marked_as(peer));
        found.map_or(class, |(class, _)| class)
    }
}
