//! Stages of a handshake. A Reject after a timeout, and an error of this side, name the stage.

use core::fmt;

use super::FrameKind;

/// A stage of a handshake, named by the event that it waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Stage {
    /// The responder waits for the peer's Hello.
    Hello = 1,
    /// The initiator waits for the peer's Welcome.
    Welcome = 2,
    /// The initiator waits for its caller to choose a rail and offer a queue pair.
    ChooseRail = 3,
    /// The responder waits for the peer's Connect.
    Connect = 4,
    /// Either side waits for its caller to bring the queue pair to RTS.
    Prepare = 5,
    /// The initiator waits for the peer's Accept.
    Accept = 6,
    /// Either side waits for the peer's Ready.
    Ready = 7,
    /// The responder waits for room to send the last Ready.
    LastWrite = 8,
}

impl Stage {
    /// All stages, in the order of their numbers.
    const ALL: [Self; 8] = [
        Self::Hello,
        Self::Welcome,
        Self::ChooseRail,
        Self::Connect,
        Self::Prepare,
        Self::Accept,
        Self::Ready,
        Self::LastWrite,
    ];

    /// The frame that the peer has to send, if it is the peer's turn.
    #[must_use]
    pub const fn awaited(self) -> Option<FrameKind> {
        match self {
            Self::Hello => Some(FrameKind::Hello),
            Self::Welcome => Some(FrameKind::Welcome),
            Self::Connect => Some(FrameKind::Connect),
            Self::Accept => Some(FrameKind::Accept),
            Self::Ready => Some(FrameKind::Ready),
            Self::ChooseRail | Self::Prepare | Self::LastWrite => None,
        }
    }

    /// The number of the stage, as a Reject carries it.
    #[must_use]
    pub const fn to_wire(self) -> u8 {
        self as u8
    }

    /// Returns the stage with the number in a Reject; `None` if this release does not know the number.
    pub(crate) fn from_wire(number: u32) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|stage| u32::from(stage.to_wire()) == number)
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hello => "waiting for a Hello",
            Self::Welcome => "waiting for a Welcome",
            Self::ChooseRail => "choosing a rail",
            Self::Connect => "waiting for a Connect",
            Self::Prepare => "bringing a queue pair to RTS",
            Self::Accept => "waiting for an Accept",
            Self::Ready => "waiting for a Ready",
            Self::LastWrite => "sending the last Ready",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Stage;

    #[test]
    fn each_number_is_one_stage() {
        let numbers: [u8; 8] = Stage::ALL.map(Stage::to_wire);
        assert_eq!(numbers, [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(numbers.map(u32::from).map(Stage::from_wire), Stage::ALL.map(Some));
        assert_eq!([0, 9, u32::MAX].map(Stage::from_wire), [None; 3]);
    }
}
