//! Traffic classes: priority, share, rate limit, and marks on the wire.

use core::num::NonZeroU64;

use doorbell_core::wire::EndpointParameters;

/// Maximum number of classes of a Worker.
pub const CLASSES_MAX: usize = 8;

/// A traffic class. Start from [`Class::default`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Class {
    /// Strict priority: classes of lower priority wait as long as this class has something that it can send now. Default 0.
    pub priority: u8,
    /// Weight of the class. Classes of equal priority that have something to send share the bytes in proportion to their weights.
    /// Default 1; 0 counts as 1.
    pub weight: u16,
    /// Rate limit of the class in bytes per second: for all links together, and for all submitted requests on a Worker. Default: no
    /// limit.
    pub bytes_per_second_max: Option<NonZeroU64>,
    /// Burst size for [`Class::bytes_per_second_max`]: the bytes that the class may send at once after a pause. The last request
    /// of a burst may exceed the size; the class then waits for the excess. Default 0, which stands for the bytes of 10 ms.
    pub burst_bytes: u32,
    /// The IP traffic class of the class's channels: DSCP in the upper six bits. Default 0.
    pub traffic_class: u8,
    /// The service level of the class's channels, 4 bits. Default 0.
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

/// The traffic classes of a Worker. The number of a class is its index in the table; numbers from [`CLASSES_MAX`] on mean the
/// last class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Classes {
    /// The classes. Default: all are [`Class::DEFAULT`].
    pub table: [Class; CLASSES_MAX],
    /// Limit on the bytes in flight on a Worker: a link or a channel posts only while its own and all higher priorities together
    /// have fewer bytes in flight. So a message of a high priority waits on the port for at most this many bytes plus one request
    /// of each lower priority. Default 128 KiB, which 100 Gbit/s carry in 10 us. If the port carries more bytes than this in a
    /// round trip, polls included, it is idle part of the time.
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
    /// Returns the index of a class in the table.
    pub(crate) fn place(class: u8) -> usize {
        usize::from(class).min(CLASSES_MAX.saturating_sub(1))
    }

    /// Returns the maximum bytes of one piece of a transfer: a quarter of the bytes that may be in flight, rounded down to a
    /// power of two.
    pub(crate) fn piece_bytes_max(&self) -> u32 {
        let quarter = self.bytes_ahead_max / 4;
        1 << quarter.checked_ilog2().unwrap_or(0)
    }

    /// Returns the class with this number.
    #[must_use]
    pub fn class(&self, class: u8) -> &Class {
        self.table.get(Self::place(class)).unwrap_or(&Class::DEFAULT)
    }

    /// Returns the class in which to accept the channel of a peer that announced these marks. The result is `class` if its marks
    /// match, else the first class whose marks match, else `class`.
    pub(crate) fn accepted(&self, class: u8, peer: &EndpointParameters) -> u8 {
        if self.class(class).is_marked_as(peer) {
            return class;
        }
        let mut classes = (0_u8..).zip(&self.table);
        let found = classes.find(|(_, class)| class.is_marked_as(peer));
        found.map_or(class, |(class, _)| class)
    }
}
