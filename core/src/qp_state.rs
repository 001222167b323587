//! The queue-pair state table: which transitions exist, and what each must set.

use core::fmt;

/// The state of a queue pair. After bring-up the device may force `Error` at any moment,
/// so a state is a value and never a type.
///
/// The numbers are those of `enum ibv_qp_state`. Source: InfiniBand Architecture volume 1,
/// section 10.3.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(
    clippy::exhaustive_enums,
    reason = "the architecture defines exactly these seven"
)]
pub enum QpState {
    /// Newly created, or reset.
    Reset = 0,
    /// Receives may be posted.
    Init = 1,
    /// Ready to receive.
    ReadyToReceive = 2,
    /// Ready to send.
    ReadyToSend = 3,
    /// The send queue is draining.
    SendQueueDrain = 4,
    /// The send queue failed (not on reliable connections).
    SendQueueError = 5,
    /// Failed: all posted requests are flushed.
    Error = 6,
}

impl QpState {
    /// Every state.
    pub const ALL: [Self; 7] = [
        Self::Reset,
        Self::Init,
        Self::ReadyToReceive,
        Self::ReadyToSend,
        Self::SendQueueDrain,
        Self::SendQueueError,
        Self::Error,
    ];

    /// The state with this number in `enum ibv_qp_state`.
    #[must_use]
    pub const fn from_raw(raw: u32) -> Option<Self> {
        match raw {
            0 => Some(Self::Reset),
            1 => Some(Self::Init),
            2 => Some(Self::ReadyToReceive),
            3 => Some(Self::ReadyToSend),
            4 => Some(Self::SendQueueDrain),
            5 => Some(Self::SendQueueError),
            6 => Some(Self::Error),
            _ => None,
        }
    }

    /// Whether verbs know the transition from `self` to `next` (S1).
    ///
    /// Source: the `qp_state_table` of the kernel's drivers/infiniband/core/verbs.c.
    #[must_use]
    pub const fn may_become(self, next: Self) -> bool {
        use QpState::{Error, Init, ReadyToReceive, ReadyToSend, Reset, SendQueueDrain, SendQueueError};
        match (self, next) {
            // Every state can become RESET; every state except RESET can become ERR.
            (_, Reset) => true,
            (Reset, Error) => false,
            (_, Error) => true,
            (Reset | Init, Init) | (Init, ReadyToReceive) => true,
            (ReadyToReceive | ReadyToSend | SendQueueDrain | SendQueueError, ReadyToSend) => true,
            (ReadyToSend | SendQueueDrain, SendQueueDrain) => true,
            _ => false,
        }
    }

    /// Whether receives may be posted (S3): from INIT on.
    #[must_use]
    pub const fn accepts_receives(self) -> bool {
        !matches!(self, Self::Reset)
    }

    /// Whether sends may be posted (S3): from RTS on, and in ERR, where they are flushed.
    #[must_use]
    pub const fn accepts_sends(self) -> bool {
        !matches!(self, Self::Reset | Self::Init | Self::ReadyToReceive)
    }

    /// The attributes that the transition from `self` to `next` must set on a reliable
    /// connection (S2), or `None` if there is no such transition.
    ///
    /// Source: `ibv_modify_qp(3)`, the RC rows.
    #[must_use]
    pub const fn required_attributes(self, next: Self) -> Option<QpAttributes> {
        if !self.may_become(next) {
            return None;
        }
        Some(match (self, next) {
            (Self::Reset, Self::Init) => QpAttributes::PKEY_INDEX
                .union(QpAttributes::PORT)
                .union(QpAttributes::ACCESS_FLAGS),
            (Self::Init, Self::ReadyToReceive) => QpAttributes::ADDRESS_VECTOR
                .union(QpAttributes::PATH_MTU)
                .union(QpAttributes::DESTINATION_QPN)
                .union(QpAttributes::RQ_PSN)
                .union(QpAttributes::MAX_DEST_RD_ATOMIC)
                .union(QpAttributes::MIN_RNR_TIMER),
            (Self::ReadyToReceive, Self::ReadyToSend) => QpAttributes::SQ_PSN
                .union(QpAttributes::MAX_QP_RD_ATOMIC)
                .union(QpAttributes::RETRY_COUNT)
                .union(QpAttributes::RNR_RETRY)
                .union(QpAttributes::TIMEOUT),
            _ => QpAttributes::empty(),
        })
    }

    /// The attributes that the transition from `self` to `next` must set on a datagram queue pair,
    /// which has no peer. `None` if there is no such transition.
    ///
    /// Source: `ibv_modify_qp(3)`, the UD rows.
    #[must_use]
    pub const fn required_of_datagrams(self, next: Self) -> Option<QpAttributes> {
        if !self.may_become(next) {
            return None;
        }
        Some(match (self, next) {
            (Self::Reset, Self::Init) => QpAttributes::PKEY_INDEX
                .union(QpAttributes::PORT)
                .union(QpAttributes::QKEY),
            (Self::ReadyToReceive, Self::ReadyToSend) => QpAttributes::SQ_PSN,
            _ => QpAttributes::empty(),
        })
    }
}

impl fmt::Display for QpState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reset => "RESET",
            Self::Init => "INIT",
            Self::ReadyToReceive => "RTR",
            Self::ReadyToSend => "RTS",
            Self::SendQueueDrain => "SQD",
            Self::SendQueueError => "SQE",
            Self::Error => "ERR",
        })
    }
}

bitflags::bitflags! {
    /// Attributes of a queue pair that a transition sets, besides the state itself.
    ///
    /// The bits are those of `enum ibv_qp_attr_mask`. Source: `ibv_modify_qp(3)`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct QpAttributes: u32 {
        /// Whether the device reports that the send queue drained.
        const DRAINED_NOTIFY = 1 << 2;
        /// The rights of the peer.
        const ACCESS_FLAGS = 1 << 3;
        /// The index of the partition key.
        const PKEY_INDEX = 1 << 4;
        /// The port.
        const PORT = 1 << 5;
        /// The key of datagrams.
        const QKEY = 1 << 6;
        /// The address of the peer.
        const ADDRESS_VECTOR = 1 << 7;
        /// The path MTU.
        const PATH_MTU = 1 << 8;
        /// The acknowledgement timeout.
        const TIMEOUT = 1 << 9;
        /// How often to retransmit without an acknowledgement.
        const RETRY_COUNT = 1 << 10;
        /// How often to retransmit when the receiver is not ready.
        const RNR_RETRY = 1 << 11;
        /// The first PSN that the peer sends.
        const RQ_PSN = 1 << 12;
        /// The maximum number of outstanding READs and atomics as requester.
        const MAX_QP_RD_ATOMIC = 1 << 13;
        /// The time that a receiver-not-ready NAK asks the peer to wait.
        const MIN_RNR_TIMER = 1 << 15;
        /// The first PSN that this side sends.
        const SQ_PSN = 1 << 16;
        /// The maximum number of outstanding READs and atomics as responder.
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        /// The peer's queue pair.
        const DESTINATION_QPN = 1 << 20;
    }
}

#[cfg(test)]
mod tests {
    use super::{QpAttributes, QpState};

    /// The whole matrix, a row per state in the order of `QpState::ALL`; a dot is no transition.
    const MATRIX: [&str; 7] = [
        "RI.....", "RIr...E", "R..s..E", "R..sd.E", "R..sd.E", "R..s..E", "R.....E",
    ];

    #[test]
    fn s1_every_transition() {
        for (row, from) in QpState::ALL.into_iter().enumerate() {
            for (column, to) in QpState::ALL.into_iter().enumerate() {
                let expected = MATRIX[row].as_bytes()[column] != b'.';
                assert_eq!(from.may_become(to), expected, "{from} -> {to}");
                assert_eq!(from.required_attributes(to).is_some(), expected);
            }
        }
    }

    #[test]
    fn s2_attributes_of_bring_up() {
        let init = QpState::Reset.required_attributes(QpState::Init).unwrap();
        assert_eq!(init.bits(), 0x38);
        let rtr = QpState::Init
            .required_attributes(QpState::ReadyToReceive)
            .unwrap();
        assert_eq!(rtr.bits(), 0x12_9180);
        let rts = QpState::ReadyToReceive
            .required_attributes(QpState::ReadyToSend)
            .unwrap();
        assert_eq!(rts.bits(), 0x1_2e00);
        let of_datagrams = |from: QpState, to| from.required_of_datagrams(to).map(|needed| needed.bits());
        assert_eq!(of_datagrams(QpState::Reset, QpState::Init), Some(0x70));
        assert_eq!(of_datagrams(QpState::Init, QpState::ReadyToReceive), Some(0));
        assert_eq!(
            of_datagrams(QpState::ReadyToReceive, QpState::ReadyToSend),
            Some(0x1_0000)
        );
        assert_eq!(of_datagrams(QpState::Reset, QpState::Error), None);
        assert_eq!(
            QpState::ReadyToSend.required_attributes(QpState::Error),
            Some(QpAttributes::empty())
        );
    }

    #[test]
    fn s3_when_posting_is_allowed() {
        let receives: [bool; 7] = QpState::ALL.map(QpState::accepts_receives);
        assert_eq!(receives, [false, true, true, true, true, true, true]);
        let sends: [bool; 7] = QpState::ALL.map(QpState::accepts_sends);
        assert_eq!(sends, [false, false, false, true, true, true, true]);
        for state in QpState::ALL {
            assert_eq!(QpState::from_raw(state as u32), Some(state));
        }
    }
}
