//! The part of the router for other nodes: outgoing frames, incoming frames, credits.

use std::collections::{BTreeMap, VecDeque};

use super::{
    Arrived, Client, EndpointAddress, Frame, GoneReason, InFlight, Job, Jobs, Message, NodeNumber,
    PAIR_CREDITS, Router, Said, Step, UndeliveredReason, Usage, Waiting,
};
use crate::client_state::Outcome;
use crate::grants::is_of;
use crate::one_sided::{Action, Asked};
use crate::stopped::Stopped;

#[cfg(test)]
std::thread_local! {
    /// Number of times that this thread looked at the room of a lane.
    pub(crate) static LOOKS: core::cell::Cell<u64> = const { core::cell::Cell::new(0) };
}

/// Maximum number of frames in a lane for it to accept more messages or READ responses. Other frames are bounded by credits.
const LANE_FRAMES_MAX: usize = 256;

/// Number of bytes in a lane from which it accepts no more messages and no READ responses.
const LANE_BYTES_MAX: usize = 4 << 20;

/// Frames for a node that are sent over the same link.
#[derive(Debug, Default)]
pub(super) struct Lane {
    frames: VecDeque<Vec<u8>>,
    bytes: usize,
}

impl Lane {
    /// Number and bytes of waiting frames.
    pub(super) fn waiting(&self) -> (u64, u64) {
        (self.frames.len() as u64, self.bytes as u64)
    }

    fn has_room(&self) -> bool {
        self.frames.len() < LANE_FRAMES_MAX && self.bytes < LANE_BYTES_MAX
    }
}

/// Number of messages and operations that wait, for each pair: index of the receiver, address of the sender, and its incarnation.
#[derive(Debug, Default)]
pub(super) struct Kept {
    pairs: BTreeMap<(usize, EndpointAddress, u64), usize>,
    /// The sum over all pairs.
    pub(super) total: usize,
}

impl Kept {
    /// Removes a message or operation that no longer waits.
    pub(super) fn release(
        &mut self,
        (users, jobs): (&mut BTreeMap<u32, Usage>, &mut Jobs),
        job: &Job,
        (index, arrived): (usize, &Arrived),
    ) {
        let pair = (index, arrived.from, arrived.incarnation);
        if let Some(count) = self.pairs.get_mut(&pair) {
            *count = count.saturating_sub(1);
            self.total = self.total.saturating_sub(1);
            if *count == 0 {
                self.pairs.remove(&pair);
            }
        }
        if let Some(user) = users.get_mut(&job.user) {
            user.kept_bytes = user.kept_bytes.saturating_sub(arrived.bytes);
        }
        if let Some(members) = jobs.get_mut(&(job.user, job.number)) {
            members.kept_bytes = members.kept_bytes.saturating_sub(arrived.bytes);
        }
    }
}

/// The lane of a pair, out of `lanes`.
fn lane_of(lanes: u32, from: u32, to: u32) -> u32 {
    let mixed = from.wrapping_mul(0x9e37_79b9) ^ to.wrapping_mul(0x85eb_ca6b);
    (mixed >> 16).checked_rem(lanes).unwrap_or(0)
}

/// Decision about an arrived message or operation.
enum Arrival {
    Refused(UndeliveredReason),
    Answered(Outcome),
    Waits,
}

/// Violation of the protocol between daemons by the daemon of another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerFault {
    /// The bytes are not a valid frame.
    Frame,
    /// The daemon sent more messages of a pair than the pair has credits.
    Credits,
}

impl Router {
    /// Adds a node with a number of lanes. All messages of a pair of endpoints use the same lane.
    pub(crate) fn add_node(&mut self, node: NodeNumber, lanes: u32) {
        self.lanes = lanes.max(1);
        self.nodes.insert(node);
    }

    /// Passes the frames of each lane to `send`, in order, until it returns `false`. Returns whether any was sent.
    pub(crate) fn send_frames(&mut self, mut send: impl FnMut(NodeNumber, u32, &[u8]) -> bool) -> bool {
        let mut is_moved = false;
        for ((node, number), lane) in &mut self.out {
            while lane
                .frames
                .front()
                .is_some_and(|frame| send(*node, *number, frame))
            {
                let sent = lane.frames.pop_front().map_or(0, |frame| frame.len());
                lane.bytes = lane.bytes.saturating_sub(sent);
                is_moved = true;
            }
        }
        self.out.retain(|_, lane| !lane.frames.is_empty());
        is_moved
    }

    /// Number of entries in the queues of all clients.
    #[cfg(test)]
    pub(crate) fn kept_reports(&self) -> u64 {
        let waiting = self.clients.iter().flatten().map(|client| client.waiting.len());
        waiting.sum::<usize>() as u64
    }

    /// Number of messages and operations in the queues of all clients. It has to equal the counted number.
    #[cfg(test)]
    pub(crate) fn kept_in_queues(&self) -> usize {
        let kept = self.clients.iter().flatten();
        kept.map(|client| client.arrived().count()).sum()
    }

    /// Bytes of frames that wait in lanes.
    #[cfg(test)]
    pub(crate) fn frame_bytes(&self) -> usize {
        let frames = self.out.values().flat_map(|lane| &lane.frames);
        frames.map(Vec::len).sum()
    }

    /// Whether frames wait in a lane.
    pub(crate) fn has_frames(&self) -> bool {
        !self.out.is_empty()
    }

    fn push_frame(&mut self, node: NodeNumber, frame: &Frame, payload: &[u8]) {
        let mut bytes = frame.bytes().to_vec();
        bytes.extend_from_slice(payload);
        let number = self.lane(frame.from, frame.to);
        let lane = self.out.entry((node, number)).or_default();
        lane.bytes = lane.bytes.saturating_add(bytes.len());
        lane.frames.push_back(bytes);
    }

    /// The lane of a pair of endpoints. The two directions of a pair may use different lanes.
    fn lane(&self, from: u32, to: u32) -> u32 {
        lane_of(self.lanes, from, to)
    }

    /// Whether the lane of a pair accepts another message.
    fn has_lane_room(&self, node: NodeNumber, (from, to): (u32, u32)) -> bool {
        let lane = self.out.get(&(node, self.lane(from, to)));
        lane.is_none_or(Lane::has_room)
    }

    /// Stops READs at the front of the client's queue whose lane has no room, and requests at the front that follow a stopped one of the same
    /// pair. Then moves the requests of a stopped pair whose lane has room to the front, unless `resumed` such requests are still there.
    /// Returns their new number, or `None` once no stopped pair has room: lanes get no room during a turn.
    pub(super) fn pass_stopped(&mut self, index: usize, resumed: Option<usize>) -> Option<usize> {
        let Self {
            clients, out, lanes, ..
        } = self;
        let client = clients.get_mut(index).and_then(Option::as_mut)?;
        let to = client.address.endpoint;
        let key = |arrived: &Arrived| (arrived.from.node, lane_of(*lanes, arrived.from.endpoint, to));
        let has_room = |key| {
            #[cfg(test)]
            LOOKS.set(LOOKS.get().saturating_add(1));
            out.get(&key).is_none_or(Lane::has_room)
        };
        let mut resumed = resumed;
        while let Some(Waiting::Arrived(arrived)) = client.waiting.front() {
            let stopped = client.stopped.as_ref();
            let is_behind = stopped.is_some_and(|stopped| stopped.has(arrived.from));
            if !is_behind && (arrived.fetched() == 0 || has_room(key(arrived))) {
                break;
            }
            if let Some(Waiting::Arrived(arrived)) = client.waiting.pop_front() {
                let stopped = client.stopped.get_or_insert_with(|| Box::new(Stopped::new()));
                stopped.push(key(&arrived), arrived.from, arrived);
                resumed = resumed.map(|resumed| resumed.saturating_sub(1));
            }
        }
        if resumed != Some(0) {
            return resumed;
        }
        let stopped = client.stopped.as_mut()?;
        let pair = stopped.take_pair(has_room)?;
        if stopped.count() == 0 {
            client.stopped = None;
        }
        let resumed = pair.len();
        for arrived in pair.into_iter().rev() {
            client.waiting.push_front(Waiting::Arrived(arrived));
        }
        Some(resumed)
    }

    /// Counts a message or an operation that waits for a client.
    fn keep(&mut self, index: usize, arrived: &Arrived) {
        let Some(job) = self.client(index).map(|client| client.job) else {
            return;
        };
        let pair = (index, arrived.from, arrived.incarnation);
        let count = self.kept.pairs.entry(pair).or_default();
        *count = count.saturating_add(1);
        self.kept.total = self.kept.total.saturating_add(1);
        let user = self.users.entry(job.user).or_default();
        user.kept_bytes = user.kept_bytes.saturating_add(arrived.bytes);
        if let Some(members) = self.jobs.get_mut(&(job.user, job.number)) {
            members.kept_bytes = members.kept_bytes.saturating_add(arrived.bytes);
        }
    }

    /// Uncounts a message or an operation that no longer waits.
    pub(super) fn release(&mut self, index: usize, arrived: &Arrived) {
        if let Some(job) = self.client(index).map(|client| client.job) {
            let owners = (&mut self.users, &mut self.jobs);
            self.kept.release(owners, &job, (index, arrived));
        }
    }

    /// The frame for the next message or operation of a client to another node. Returns `None` if it has to wait, and an error if it
    /// cannot be sent.
    pub(super) fn next_frame(
        &mut self,
        index: usize,
        to: EndpointAddress,
        said: Said,
    ) -> Result<Option<Frame>, UndeliveredReason> {
        if !self.nodes.contains(&to.node) {
            return Err(UndeliveredReason::NoNode);
        }
        let Some(client) = self.client(index) else {
            return Ok(None);
        };
        let frame = Frame {
            said,
            job: client.job,
            from: client.address.endpoint,
            to: to.endpoint,
            incarnation: client.incarnation,
            number: client.sent,
        };
        let in_flight = client.in_flight(to);
        if in_flight >= PAIR_CREDITS || !self.has_lane_room(to.node, (frame.from, frame.to)) {
            return Ok(None);
        }
        if !self.meets(index, to) {
            return Err(UndeliveredReason::TooManyPeers);
        }
        Ok(Some(frame))
    }

    /// Queues a frame of [`Router::next_frame`], and records it as in flight.
    pub(super) fn send_frame(
        &mut self,
        index: usize,
        (to, number): (EndpointAddress, u64),
        frame: &Frame,
        operation: Option<(Asked, u64)>,
    ) {
        if let Some(client) = self.client_mut(index) {
            let sent = InFlight {
                sequence: client.sent,
                number,
                position: client.position(),
                operation,
            };
            client.fly(to, sent);
            client.sent = client.sent.saturating_add(1);
        }
        let payload = core::mem::take(&mut self.payload);
        self.push_frame(to.node, frame, &payload);
        self.payload = payload;
        self.counts.sent = self.counts.sent.saturating_add(1);
    }

    /// Sends a message to an endpoint of another node.
    pub(super) fn route_away(&mut self, index: usize, submission: &Message) -> Step {
        let frame = match self.next_frame(index, submission.to, Said::Message) {
            Ok(Some(frame)) => frame,
            Ok(None) => return Step::Stalled,
            Err(reason) => return Step::Refused(reason),
        };
        let mut payload = core::mem::take(&mut self.payload);
        if let Some(client) = self.client(index) {
            client.copy_payload(submission.bytes, &mut payload);
        }
        self.payload = payload;
        self.send_frame(index, (submission.to, submission.number), &frame, None);
        Step::Later
    }

    /// Sends the answer to a message or an operation of another node.
    pub(super) fn answer(&mut self, job: Job, (arrived, to): (&Arrived, u32), said: Said, payload: &[u8]) {
        let frame = Frame {
            said,
            job,
            from: arrived.from.endpoint,
            to,
            incarnation: arrived.incarnation,
            number: arrived.number,
        };
        self.counts.answered = self.counts.answered.saturating_add(1);
        self.push_frame(arrived.from.node, &frame, payload);
    }

    /// Reports the end of a client to other nodes.
    pub(super) fn remove_away(&mut self, client: &Client, reason: GoneReason) {
        let (job, endpoint) = (client.job, client.address.endpoint);
        for arrived in client.arrived() {
            self.answer(
                job,
                (arrived, endpoint),
                Said::Refused(UndeliveredReason::ReceiverGone),
                &[],
            );
        }
        for contact in &client.contacts {
            let frame = Frame {
                said: Said::Gone(reason),
                job,
                from: endpoint,
                to: contact.endpoint,
                incarnation: client.incarnation,
                number: 0,
            };
            if self.nodes.contains(&contact.node) {
                self.push_frame(contact.node, &frame, &[]);
            }
        }
    }

    /// Handles a frame from the daemon of a node.
    pub(crate) fn take_frame(&mut self, node: NodeNumber, bytes: &[u8]) -> Result<(), PeerFault> {
        let (frame, payload) = Frame::parse(bytes).map_err(|_| PeerFault::Frame)?;
        match frame.said {
            Said::Hello => Err(PeerFault::Frame),
            Said::Message => self.take_message(node, &frame, None, payload),
            Said::Operation => {
                let (asked, payload) = Asked::parse(payload).ok_or(PeerFault::Frame)?;
                self.take_message(node, &frame, Some(asked), payload)
            }
            Said::Completed => self.take_outcome(node, &frame, payload),
            Said::Delivered => {
                if let Some((client, to)) = self.sender(node, &frame) {
                    client.delivered(to, frame.number);
                }
                Ok(())
            }
            Said::Refused(reason) => {
                let mut is_refused = false;
                if let Some((client, to)) = self.sender(node, &frame) {
                    if let Some(sent) = client.land(to, frame.number, |_| true) {
                        client.owe_undelivered(to, sent, reason);
                        is_refused = true;
                    }
                }
                self.counts.undelivered = self.counts.undelivered.saturating_add(is_refused.into());
                Ok(())
            }
            Said::Gone(reason) => {
                let who = EndpointAddress {
                    node,
                    endpoint: frame.from,
                };
                let receiver = self.receiver(&frame);
                if let Some(client) = receiver.and_then(|index| self.client_mut(index)) {
                    client.lose(who, reason);
                }
                Ok(())
            }
        }
    }

    /// Handles an arrived message, or the operation `asked`.
    fn take_message(
        &mut self,
        node: NodeNumber,
        frame: &Frame,
        asked: Option<Asked>,
        payload: &[u8],
    ) -> Result<(), PeerFault> {
        let mut arrived = Arrived {
            from: EndpointAddress {
                node,
                endpoint: frame.from,
            },
            incarnation: frame.incarnation,
            number: frame.number,
            asked,
            payload: payload.to_vec(),
            bytes: size_of::<Arrived>().saturating_add(payload.len()) as u64,
        };
        let index = self.receiver(frame);
        let arrival = match index {
            Some(index) => self.arrive(index, frame, &mut arrived)?,
            None => Arrival::Refused(UndeliveredReason::NoEndpoint),
        };
        self.counts.arrived = self.counts.arrived.saturating_add(1);
        match (arrival, index) {
            (Arrival::Waits, Some(index)) => {
                self.keep(index, &arrived);
                if let Some(client) = self.client_mut(index) {
                    client.waiting.push_back(Waiting::Arrived(Box::new(arrived)));
                }
            }
            (Arrival::Answered(outcome), _) => {
                self.answer_operation(frame.job, (&arrived, frame.to), outcome);
            }
            (Arrival::Refused(refusal), _) => {
                self.answer(frame.job, (&arrived, frame.to), Said::Refused(refusal), &[]);
            }
            (Arrival::Waits, None) => {}
        }
        Ok(())
    }

    /// Decides about an arrived message or operation for a client, and executes an operation that need not wait.
    fn arrive(&mut self, index: usize, frame: &Frame, arrived: &mut Arrived) -> Result<Arrival, PeerFault> {
        let contacts_max = self.limits.contacts_max;
        let pair = (index, arrived.from, arrived.incarnation);
        let of_pair = self.kept.pairs.get(&pair).copied().unwrap_or(0);
        let has_way_back =
            arrived.fetched() == 0 || self.has_lane_room(arrived.from.node, (frame.from, frame.to));
        let asked = arrived.asked;
        let Some(client) = self.client_mut(index) else {
            return Ok(Arrival::Refused(UndeliveredReason::NoEndpoint));
        };
        if asked.is_none() && arrived.payload.len() > client.layout.message_bytes() as usize {
            return Ok(Arrival::Refused(UndeliveredReason::TooLong));
        }
        let stopped = client.stopped.as_ref().map_or(0, |stopped| stopped.count());
        if client.waiting.len().saturating_add(stopped) >= contacts_max.saturating_mul(PAIR_CREDITS) {
            return Ok(Arrival::Refused(UndeliveredReason::ReceiverFull));
        }
        if of_pair >= PAIR_CREDITS {
            return Err(PeerFault::Credits);
        }
        if !client.may_meet(arrived.from, contacts_max) {
            return Ok(Arrival::Refused(UndeliveredReason::TooManyPeers));
        }
        // An operation waits for earlier requests of its pair, but not for the room of other pairs. An operation with a report also waits
        // for earlier reports. All others are executed at once: if the requesting process ends next, its grants end.
        let is_first = client.waiting.is_empty();
        let is_next = of_pair == 0 && has_way_back;
        let at_once = asked.filter(|asked| is_next && (is_first || !asked.action.waits_for_room()));
        let outcome = match at_once {
            Some(asked) if matches!(asked.action, Action::End(_)) => {
                let ended = client.end_transfer(&asked, arrived.from, arrived.incarnation);
                Some(ended.map(|report| {
                    if let Some(report) = report {
                        client.owe(report, None);
                    }
                    (0, Vec::new())
                }))
            }
            Some(asked) => client.serve(&asked, arrived).ok().flatten(),
            None => None,
        };
        if outcome.is_none() {
            let job = (client.job.user, client.job.number);
            let of_user = self.users.get(&job.0).map_or(0, |user| user.kept_bytes);
            let of_job = self.jobs.get(&job).map_or(0, |members| members.kept_bytes);
            if of_user.saturating_add(arrived.bytes) > self.limits.kept_bytes_of_user_max
                || of_job.saturating_add(arrived.bytes) > self.limits.kept_bytes_of_job_max
            {
                return Ok(Arrival::Refused(UndeliveredReason::ReceiverFull));
            }
        }
        // A sender that is refused takes no place of a contact.
        self.meets(index, arrived.from);
        Ok(outcome.map_or(Arrival::Waits, Arrival::Answered))
    }

    /// The index of the client that a frame is for, if it belongs to the same job: number, user and key.
    fn receiver(&self, frame: &Frame) -> Option<usize> {
        let index = self.member(&frame.job, frame.to)?;
        let client = self.client(index)?;
        (client.job == frame.job).then_some(index)
    }

    /// The client that sent the message which an answer refers to, and the message's destination.
    pub(super) fn sender(
        &mut self,
        node: NodeNumber,
        frame: &Frame,
    ) -> Option<(&mut Client, EndpointAddress)> {
        let index = self.member(&frame.job, frame.from)?;
        let client = self.client_mut(index)?;
        let is_same = client.job == frame.job && client.incarnation == frame.incarnation;
        let to = EndpointAddress {
            node,
            endpoint: frame.to,
        };
        is_same.then_some((client, to))
    }

    /// Ends everything in flight with a node: messages to it end as [`UndeliveredReason::Unknown`], and its endpoints are gone.
    pub(crate) fn lose_node(&mut self, node: NodeNumber) {
        self.out.retain(|(of, _), _| *of != node);
        let mut unknown = 0_u64;
        let Self {
            clients,
            users,
            jobs,
            kept,
            counts,
            ..
        } = self;
        for (index, client) in clients.iter_mut().enumerate() {
            let Some(client) = client else { continue };
            unknown = unknown.saturating_add(client.lose_flights(is_of(node)));
            client.grants.end_of(is_of(node));
            // The senders get the outcome "unknown", and start again with all credits.
            let job = client.job;
            let mut is_kept = |arrived: &Arrived| {
                let is_lost = arrived.from.node == node;
                if is_lost {
                    counts.answered = counts.answered.saturating_add(1);
                    kept.release((users, jobs), &job, (index, arrived));
                }
                !is_lost
            };
            if let Some(stopped) = &mut client.stopped {
                stopped.lose_node(node, |arrived| _ = is_kept(arrived));
            }
            client.stopped = client.stopped.take().filter(|stopped| stopped.count() > 0);
            client.waiting.retain(|waiting| match waiting {
                Waiting::Arrived(arrived) => is_kept(arrived),
                Waiting::Report(..) => true,
            });
            let gone: Vec<_> = client
                .contacts
                .iter()
                .filter(|who| who.node == node)
                .copied()
                .collect();
            for who in gone {
                client.lose(who, GoneReason::NodeLost);
            }
        }
        self.counts.undelivered = self.counts.undelivered.saturating_add(unknown);
    }
}

#[cfg(test)]
mod tests {
    use super::{Frame, Job, LANE_BYTES_MAX, LANE_FRAMES_MAX, Lane, NodeNumber, Router, Said, lane_of};
    use crate::name::{JobKey, JobNumber};
    use crate::router::RouterLimits;

    #[test]
    fn pairs_are_spread_over_all_lanes_in_both_directions() {
        for lanes in [1, 2, 4, 16] {
            for pairs_of in [(1, 64), (64, 1), (16, 16)] {
                let mut counts = vec![[0_u32; 2]; lanes as usize];
                let pairs = (0..pairs_of.0).flat_map(|from| (0..pairs_of.1).map(move |to| (from, to)));
                for (from, to) in pairs {
                    counts[lane_of(lanes, from, to) as usize][0] += 1;
                    counts[lane_of(lanes, to, from) as usize][1] += 1;
                }
                let share = pairs_of.0 * pairs_of.1 / lanes;
                let is_even = counts
                    .iter()
                    .flatten()
                    .all(|count| (share / 4..=share * 3).contains(count));
                assert!(is_even, "{lanes} {pairs_of:?}: {counts:?}");
            }
        }
        assert_eq!(lane_of(0, 5, 7), 0);
    }

    #[test]
    fn a_lane_takes_more_while_it_is_within_both_bounds() {
        let lane = |frames: usize, bytes| Lane {
            frames: vec![Vec::new(); frames].into(),
            bytes,
        };
        let (frames, bytes) = (LANE_FRAMES_MAX - 1, LANE_BYTES_MAX - 1);
        assert!(lane(frames, bytes).has_room());
        assert!(!lane(frames + 1, bytes).has_room() && !lane(frames + 1, 0).has_room());
        assert!(!lane(frames, bytes + 1).has_room() && !lane(0, bytes + 1).has_room());
    }

    #[test]
    fn bytes_that_a_lane_gave_away_leave_room_for_others() {
        let node = NodeNumber(1);
        let mut router = Router::new(NodeNumber(0), &RouterLimits::default());
        router.add_node(node, 1);
        let frame = Frame {
            said: Said::Completed,
            job: Job {
                number: JobNumber(1),
                key: JobKey([0; 16]),
                user: 1,
            },
            from: 2,
            to: 3,
            incarnation: 1,
            number: 1,
        };
        for _ in 0..5 {
            router.push_frame(node, &frame, &[0; LANE_BYTES_MAX / 4]);
        }
        for left in (0..5).rev() {
            let mut most = 1;
            assert!(router.send_frames(|to, lane, _| {
                assert_eq!((to, lane), (node, 0));
                core::mem::take(&mut most) > 0
            }));
            assert_eq!(router.has_lane_room(node, (2, 3)), left < 4, "{left}");
            assert_eq!(router.has_frames(), left > 0);
        }
    }
}
