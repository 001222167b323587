//! Datagram queue pairs for cases: what each end has, and the steps that cases are made of.

use std::thread;
use std::time::Instant;

use doorbell_core::provider::{
    AddressVector, Arena, ArenaConfig, Completion, CompletionQueueConfig, Context, Datagram, DatagramBatch,
    DatagramConfig, DatagramPairParts, DatagramQueuePair, DatagramReceiveBatch, DatagramReceiveQueue,
    DatagramSendQueue, Destination, PostFlags, ProtectionDomain, Provider, Retired, Slot,
};
use doorbell_core::{Gid, Psn, Qkey, QpState, Qpn};

use crate::notes::{Trouble, statuses};
use crate::rig::{End, Patience, Rig};
use crate::side::{CHANNEL, INLINE_BYTES, NAP, filled, foreign, take};

/// A datagram of the largest MTU and a byte more.
const SLOT_BYTES: u32 = 8192;
const SHORT_BYTES: u32 = 64;
const SLOTS: u32 = 8;
const DEPTH: u32 = 4;

/// Q_Key of every queue pair here.
pub(crate) const KEY: Qkey = Qkey::from_low_bits(0x1122_3344);
pub(crate) const PSN: Psn = Psn::from_low_bits(0x00ff_fffe);
/// Traffic class and hop limit of sent datagrams.
pub(crate) const CLASS: u8 = 0x28;
pub(crate) const HOPS: u8 = 17;

/// All that one end has.
pub(crate) struct Office<P: Provider> {
    // Dropped in this order: the queue pair gives its slots back to the arenas.
    pub(crate) control: P::DatagramQueuePair,
    send: P::DatagramSendQueue,
    receive: P::DatagramReceiveQueue,
    send_completions: P::CompletionQueue,
    receive_completions: P::CompletionQueue,
    arena: P::Arena,
    short: P::Arena,
    context: P::Context,
    pub(crate) end: End<P>,
    patience: Patience,
}

/// Both, ready to send.
pub(crate) fn ready<R: Rig>(rig: &R) -> Result<[Office<R::P>; 2], Trouble> {
    let [near, far] = rig.ends()?;
    Ok([
        Office::new(near, rig.patience())?.brought_up()?,
        Office::new(far, rig.patience())?.brought_up()?,
    ])
}

impl<P: Provider> Office<P> {
    /// With its queue pair in RESET.
    pub(crate) fn new(end: End<P>, patience: Patience) -> Result<Self, Trouble> {
        let context = end.provider.open(&end.device)?;
        let domain = context.protection_domain()?;
        let queue = CompletionQueueConfig {
            depth: 16,
            notify: false,
        };
        let send_completions = context.completion_queue(&queue)?;
        let receive_completions = context.completion_queue(&queue)?;
        let config = DatagramConfig {
            channel: CHANNEL,
            send_depth: DEPTH,
            receive_depth: DEPTH,
            gather_max: 2,
            inline_bytes_max: INLINE_BYTES,
            addresses_max: 2,
        };
        let DatagramPairParts {
            control,
            send,
            receive,
        } = domain.datagram_queue_pair(&send_completions, &receive_completions, &config)?;
        Ok(Self {
            control,
            send,
            receive,
            send_completions,
            receive_completions,
            arena: domain.arena(&ArenaConfig::new(SLOTS, SLOT_BYTES))?,
            short: domain.arena(&ArenaConfig::new(1, SHORT_BYTES))?,
            context,
            end,
            patience,
        })
    }

    fn brought_up(mut self) -> Result<Self, Trouble> {
        self.control.initialize(self.end.port, KEY)?;
        self.control.ready_to_receive()?;
        self.control.ready_to_send(PSN)?;
        Ok(self)
    }

    /// The largest datagram.
    pub(crate) fn mtu_bytes(&self) -> Result<usize, Trouble> {
        let mtu = self.context.port(self.end.port)?.active_mtu;
        Ok(mtu.ok_or(Trouble::new("the port has no MTU"))?.bytes() as usize)
    }

    /// Returns the destination of a queue pair at a GID.
    pub(crate) fn way(&mut self, destination: Gid, qpn: Qpn) -> Result<Destination, Trouble> {
        let address = self.send.address_handle(&AddressVector {
            hop_limit: HOPS,
            traffic_class: CLASS,
            ..self.end.way_to(destination)
        })?;
        Ok(Destination {
            address,
            qpn,
            qkey: KEY,
        })
    }

    pub(crate) fn way_to(&mut self, other: &Self) -> Result<Destination, Trouble> {
        self.way(other.end.gid, other.control.qpn())
    }

    /// A slot with these bytes in it.
    pub(crate) fn slot(&mut self, bytes: &[u8]) -> Result<P::Slot, Trouble> {
        filled(&mut self.arena, bytes)
    }

    /// A slot that is registered in another protection domain.
    pub(crate) fn foreign_slot(&self) -> Result<P::Slot, Trouble> {
        foreign::<P>(&self.context)
    }

    /// The state it comes to be in: waits a while for this one.
    pub(crate) fn state_after(&self, awaited: QpState) -> Result<QpState, Trouble> {
        let began = Instant::now();
        loop {
            let state = self.control.state()?;
            if state == awaited || state == QpState::Error || began.elapsed() >= self.patience.come {
                return Ok(state);
            }
            thread::sleep(NAP);
        }
    }

    /// Posts a datagram with these bytes, signaled.
    pub(crate) fn post(&mut self, to: Destination, bytes: &[u8]) -> Result<(), Trouble> {
        let slot = self.slot(bytes)?;
        self.post_slots(to, [slot], PostFlags::SIGNALED)
    }

    pub(crate) fn post_slots<const N: usize>(
        &mut self,
        to: Destination,
        slots: [P::Slot; N],
        flags: PostFlags,
    ) -> Result<(), Trouble> {
        let mut batch = self.send.stage();
        batch.push(to, slots, flags)?;
        batch.ring()?;
        Ok(())
    }

    pub(crate) fn post_inline(&mut self, to: Destination, bytes: &[u8]) -> Result<(), Trouble> {
        let mut batch = self.send.stage();
        batch.push_inline(to, bytes, PostFlags::SIGNALED)?;
        batch.ring()?;
        Ok(())
    }

    /// Posts one receive that is long enough.
    pub(crate) fn post_receive(&mut self) -> Result<(), Trouble> {
        let slot = self.arena.lease().ok_or(Trouble::new("no slot is left"))?;
        self.post_receive_into(slot)
    }

    /// Posts one receive that is not, and says how long it is.
    pub(crate) fn post_short_receive(&mut self) -> Result<usize, Trouble> {
        let slot = self.short.lease().ok_or(Trouble::new("no slot is left"))?;
        let room_bytes = slot.capacity_bytes();
        self.post_receive_into(slot)?;
        Ok(room_bytes)
    }

    fn post_receive_into(&mut self, slot: P::Slot) -> Result<(), Trouble> {
        let mut batch = self.receive.stage();
        batch.push(slot)?;
        batch.ring()?;
        Ok(())
    }

    pub(crate) fn receives_left(&self) -> u32 {
        self.receive.in_flight()
    }

    /// Waits for so many requests to be done, and retires what came.
    pub(crate) fn sent(&mut self, requests: u64) -> Result<Vec<Retired>, Trouble> {
        let (mut all, mut done) = (Vec::new(), 0_u64);
        while done < requests {
            let taken = take(&mut self.send_completions, 1, self.patience)?;
            if taken.is_empty() {
                break;
            }
            for completion in taken {
                let retired = self.send.retire(completion.lend(), |_, slot| drop(slot))?;
                done = done.saturating_add(retired.count());
                all.push(retired);
            }
        }
        Ok(all)
    }

    /// How the next so many requests end, in words.
    pub(crate) fn send_ends(&mut self, count: u64) -> Result<String, Trouble> {
        Ok(statuses(self.sent(count)?.iter().map(|retired| retired.status)))
    }

    /// Waits for so many receives to end; each with the bytes of its datagram.
    pub(crate) fn received(&mut self, count: usize) -> Result<Vec<(Datagram, Vec<u8>)>, Trouble> {
        self.take_received(count, self.patience)
    }

    /// Waits for a datagram, or in the hope that none comes.
    pub(crate) fn received_or_not(&mut self, comes: bool) -> Result<Vec<(Datagram, Vec<u8>)>, Trouble> {
        let patience = if comes { self.patience } else { self.quiet() };
        self.take_received(1, patience)
    }

    fn take_received(
        &mut self,
        count: usize,
        patience: Patience,
    ) -> Result<Vec<(Datagram, Vec<u8>)>, Trouble> {
        let mut all = Vec::new();
        for completion in take(&mut self.receive_completions, count, patience)? {
            let mut bytes = Vec::new();
            let came = self.receive.retire(completion.lend(), |_, slot| {
                bytes.extend_from_slice(slot.payload());
            })?;
            all.push((came, bytes));
        }
        Ok(all)
    }

    const fn quiet(&self) -> Patience {
        Patience {
            come: self.patience.quiet,
            polls: self.patience.quiet_polls,
            ..self.patience
        }
    }

    /// The next datagram, as text.
    pub(crate) fn text(&mut self) -> Result<String, Trouble> {
        let came = self.received(1)?;
        let text = came
            .first()
            .map(|(_, bytes)| String::from_utf8_lossy(bytes).into_owned());
        Ok(text.unwrap_or("nothing".to_owned()))
    }

    /// Sends a datagram that should come: how it ends here, and what is received.
    pub(crate) fn delivers(
        &mut self,
        to: Destination,
        bytes: &[u8],
        other: &mut Self,
    ) -> Result<String, Trouble> {
        self.post(to, bytes)?;
        Ok(format!("{}, received {}", self.send_ends(1)?, other.text()?))
    }

    /// Sends a datagram that should not come.
    pub(crate) fn loses(
        &mut self,
        to: Destination,
        bytes: &[u8],
        other: &mut Self,
    ) -> Result<String, Trouble> {
        self.post(to, bytes)?;
        Ok(format!(
            "{}, received {}",
            self.send_ends(1)?,
            other.stray_ends()?
        ))
    }

    /// How receives end where none should; they come home with their queue pair.
    pub(crate) fn stray_ends(&mut self) -> Result<String, Trouble> {
        let quiet = self.quiet();
        let strays = take(&mut self.receive_completions, 1, quiet)?;
        Ok(statuses(strays.iter().map(Completion::status)))
    }
}
