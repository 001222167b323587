//! Records of the submitters of a channel's requests in flight. A record is written when a submitted request is posted, and read
//! when a request fails.

use core::fmt;
use std::sync::Arc;

use doorbell_core::provider::Provider;
use doorbell_core::{Ticket, in_place};

use super::return_path::Registry;
use crate::worker::channel::ChannelId;

/// Record of one request in flight: its position, its submitter, and its slot.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Record {
    position: u64,
    /// Number of the submitter's return path; zero if there is none.
    pub(crate) number: u64,
    slot: u32,
}

/// The records of a channel. Only requests of submitters have records.
///
/// The drop reports each submitted request that is still in flight as unknown (`SubmissionError::Unknown`). A channel therefore
/// drops its records before its send queue, which returns the slots.
pub(crate) struct Records<P: Provider> {
    /// A power of two of entries, at least the depth of the queue; empty while there are no submitters.
    entries: Box<[Record]>,
    /// All requests before this position ended, and need no report.
    settled: u64,
    channel: ChannelId,
    registry: Option<Arc<Registry<P>>>,
}

impl<P: Provider> Records<P> {
    /// Makes empty records for a channel without submitters.
    pub(crate) fn none(channel: ChannelId) -> Self {
        Self {
            entries: Box::default(),
            settled: 0,
            channel,
            registry: None,
        }
    }

    /// Makes room for all requests that a queue of this depth has in flight. The memory is touched here.
    pub(crate) fn make_room(&mut self, depth: u32, registry: &Arc<Registry<P>>) {
        if self.entries.is_empty() {
            let length = (depth as usize).next_power_of_two();
            self.entries = vec![Record::default(); length].into_boxed_slice();
            in_place::put(&mut self.entries, Record::default);
            self.registry = Some(Arc::clone(registry));
        }
    }

    /// Records the submitter of a staged request.
    #[inline]
    pub(crate) fn note(&mut self, ticket: Ticket, number: u64, slot: u32) {
        if let Some(record) = self.at(ticket) {
            *record = Record {
                position: ticket.position(),
                number,
                slot,
            };
        }
    }

    /// Notes that all requests up to this one ended.
    #[inline]
    pub(crate) const fn settle(&mut self, through: Ticket) {
        self.settled = through.position().wrapping_add(1);
    }

    /// Takes the record of a request; `None` if no submitter submitted the request.
    #[cold]
    pub(crate) fn take(&mut self, ticket: Ticket) -> Option<Record> {
        let record = self.at(ticket)?;
        if record.number == 0 || record.position != ticket.position() {
            return None;
        }
        Some(core::mem::take(record))
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the low bits are what is meant")]
    fn at(&mut self, ticket: Ticket) -> Option<&mut Record> {
        // The mask comes from the length itself, so that the compiler sees the bound of the index.
        let mask = self.entries.len().wrapping_sub(1);
        self.entries.get_mut(ticket.position() as usize & mask)
    }
}

impl<P: Provider> Drop for Records<P> {
    fn drop(&mut self) {
        let Some(registry) = &self.registry else {
            return;
        };
        for record in &self.entries {
            if record.number == 0 || record.position < self.settled {
                continue;
            }
            if let Some(return_path) = registry.find(record.number) {
                return_path.unknown(self.channel, record.slot);
            }
        }
    }
}

impl<P: Provider> fmt::Debug for Records<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Records")
            .field("settled", &self.settled)
            .finish_non_exhaustive()
    }
}
