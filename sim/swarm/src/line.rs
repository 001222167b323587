//! A connection as both its applications together see it, and the oracles over that.

use std::collections::VecDeque;

use doorbell::connect::Connecting;
use doorbell::provider::{Qpn, Window as _};
use doorbell::{ChannelId, Listener, LocalWindow, Ticket, WcStatus};
use doorbell_sim::Host;

use crate::case::EndingsCase;
use crate::failure::{Verdict, ensure, failure};
use crate::pattern::{HEADER_BYTES, Label, RESTING, SUBMITTED, WRITTEN};
use crate::repeats::Arrival;
use crate::rings::Rings;
use crate::station::{CELL_BYTES, CELLS, CELLS_AT, RESTING_AT, RESTING_BYTES};

/// A line: connected from time to time.
pub(crate) struct Line {
    pub(crate) listener: Listener<Host, Host>,
    pub(crate) attempt: Option<Connecting<Host, Host>>,
    pub(crate) connection: Option<Connection>,
}

/// A connection, from one attempt to connect until both ends are gone.
pub(crate) struct Connection {
    pub(crate) number: u32,
    /// The end that connected, and the one that listened.
    pub(crate) ends: [Option<End>; 2],
    /// The traffic in each direction, by the sending end.
    pub(crate) flows: [Flow; 2],
    /// The queue pair of each end, as the other knows it.
    pub(crate) qpns: [Option<Qpn>; 2],
    /// An end closes or fails it: whatever the other sees of that is excused.
    pub(crate) is_ending: bool,
    /// The end that listened has its channel, or had it. Any other channel that comes to it is a stray.
    pub(crate) was_accepted: bool,
    /// An end was dropped with its Worker, and what it had posted with it.
    pub(crate) is_dropped: bool,
    /// The ends that closed it, with all that they posted done.
    pub(crate) has_parted: [bool; 2],
    /// The ends to which it was reported as failed.
    pub(crate) is_reported_failed: [bool; 2],
}

/// One end that is there.
pub(crate) struct End {
    pub(crate) worker: usize,
    pub(crate) id: ChannelId,
    /// The requests that were posted and not reported since, in order.
    pub(crate) posted: VecDeque<Posted>,
    pub(crate) is_closing: bool,
    /// It was told of a failure of what it sends, or receives.
    pub(crate) has_failed: bool,
    pub(crate) receives_failed: bool,
    /// It was told that the channel is over.
    pub(crate) is_over: bool,
    /// It was told that its peer used more receives than it was granted.
    pub(crate) is_overdrawn: bool,
    /// Its application failed it.
    pub(crate) is_shut: bool,
    /// It was told of a failure that is no flush.
    pub(crate) has_cause: bool,
    /// The last arrival, and how often the device repeated it as the queue pair failed. Nothing new comes after a
    /// repeat.
    pub(crate) newest: Option<Arrival>,
    pub(crate) repeats: u64,
    pub(crate) rings: Rings,
}

impl End {
    pub(crate) fn new(worker: usize, id: ChannelId, rings: Rings) -> Self {
        Self {
            worker,
            id,
            posted: VecDeque::new(),
            is_closing: false,
            has_failed: false,
            receives_failed: false,
            is_over: false,
            is_overdrawn: false,
            is_shut: false,
            has_cause: false,
            newest: None,
            repeats: 0,
            rings,
        }
    }

    /// Whether it is on its way out, or about to be.
    pub(crate) const fn is_leaving(&self) -> bool {
        self.is_closing || self.has_failed || self.knows_end()
    }

    /// Whether its application knows that nothing more is to come of it.
    pub(crate) const fn knows_end(&self) -> bool {
        self.is_over || self.is_shut || matches!(self.rings, Rings::Failed(_))
    }

    /// Whether its Worker closes it by itself.
    pub(crate) fn is_left(&self, endings: Option<EndingsCase>) -> bool {
        self.is_over && endings.is_some_and(|endings| endings.is_left_to_worker)
    }
}

/// A request that was posted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Posted {
    pub(crate) ticket: Ticket,
    pub(crate) kind: Kind,
}

/// The operation of a posted request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Message,
    Write {
        cell: usize,
        number: u64,
        bytes: usize,
        is_told: bool,
    },
    Read {
        bytes: usize,
        is_back: bool,
    },
    Atomic {
        expected: u64,
        is_back: bool,
    },
    /// Into the peer's ring.
    Ringed,
}

/// A message that takes a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) label: Label,
    pub(crate) bytes: usize,
    pub(crate) has_word: bool,
    /// A WRITE with immediate.
    pub(crate) is_written: bool,
}

/// The traffic from one end to the other.
#[derive(Default)]
pub(crate) struct Flow {
    /// Messages of the channel itself, in order.
    pub(crate) sent: Vec<Sent>,
    pub(crate) received: usize,
    /// Messages known to have arrived.
    pub(crate) acknowledged: usize,
    /// Messages through the submitter. Their posting is not reported.
    pub(crate) submitted: Vec<Sent>,
    pub(crate) submitted_received: usize,
    /// Messages into the ring that the other end reads.
    pub(crate) ringed: Vec<Sent>,
    pub(crate) ringed_received: usize,
    /// How often the next of them was looked for with no room for it.
    pub(crate) ringed_without_room: usize,
    /// The number that was written last into each cell.
    pub(crate) cells: [Option<u64>; CELLS],
    pub(crate) writes: u64,
    /// The value of the peer's counter once everything posted is done.
    pub(crate) counter: u64,
}

impl Flow {
    /// All messages of it that came, whichever way they were sent.
    pub(crate) const fn came(&self) -> usize {
        self.received + self.submitted_received + self.ringed_received
    }

    /// Whether something that was submitted is yet to come.
    pub(crate) fn is_submitting(&self) -> bool {
        self.submitted.len() > self.submitted_received
    }
}

impl Connection {
    pub(crate) fn new(number: u32) -> Self {
        Self {
            number,
            ends: [None, None],
            flows: Default::default(),
            qpns: [None; 2],
            is_ending: false,
            was_accepted: false,
            is_dropped: false,
            has_parted: [false; 2],
            is_reported_failed: [false; 2],
        }
    }

    /// Which end a channel of a host's Worker is, if it is one.
    pub(crate) fn is_at(&self, end: usize, worker: usize, id: ChannelId) -> bool {
        self.ends[end]
            .as_ref()
            .is_some_and(|end| end.worker == worker && end.id == id)
    }

    pub(crate) fn label(&self, end: usize, stream: u8, number: u64) -> Label {
        Label {
            connection: self.number,
            end: end as u8,
            stream,
            number,
        }
    }

    /// Returns the label of the bytes in an end's window that the other may read.
    pub(crate) fn resting(&self, end: usize) -> Label {
        self.label(end, RESTING, 0)
    }

    /// A message came to this end. The oracle for what is sent: nothing lost, twice, in another order, torn, or of
    /// somebody else.
    pub(crate) fn hear(&mut self, end: usize, bytes: &[u8], word: Option<u32>) -> Verdict {
        let flow = &mut self.flows[1 - end];
        let found = Label::of(bytes);
        let is_submitted = found.is_some_and(|label| label.stream == SUBMITTED);
        let (sent, received) = if is_submitted {
            (&flow.submitted, &mut flow.submitted_received)
        } else {
            (&flow.sent, &mut flow.received)
        };
        let Some(expected) = sent.get(*received) else {
            return Err(failure(
                "made up",
                format!("{found:?} where nothing more was sent"),
            ));
        };
        if is_submitted {
            // Submissions that failed before they were posted are left out.
            let at = found.map_or(0, |label| label.number as usize);
            if at > *received && sent.get(at).is_some_and(|sent| Some(sent.label) == found) {
                *received = at + 1;
                return ensure(sent[at].label.bytes(sent[at].bytes) == bytes, "torn", || {
                    format!("{found:?}")
                });
            }
        }
        ensure(
            found == Some(expected.label) && !expected.is_written,
            "order",
            || format!("{found:?} came where {expected:?} was due"),
        )?;
        ensure(expected.label.bytes(expected.bytes) == bytes, "torn", || {
            format!("{} bytes of {expected:?}", bytes.len())
        })?;
        let due = expected.has_word.then(|| expected.label.immediate());
        ensure(word == due, "word", || format!("{word:?} with {expected:?}"))?;
        *received += 1;
        Ok(())
    }

    /// The peer wrote into the window of this end, and told.
    pub(crate) fn hear_written(&mut self, end: usize, bytes: u32, word: u32) -> Verdict {
        let flow = &mut self.flows[1 - end];
        let expected = flow.sent.get(flow.received).copied();
        let is_due = expected.is_some_and(|sent| sent.is_written && sent.bytes == bytes as usize);
        ensure(
            is_due && expected.is_some_and(|sent| sent.label.immediate() == word),
            "order",
            || format!("a WRITE of {bytes} bytes with {word:#x} came where {expected:?} was due"),
        )?;
        flow.received += 1;
        Ok(())
    }

    /// Something that was to be brought back to this end is there.
    pub(crate) fn fetch(&mut self, end: usize, ticket: Ticket, data: &[u8]) -> Verdict {
        let resting = self.resting(1 - end);
        let Some(at) = self.ends[end].as_mut() else {
            return Err(failure("owner", "data for a channel that is gone"));
        };
        let Some(posted) = at.posted.iter_mut().find(|posted| posted.ticket == ticket) else {
            return Err(failure(
                "made up",
                format!("data for {ticket:?}, which is not under way"),
            ));
        };
        match &mut posted.kind {
            Kind::Read { bytes, is_back } if !*is_back => {
                *is_back = true;
                ensure(resting.bytes(*bytes) == data, "torn", || {
                    format!("a READ of {bytes} bytes")
                })
            }
            Kind::Atomic { expected, is_back } if !*is_back => {
                *is_back = true;
                ensure(data == expected.to_ne_bytes(), "atomic", || {
                    format!("{data:?} where {expected:#x} was due")
                })
            }
            kind => Err(failure("twice", format!("data for {kind:?}"))),
        }
    }

    /// All that this end posted up to a request is done, it too where it did not fail. Gives what was written.
    pub(crate) fn finish(&mut self, end: usize, through: Ticket, is_good: bool) -> Verdict<Vec<Kind>> {
        let flow = &mut self.flows[end];
        let Some(at) = self.ends[end].as_mut() else {
            return Err(failure("owner", "a completion for a channel that is gone"));
        };
        let mut done = Vec::new();
        while let Some(posted) = at.posted.front().filter(|posted| posted.ticket <= through) {
            let Posted { ticket, kind } = *posted;
            at.posted.pop_front();
            if ticket == through && !is_good {
                break;
            }
            match kind {
                Kind::Read { is_back, .. } | Kind::Atomic { is_back, .. } => {
                    ensure(is_back, "fetched", || {
                        format!("{kind:?} is done, and brought nothing")
                    })?;
                }
                Kind::Message | Kind::Write { is_told: true, .. } => flow.acknowledged += 1,
                Kind::Write { .. } | Kind::Ringed => {}
            }
            done.push(kind);
        }
        Ok(done)
    }

    /// Whether what was written is there, where nothing was written over it since.
    pub(crate) fn check_written(&self, end: usize, kind: Kind, region: &[u8]) -> Verdict {
        let Kind::Write {
            cell, number, bytes, ..
        } = kind
        else {
            return Ok(());
        };
        if self.flows[end].cells[cell] != Some(number) {
            return Ok(());
        }
        let at = CELLS_AT + cell * CELL_BYTES;
        let due = self.label(end, WRITTEN, number).bytes(bytes);
        ensure(region.get(at..at + bytes) == Some(&due), "written", || {
            format!("{bytes} bytes in cell {cell} of a WRITE that is done")
        })
    }

    /// Checks that every acknowledged message has come.
    pub(crate) fn check_lost(&self, end: usize) -> Verdict {
        let flow = &self.flows[end];
        ensure(flow.acknowledged <= flow.received, "lost", || {
            format!(
                "{} messages are known to have arrived, {} came",
                flow.acknowledged, flow.received
            )
        })
    }
}

/// Whether a channel may end with this status here, by some plan.
pub(crate) const fn may_end_with(status: WcStatus, is_overdrawn: bool, has_timeout: bool) -> bool {
    match status {
        WcStatus::RESP_TIMEOUT_ERR => has_timeout,
        WcStatus::WR_FLUSH_ERR | WcStatus::RETRY_EXC_ERR => true,
        WcStatus::GENERAL_ERR => is_overdrawn,
        _ => false,
    }
}

/// So many bytes of a message as they may be, with room for the header.
pub(crate) fn bounded(bytes: u16, most: usize) -> usize {
    usize::from(bytes).clamp(HEADER_BYTES, most)
}

/// Prepares a line's part of a window, which begins at `at`: the counter and the bytes that the peer may read.
pub(crate) fn prepare_region(
    window: &mut LocalWindow<Host>,
    at: usize,
    connection: &Connection,
    end: usize,
) -> Verdict {
    let resting = connection.resting(end).bytes(RESTING_BYTES);
    let copied = window
        .copy_in(at, &0_u64.to_ne_bytes())
        .and_then(|()| window.copy_in(at + RESTING_AT, &resting));
    copied.map_err(|error| failure("window", format!("{error:?}")))
}
