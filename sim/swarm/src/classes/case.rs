//! The part of a case that is about classes of service.

use core::num::NonZeroU64;

use doorbell::worker::{CLASSES_MAX, Classes};
use serde::{Deserialize, Serialize};

/// The classes of all Workers of a case.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClassesCase {
    /// The classes, the rest being as they are by default.
    pub(crate) table: Vec<ClassCase>,
    pub(crate) bytes_ahead_max: u32,
    /// Hosts whose Workers have none, as bits.
    pub(crate) without: u8,
    /// Queues and receives hold more than may be under way, so that only classes hold transfers back.
    pub(crate) is_contest: bool,
    /// The class of each line.
    pub(crate) lines: Vec<u8>,
}

/// One class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClassCase {
    pub(crate) priority: u8,
    pub(crate) weight: u16,
    /// Bytes a second at most; 0 for no limit.
    pub(crate) rate: u64,
    pub(crate) burst: u32,
}

impl ClassesCase {
    /// The classes of a host's Workers.
    pub(crate) fn of(&self, host: usize) -> Option<Classes> {
        if self.without >> (host % 8) & 1 == 1 {
            return None;
        }
        let mut classes = Classes::default();
        classes.bytes_ahead_max = self.bytes_ahead_max;
        for (number, class) in self.table.iter().enumerate().take(CLASSES_MAX) {
            let to = &mut classes.table[number];
            (to.priority, to.weight, to.burst_bytes) = (class.priority, class.weight, class.burst);
            to.bytes_per_second_max = NonZeroU64::new(class.rate);
            // Each has marks of its own, so that both ends of a link are in one class.
            (to.traffic_class, to.service_level) = (number as u8 * 4, number as u8);
        }
        Some(classes)
    }

    /// The class of a line.
    pub(crate) fn of_line(&self, line: usize) -> u8 {
        self.lines.get(line).copied().unwrap_or(0)
    }

    /// A class of this number.
    pub(crate) fn class(&self, number: u8) -> Option<&ClassCase> {
        self.table.get(usize::from(number))
    }
}
