//! Two streams in memory, with a clock of their own, and the two machines between them.

use std::collections::VecDeque;

use doorbell_core::Instant;
use doorbell_core::handshake::{Established, HandshakeError, Initiator, Io, IoError, Responder, Step};

use crate::oracle::keys::Keys;

/// One direction.
#[derive(Default)]
pub(crate) struct Lane {
    pub(crate) bytes: VecDeque<u8>,
    pub(crate) closed: bool,
    /// How many bytes may lie in it.
    pub(crate) room: Option<usize>,
    /// Everything that ever went in.
    pub(crate) history: Vec<u8>,
}

/// One side's view of both directions.
pub(crate) struct End<'a> {
    pub(crate) incoming: &'a mut Lane,
    pub(crate) outgoing: &'a mut Lane,
}

impl Io for End<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, IoError> {
        if self.incoming.bytes.is_empty() {
            return if self.incoming.closed {
                Ok(0)
            } else {
                Err(IoError::WouldBlock)
            };
        }
        let bytes = buffer.len().min(self.incoming.bytes.len());
        for (to, from) in buffer.iter_mut().zip(self.incoming.bytes.drain(..bytes)) {
            *to = from;
        }
        Ok(bytes)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<usize, IoError> {
        if self.outgoing.closed {
            return Err(IoError::Closed);
        }
        let room = self
            .outgoing
            .room
            .map_or(bytes.len(), |room| room - self.outgoing.bytes.len().min(room));
        let written = room.min(bytes.len());
        if written == 0 {
            return Err(IoError::WouldBlock);
        }
        self.outgoing.bytes.extend(&bytes[..written]);
        self.outgoing.history.extend(&bytes[..written]);
        Ok(written)
    }
}

/// Both machines and what lies between them.
pub(crate) struct Pair {
    pub(crate) initiator: Initiator<Keys>,
    pub(crate) responder: Responder<Keys>,
    pub(crate) up: Lane,
    pub(crate) down: Lane,
    pub(crate) now_ns: u64,
}

impl Pair {
    pub(crate) fn new(initiator: Initiator<Keys>, responder: Responder<Keys>) -> Self {
        Self {
            initiator,
            responder,
            up: Lane::default(),
            down: Lane::default(),
            now_ns: 0,
        }
    }

    pub(crate) const fn now(&self) -> Instant {
        Instant::from_ns(self.now_ns)
    }

    pub(crate) fn poll_initiator(&mut self) -> Step {
        let now = self.now();
        self.initiator.poll(
            now,
            &mut End {
                incoming: &mut self.down,
                outgoing: &mut self.up,
            },
        )
    }

    pub(crate) fn poll_responder(&mut self) -> Step {
        let now = self.now();
        self.responder.poll(
            now,
            &mut End {
                incoming: &mut self.up,
                outgoing: &mut self.down,
            },
        )
    }
}

/// Returns the outcome of a handshake that has to be connected.
pub(crate) fn connected(step: Step) -> Established {
    let Step::Connected(established) = step else {
        panic!("{step:?}")
    };
    established
}

/// Returns the error of a handshake that has to have failed.
pub(crate) fn failed(step: Step) -> HandshakeError {
    let Step::Failed(error) = step else {
        panic!("{step:?}")
    };
    error
}
