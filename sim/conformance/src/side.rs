//! The two connected sides that a case works on: what each has, and the steps that cases are made of.

use core::time::Duration;
use std::thread;
use std::time::Instant;

use doorbell_core::provider::{
    Arena, ArenaConfig, Arrival, Completion, CompletionQueue, CompletionQueueConfig, Context,
    LentCompletion as _, Operation, PostFlags, ProtectionDomain, Provider, QueuePair, QueuePairConfig,
    QueuePairParts, ReadyToReceive, ReadyToSend, ReceiveBatch, ReceiveQueue, RemoteAccess, RemoteAddress,
    Retired, SendBatch, SendQueue, Slot, Window, WindowConfig, WindowRange,
};
use doorbell_core::{Gid, Mtu, Psn, QpState, Qpn, Ticket, WcStatus};

use crate::notes::{Notes, Trouble, either, event_name, list, statuses};
use crate::rig::{Disturbance, End, Patience, Rig, Struck};

pub(crate) const SLOTS: u32 = 64;
pub(crate) const SLOT_BYTES: u32 = 256;
pub(crate) const INLINE_BYTES: u32 = 64;
pub(crate) const WINDOW_BYTES: usize = 8192;
/// The channel of every queue pair of a side.
pub(crate) const CHANNEL: u32 = 5;
/// The last but one, so that every longer exchange wraps round (S16).
const PSN: Psn = Psn::from_low_bits(0x00ff_fffe);
/// Time within which an expected event comes.
const SOON: Duration = Duration::from_millis(1500);
/// Between looks at a device that works while we wait.
pub(crate) const NAP: Duration = Duration::from_micros(100);

/// Deviations of one side from the usual configuration, for a case.
#[derive(Clone, Copy)]
pub(crate) struct Wish {
    pub(crate) depth: u32,
    pub(crate) completion_depth: u32,
    pub(crate) notify: bool,
    /// Rights of the peer through the queue pair, and to the window.
    pub(crate) through_queue_pair: RemoteAccess,
    pub(crate) to_window: RemoteAccess,
    pub(crate) path_mtu: Mtu,
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) timeout: u8,
    pub(crate) retry_count: u8,
}

pub(crate) const USUAL: Wish = Wish {
    depth: 8,
    completion_depth: 64,
    notify: false,
    through_queue_pair: RemoteAccess::ALL,
    to_window: RemoteAccess::ALL,
    path_mtu: Mtu::B1024,
    max_rd_atomic: 4,
    max_dest_rd_atomic: 4,
    min_rnr_timer: 12,
    rnr_retry: 7,
    // 2.1 s: a machine that emulates another answers sooner.
    timeout: 19,
    retry_count: 2,
};

/// For sides that answer no READ and no atomic.
pub(crate) const WITHOUT_DEPTH: Wish = Wish {
    max_dest_rd_atomic: 0,
    ..USUAL
};

/// For those whose peer will not answer: 67 ms.
pub(crate) const QUICK: Wish = Wish { timeout: 14, ..USUAL };

impl Wish {
    pub(crate) const fn queue_pair(&self, channel: u32) -> QueuePairConfig {
        QueuePairConfig {
            channel,
            send_depth: self.depth,
            receive_depth: self.depth,
            gather_max: 2,
            scatter_max: 2,
            inline_bytes_max: INLINE_BYTES,
        }
    }

    pub(crate) const fn to_send(self) -> ReadyToSend {
        ReadyToSend {
            send_psn: PSN,
            max_rd_atomic: self.max_rd_atomic,
            timeout: self.timeout,
            retry_count: self.retry_count,
            rnr_retry: self.rnr_retry,
        }
    }
}

/// All that one side has.
pub(crate) struct Side<P: Provider> {
    // Dropped in this order: the queue pair gives its slots back to the arena.
    pub(crate) control: P::QueuePair,
    pub(crate) send: P::SendQueue,
    pub(crate) receive: P::ReceiveQueue,
    pub(crate) send_completions: P::CompletionQueue,
    pub(crate) receive_completions: P::CompletionQueue,
    pub(crate) arena: P::Arena,
    pub(crate) window: P::Window,
    pub(crate) domain: P::ProtectionDomain,
    pub(crate) context: P::Context,
    pub(crate) end: End<P>,
    pub(crate) wish: Wish,
    pub(crate) patience: Patience,
}

impl<P: Provider> Side<P> {
    fn new(end: End<P>, wish: Wish, patience: Patience) -> Result<Self, Trouble> {
        let context = end.provider.open(&end.device)?;
        let domain = context.protection_domain()?;
        let queue = CompletionQueueConfig {
            depth: wish.completion_depth,
            notify: wish.notify,
        };
        let send_completions = context.completion_queue(&queue)?;
        let receive_completions = context.completion_queue(&queue)?;
        let arena = domain.arena(&ArenaConfig::new(SLOTS, SLOT_BYTES))?;
        let window = domain.window(&WindowConfig::new(WINDOW_BYTES, wish.to_window))?;
        let QueuePairParts {
            control,
            send,
            receive,
        } = domain.queue_pair(&send_completions, &receive_completions, &wish.queue_pair(CHANNEL))?;
        Ok(Self {
            control,
            send,
            receive,
            send_completions,
            receive_completions,
            arena,
            window,
            domain,
            context,
            end,
            wish,
            patience,
        })
    }

    pub(crate) fn initialize(&mut self) -> Result<(), Trouble> {
        let (port, access) = (self.end.port, self.wish.through_queue_pair);
        Ok(self.control.initialize(port, access)?)
    }

    /// The attributes that connect us with a peer.
    pub(crate) fn to_receive(&self, peer: (Gid, Qpn)) -> ReadyToReceive {
        let (destination, destination_qpn) = peer;
        ReadyToReceive {
            address: self.end.way_to(destination),
            path_mtu: self.wish.path_mtu,
            destination_qpn,
            receive_psn: PSN,
            max_dest_rd_atomic: self.wish.max_dest_rd_atomic,
            min_rnr_timer: self.wish.min_rnr_timer,
        }
    }

    pub(crate) fn name(&self) -> (Gid, Qpn) {
        (self.end.gid, self.control.qpn())
    }

    pub(crate) fn enter_rtr(&mut self, peer: (Gid, Qpn)) -> Result<(), Trouble> {
        self.initialize()?;
        let wanted = self.to_receive(peer);
        Ok(self.control.ready_to_receive(&wanted)?)
    }

    pub(crate) fn connect(&mut self, peer: (Gid, Qpn)) -> Result<(), Trouble> {
        self.enter_rtr(peer)?;
        Ok(self.control.ready_to_send(&self.wish.to_send())?)
    }

    pub(crate) fn state(&self) -> Result<QpState, Trouble> {
        Ok(self.control.state()?)
    }

    /// The state it comes to be in: waits a while for this one.
    pub(crate) fn state_after(&self, awaited: QpState) -> Result<QpState, Trouble> {
        let began = Instant::now();
        loop {
            let state = self.state()?;
            if state == awaited || began.elapsed() >= self.patience.come {
                return Ok(state);
            }
            thread::sleep(NAP);
        }
    }

    /// A slot with these bytes in it.
    pub(crate) fn slot(&mut self, bytes: &[u8]) -> Result<P::Slot, Trouble> {
        filled(&mut self.arena, bytes)
    }

    /// A slot that is registered in another protection domain.
    pub(crate) fn foreign_slot(&self) -> Result<P::Slot, Trouble> {
        foreign::<P>(&self.context)
    }

    /// Posts one request with these bytes, signaled.
    pub(crate) fn post(&mut self, operation: Operation, bytes: &[u8]) -> Result<Ticket, Trouble> {
        self.post_with(operation, bytes, PostFlags::SIGNALED)
    }

    pub(crate) fn post_with(
        &mut self,
        operation: Operation,
        bytes: &[u8],
        flags: PostFlags,
    ) -> Result<Ticket, Trouble> {
        let slot = self.slot(bytes)?;
        self.post_slots(operation, [slot], flags)
    }

    pub(crate) fn post_slots<const N: usize>(
        &mut self,
        operation: Operation,
        slots: [P::Slot; N],
        flags: PostFlags,
    ) -> Result<Ticket, Trouble> {
        let mut batch = self.send.stage();
        let ticket = batch.push(operation, slots, flags)?;
        batch.ring()?;
        Ok(ticket)
    }

    pub(crate) fn post_ranges<const N: usize>(
        &mut self,
        operation: Operation,
        ranges: [WindowRange<'_, P::Window>; N],
        flags: PostFlags,
    ) -> Result<Ticket, Trouble> {
        let mut batch = self.send.stage();
        let ticket = batch.push_ranges(operation, ranges, flags)?;
        batch.ring()?;
        Ok(ticket)
    }

    /// Posts receives of one slot each.
    pub(crate) fn post_receives(&mut self, count: u32) -> Result<(), Trouble> {
        let mut batch = self.receive.stage();
        for _ in 0..count {
            let slot = self.arena.lease().ok_or(Trouble::new("no slot is left"))?;
            batch.push([slot])?;
        }
        batch.ring()?;
        Ok(())
    }

    /// Posts one receive with this slot.
    pub(crate) fn post_receive<const N: usize>(&mut self, slots: [P::Slot; N]) -> Result<(), Trouble> {
        let mut batch = self.receive.stage();
        batch.push(slots)?;
        batch.ring()?;
        Ok(())
    }

    /// Waits for so many requests to complete, and retires what came.
    pub(crate) fn sent(&mut self, count: usize) -> Result<Vec<Sent>, Trouble> {
        let completions = take(&mut self.send_completions, count, self.patience)?;
        completions
            .into_iter()
            .map(|completion| self.retire_send(completion))
            .collect()
    }

    pub(crate) fn retire_send(&mut self, completion: P::Completion) -> Result<Sent, Trouble> {
        let mut slots = Vec::new();
        let retired = self
            .send
            .retire(completion.lend(), |_, slot| slots.push(slot.payload().to_vec()))?;
        Ok(Sent { retired, slots })
    }

    /// Waits for so many receives to complete, and retires what came.
    pub(crate) fn received(&mut self, count: usize) -> Result<Vec<Received>, Trouble> {
        let completions = take(&mut self.receive_completions, count, self.patience)?;
        completions
            .into_iter()
            .map(|completion| self.retire_receive(completion))
            .collect()
    }

    fn retire_receive(&mut self, completion: P::Completion) -> Result<Received, Trouble> {
        let mut payload = Vec::new();
        let arrival = self.receive.retire(completion.lend(), |_, slot| {
            payload.extend_from_slice(slot.payload())
        })?;
        Ok(Received { arrival, payload })
    }

    /// How the next so many requests end, in words.
    pub(crate) fn send_ends(&mut self, count: usize) -> Result<String, Trouble> {
        Ok(statuses(self.sent(count)?.iter().map(|sent| sent.retired.status)))
    }

    /// How the next so many requests end soon, in words: for those that may well not.
    pub(crate) fn send_ends_soon(&mut self, count: usize) -> Result<String, Trouble> {
        let soon = Patience {
            come: self.patience.come.min(SOON),
            ..self.patience
        };
        let completions = take(&mut self.send_completions, count, soon)?;
        let sent = completions
            .into_iter()
            .map(|completion| self.retire_send(completion))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(statuses(sent.iter().map(|sent| sent.retired.status)))
    }

    /// How the next so many receives end, in words.
    pub(crate) fn receive_ends(&mut self, count: usize) -> Result<String, Trouble> {
        let received = self.received(count)?;
        Ok(statuses(received.iter().map(|received| received.arrival.status)))
    }

    /// Returns the ends of requests and receives when there should be none.
    pub(crate) fn stray_ends(&mut self) -> Result<String, Trouble> {
        let mut ends: Vec<WcStatus> = Vec::new();
        for queue in [&mut self.send_completions, &mut self.receive_completions] {
            let quiet = Patience {
                come: self.patience.quiet,
                polls: self.patience.quiet_polls,
                ..self.patience
            };
            // One that comes is one too many: what it stands for comes home with its queue pair.
            let strays = take(queue, 1, quiet)?;
            ends.extend(strays.iter().map(Completion::status));
        }
        Ok(statuses(ends))
    }

    /// The events that came, and come in a while; those of ports are counted once.
    pub(crate) fn events(&self) -> Result<String, Trouble> {
        let (mut names, began) = (Vec::new(), Instant::now());
        loop {
            match self.context.next_event()? {
                Some(event) => names.push(event_name(event, self.control.qpn())),
                None if began.elapsed() >= self.patience.quiet => return Ok(list(names)),
                None => thread::sleep(NAP),
            }
        }
    }

    /// Whether an event comes that has this name; others are taken, and left aside.
    pub(crate) fn hears(&self, name: &str) -> Result<bool, Trouble> {
        self.hears_within(name, self.patience.come)
    }

    /// Whether it comes soon, for an event that may well not come.
    pub(crate) fn hears_soon(&self, name: &str) -> Result<bool, Trouble> {
        self.hears_within(name, self.patience.come.min(SOON.saturating_mul(2)))
    }

    fn hears_within(&self, name: &str, span: Duration) -> Result<bool, Trouble> {
        let began = Instant::now();
        loop {
            match self.context.next_event()? {
                Some(event) if event_name(event, self.control.qpn()) == name => return Ok(true),
                Some(_) => {}
                None if began.elapsed() >= span => return Ok(false),
                None => thread::sleep(NAP),
            }
        }
    }

    /// An address in the window, for the peer.
    pub(crate) fn at(&self, offset: u64) -> Result<RemoteAddress, Trouble> {
        let remote = self.window.remote();
        let address = remote.address_of(offset, 0);
        Ok(RemoteAddress::new(
            address.ok_or(Trouble::new("beyond the window"))?,
            remote.rkey(),
        ))
    }

    pub(crate) fn window_bytes(&self, offset: usize, bytes: usize) -> Result<Vec<u8>, Trouble> {
        let mut copy = vec![0; bytes];
        self.window.copy_out(offset, &mut copy)?;
        Ok(copy)
    }
}

/// A request that was retired, with what its slots hold, and those of all before it.
pub(crate) struct Sent {
    pub(crate) retired: Retired,
    pub(crate) slots: Vec<Vec<u8>>,
}

impl Sent {
    /// Returns the content of the last slot.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.slots.last().map_or(&[], Vec::as_slice)
    }

    /// The word that an atomic or a READ of eight bytes brought.
    pub(crate) fn word(&self) -> Option<u64> {
        let bytes = self.bytes().first_chunk::<8>()?;
        Some(u64::from_ne_bytes(*bytes))
    }
}

/// A receive that was retired, with what it holds.
pub(crate) struct Received {
    pub(crate) arrival: Arrival,
    pub(crate) payload: Vec<u8>,
}

impl Received {
    /// Returns its content, as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.payload).into_owned()
    }
}

/// A slot of an arena with these bytes in it.
pub(crate) fn filled<A: Arena>(arena: &mut A, bytes: &[u8]) -> Result<A::Slot, Trouble> {
    let mut slot = arena.lease().ok_or(Trouble::new("no slot is left"))?;
    if let Some(place) = slot.buffer_mut().get_mut(..bytes.len()) {
        place.copy_from_slice(bytes);
    }
    slot.set_len_bytes(bytes.len());
    Ok(slot)
}

/// A slot that is registered in another protection domain.
pub(crate) fn foreign<P: Provider>(context: &P::Context) -> Result<P::Slot, Trouble> {
    let domain = context.protection_domain()?;
    filled(&mut domain.arena(&ArenaConfig::new(1, SLOT_BYTES))?, &[0; 4])
}

/// Takes completions until so many came, or the patience is at its end.
pub(crate) fn take<Q: CompletionQueue>(
    queue: &mut Q,
    count: usize,
    patience: Patience,
) -> Result<Vec<Q::Completion>, Trouble> {
    let (mut taken, mut empty, began) = (Vec::new(), 0_u32, Instant::now());
    while taken.len() < count {
        if queue.poll(|completion| taken.push(completion.keep()))? > 0 {
            continue;
        }
        empty = empty.saturating_add(1);
        if empty >= patience.polls && began.elapsed() >= patience.come {
            break;
        }
        if !patience.come.is_zero() {
            thread::sleep(NAP);
        }
    }
    Ok(taken)
}

/// Both sides, with their queue pairs in RESET.
pub(crate) fn sides<R: Rig>(rig: &R, wishes: [Wish; 2]) -> Result<[Side<R::P>; 2], Trouble> {
    both(rig.ends()?, wishes, rig.patience())
}

fn both<P: Provider>(
    [near, far]: [End<P>; 2],
    wishes: [Wish; 2],
    patience: Patience,
) -> Result<[Side<P>; 2], Trouble> {
    let [of_near, of_far] = wishes;
    Ok([
        Side::new(near, of_near, patience)?,
        Side::new(far, of_far, patience)?,
    ])
}

fn connect<P: Provider>([mut near, mut far]: [Side<P>; 2]) -> Result<[Side<P>; 2], Trouble> {
    near.connect(far.name())?;
    far.connect(near.name())?;
    Ok([near, far])
}

/// Both sides, connected.
pub(crate) fn connected_as<R: Rig>(rig: &R, wishes: [Wish; 2]) -> Result<[Side<R::P>; 2], Trouble> {
    connect(sides(rig, wishes)?)
}

/// Both sides, connected as usual.
pub(crate) fn connected<R: Rig>(rig: &R) -> Result<[Side<R::P>; 2], Trouble> {
    connected_as(rig, [USUAL; 2])
}

/// Both sides, connected where packets are disturbed. If the rig cannot do that, packets are left alone, which
/// [`note_struck`] records.
pub(crate) fn disturbed<R: Rig>(rig: &R, how: Disturbance, wish: Wish) -> Result<[Side<R::P>; 2], Trouble> {
    let ends = match rig.disturbed_ends(how)? {
        Some(ends) => ends,
        None => rig.ends()?,
    };
    connect(both(ends, [wish; 2], rig.patience())?)
}

/// Notes the counts of packets there, in these words: if none was struck, they are not the book's.
pub(crate) fn note_struck<R: Rig>(
    rig: &R,
    notes: &mut Notes,
    words: impl FnOnce(Struck) -> String,
) -> Result<(), Trouble> {
    let struck = rig.struck()?;
    notes.put("packets", struck.map_or("left alone".to_owned(), words));
    Ok(())
}

/// The words for [`Disturbance::LostAndRepeated`].
pub(crate) fn lost_and_repeated(struck: Struck) -> String {
    let lost = either(struck.lost > 0, "lost", "none lost");
    let repeated = either(struck.repeated > 0, "repeated", "none repeated");
    format!("{lost} and {repeated}")
}
