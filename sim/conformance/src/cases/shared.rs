//! Receives that queue pairs share: which queue pair takes them, which fail together, and which events come
//! (S22, and S10, S12 and S17 where receives are shared).

use doorbell_core::provider::{
    Arena, Completion, Context, Operation, PostFlags, ProtectionDomain, Provider, QueuePair, QueuePairConfig,
    ReceiveBatch, SendBatch, SendQueue, SharedQueuePairParts, SharedReceiveQueue, SharedReceiveQueueConfig,
    Slot,
};
use doorbell_core::{QpState, Qpn, WcStatus};

use super::table;
use crate::notes::{asked, either, event_name, list, statuses};
use crate::side::{SLOT_BYTES, Side, USUAL, Wish, sides, take};
use crate::{Notes, Rig, Trouble};

table! {
    10 s10_only_the_shared_receive_that_was_taken_fails
        "of a shared queue, the receive that was too small, and no other"
        => "sent: REM_INV_REQ_ERR; received: LOC_LEN_ERR of the first; left: 1; the other connection: SUCCESS; received: the other of the second";
    12 s12_what_waits_goes_on_with_a_shared_receive
        "a message waits for a receive of a shared queue as for any"
        => "before: nothing; sent: SUCCESS SUCCESS; received: one two";
    17 s17_messages_of_every_queue_pair_consume_shared_receives
        "one each, whichever queue pair it came by; a plain WRITE none"
        => "sent: SUCCESS SUCCESS SUCCESS SUCCESS; received: a of the first, b of the second, - of the first; left: 1";
    17 s17_a_shared_receive_scatters
        "a receive of a shared queue has several elements, too"
        => "sent: SUCCESS; received: 256 8 bytes, as sent";
    22 s22_the_limit_tells_once_when_fewer_are_left
        "SRQ_LIMIT_REACHED once, when fewer than the limit are left; then the limit is off"
        => "4 left of limit 3: nothing; 3: nothing; 2: SRQ_LIMIT_REACHED; 1: nothing";
    22 s22_the_limit_can_be_set_again_and_off
        "set again it tells again; 0 is off; it is at most the depth"
        => "set again: SRQ_LIMIT_REACHED; set off: nothing; beyond the depth: EINVAL";
    22 s22_a_failed_queue_pair_flushes_nothing_shared
        "receives of a shared queue stay for the others"
        => "state: ERR; flushed: nothing; the other connection: SUCCESS; received: after of the second; left: 1";
    22 s22_the_last_receive_of_a_failed_queue_pair_is_told
        "QP_LAST_WQE_REACHED: it takes no more of them"
        => "events: QP_LAST_WQE_REACHED";
}

const QUEUE: SharedReceiveQueueConfig = SharedReceiveQueueConfig {
    depth: 6,
    scatter_max: 2,
};

/// One queue pair of a connection.
struct Spoke<P: Provider> {
    control: P::QueuePair,
    send: P::SendQueue,
}

impl<P: Provider> Spoke<P> {
    fn connect(&mut self, side: &Side<P>, peer: (doorbell_core::Gid, Qpn)) -> Result<(), Trouble> {
        self.control
            .initialize(side.end.port, side.wish.through_queue_pair)?;
        self.control.ready_to_receive(&side.to_receive(peer))?;
        Ok(self.control.ready_to_send(&side.wish.to_send())?)
    }
}

/// Two connections whose far ends share their receives. The sides' own queue pairs stay idle.
struct Shared<P: Provider> {
    queue: P::SharedReceiveQueue,
    far_spokes: Vec<Spoke<P>>,
    near_spokes: Vec<Spoke<P>>,
    near: Side<P>,
    far: Side<P>,
}

impl<P: Provider> Shared<P> {
    fn new<R: Rig<P = P>>(rig: &R) -> Result<Self, Trouble> {
        let [near, far] = sides(rig, [USUAL; 2])?;
        let queue = far
            .domain
            .shared_receive_queue(&far.receive_completions, &QUEUE)?;
        let mut shared = Self {
            queue,
            far_spokes: Vec::new(),
            near_spokes: Vec::new(),
            near,
            far,
        };
        shared.add(10)?;
        shared.add(11)?;
        Ok(shared)
    }

    /// Makes one more connection.
    fn add(&mut self, channel: u32) -> Result<(), Trouble> {
        let Self { near, far, .. } = self;
        let own: Wish = USUAL;
        let parts = near.domain.queue_pair(
            &near.send_completions,
            &near.receive_completions,
            &own.queue_pair(channel),
        )?;
        let mut near_spoke: Spoke<P> = Spoke {
            control: parts.control,
            send: parts.send,
        };
        let on_shared = QueuePairConfig {
            receive_depth: 0,
            scatter_max: 0,
            ..own.queue_pair(channel)
        };
        let SharedQueuePairParts { control, send } =
            far.domain
                .queue_pair_on(&self.queue, &far.send_completions, &on_shared)?;
        let mut far_spoke: Spoke<P> = Spoke { control, send };
        near_spoke.connect(near, (far.end.gid, far_spoke.control.qpn()))?;
        far_spoke.connect(far, (near.end.gid, near_spoke.control.qpn()))?;
        self.near_spokes.push(near_spoke);
        self.far_spokes.push(far_spoke);
        Ok(())
    }

    fn post_receives(&mut self, count: u32) -> Result<(), Trouble> {
        let mut batch = self.queue.stage();
        for _ in 0..count {
            let slot = self.far.arena.lease().ok_or(Trouble::new("no slot is left"))?;
            batch.push([slot])?;
        }
        batch.ring()?;
        Ok(())
    }

    /// Sends from the near end of a connection.
    fn send(&mut self, spoke: usize, operation: Operation, bytes: &[u8]) -> Result<(), Trouble> {
        let spoke = self.near_spokes.get_mut(spoke).ok_or(Trouble::new("no spoke"))?;
        let mut batch = spoke.send.stage();
        batch.push_inline(operation, bytes, PostFlags::SIGNALED)?;
        batch.ring()?;
        Ok(())
    }

    /// Waits for so many requests of either connection to end.
    fn sent(&mut self, count: usize) -> Result<String, Trouble> {
        let completions = take(&mut self.near.send_completions, count, self.near.patience)?;
        let mut ends: Vec<WcStatus> = Vec::new();
        for completion in completions {
            let qpn = completion.qpn();
            ends.push(completion.status());
            let mut spokes = self.near_spokes.iter_mut();
            if let Some(spoke) = spokes.find(|spoke| spoke.control.qpn() == qpn) {
                spoke.send.retire(completion.lend(), |_, _| ())?;
            }
        }
        Ok(statuses(ends))
    }

    /// Waits for so many messages: what each has, or how it failed, and by which connection it came.
    fn received(&mut self, count: usize) -> Result<Vec<String>, Trouble> {
        let completions = take(&mut self.far.receive_completions, count, self.far.patience)?;
        let mut all = Vec::new();
        for completion in completions {
            let qpn = completion.qpn();
            let mut payload = Vec::new();
            let arrival = self.queue.retire(completion.lend(), |_, slot| {
                payload.extend_from_slice(slot.payload())
            })?;
            let what = match (arrival.status.is_success(), payload.is_empty()) {
                (false, _) => crate::notes::status_name(arrival.status),
                (true, true) => "-".to_owned(),
                (true, false) => String::from_utf8_lossy(&payload).into_owned(),
            };
            all.push(format!("{what} of {}", self.which(qpn)));
        }
        Ok(all)
    }

    fn which(&self, qpn: Qpn) -> &'static str {
        let mut spokes = self.far_spokes.iter();
        match spokes.position(|spoke| spoke.control.qpn() == qpn) {
            Some(0) => "the first",
            Some(1) => "the second",
            _ => "another",
        }
    }

    /// The events of the far side, which are of its first connection where they are of any.
    fn events(&self) -> Result<String, Trouble> {
        let own = self.far_spokes.first().map(|spoke| spoke.control.qpn());
        let (mut names, began) = (Vec::new(), std::time::Instant::now());
        loop {
            match self.far.context.next_event()? {
                Some(event) => names.push(event_name(event, own.unwrap_or(Qpn::from_low_bits(0)))),
                None if began.elapsed() >= self.far.patience.quiet => return Ok(list(names)),
                None => std::thread::sleep(core::time::Duration::from_micros(100)),
            }
        }
    }

    /// Has one message come by the first connection.
    fn take_one(&mut self) -> Result<(), Trouble> {
        self.send(0, Operation::Send, b"x")?;
        let ends = self.sent(1)?;
        let received = self.received(1)?;
        let came = ends == "SUCCESS" && received.len() == 1;
        if came {
            Ok(())
        } else {
            Err(Trouble(format!("a message ended with {ends}")))
        }
    }
}

fn s10_only_the_shared_receive_that_was_taken_fails<R: Rig>(
    rig: &R,
    notes: &mut Notes,
) -> Result<(), Trouble> {
    let mut shared = Shared::new(rig)?;
    shared.post_receives(2)?;
    let slots = [
        shared.near.slot(&[1; SLOT_BYTES as usize])?,
        shared.near.slot(b"x")?,
    ];
    let spoke = shared.near_spokes.first_mut().ok_or(Trouble::new("no spoke"))?;
    let mut batch = spoke.send.stage();
    batch.push(Operation::Send, slots, PostFlags::SIGNALED)?;
    batch.ring()?;
    notes.put("sent", shared.sent(1)?);
    notes.put("received", list(shared.received(1)?));
    notes.put("left", shared.queue.in_flight());
    shared.send(1, Operation::Send, b"the other")?;
    notes.put("the other connection", shared.sent(1)?);
    notes.put("received", list(shared.received(1)?));
    Ok(())
}

fn s12_what_waits_goes_on_with_a_shared_receive<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let mut shared = Shared::new(rig)?;
    shared.send(0, Operation::Send, b"one")?;
    shared.send(1, Operation::Send, b"two")?;
    notes.put("before", shared.near.stray_ends()?);
    shared.post_receives(2)?;
    notes.put("sent", shared.sent(2)?);
    let mut received = shared.received(2)?;
    // Between queue pairs there is no order.
    received.sort_unstable();
    let texts = received
        .iter()
        .map(|text| text.split(' ').next().unwrap_or_default());
    notes.put("received", list(texts));
    Ok(())
}

fn s17_messages_of_every_queue_pair_consume_shared_receives<R: Rig>(
    rig: &R,
    notes: &mut Notes,
) -> Result<(), Trouble> {
    let mut shared = Shared::new(rig)?;
    shared.post_receives(4)?;
    let remote = shared.far.at(0)?;
    let (mut ends, mut received) = (Vec::new(), Vec::new());
    let messages: [(usize, Operation, &[u8]); 4] = [
        (0, Operation::Send, b"a"),
        (1, Operation::SendWithImmediate(7), b"b"),
        (0, Operation::WriteWithImmediate(remote, 8), b"c"),
        (1, Operation::Write(remote), b"d"),
    ];
    for (spoke, operation, bytes) in messages {
        shared.send(spoke, operation, bytes)?;
        ends.push(shared.sent(1)?);
        received.extend(shared.received(usize::from(operation.takes_receive()))?);
    }
    notes.put("sent", list(ends));
    notes.put("received", received.join(", "));
    notes.put("left", shared.queue.in_flight());
    Ok(())
}

fn s17_a_shared_receive_scatters<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let mut shared = Shared::new(rig)?;
    let slots = [shared.far.slot(b"")?, shared.far.slot(b"")?];
    let mut batch = shared.queue.stage();
    batch.push(slots)?;
    batch.ring()?;
    let (long, short) = ([3; SLOT_BYTES as usize], *b"the rest");
    let slots = [shared.near.slot(&long)?, shared.near.slot(&short)?];
    let spoke = shared.near_spokes.first_mut().ok_or(Trouble::new("no spoke"))?;
    let mut batch = spoke.send.stage();
    batch.push(Operation::Send, slots, PostFlags::SIGNALED)?;
    batch.ring()?;
    notes.put("sent", shared.sent(1)?);
    let mut pieces = Vec::new();
    for completion in take(&mut shared.far.receive_completions, 1, shared.far.patience)? {
        shared
            .queue
            .retire(completion.lend(), |_, slot| pieces.push(slot.payload().to_vec()))?;
    }
    let is_as_sent = pieces == [long.to_vec(), short.to_vec()];
    let sizes = list(pieces.iter().map(Vec::len));
    let as_sent = either(is_as_sent, "as sent", "otherwise");
    notes.put("received", format_args!("{sizes} bytes, {as_sent}"));
    Ok(())
}

fn s22_the_limit_tells_once_when_fewer_are_left<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let mut shared = Shared::new(rig)?;
    shared.post_receives(5)?;
    shared.events()?;
    shared.queue.set_limit(3)?;
    for left in ["4 left of limit 3", "3", "2", "1"] {
        shared.take_one()?;
        notes.put(left, shared.events()?);
    }
    Ok(())
}

fn s22_the_limit_can_be_set_again_and_off<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let mut shared = Shared::new(rig)?;
    shared.post_receives(5)?;
    shared.queue.set_limit(5)?;
    shared.take_one()?;
    shared.events()?;
    shared.queue.set_limit(4)?;
    shared.take_one()?;
    notes.put("set again", shared.events()?);
    shared.queue.set_limit(3)?;
    shared.queue.set_limit(0)?;
    shared.take_one()?;
    notes.put("set off", shared.events()?);
    let beyond = shared.queue.set_limit(65_000);
    notes.put("beyond the depth", asked(beyond));
    Ok(())
}

fn s22_a_failed_queue_pair_flushes_nothing_shared<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let mut shared = Shared::new(rig)?;
    shared.post_receives(2)?;
    let first = shared.far_spokes.first_mut().ok_or(Trouble::new("no spoke"))?;
    first.control.fail()?;
    let failed = first.control.state()? == QpState::Error;
    notes.put("state", either(failed, "ERR", "another"));
    notes.put("flushed", shared.far.stray_ends()?);
    shared.send(1, Operation::Send, b"after")?;
    notes.put("the other connection", shared.sent(1)?);
    notes.put("received", list(shared.received(1)?));
    notes.put("left", shared.queue.in_flight());
    Ok(())
}

fn s22_the_last_receive_of_a_failed_queue_pair_is_told<R: Rig>(
    rig: &R,
    notes: &mut Notes,
) -> Result<(), Trouble> {
    let mut shared = Shared::new(rig)?;
    shared.post_receives(2)?;
    shared.take_one()?;
    shared.events()?;
    let first = shared.far_spokes.first_mut().ok_or(Trouble::new("no spoke"))?;
    first.control.fail()?;
    notes.put("events", shared.events()?);
    Ok(())
}
