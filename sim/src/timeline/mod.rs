//! Timelines: what happened in a run, to be looked at, as lines of text or as a picture.
//!
//! Here is what a timeline consists of. The recorder notes it as it happens; `text` and `svg` draw it. Streams
//! are not in it.

mod axis;
mod recorder;
mod svg;
#[cfg(test)]
mod tests;
mod text;

use crate::packet::{Opcode, PacketKind};

pub(crate) use recorder::{Lane, Recorder};

/// Events of a run since [`Fabric::record`](crate::Fabric::record) was called.
///
/// Each active queue pair is a lane. Packets go from lane to lane; lost, doubled, retransmitted and changed ones are
/// marked. Completions, failures and actions of the plan stand between them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    lanes: Vec<String>,
    /// In order of time.
    moments: Vec<Moment>,
    /// Moments that had no room.
    left_out: LeftOut,
}

/// Counts of the moments that a timeline had no room for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct LeftOut {
    packets: u64,
    others: u64,
    /// When the last of them was, in nanoseconds.
    until_ns: u64,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Moment {
    at_ns: u64,
    what: What,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    Packet(Shot),
    /// So many of the same at once, at a lane or at all of them.
    Remark {
        lane: Option<usize>,
        text: String,
        tone: Tone,
        times: u32,
    },
}

/// A packet, from when its last bit left its port.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Shot {
    from: usize,
    /// `None` where no queue pair of that number ever was.
    to: Option<usize>,
    kind: PacketKind,
    opcode: Opcode,
    psn: u32,
    payload_bytes: usize,
    /// It, or a part of it, had been sent before.
    is_again: bool,
    /// A link made it of another.
    is_copy: bool,
    fate: Fate,
}

/// Fate of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    UnderWay,
    /// There was no way to where it was to go.
    Stranded,
    Lost,
    /// Its port was down when it came.
    Refused(u64),
    Corrupt(u64),
    /// It came, and nobody took it.
    Unheard(u64),
    Arrived(u64),
}

impl Fate {
    /// When it came, where it did.
    const fn at_ns(self) -> Option<u64> {
        match self {
            Self::UnderWay | Self::Stranded | Self::Lost => None,
            Self::Refused(at_ns) | Self::Corrupt(at_ns) | Self::Unheard(at_ns) | Self::Arrived(at_ns) => {
                Some(at_ns)
            }
        }
    }

    /// Returns a word for its fate, except for an arrival.
    const fn trouble(self) -> Option<&'static str> {
        match self {
            Self::UnderWay => Some("under way"),
            Self::Stranded => Some("LOST: no way"),
            Self::Lost => Some("LOST"),
            Self::Refused(_) => Some("LOST: the port is down"),
            Self::Corrupt(_) => Some("CORRUPT"),
            Self::Unheard(_) => Some("UNHEARD"),
            Self::Arrived(_) => None,
        }
    }
}

/// How a remark is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    /// Something completed.
    Good,
    /// Something failed.
    Bad,
    /// The plan, or its performer, did something.
    Fault,
    /// The user of the simulator added a remark.
    Note,
}

impl Shot {
    /// Describes it in few words.
    fn label(&self) -> String {
        let part = match self.opcode {
            Opcode::SendFirst | Opcode::WriteFirst | Opcode::ReadResponseFirst => " first",
            Opcode::SendMiddle | Opcode::WriteMiddle | Opcode::ReadResponseMiddle => " middle",
            Opcode::SendLast
            | Opcode::SendLastWithImmediate
            | Opcode::WriteLast
            | Opcode::WriteLastWithImmediate
            | Opcode::ReadResponseLast => " last",
            _ => "",
        };
        let immediate = if self.opcode.has_immediate() { " imm" } else { "" };
        let bytes = match self.payload_bytes {
            0 => String::new(),
            bytes => format!(" {bytes} B"),
        };
        format!("{}{part}{immediate} psn {}{bytes}", self.kind.name(), self.psn)
    }

    /// Returns the marks of its faults.
    fn troubles(&self) -> Vec<&'static str> {
        let again = self.is_again.then_some("AGAIN");
        let copy = self.is_copy.then_some("DOUBLED");
        [again, copy, self.fate.trouble()].into_iter().flatten().collect()
    }
}

/// How a timeline says when something was: in one unit, exact to the nanosecond.
#[derive(Clone, Copy)]
struct Unit {
    name: &'static str,
    ns: u64,
    places: usize,
}

impl Unit {
    const ALL: [Self; 3] = [
        Self::of("us", 1_000, 3),
        Self::of("ms", 1_000_000, 6),
        Self::of("s", 1_000_000_000, 9),
    ];

    const fn of(name: &'static str, ns: u64, places: usize) -> Self {
        Self { name, ns, places }
    }

    fn say(self, at_ns: u64) -> String {
        let whole = at_ns.checked_div(self.ns).unwrap_or_default();
        let rest = at_ns.checked_rem(self.ns).unwrap_or_default();
        format!("{whole}.{rest:0places$} {}", self.name, places = self.places)
    }
}

impl Timeline {
    /// The unit in which even the last moment has at most five digits before the point.
    fn unit(&self) -> Unit {
        let [small, middle, large] = Unit::ALL;
        let ends_ns = self.moments.last().map_or(0, |moment| moment.at_ns);
        match ends_ns {
            0..100_000_000 => small,
            100_000_000..100_000_000_000 => middle,
            _ => large,
        }
    }

    /// Adds remarks from elsewhere: the time in nanoseconds since the fabric was made, the host or none, and the text. If
    /// the timeline is cut, remarks later than its end are left out, and counted.
    pub fn extend(&mut self, remarks: impl IntoIterator<Item = (u64, Option<String>, String)>) {
        let is_cut = self.cut().is_some();
        let ends_ns = self.moments.last().map_or(0, |moment| moment.at_ns);
        for (at_ns, host, text) in remarks {
            if is_cut && at_ns > ends_ns {
                self.left_out.others = self.left_out.others.saturating_add(1);
                self.left_out.until_ns = self.left_out.until_ns.max(at_ns);
                continue;
            }
            let tone = if host.is_some() { Tone::Note } else { Tone::Bad };
            let lane = host.map(|host| {
                let known = self.lanes.iter().position(|name| *name == host);
                known.unwrap_or_else(|| {
                    self.lanes.push(host);
                    self.lanes.len().saturating_sub(1)
                })
            });
            let what = What::Remark {
                lane,
                text,
                tone,
                times: 1,
            };
            self.moments.push(Moment { at_ns, what });
        }
        // Moments of one time stay in order, the fabric's own first.
        self.moments.sort_by_key(|moment| moment.at_ns);
    }

    /// How many packets are in it, and how many moments of other kinds.
    fn counts(&self) -> [usize; 2] {
        let is_packet = |moment: &&Moment| matches!(moment.what, What::Packet(_));
        let packets = self.moments.iter().filter(is_packet).count();
        [packets, self.moments.len().saturating_sub(packets)]
    }

    /// Describes the moments that had no room.
    fn cut(&self) -> Option<String> {
        let LeftOut {
            packets,
            others,
            until_ns,
        } = self.left_out;
        let until = self.unit().say(until_ns);
        (packets > 0 || others > 0).then(|| {
            format!(
                "CUT HERE: {packets} more packets and {others} more moments, up to {until}, are not shown"
            )
        })
    }
}
