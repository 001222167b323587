//! Rings beside a channel: opened as soon as an end is there, written by operations, read as the host polls.

use doorbell::provider::PushError;
use doorbell::wire::Publication;
use doorbell::worker::{RingChannel, RingConfig, RingError, RingOpening, RingReadError};
use doorbell::{ChannelId, ChannelState, SendErrorKind};
use doorbell_sim::Host;

use crate::act::EndPlace;
use crate::bounds::RINGS_WITHIN;
use crate::case::{Excuses, RingCase};
use crate::failure::{Verdict, ensure, failure};
use crate::line::{Connection, Flow, Kind, Sent, bounded};
use crate::pattern::{HEADER_BYTES, Label, RINGED};
use crate::run::Run;

/// Messages read at each poll at most: fewer than most rings hold, so that they fill.
const READS_MAX: usize = 3;

/// The longest message.
const MESSAGE_BYTES_MAX: usize = 512;

/// One message of so many is looked for without room first: it has to stay.
const WITHOUT_ROOM_EVERY: usize = 5;

/// The rings of an end.
pub(crate) enum Rings {
    /// Its line has none.
    None,
    Opening(Box<RingOpening<Host>>),
    Open(Box<RingChannel<Host>>),
    /// The opening failed. It is kept, since the peer may know of the memory as long as the channel lives, and invite us.
    Failed(Box<RingOpening<Host>>),
}

impl Rings {
    /// Whether nothing may be sent yet: the invitation goes in front.
    pub(crate) const fn are_opening(&self) -> bool {
        matches!(self, Self::Opening(_))
    }

    pub(crate) const fn are_open(&self) -> bool {
        matches!(self, Self::Open(_))
    }
}

impl Connection {
    /// A message came out of the ring that this end reads: the next that was written, as it was.
    fn hear_ringed(&mut self, end: usize, bytes: &[u8]) -> Verdict {
        let flow = &mut self.flows[1 - end];
        let found = Label::of(bytes);
        let Some(expected) = flow.ringed.get(flow.ringed_received) else {
            return Err(failure(
                "made up",
                format!("{found:?} in a ring into which nothing more was written"),
            ));
        };
        ensure(found == Some(expected.label), "order", || {
            format!("{found:?} in a ring where {expected:?} was due")
        })?;
        ensure(expected.label.bytes(expected.bytes) == bytes, "torn", || {
            format!("{} bytes in a ring of {expected:?}", bytes.len())
        })?;
        flow.ringed_received += 1;
        Ok(())
    }
}

/// Whether opening may come to this.
fn may_fail_with(error: &RingError, excuses: Excuses, [is_broken, has_failed]: [bool; 2]) -> bool {
    match error {
        // The Worker may be done with a failed channel in the same poll. A channel that its peer closed stays for a
        // while.
        RingError::Closed => has_failed,
        RingError::Failed | RingError::PeerClosed => is_broken || excuses.may_fail(),
        RingError::Send(SendErrorKind::Refused(PushError::State(_))) => is_broken || excuses.may_fail(),
        RingError::Send(SendErrorKind::Post(_)) => excuses.posts,
        RingError::TimedOut => excuses.may_fail() || excuses.clocks,
        _ => false,
    }
}

impl Run<'_> {
    /// Begins to open the rings of an end that is there since now.
    pub(crate) fn begin_rings(
        &mut self,
        line: usize,
        end: usize,
        worker: usize,
        id: ChannelId,
    ) -> Verdict<Rings> {
        let case = &self.case.lines[line];
        let Some(rings) = &case.rings else {
            return Ok(Rings::None);
        };
        let RingCase { cells, cell_bytes } = rings[end];
        let mut config = RingConfig::default();
        (config.cells, config.cell_bytes) = (cells, cell_bytes);
        let worker = &mut self.stations[case.hosts[end]].workers[worker];
        let deadline = worker.within(RINGS_WITHIN);
        RingChannel::begin_open(worker, id, &config, deadline)
            .map(|opening| Rings::Opening(Box::new(opening)))
            .map_err(|error| failure("ring", error.to_string()))
    }

    /// Goes on with the rings of a host's ends.
    pub(crate) fn tend_rings(&mut self, host: usize) -> Verdict {
        for line in 0..self.lines.len() {
            for end in 0..2 {
                if self.case.lines[line].rings.is_some() && self.case.lines[line].hosts[end] == host {
                    self.open_rings(line, end)?;
                    self.read_ring(line, end)?;
                }
            }
        }
        Ok(())
    }

    fn open_rings(&mut self, line: usize, end: usize) -> Verdict {
        let host = self.case.lines[line].hosts[end];
        let Some(connection) = self.lines[line].connection.as_mut() else {
            return Ok(());
        };
        let is_ending = connection.is_ending;
        let Some(at) = connection.ends[end].as_mut().filter(|at| !at.is_closing) else {
            return Ok(());
        };
        let Rings::Opening(opening) = &mut at.rings else {
            return Ok(());
        };
        let worker = &mut self.stations[host].workers[at.worker];
        let Some(outcome) = opening.advance(worker) else {
            // A peer that closed sends nothing any more, and a channel that is over takes nothing.
            let state = worker.channel(at.id).map(|channel| channel.state());
            return ensure(state == Some(ChannelState::Open), "ring", || {
                format!("line {line} end {end} goes on opening rings on a channel that is {state:?}")
            });
        };
        let now_ns = self.fabric.now().to_ns();
        match outcome {
            Ok(ring) => {
                at.rings = Rings::Open(Box::new(ring));
                self.trace.note(
                    now_ns,
                    host,
                    format_args!("line {line}: the rings of end {end} are open"),
                );
            }
            Err(error) => {
                if let Rings::Opening(opening) = core::mem::replace(&mut at.rings, Rings::None) {
                    at.rings = Rings::Failed(opening);
                }
                let is_broken = is_ending || at.has_failed;
                let has_failed = at.is_shut || at.is_overdrawn || connection.is_reported_failed[end];
                let is_spoiled = at.repeats > 0;
                connection.is_ending = true;
                self.trace.note(
                    now_ns,
                    host,
                    format_args!("line {line}: no rings at end {end}: {error}"),
                );
                let excuses = self.excuses;
                let may_be = is_spoiled || may_fail_with(&error, excuses, [is_broken, has_failed]);
                ensure(may_be, "ring", || format!("line {line} end {end}: {error}"))?;
            }
        }
        Ok(())
    }

    fn read_ring(&mut self, line: usize, end: usize) -> Verdict {
        let host = self.case.lines[line].hosts[end];
        for _ in 0..READS_MAX {
            let Some(connection) = self.lines[line].connection.as_mut() else {
                return Ok(());
            };
            let Connection { ends, flows, .. } = connection;
            let Some(at) = ends[end].as_mut() else {
                return Ok(());
            };
            let Rings::Open(ring) = &mut at.rings else {
                return Ok(());
            };
            let Some(channel) = self.stations[host].workers[at.worker].channel(at.id) else {
                return Ok(());
            };
            let flow = &mut flows[1 - end];
            let is_due = flow.ringed_received % WITHOUT_ROOM_EVERY == 1;
            let mut room = [0; MESSAGE_BYTES_MAX];
            let room = if is_due && flow.ringed_without_room < flow.ringed_received {
                &mut room[..1]
            } else {
                &mut room[..]
            };
            match ring.receive(channel, room) {
                Ok(None) => return Ok(()),
                Ok(Some(bytes)) => {
                    let message = room[..bytes].to_vec();
                    let now_ns = self.fabric.now().to_ns();
                    self.trace.note(
                        now_ns,
                        host,
                        format_args!("line {line}: {bytes} bytes from the ring"),
                    );
                    self.messages += 1;
                    connection.hear_ringed(end, &message)?;
                }
                Err(RingReadError::Room { bytes, room_bytes: 1 }) => {
                    flow.ringed_without_room = flow.ringed_received;
                    let due = flow.ringed.get(flow.ringed_received).map(|sent| sent.bytes);
                    ensure(due == Some(bytes), "torn", || {
                        format!("a message of {bytes} bytes in a ring where {due:?} were due")
                    })?;
                }
                // It was told once more of what came last.
                Err(RingReadError::Peer) if at.repeats > 0 => return Ok(()),
                Err(error) => return Err(failure("ring", format!("line {line} end {end}: {error}"))),
            }
        }
        Ok(())
    }

    /// The peer told of a WRITE on a line with rings, which only writes into those: says whether it is one.
    pub(crate) fn hear_ring_told(&mut self, line: usize, end: usize, word: u32) -> Verdict<bool> {
        let connection = self.lines[line].connection.as_mut();
        let Some(at) = connection.and_then(|connection| connection.ends[end].as_mut()) else {
            return Ok(false);
        };
        match &mut at.rings {
            Rings::None => Ok(false),
            Rings::Open(ring) => {
                ring.note_written(word);
                ensure(
                    ring.publications().received == Publication::Immediate,
                    "made up",
                    || format!("word {word:#x} for a ring of which nothing is told"),
                )
                .map(|()| true)
            }
            // A repeated message, which the opening does not take.
            Rings::Opening(_) if at.repeats > 0 => Ok(true),
            Rings::Opening(_) => Err(failure(
                "made up",
                format!("word {word:#x} before there is a ring"),
            )),
            Rings::Failed(_) => Ok(true),
        }
    }

    /// Writes messages into the peer's ring.
    pub(crate) fn write_ring(&mut self, place: EndPlace, count: u8, bytes: u16, is_copied: bool) -> Verdict {
        let EndPlace { line, end, host, .. } = place;
        let cells = self.case.lines[line]
            .rings
            .map_or(0, |rings| rings[1 - end].cells);
        for _ in 0..count {
            let capacity_bytes = self.stations[host].workers[place.worker].slot_bytes() as usize;
            let Some(connection) = self.lines[line].connection.as_mut() else {
                return Ok(());
            };
            let number = connection.flows[end].ringed.len() as u64;
            let label = connection.label(end, RINGED, number);
            let Some(at) = connection.ends[end].as_mut() else {
                return Ok(());
            };
            let Rings::Open(ring) = &mut at.rings else {
                return Ok(());
            };
            let worker = &mut self.stations[host].workers[place.worker];
            let lease = if is_copied { None } else { worker.lease() };
            let Some(channel) = worker.channel(place.id) else {
                return Ok(());
            };
            let room_bytes = match lease {
                None => channel.limits().inline_bytes_max as usize,
                Some(_) => capacity_bytes,
            };
            let most = room_bytes
                .saturating_sub(8)
                .min(ring.payload_bytes_max() as usize);
            if most < HEADER_BYTES {
                return Ok(());
            }
            let bytes = bounded(bytes, most);
            let message = label.bytes(bytes);
            let posted = match lease {
                None => ring.send_inline(channel, &message),
                Some(mut lease) => {
                    lease
                        .fill(&message)
                        .map_err(|error| failure("lease", error.to_string()))?;
                    match ring.send(channel, lease) {
                        Ok(ticket) => Ok(ticket),
                        Err(error) => {
                            let is_whole = error.item.is_none_or(|lease| lease.payload() == message);
                            ensure(is_whole, "ownership", || {
                                "a lease came back with other bytes".into()
                            })?;
                            Err(error.kind)
                        }
                    }
                }
            };
            let ticket = match posted {
                Ok(ticket) => ticket,
                Err(kind) => return self.refused(kind),
            };
            self.note(place, ticket, Kind::Ringed, None)?;
            let flow = &mut self.connection(place)?.flows[end];
            flow.ringed.push(Sent {
                label,
                bytes,
                has_word: false,
                is_written: false,
            });
            let unread = flow.ringed.len() - flow.ringed_received;
            ensure(unread <= cells as usize, "overwritten", || {
                format!("{unread} messages nobody read in a ring of {cells} cells")
            })?;
        }
        Ok(())
    }

    /// Returns the traffic that an end sends, if both ends have their rings open.
    pub(crate) fn ringed(&self, line: usize, end: usize) -> Option<&Flow> {
        let connection = self.lines[line].connection.as_ref()?;
        let are_open = connection
            .ends
            .iter()
            .all(|at| at.as_ref().is_some_and(|at| at.rings.are_open()));
        are_open.then(|| &connection.flows[end])
    }
}
