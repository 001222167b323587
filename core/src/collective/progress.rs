//! Progress of a collective by polling.

use core::fmt;

use crate::rank::Rank;
use crate::unwinding::OnUnwind;
use crate::wire::WireError;

use super::schedule::{Collective, Schedule, Step, Transfer};
use super::{CollectiveHeader, CollectiveMisuse, GroupId, block_bytes};

/// A transport of messages in order between this rank and each other rank.
pub trait Exchange {
    /// The error of a transport that has failed.
    type Error;

    /// The maximum number of bytes of a message, header included.
    fn message_bytes_max(&self) -> usize;

    /// Sends one message: a header and a payload. Returns `false`, and sends nothing, if the message cannot be sent now.
    ///
    /// # Errors
    /// The rank cannot be reached any more.
    fn send(&mut self, to: Rank, header: &[u8], payload: &[u8]) -> Result<bool, Self::Error>;

    /// Passes the next message of a rank to `look`, and takes it; `None` if there is none now.
    ///
    /// # Errors
    /// The rank cannot be reached any more.
    fn receive<R>(&mut self, from: Rank, look: impl FnOnce(&[u8]) -> R) -> Result<Option<R>, Self::Error>;
}

/// The data of a collective. It must be the same at every poll.
#[derive(Debug)]
pub struct Data<'a> {
    /// The data to send: required for [`Collective::AllToAll`], and `None` for all other collectives, which send from `output`.
    /// With one buffer, received blocks of an all-to-all would overwrite blocks that are not sent yet.
    pub input: Option<&'a [u8]>,
    /// The received data. An input must have the same length.
    pub output: &'a mut [u8],
    /// The bytes of one element. Blocks are cut only between elements.
    pub element_bytes: usize,
}

/// The reason why a collective failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CollectiveError<E> {
    /// Caller misuse: an argument that does not fit a collective, or data of another length than at its beginning.
    Misuse(CollectiveMisuse),
    /// A rank sent a message that does not belong to a collective.
    Wire {
        /// The rank that sent it.
        peer: Rank,
        /// The error in the message.
        error: WireError,
    },
    /// A rank is in another collective than this rank, or has data of another length: the group does not call the same
    /// collectives in the same order with the same lengths.
    Mismatch {
        /// The rank that sent it.
        peer: Rank,
        /// The expected header.
        expected: CollectiveHeader,
        /// The received header.
        found: CollectiveHeader,
    },
    /// A rank cannot be reached any more.
    Exchange(E),
    /// Caller misuse: an earlier call to combine elements panicked, and the output has only a part of a message.
    Interrupted,
}

impl<E: fmt::Display> fmt::Display for CollectiveError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Misuse(misuse) => misuse.fmt(f),
            Self::Wire { peer, error } => write!(f, "rank {peer} sent no message of a collective: {error}"),
            Self::Mismatch {
                peer,
                expected,
                found,
            } => write!(
                f,
                "rank {peer} is in operation {} at step {}, this rank in operation {} at step {}: \
                 the ranks do not call the same collectives with the same lengths in the same order",
                found.operation(),
                found.step(),
                expected.operation(),
                expected.step()
            ),
            Self::Exchange(error) => fmt::Display::fmt(error, f),
            Self::Interrupted => f.write_str("combining elements panicked before: begin a new group"),
        }
    }
}

impl<E: fmt::Debug + fmt::Display> core::error::Error for CollectiveError<E> {}

/// One rank's progress in a collective.
#[derive(Clone, Debug)]
pub struct Progress {
    collective: Collective,
    operation: (GroupId, u32),
    ranks: u8,
    data_bytes: usize,
    element_bytes: usize,
    sent: Half,
    received: Half,
    /// Whether a panic ended the combining of elements.
    is_interrupted: bool,
}

/// One direction of a collective, and its progress.
#[derive(Clone, Debug)]
struct Half {
    schedule: Schedule,
    /// Picks the transfer of a step in this direction.
    of: fn(&Step) -> Option<&Transfer>,
    /// The current step, and its number.
    step: Option<(Step, u8)>,
    bytes: usize,
    is_done: bool,
}

impl Half {
    fn new(schedule: &Schedule, of: fn(&Step) -> Option<&Transfer>) -> Self {
        let mut half = Self {
            schedule: schedule.clone(),
            of,
            step: None,
            bytes: 0,
            is_done: true,
        };
        half.set_out(0);
        half
    }

    /// Begins the next step if this one is done and there is another. Returns whether it did.
    fn go_on(&mut self) -> bool {
        let next = self.step.as_ref().map(|(_, number)| number.saturating_add(1));
        let goes = next.filter(|_| self.is_done);
        if let Some(number) = goes {
            self.set_out(number);
        }
        goes.is_some()
    }

    fn set_out(&mut self, number: u8) {
        self.step = self.schedule.next().map(|step| (step, number));
        self.bytes = 0;
        // Without a transfer in this direction, the step is done.
        self.is_done = self.transfer().is_none();
    }

    fn transfer(&self) -> Option<&Transfer> {
        self.step.as_ref().and_then(|(step, _)| (self.of)(step))
    }
}

impl Progress {
    /// Begins a collective. `operation` is the group and the number of the collective in it. The number is the same on every
    /// rank, and each collective has another one.
    ///
    /// Work that needs no message is done here: [`Collective::AllToAll`] copies this rank's own block.
    ///
    /// # Errors
    /// [`CollectiveError::Misuse`].
    pub fn begin<E>(
        collective: Collective,
        operation: (GroupId, u32),
        (rank, ranks): (Rank, u8),
        data: &mut Data<'_>,
    ) -> Result<Self, CollectiveError<E>> {
        check(collective, rank, ranks, data).map_err(CollectiveError::Misuse)?;
        let unknown = CollectiveMisuse::Rank { rank, ranks };
        let schedule = Schedule::new(collective, rank, ranks).ok_or(CollectiveError::Misuse(unknown))?;
        let data_bytes = data.output.len();
        if let Some(input) = data.input {
            let own = rank.number()..rank.number().saturating_add(1);
            let place = block_bytes(own, ranks, data_bytes, data.element_bytes);
            if let (Some(to), Some(from)) = (data.output.get_mut(place.clone()), input.get(place)) {
                to.copy_from_slice(from);
            }
        }
        Ok(Self {
            collective,
            operation,
            ranks,
            data_bytes,
            element_bytes: data.element_bytes,
            sent: Half::new(&schedule, |step| step.send.as_ref()),
            received: Half::new(&schedule, |step| step.receive.as_ref()),
            is_interrupted: false,
        })
    }

    /// Advances as far as it can without waiting; `true` once all of it is done on this rank. `combine` merges the
    /// received bytes, its second argument, into the output, element by element. It gets whole elements.
    ///
    /// # Errors
    /// The collective failed and cannot go on. Other ranks may wait for this rank, so the group is of no further use.
    /// The output does not hold the result.
    ///
    /// # Panics
    /// If `combine` does. The output then holds a part of a message, and every later call fails by
    /// [`CollectiveError::Interrupted`].
    pub fn poll<X: Exchange>(
        &mut self,
        exchange: &mut X,
        data: &mut Data<'_>,
        mut combine: impl FnMut(&mut [u8], &[u8]),
    ) -> Result<bool, CollectiveError<X::Error>> {
        check_input(self.collective, data).map_err(CollectiveError::Misuse)?;
        let begun = self.data_bytes;
        let lengths = [data.output.len(), data.input.map_or(begun, <[u8]>::len)];
        if let Some(bytes) = lengths.into_iter().find(|bytes| *bytes != begun) {
            let misuse = CollectiveMisuse::OtherLength { bytes, begun };
            return Err(CollectiveError::Misuse(misuse));
        }
        if self.is_interrupted {
            return Err(CollectiveError::Interrupted);
        }
        loop {
            self.send(exchange, data)?;
            self.receive(exchange, data, &mut combine)?;
            let is_done = self.sent.is_done && self.received.is_done;
            // Blocks sent from an input depend on nothing received. Blocks sent from the output were received in
            // earlier steps.
            let goes_on = if data.input.is_some() {
                self.sent.go_on() | self.received.go_on()
            } else {
                is_done && (self.sent.go_on() | self.received.go_on())
            };
            if !goes_on {
                return Ok(is_done);
            }
        }
    }

    fn send<X: Exchange>(
        &mut self,
        exchange: &mut X,
        data: &Data<'_>,
    ) -> Result<(), CollectiveError<X::Error>> {
        let Some((
            Step {
                send: Some(transfer), ..
            },
            step,
        )) = self.sent.step.clone()
        else {
            return Ok(());
        };
        let place = self.place(&transfer);
        let source = data.input.unwrap_or(data.output).get(place).unwrap_or_default();
        let message_bytes = exchange.message_bytes_max();
        let payload_max = self.payload_bytes_max(message_bytes);
        while !self.sent.is_done {
            let rest = source.get(self.sent.bytes..).unwrap_or_default();
            let payload = rest.get(..payload_max).unwrap_or(rest);
            if payload.is_empty() && !rest.is_empty() {
                return Err(CollectiveError::Misuse(CollectiveMisuse::LongElement {
                    element_bytes: self.element_bytes,
                    message_bytes,
                }));
            }
            let header = self.header(step, self.sent.bytes, source.len());
            let went = exchange
                .send(transfer.peer, &header.to_bytes(), payload)
                .map_err(CollectiveError::Exchange)?;
            if !went {
                break;
            }
            self.sent.bytes = self.sent.bytes.saturating_add(payload.len());
            self.sent.is_done = self.sent.bytes >= source.len();
        }
        Ok(())
    }

    fn receive<X: Exchange>(
        &mut self,
        exchange: &mut X,
        data: &mut Data<'_>,
        combine: &mut impl FnMut(&mut [u8], &[u8]),
    ) -> Result<(), CollectiveError<X::Error>> {
        let Some((
            Step {
                receive: Some(transfer),
                is_combined,
                ..
            },
            step,
        )) = self.received.step.clone()
        else {
            return Ok(());
        };
        let place = self.place(&transfer);
        let peer = transfer.peer;
        while !self.received.is_done {
            let target = data.output.get_mut(place.clone()).unwrap_or_default();
            let whole = target.len();
            let expected = self.header(step, self.received.bytes, whole);
            let target = target.get_mut(self.received.bytes..).unwrap_or_default();
            let taken = exchange
                .receive(peer, |message| {
                    let (found, payload) = CollectiveHeader::parse(message)
                        .map_err(|error| CollectiveError::Wire { peer, error })?;
                    let mismatch = CollectiveError::Mismatch {
                        peer,
                        expected,
                        found: *found,
                    };
                    // Only a step without bytes has a message without bytes.
                    let is_empty = payload.is_empty() != (whole == 0);
                    let is_cut = payload.len().checked_rem(self.element_bytes.max(1)) != Some(0);
                    let Some(to) = target.get_mut(..payload.len()) else {
                        return Err(mismatch);
                    };
                    if *found != expected || is_empty || is_cut {
                        return Err(mismatch);
                    }
                    if is_combined {
                        let interrupted = OnUnwind::new(|| self.is_interrupted = true);
                        combine(to, payload);
                        interrupted.disarm();
                    } else {
                        to.copy_from_slice(payload);
                    }
                    Ok(payload.len())
                })
                .map_err(CollectiveError::Exchange)?;
            let Some(bytes) = taken else { break };
            self.received.bytes = self.received.bytes.saturating_add(bytes?);
            self.received.is_done = self.received.bytes >= whole;
        }
        Ok(())
    }

    fn place(&self, transfer: &Transfer) -> core::ops::Range<usize> {
        block_bytes(
            transfer.blocks.clone(),
            self.ranks,
            self.data_bytes,
            self.element_bytes,
        )
    }

    /// The maximum payload of a message, in bytes: a whole number of elements.
    fn payload_bytes_max(&self, message_bytes_max: usize) -> usize {
        let room = message_bytes_max.saturating_sub(super::COLLECTIVE_HEADER_BYTES);
        let cut = room.checked_rem(self.element_bytes).unwrap_or(0);
        room.saturating_sub(cut)
    }

    fn header(&self, step: u8, offset: usize, bytes: usize) -> CollectiveHeader {
        // At most the length of the data, which `begin` checked.
        let short = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
        CollectiveHeader::new(self.collective, self.operation, step, short(offset), short(bytes))
    }
}

/// Checks the rank, the root and the data of a collective that begins.
fn check(collective: Collective, rank: Rank, ranks: u8, data: &Data<'_>) -> Result<(), CollectiveMisuse> {
    let root = match collective {
        Collective::Broadcast(root) => root,
        _ => rank,
    };
    if let Some(rank) = [rank, root].into_iter().find(|rank| rank.number() >= ranks) {
        return Err(CollectiveMisuse::Rank { rank, ranks });
    }
    let (bytes, element_bytes) = (data.output.len(), data.element_bytes);
    if bytes.checked_rem(element_bytes) != Some(0) {
        return Err(CollectiveMisuse::PartOfElement { bytes, element_bytes });
    }
    if u32::try_from(bytes).is_err() {
        return Err(CollectiveMisuse::TooLong { bytes });
    }
    check_input(collective, data)?;
    if let Some(input) = data.input.map(<[u8]>::len).filter(|input| *input != bytes) {
        return Err(CollectiveMisuse::InputLength { input, output: bytes });
    }
    // The block for a rank takes the place of the block from that rank, so all need the same length.
    let elements = bytes.checked_div(element_bytes).unwrap_or(0);
    if collective == Collective::AllToAll && elements.checked_rem(ranks.into()) != Some(0) {
        return Err(CollectiveMisuse::UnevenBlocks { elements, ranks });
    }
    Ok(())
}

/// Checks whether there is an input exactly if the collective needs one.
fn check_input(collective: Collective, data: &Data<'_>) -> Result<(), CollectiveMisuse> {
    match (data.input, collective) {
        (None, Collective::AllToAll) => Err(CollectiveMisuse::NoInput),
        (Some(_), Collective::AllToAll) | (None, _) => Ok(()),
        (Some(_), _) => Err(CollectiveMisuse::UnneededInput),
    }
}
