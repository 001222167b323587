//! Noting what happens in the world, as long as there is room.

use std::collections::BTreeMap;

use doorbell_core::Psn;

use super::{Fate, LeftOut, Moment, Shot, Timeline, Tone, What};
use crate::packet::Packet;
use crate::packet::pool::PacketKey;

/// Owner of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lane {
    /// A queue pair, by the place of its port and its number.
    QueuePair(u32, u32),
    /// A host, for remarks about all of it.
    Host(usize),
}

/// Notes what happens.
pub(crate) struct Recorder {
    timeline: Timeline,
    moments_max: usize,
    lanes: BTreeMap<Lane, usize>,
    /// For each lane, the PSN behind the furthest request it sent.
    furthest: Vec<Option<Psn>>,
    /// Which moment a packet under way is, by its place in the pool.
    shots: BTreeMap<usize, usize>,
}

impl Recorder {
    pub(crate) fn new(moments_max: usize) -> Self {
        Self {
            timeline: Timeline::default(),
            moments_max,
            lanes: BTreeMap::new(),
            furthest: Vec::new(),
            shots: BTreeMap::new(),
        }
    }

    pub(crate) fn knows(&self, lane: Lane) -> bool {
        self.lanes.contains_key(&lane)
    }

    /// Makes a lane, the first time it is named.
    pub(crate) fn name(&mut self, lane: Lane, name: String) {
        if !self.knows(lane) {
            self.lanes.insert(lane, self.timeline.lanes.len());
            self.timeline.lanes.push(name);
            self.furthest.push(None);
        }
    }

    /// Notes that a packet leaves, a request standing for so many PSNs.
    pub(crate) fn leave(
        &mut self,
        at_ns: u64,
        (from, to): (Lane, Option<Lane>),
        psns: u32,
        (key, packet): (PacketKey, &Packet),
    ) {
        let to = to.and_then(|to| self.lanes.get(&to).copied());
        let Some(from) = self.lanes.get(&from).copied() else {
            return;
        };
        let psn = packet.bth.psn;
        let mut is_again = false;
        if let Some(furthest) = self
            .furthest
            .get_mut(from)
            .filter(|_| !packet.bth.opcode.is_response())
        {
            let behind = psn.advance(psns);
            is_again = furthest.is_some_and(|furthest| psn.distance_from(furthest) < 0);
            if furthest.is_none_or(|furthest| behind.distance_from(furthest) > 0) {
                *furthest = Some(behind);
            }
        }
        let shot = Shot {
            from,
            to,
            kind: packet.kind(),
            opcode: packet.bth.opcode,
            psn: psn.to_u32(),
            payload_bytes: packet.payload.len(),
            is_again,
            is_copy: false,
            fate: Fate::UnderWay,
        };
        self.follow(at_ns, key, shot);
    }

    /// Notes that a link doubles a packet.
    pub(crate) fn double(&mut self, key: PacketKey, copy: PacketKey) {
        let of = self
            .shots
            .get(&key.place())
            .and_then(|at| self.timeline.moments.get(*at));
        if let Some(Moment {
            at_ns,
            what: What::Packet(shot),
        }) = of.cloned()
        {
            self.follow(
                at_ns,
                copy,
                Shot {
                    is_copy: true,
                    ..shot
                },
            );
        }
    }

    fn follow(&mut self, at_ns: u64, key: PacketKey, shot: Shot) {
        if self.timeline.moments.len() < self.moments_max {
            self.shots.insert(key.place(), self.timeline.moments.len());
            self.timeline.moments.push(Moment {
                at_ns,
                what: What::Packet(shot),
            });
        } else {
            self.shots.remove(&key.place());
            let left_out = &mut self.timeline.left_out;
            left_out.packets = left_out.packets.saturating_add(1);
            left_out.until_ns = left_out.until_ns.max(at_ns);
        }
    }

    /// Notes the fate of a packet.
    pub(crate) fn end(&mut self, key: PacketKey, fate: Fate) {
        let at = self.shots.remove(&key.place());
        let moment = at.and_then(|at| self.timeline.moments.get_mut(at));
        if let Some(Moment {
            what: What::Packet(shot),
            ..
        }) = moment
        {
            shot.fate = fate;
        }
    }

    /// Notes anything else.
    pub(crate) fn remark(&mut self, at_ns: u64, lane: Option<Lane>, text: String, tone: Tone) {
        let lane = lane.and_then(|lane| self.lanes.get(&lane).copied());
        if let Some(Moment {
            at_ns: last_ns,
            what:
                What::Remark {
                    lane: its,
                    text: said,
                    times,
                    ..
                },
        }) = self.timeline.moments.last_mut()
        {
            if (*last_ns, *its, &*said) == (at_ns, lane, &text) {
                *times = times.saturating_add(1);
                return;
            }
        }
        if self.timeline.moments.len() < self.moments_max {
            let what = What::Remark {
                lane,
                text,
                tone,
                times: 1,
            };
            self.timeline.moments.push(Moment { at_ns, what });
        } else {
            let left_out = LeftOut {
                others: self.timeline.left_out.others.saturating_add(1),
                until_ns: self.timeline.left_out.until_ns.max(at_ns),
                ..self.timeline.left_out
            };
            self.timeline.left_out = left_out;
        }
    }

    pub(crate) fn into_timeline(mut self) -> Timeline {
        // Moments of one time stay in the order in which they happened.
        self.timeline.moments.sort_by_key(|moment| moment.at_ns);
        self.timeline
    }
}
