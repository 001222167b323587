//! One end of the connection, with all it is made of; each part may be dropped before the others.

use doorbell_core::provider::{
    AddressVector, Arena, ArenaConfig, Attacher, Completion, CompletionQueue, CompletionQueueConfig, Context,
    DetachedSlot, LentCompletion as _, Operation, PostFlags, ProtectionDomain, Provider, PushError,
    QueuePair, QueuePairConfig, QueuePairParts, ReadyToReceive, ReadyToSend, ReceiveBatch, ReceiveQueue,
    RemoteAccess, RemoteAddress, SendBatch, SendQueue, Slot, Window, WindowConfig,
};
use doorbell_core::wire::RemoteWindow;
use doorbell_core::{Gid, IpPrefix, Mtu, Psn, Qpn, Rkey, Ticket};
use doorbell_sim::{Fabric, Host, PortConfig};

use super::model::{Deed, Direction, WINDOW_BYTES, Weather, Wish};

pub(crate) const SLOTS: u32 = 24;
pub(crate) const SLOT_BYTES: usize = 160;
pub(crate) const DEPTH: u32 = 4;
pub(crate) const INLINE_BYTES_MAX: usize = 16;

/// Number of the parts that can be dropped.
pub(crate) const PARTS: usize = 9;

type Token = <Host as Provider>::Completion;

pub(crate) struct Side {
    context: Option<<Host as Provider>::Context>,
    domain: Option<<Host as Provider>::ProtectionDomain>,
    arena: Option<<Host as Provider>::Arena>,
    attacher: <<Host as Provider>::Arena as Arena>::Attacher,
    pub(crate) window: Option<<Host as Provider>::Window>,
    sends: Option<<Host as Provider>::CompletionQueue>,
    receives: Option<<Host as Provider>::CompletionQueue>,
    send: Option<<Host as Provider>::SendQueue>,
    receive: Option<<Host as Provider>::ReceiveQueue>,
    pub(crate) control: Option<<Host as Provider>::QueuePair>,
    qpn: Qpn,
    remote: RemoteWindow,
    /// Words that stand for slots, and what the slots hold.
    detached: Vec<(DetachedSlot, Vec<u8>)>,
    /// Words that stand for none any more.
    spent: Vec<DetachedSlot>,
}

fn gid(number: u8) -> Gid {
    Gid::from_ip([10, 0, 0, number].into())
}

impl Side {
    pub(crate) fn new(fabric: &Fabric, name: &str, number: u8) -> Self {
        let prefix = IpPrefix::new(gid(number).to_ip(), 24).unwrap();
        let host = fabric
            .host(name, vec![PortConfig::new("sim0", &[prefix])])
            .unwrap();
        let context = host.open("sim0").unwrap();
        let domain = context.protection_domain().unwrap();
        let config = CompletionQueueConfig {
            depth: 64,
            notify: false,
        };
        let sends = context.completion_queue(&config).unwrap();
        let receives = context.completion_queue(&config).unwrap();
        let slot_bytes = u32::try_from(SLOT_BYTES).unwrap();
        let arena = domain.arena(&ArenaConfig::new(SLOTS, slot_bytes)).unwrap();
        let window = domain
            .window(&WindowConfig::new(WINDOW_BYTES, RemoteAccess::ALL))
            .unwrap();
        let config = QueuePairConfig {
            channel: number.into(),
            send_depth: DEPTH,
            receive_depth: DEPTH,
            gather_max: 2,
            scatter_max: 2,
            inline_bytes_max: u32::try_from(INLINE_BYTES_MAX).unwrap(),
        };
        let parts: QueuePairParts<Host> = domain.queue_pair(&sends, &receives, &config).unwrap();
        let limits = parts.control.limits();
        assert_eq!(
            (limits.send_depth, limits.receive_depth),
            (DEPTH, DEPTH),
            "as asked for"
        );
        Self {
            attacher: arena.attacher(),
            context: Some(context),
            domain: Some(domain),
            arena: Some(arena),
            sends: Some(sends),
            receives: Some(receives),
            send: Some(parts.send),
            receive: Some(parts.receive),
            qpn: parts.control.qpn(),
            control: Some(parts.control),
            remote: window.remote(),
            window: Some(window),
            detached: Vec::new(),
            spent: Vec::new(),
        }
    }

    /// Connects to `peer`, whose number is `number`.
    pub(crate) fn connect(&mut self, peer: (Qpn, RemoteWindow), number: u8, psns: [Psn; 2], rnr_retry: u8) {
        let control = self.control.as_mut().unwrap();
        let [send_psn, receive_psn] = psns;
        self.remote = peer.1;
        control.initialize(1, RemoteAccess::ALL).unwrap();
        let address = AddressVector {
            destination: gid(number),
            source_gid_index: 0,
            port: 1,
            hop_limit: 64,
            traffic_class: 0,
            flow_label: 0,
            service_level: 0,
        };
        let attributes = ReadyToReceive {
            address,
            path_mtu: Mtu::B256,
            destination_qpn: peer.0,
            receive_psn,
            max_dest_rd_atomic: 4,
            // 160 us, code 8: at the 10 us of code 1 a message without a receive, asked for again until there is one, is
            // most of what is simulated.
            min_rnr_timer: 8,
        };
        control.ready_to_receive(&attributes).unwrap();
        let attributes = ReadyToSend {
            send_psn,
            max_rd_atomic: 3,
            timeout: 5,
            retry_count: 7,
            rnr_retry,
        };
        control.ready_to_send(&attributes).unwrap();
    }

    pub(crate) fn name(&self) -> (Qpn, RemoteWindow) {
        (self.qpn, self.window.as_ref().unwrap().remote())
    }

    fn operation(&self, wish: &Wish) -> Operation {
        let at = |at: usize| {
            RemoteAddress::new(
                self.remote.address() + at as u64,
                if wish.is_forbidden {
                    Rkey(self.remote.rkey().0 ^ 0x5500)
                } else {
                    self.remote.rkey()
                },
            )
        };
        match (wish.deed, wish.immediate) {
            (Deed::Send, None) => Operation::Send,
            (Deed::Send, Some(immediate)) => Operation::SendWithImmediate(immediate),
            (Deed::Write { at: to }, None) => Operation::Write(at(to)),
            (Deed::Write { at: to }, Some(immediate)) => Operation::WriteWithImmediate(at(to), immediate),
            (Deed::Read { at: from }, _) => Operation::Read(at(from)),
            (Deed::Add { at: to, add }, _) => Operation::FetchAndAdd { remote: at(to), add },
            (
                Deed::Swap {
                    at: to,
                    compare,
                    swap,
                },
                _,
            ) => Operation::CompareAndSwap {
                remote: at(to),
                compare,
                swap,
            },
        }
    }

    fn slot(&mut self, bytes: &[u8]) -> Option<<Host as Provider>::Slot> {
        let mut slot = self.arena.as_mut()?.lease()?;
        slot.buffer_mut()[..bytes.len()].copy_from_slice(bytes);
        slot.set_len_bytes(bytes.len());
        Some(slot)
    }

    /// Posts these in one batch, as far as there is room; `how` it ends: rung, dropped or forgotten.
    pub(crate) fn post(&mut self, wishes: &[(Wish, PostFlags)], how: u8, model: &mut Direction) {
        let mut requests = Vec::new();
        for (wish, flags) in wishes {
            let operation = self.operation(wish);
            let parts = wish.bytes.split_at(wish.bytes.len().min(SLOT_BYTES));
            let slots = if flags.contains(PostFlags::INLINE) {
                None
            } else {
                let Some(first) = self.slot(parts.0) else { break };
                let second = if parts.1.is_empty() {
                    None
                } else {
                    self.slot(parts.1)
                };
                if second.is_none() && !parts.1.is_empty() {
                    break;
                }
                Some((first, second))
            };
            requests.push((wish, operation, slots, *flags));
        }
        let Some(send) = &mut self.send else { return };
        let room = DEPTH as usize - model.in_flight();
        // Requests that a forgotten batch staged are unstaged when the next begins.
        drop(send.stage());
        assert_eq!(send.room() as usize, room);
        let mut batch = send.stage();
        let mut staged = Vec::new();
        for (wish, operation, slots, flags) in requests {
            let pushed = match slots {
                None => batch.push_inline(operation, &wish.bytes, flags),
                Some((first, None)) => batch
                    .push(operation, [first], flags)
                    .map_err(|refused| refused.reason),
                Some((first, Some(second))) => {
                    let pushed = batch.push(operation, [first, second], flags);
                    pushed.map_err(|refused| refused.reason)
                }
            };
            match pushed {
                Ok(ticket) => staged.push((ticket, wish)),
                Err(reason) => {
                    assert_eq!((reason, staged.len()), (PushError::Full, room), "{wish:?}");
                }
            }
            assert_eq!(batch.staged() as usize, staged.len());
        }
        let posted = match how {
            0 => return drop(batch),
            1 => return core::mem::forget(batch),
            _ => match batch.ring() {
                Ok(posted) => {
                    assert_eq!(posted as usize, staged.len());
                    posted
                }
                Err(error) => {
                    assert_eq!((error.posted + error.unposted) as usize, staged.len());
                    error.posted
                }
            },
        };
        for (ticket, wish) in staged.into_iter().take(posted as usize) {
            model.post(ticket, wish);
        }
    }

    /// Posts a receive of one slot, or of two.
    pub(crate) fn post_receive(&mut self, is_double: bool, model: &mut Direction) {
        let first = self.slot(b"");
        let second = if is_double { self.slot(b"") } else { None };
        let (Some(receive), Some(first)) = (&mut self.receive, first) else {
            return;
        };
        let room = DEPTH as usize - model.receives_in_flight();
        assert_eq!(receive.room() as usize, room);
        let mut batch = receive.stage();
        let (pushed, room_bytes) = match second {
            Some(second) => (
                batch.push([first, second]).map_err(|refused| refused.reason),
                2 * SLOT_BYTES,
            ),
            None => (batch.push([first]).map_err(|refused| refused.reason), SLOT_BYTES),
        };
        match pushed {
            Ok(ticket) => {
                assert_eq!(batch.ring(), Ok(1));
                model.post_receive(ticket, room_bytes);
            }
            Err(reason) => assert_eq!((reason, room), (PushError::Full, 0)),
        }
    }

    /// Takes what completed of requests.
    pub(crate) fn poll_sends(&mut self) -> Vec<Token> {
        let mut completions = Vec::new();
        if let Some(queue) = &mut self.sends {
            let count = queue
                .poll(|completion| completions.push(completion.keep()))
                .unwrap();
            assert_eq!(count as usize, completions.len());
        }
        completions
    }

    pub(crate) fn retire(&mut self, completion: Token, model: &mut Direction, weather: Weather) {
        let Self { send, arena, .. } = self;
        let Some(send) = send else { return };
        let mut brought: Vec<(Ticket, Vec<u8>)> = Vec::new();
        let retired = send
            .retire(completion.lend(), |ticket, slot| {
                brought.push((ticket, slot.payload().to_vec()));
                if let Some(arena) = arena {
                    arena.release(slot);
                }
            })
            .expect("it is of this queue");
        model.retire(&retired, &brought, weather);
        drop(send.stage());
        assert_eq!(send.in_flight() as usize, model.in_flight());
    }

    /// Shows a completion to a queue it is not of.
    pub(crate) fn mistake(&mut self, completion: Token) {
        let Some(send) = &mut self.send else { return };
        let rejected = send.rejected();
        let refused = send
            .retire(completion.lend(), |_, _| panic!("a slot of another"))
            .is_err();
        assert!(refused && send.rejected() == rejected + 1);
    }

    /// Takes what arrived.
    pub(crate) fn take_arrivals(&mut self, model: &mut Direction) {
        let Self {
            receives,
            receive,
            arena,
            ..
        } = self;
        let mut completions = Vec::new();
        if let Some(queue) = receives {
            queue
                .poll(|completion| completions.push(completion.keep()))
                .unwrap();
        }
        let Some(receive) = receive else { return };
        for completion in completions {
            assert_eq!(completion.qpn(), self.qpn);
            let mut bytes = Vec::new();
            let arrival = receive
                .retire(completion.lend(), |_, slot| {
                    bytes.extend_from_slice(slot.payload());
                    if let Some(arena) = arena {
                        arena.release(slot);
                    }
                })
                .expect("it is of this queue");
            model.arrive(&arrival, &bytes);
            assert_eq!(receive.in_flight() as usize, model.receives_in_flight());
        }
    }

    pub(crate) fn detach(&mut self, bytes: &[u8]) {
        if let Some(slot) = self.slot(bytes) {
            self.detached.push((slot.detach(), bytes.to_vec()));
        }
    }

    /// Attaches the words at a place, and nothing by words that are like them.
    pub(crate) fn attach(&mut self, place: usize, flipped: u32) {
        if !self.detached.is_empty() {
            let (words, bytes) = self.detached.swap_remove(place % self.detached.len());
            let like = DetachedSlot {
                tag: words.tag ^ flipped.max(1),
                ..words
            };
            assert!(self.attacher.attach(like).is_none(), "{like:?} for {words:?}");
            let slot = self.attacher.attach(words).expect("it was detached");
            assert_eq!(slot.payload(), bytes);
            self.spent.push(words);
            match &mut self.arena {
                Some(arena) => arena.release(slot),
                None => drop(slot),
            }
        }
        for words in &self.spent {
            assert!(self.attacher.attach(*words).is_none(), "{words:?} twice");
        }
    }

    /// Attaches all detached slots.
    pub(crate) fn attach_all(&mut self) {
        while !self.detached.is_empty() {
            self.attach(0, 1);
        }
    }

    /// Drops one part. Requests that were under way by it are not judged any more.
    pub(crate) fn drop_part(&mut self, part: usize) {
        match part {
            0 => self.context = None,
            1 => self.domain = None,
            2 => self.arena = None,
            3 => self.window = None,
            4 => self.sends = None,
            5 => self.receives = None,
            6 => self.send = None,
            7 => self.receive = None,
            _ => self.control = None,
        }
    }

    pub(crate) fn hears_of_sends(&self) -> bool {
        self.send.is_some() && self.sends.is_some()
    }

    pub(crate) fn hears_of_receives(&self) -> bool {
        self.receive.is_some() && self.receives.is_some()
    }

    /// Every slot is home once all queues are gone and all words are attached.
    pub(crate) fn end(&mut self) {
        for part in [6, 7, 8, 4, 5] {
            self.drop_part(part);
        }
        while !self.detached.is_empty() {
            self.attach(0, 0);
        }
        if let Some(arena) = &mut self.arena {
            let home: Vec<_> = core::iter::from_fn(|| arena.lease()).collect();
            assert_eq!(home.len(), SLOTS as usize, "slots");
        }
    }
}
