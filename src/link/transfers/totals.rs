//! Counts of all transfers together.

use doorbell_core::transfer::{TransferCounts, TransferEnd, TransferRole};
use doorbell_core::wire::EndReason;

use super::TransferEvent;

/// Class of the end of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TransferOutcome {
    /// All bytes arrived.
    Done,
    /// A side cancelled it.
    Cancelled,
    /// The application did not join it, as many as may be were open, or the peer's build does not support transfers.
    Refused,
    /// The time of the transfer passed.
    Deadline,
    /// A device did not take its memory or its WRITEs.
    Device,
    /// A rail failed, and the peer did not stop taking from it in time.
    Rail,
    /// The link is over.
    LinkOver,
    /// A reason of a peer that this build does not know, or that the peer knows no such transfer.
    Other,
}

impl TransferOutcome {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Done,
        Self::Cancelled,
        Self::Refused,
        Self::Deadline,
        Self::Device,
        Self::Rail,
        Self::LinkOver,
        Self::Other,
    ];

    /// The class of an end.
    #[must_use]
    pub const fn of(end: TransferEnd) -> Self {
        match end {
            TransferEnd::Done => Self::Done,
            TransferEnd::Over(_) => Self::LinkOver,
            TransferEnd::Here(reason) | TransferEnd::ByPeer(reason) => match reason {
                EndReason::CANCELLED => Self::Cancelled,
                EndReason::REFUSED | EndReason::TOO_MANY | EndReason::UNSUPPORTED => Self::Refused,
                EndReason::DEADLINE => Self::Deadline,
                EndReason::NO_MEMORY
                | EndReason::DENIED
                | EndReason::NOT_POSTED
                | EndReason::NOT_WITHDRAWN => Self::Device,
                EndReason::NOT_FENCED => Self::Rail,
                _ => Self::Other,
            },
            _ => Self::Other,
        }
    }

    /// One word, as a metric has it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Cancelled => "cancelled",
            Self::Refused => "refused",
            Self::Deadline => "deadline",
            Self::Device => "device",
            Self::Rail => "rail",
            Self::LinkOver => "link_over",
            Self::Other => "other",
        }
    }
}

/// Counts of all transfers, those that have ended included. None falls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TransferTotals {
    /// Transfers that this side began.
    pub begun: u64,
    /// Transfers that peers began, as far as they were reported.
    pub offered: u64,
    /// Bytes that takers have of what this side gives, as far as this side knows.
    pub given_bytes: u64,
    /// Bytes that this side took.
    pub taken_bytes: u64,
    /// Bytes of pieces that this side wrote again, since the connection failed that had carried them.
    pub repeated_bytes: u64,
    /// Pieces that were announced to this side again though it had them.
    pub duplicates: u64,
    ended: [u64; TransferOutcome::ALL.len()],
}

impl TransferTotals {
    /// How many ended so.
    #[must_use]
    pub fn ended(&self, outcome: TransferOutcome) -> u64 {
        self.ended.get(outcome as usize).copied().unwrap_or(0)
    }

    pub(super) const fn note_begun(&mut self) {
        self.begun = self.begun.saturating_add(1);
    }

    /// Notes what is reported of a transfer in which this side has this part.
    pub(super) fn note(&mut self, role: TransferRole, event: &TransferEvent) {
        match event {
            TransferEvent::Offered { .. } => self.offered = self.offered.saturating_add(1),
            TransferEvent::Progress { .. } => {}
            TransferEvent::Ended { end, counts, .. } => {
                self.add(role, counts);
                if let Some(count) = self.ended.get_mut(TransferOutcome::of(*end) as usize) {
                    *count = count.saturating_add(1);
                }
            }
        }
    }

    /// Adds the bytes of a transfer.
    pub(super) const fn add(&mut self, role: TransferRole, counts: &TransferCounts) {
        let bytes = match role {
            TransferRole::Giver => &mut self.given_bytes,
            TransferRole::Taker => &mut self.taken_bytes,
        };
        *bytes = bytes.saturating_add(counts.landed_bytes);
        self.repeated_bytes = self.repeated_bytes.saturating_add(counts.repeated_bytes);
        self.duplicates = self.duplicates.saturating_add(counts.duplicates);
    }

    /// Sum of the counts of two links.
    pub(in super::super) fn plus(mut self, other: Self) -> Self {
        self.begun = self.begun.saturating_add(other.begun);
        self.offered = self.offered.saturating_add(other.offered);
        self.given_bytes = self.given_bytes.saturating_add(other.given_bytes);
        self.taken_bytes = self.taken_bytes.saturating_add(other.taken_bytes);
        self.repeated_bytes = self.repeated_bytes.saturating_add(other.repeated_bytes);
        self.duplicates = self.duplicates.saturating_add(other.duplicates);
        for (count, more) in self.ended.iter_mut().zip(other.ended) {
            *count = count.saturating_add(more);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use doorbell_core::transfer::TransferEnd;
    use doorbell_core::wire::EndReason;

    use super::TransferOutcome;

    #[test]
    fn each_reason_is_of_its_class_whichever_side_gave_it() {
        for (reason, outcome) in [
            (EndReason::CANCELLED, TransferOutcome::Cancelled),
            (EndReason::REFUSED, TransferOutcome::Refused),
            (EndReason::TOO_MANY, TransferOutcome::Refused),
            (EndReason::UNSUPPORTED, TransferOutcome::Refused),
            (EndReason::DEADLINE, TransferOutcome::Deadline),
            (EndReason::NO_MEMORY, TransferOutcome::Device),
            (EndReason::NOT_WITHDRAWN, TransferOutcome::Device),
            (EndReason::DENIED, TransferOutcome::Device),
            (EndReason::NOT_POSTED, TransferOutcome::Device),
            (EndReason::NOT_FENCED, TransferOutcome::Rail),
            (EndReason::UNKNOWN, TransferOutcome::Other),
        ] {
            let ends = [TransferEnd::Here(reason), TransferEnd::ByPeer(reason)];
            assert_eq!(ends.map(TransferOutcome::of), [outcome; 2], "{reason}");
        }
        assert_eq!(TransferOutcome::of(TransferEnd::Done), TransferOutcome::Done);
    }
}
