//! Records events for a later look. Without a recorder it costs one check.

use super::World;
use crate::completion::CompletionEntry;
use crate::packet::Opcode;
use crate::packet::pool::PacketKey;
use crate::plan::Action;
use crate::queue_pair::QueuePairKey;
use crate::timeline::{Fate, Lane, Recorder, Timeline, Tone};
use doorbell_core::{PortState, WorkKind};

impl World {
    /// Begins to note what happens.
    pub(crate) fn record(&mut self, moments_max: usize) {
        self.recorder = Some(Box::new(Recorder::new(moments_max)));
    }

    pub(crate) fn take_timeline(&mut self) -> Timeline {
        let recorder = self.recorder.take();
        recorder
            .map(|recorder| recorder.into_timeline())
            .unwrap_or_default()
    }

    /// Notes that a packet leaves, for a port where there is a way to it.
    pub(super) fn record_leaving(
        &mut self,
        key: QueuePairKey,
        to: Option<u32>,
        packet: PacketKey,
        at_ns: u64,
    ) {
        if self.recorder.is_none() {
            return;
        }
        let (Some(from), Some(said)) = (self.lane_of(key), self.packets.get(packet)) else {
            return;
        };
        let to = to.map(|port| Lane::QueuePair(port, said.bth.destination_qpn.to_u32()));
        if let Some(to) = to {
            self.name_lane(to);
        }
        let qp = self.queue_pairs.get(key);
        let mtu_bytes = qp.and_then(|qp| Some(qp.connection.as_ref()?.attributes.path_mtu.bytes()));
        let (Some(recorder), Some(said)) = (&mut self.recorder, self.packets.get(packet)) else {
            return;
        };
        // A READ has a number for each packet that is to come back.
        let psns = match (said.bth.opcode, said.reth, mtu_bytes) {
            (Opcode::ReadRequest, Some(reth), Some(mtu_bytes)) => {
                reth.bytes.div_ceil(mtu_bytes.max(1)).max(1)
            }
            _ => 1,
        };
        recorder.leave(at_ns, (from, to), psns, (packet, said));
    }

    pub(super) fn record_double(&mut self, packet: PacketKey, copy: PacketKey) {
        if let Some(recorder) = &mut self.recorder {
            recorder.double(packet, copy);
        }
    }

    pub(super) fn record_end(&mut self, packet: PacketKey, fate: Fate) {
        if let Some(recorder) = &mut self.recorder {
            recorder.end(packet, fate);
        }
    }

    /// Notes why nobody took a packet that came in at a port.
    pub(super) fn record_unheard(&mut self, packet: PacketKey, port: u32) {
        let is_down = self
            .port_at(port)
            .is_none_or(|place| place.report.state != PortState::ACTIVE);
        let is_corrupt = self.packets.get(packet).is_some_and(|packet| packet.is_corrupt);
        let fate = match (is_down, is_corrupt) {
            (true, _) => Fate::Refused(self.now_ns),
            (false, true) => Fate::Corrupt(self.now_ns),
            (false, false) => Fate::Unheard(self.now_ns),
        };
        self.record_end(packet, fate);
    }

    /// Notes a completion; where its queue has no room, it is lost.
    pub(crate) fn record_completion(&mut self, key: QueuePairKey, entry: &CompletionEntry, has_room: bool) {
        let is_send = entry.work_id.kind() == Some(WorkKind::Send);
        let whose = if is_send { "request" } else { "receive" };
        let is_good = has_room && entry.status.is_success();
        self.remark_at(key, if is_good { Tone::Good } else { Tone::Bad }, || {
            let bytes = match entry.status.is_success() && !is_send {
                true => format!(", {} B", entry.bytes),
                false => String::new(),
            };
            let lost = if has_room {
                ""
            } else {
                ", LOST: the completion queue overran"
            };
            format!("{whose}: {}{bytes}{lost}", entry.status.describe())
        });
    }

    pub(super) fn record_failure(&mut self, key: QueuePairKey) {
        self.remark_at(key, Tone::Bad, || "FAILS".to_owned());
    }

    pub(super) fn record_refused_post(&mut self, key: QueuePairKey, taken: usize, errno: i32) {
        self.remark_at(key, Tone::Bad, || {
            format!("post REFUSED with {errno} after {taken}")
        });
    }

    /// Notes an action of the plan, or of its performer.
    pub(super) fn record_action(&mut self, action: &Action) {
        if let Some(recorder) = &mut self.recorder {
            recorder.remark(self.now_ns, None, action.to_string(), Tone::Fault);
        }
    }

    /// Notes a remark about a host.
    pub(crate) fn remark_host(&mut self, host: &str, text: &str) {
        let place = self.hosts.iter().position(|known| known.name == host);
        let Some(recorder) = &mut self.recorder else {
            return;
        };
        let lane = place.map(Lane::Host);
        if let Some(lane) = lane {
            recorder.name(lane, host.to_owned());
        }
        recorder.remark(self.now_ns, lane, text.to_owned(), Tone::Note);
    }

    fn remark_at(&mut self, key: QueuePairKey, tone: Tone, text: impl FnOnce() -> String) {
        if self.recorder.is_none() {
            return;
        }
        let lane = self.lane_of(key);
        if let Some(recorder) = &mut self.recorder {
            recorder.remark(self.now_ns, lane, text(), tone);
        }
    }

    /// The lane of a queue pair.
    fn lane_of(&mut self, key: QueuePairKey) -> Option<Lane> {
        let qp = self.queue_pairs.get(key)?;
        let port = usize::from(qp.port).checked_sub(1)?;
        let lane = Lane::QueuePair(*self.device(qp.device)?.ports.get(port)?, qp.qpn.to_u32());
        self.name_lane(lane);
        Some(lane)
    }

    /// Gives the lane of a queue pair its name, the first time it is used.
    fn name_lane(&mut self, lane: Lane) {
        if self.recorder.as_ref().is_none_or(|recorder| recorder.knows(lane)) {
            return;
        }
        if let Lane::QueuePair(port, qpn) = lane {
            let name = self
                .name_of(port)
                .map(|name| format!("{}/{}:{} qp {qpn}", name.host, name.device, name.port));
            if let (Some(name), Some(recorder)) = (name, &mut self.recorder) {
                recorder.name(lane, name);
            }
        }
    }
}
