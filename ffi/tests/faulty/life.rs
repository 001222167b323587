//! A whole life of a device: every call of `ffi` is made once or more, and each failure is reported.

use core::time::Duration;
use std::os::fd::AsFd as _;
use std::time::Instant;

use doorbell_core::provider::{
    AddressVector, Arena as _, ArenaConfig, Arrival, Completion as _, CompletionQueue as _,
    CompletionQueueConfig, Context as _, DatagramBatch as _, DatagramConfig, DatagramQueuePair as _,
    DatagramReceiveBatch as _, DatagramReceiveQueue as _, DatagramSendQueue as _, Destination,
    LentCompletion as _, MemoryError, Operation, PostError, PostFlags, ProtectionDomain as _, Provider as _,
    ProviderError, QueuePair as _, QueuePairConfig, QueuePairParts, ReadyToReceive, ReadyToSend,
    ReceiveBatch as _, ReceiveQueue as _, Refused, Rejected, RemoteAccess, RemoteAddress, SendBatch as _,
    SendQueue as _, SharedReceiveQueue as _, SharedReceiveQueueConfig, Slot as _, Window as _, WindowConfig,
};
use doorbell_core::{Mtu, PortReport, Psn, Qkey, Qpn, WcStatus};
use doorbell_ffi::{
    Arena, Completion, CompletionQueue, Context, DmabufError, ProtectionDomain, QueuePair, Rdma, Slot,
};

use crate::dmabuf;

/// No wait is longer.
const PATIENCE: Duration = Duration::from_secs(60);

/// How a life ended early.
#[derive(Debug)]
#[expect(dead_code, reason = "what is shown where a test fails")]
pub(crate) enum End {
    /// A call failed.
    Call(ProviderError),
    /// No usable port was found.
    NoPort,
    /// A completion says so.
    Status(WcStatus),
    /// A completion names nothing that is in flight.
    Rejected(Rejected),
    /// An awaited event did not come.
    Silence(&'static str),
    /// Something else is not as it must be.
    Wrong(String),
}

impl From<ProviderError> for End {
    fn from(error: ProviderError) -> Self {
        Self::Call(error)
    }
}

impl From<MemoryError> for End {
    fn from(error: MemoryError) -> Self {
        match error {
            MemoryError::Provider(error) => Self::Call(error),
            other => Self::Wrong(other.to_string()),
        }
    }
}

impl From<DmabufError> for End {
    fn from(error: DmabufError) -> Self {
        match error {
            DmabufError::Provider(error) => Self::Call(error),
            other => Self::Wrong(other.to_string()),
        }
    }
}

impl From<PostError> for End {
    fn from(error: PostError) -> Self {
        Self::Call(error.cause)
    }
}

impl From<Rejected> for End {
    fn from(rejected: Rejected) -> Self {
        Self::Rejected(rejected)
    }
}

fn refused<T>(refused: &Refused<T>) -> End {
    End::Wrong(refused.reason.to_string())
}

/// The first usable port.
pub(crate) fn port(rdma: &Rdma) -> Result<PortReport, End> {
    let (mut found, mut failure) = (None, None);
    rdma.scan(
        &mut |port| {
            if found.is_none() && port.usability().is_ok() {
                found = Some(port.clone());
            }
        },
        &mut |_, failed| failure = Some(failed.error),
    )?;
    match failure {
        Some(error) => Err(End::Call(error)),
        None => found.ok_or(End::NoPort),
    }
}

const fn config(channel: u32) -> QueuePairConfig {
    QueuePairConfig {
        channel,
        send_depth: 8,
        receive_depth: 8,
        gather_max: 2,
        scatter_max: 2,
        inline_bytes_max: 32,
    }
}

fn queue(context: &Context) -> Result<CompletionQueue, End> {
    Ok(context.completion_queue(&CompletionQueueConfig {
        depth: 32,
        notify: true,
    })?)
}

fn slot(arena: &mut Arena, bytes: &[u8]) -> Result<Slot, End> {
    let mut slot = arena.lease().ok_or(End::Wrong("no slot".to_owned()))?;
    slot.buffer_mut()[..bytes.len()].copy_from_slice(bytes);
    slot.set_len_bytes(bytes.len());
    Ok(slot)
}

/// The way from the port to itself.
fn way_to_itself(port: &PortReport) -> Result<AddressVector, End> {
    let gid = port.usable_gids().next().ok_or(End::NoPort)?;
    Ok(AddressVector {
        destination: gid.gid,
        source_gid_index: u8::try_from(gid.index).unwrap(),
        port: port.port,
        hop_limit: 64,
        traffic_class: 0,
        flow_label: 0,
        service_level: 0,
    })
}

pub(crate) fn bring_up(port: &PortReport, control: &mut QueuePair, peer: Qpn) -> Result<(), End> {
    let address = way_to_itself(port)?;
    control.initialize(port.port, RemoteAccess::ALL)?;
    control.ready_to_receive(&ReadyToReceive {
        address,
        path_mtu: port.active_mtu.unwrap_or(Mtu::B1024),
        destination_qpn: peer,
        receive_psn: Psn::from_low_bits(7),
        max_dest_rd_atomic: 1,
        min_rnr_timer: 12,
    })?;
    Ok(control.ready_to_send(&ReadyToSend {
        send_psn: Psn::from_low_bits(7),
        max_rd_atomic: 1,
        timeout: 14,
        retry_count: 6,
        rnr_retry: 7,
    })?)
}

/// The next completion, slept for.
pub(crate) fn next(queue: &mut CompletionQueue, what: &'static str) -> Result<Completion, End> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        queue.arm(false)?;
        let mut came = None;
        queue.poll(|completion| came = came.take().or_else(|| Some(completion.keep())))?;
        if let Some(completion) = came {
            queue.acknowledge()?;
            return Ok(completion);
        }
        if Instant::now() > deadline {
            return Err(End::Silence(what));
        }
        CompletionQueue::sleep([&*queue], Duration::from_millis(20))?;
        queue.acknowledge()?;
    }
}

/// One end of the connection.
pub(crate) struct Peer {
    pub(crate) parts: QueuePairParts<Rdma>,
    pub(crate) sends: CompletionQueue,
    receives: CompletionQueue,
}

impl Peer {
    pub(crate) fn new(context: &Context, domain: &ProtectionDomain, channel: u32) -> Result<Self, End> {
        let (sends, receives) = (queue(context)?, queue(context)?);
        let parts = domain.queue_pair(&sends, &receives, &config(channel))?;
        Ok(Self {
            parts,
            sends,
            receives,
        })
    }

    fn post_receive(&mut self, arena: &mut Arena) -> Result<(), End> {
        let mut batch = self.parts.receive.stage();
        batch.push([slot(arena, b"")?]).map_err(|error| refused(&error))?;
        batch.ring()?;
        Ok(())
    }

    /// Posts one request and waits until it is done.
    fn post(&mut self, arena: &mut Arena, operation: Operation, bytes: &[u8]) -> Result<Vec<u8>, End> {
        let mut batch = self.parts.send.stage();
        batch
            .push(operation, [slot(arena, bytes)?], PostFlags::SIGNALED)
            .map_err(|error| refused(&error))?;
        batch.ring()?;
        let completion = next(&mut self.sends, "the end of a request")?;
        let mut back = Vec::new();
        let retired = self.parts.send.retire(completion.lend(), |_, slot| {
            back = slot.payload().to_vec();
            arena.release(slot);
        })?;
        if retired.status.is_success() {
            Ok(back)
        } else {
            Err(End::Status(retired.status))
        }
    }

    fn receive(&mut self, arena: &mut Arena) -> Result<Arrival, End> {
        let completion = next(&mut self.receives, "a message")?;
        let arrival = self
            .parts
            .receive
            .retire(completion.lend(), |_, slot| arena.release(slot))?;
        if arrival.status.is_success() {
            Ok(arrival)
        } else {
            Err(End::Status(arrival.status))
        }
    }
}

/// Lives it.
pub(crate) fn life(rdma: &Rdma) -> Result<(), End> {
    // It is there; what is loaded again prepares for programs that fork again.
    Rdma::load().map_err(|error| End::Wrong(error.to_string()))?;
    let port = port(rdma)?;
    let context = rdma.open(&port.device)?;
    context.port(port.port)?;
    let domain = context.protection_domain()?;
    let mut arena = domain.arena(&ArenaConfig::new(16, 64))?;
    let window = domain.window(&WindowConfig::new(4096, RemoteAccess::ALL))?;
    let remote = RemoteAddress::new(window.remote().address(), window.remote().rkey());
    let mut one = Peer::new(&context, &domain, 1)?;
    let mut other = Peer::new(&context, &domain, 2)?;
    bring_up(&port, &mut one.parts.control, other.parts.control.qpn())?;
    bring_up(&port, &mut other.parts.control, one.parts.control.qpn())?;
    let _whatever = one.parts.control.data_in_order();
    for operation in [Operation::Send, Operation::WriteWithImmediate(remote, 3)] {
        other.post_receive(&mut arena)?;
        one.post(&mut arena, operation, b"one byte and more")?;
        other.receive(&mut arena)?;
    }
    one.post(&mut arena, Operation::Write(remote), b"eightby.")?;
    one.post(&mut arena, Operation::FetchAndAdd { remote, add: 1 }, &[0; 8])?;
    of_buffer(&domain, &mut one, &mut arena)?;
    let read = one.post(&mut arena, Operation::Read(remote), &[0; 8])?;
    let expected = (u64::from_ne_bytes(*b"eightby.") + 1).to_ne_bytes();
    if read != expected {
        return Err(End::Wrong(format!("read {read:?}")));
    }
    shared(&context, &domain, &port, &mut arena)?;
    datagrams(&context, &domain, &port, &mut arena)?;
    one.parts.control.drain()?;
    one.parts.control.resume()?;
    one.post_receive(&mut arena)?;
    let QueuePairParts {
        control,
        send,
        receive,
    } = &mut one.parts;
    if let Err(error) = control.reset(send, receive) {
        // Whichever part failed: no slot came home, and it is repeated as a whole.
        let before = receive.in_flight();
        control.reset(send, receive)?;
        return match (before, receive.in_flight()) {
            (1, 0) => Err(error.into()),
            counts => Err(End::Wrong(format!("{counts:?} receives"))),
        };
    }
    control.state()?;
    other.post_receive(&mut arena)?;
    other.parts.control.fail()?;
    let completion = next(&mut other.receives, "a flush")?;
    if completion.status() != WcStatus::WR_FLUSH_ERR {
        return Err(End::Status(completion.status()));
    }
    other
        .parts
        .receive
        .retire(completion.lend(), |_, slot| arena.release(slot))?;
    Ok(())
}

/// A READ from a dma-buf.
fn of_buffer(domain: &ProtectionDomain, one: &mut Peer, arena: &mut Arena) -> Result<(), End> {
    let buffer = dmabuf::buffer();
    let region = domain.register_dmabuf(buffer.as_fd(), dmabuf::whole(dmabuf::IOVA), RemoteAccess::READ)?;
    drop(buffer);
    let remote = RemoteAddress::new(region.remote().address(), region.remote().rkey());
    let read = one.post(arena, Operation::Read(remote), &[1; 8])?;
    if read == [0; 8] {
        Ok(())
    } else {
        Err(End::Wrong(format!("read {read:?}")))
    }
}

/// The same on a shared receive queue.
fn shared(
    context: &Context,
    domain: &ProtectionDomain,
    port: &PortReport,
    arena: &mut Arena,
) -> Result<(), End> {
    let mut receives = queue(context)?;
    let mut shared = domain.shared_receive_queue(
        &receives,
        &SharedReceiveQueueConfig {
            depth: 4,
            scatter_max: 1,
        },
    )?;
    let sends = queue(context)?;
    let mut on_shared = config(3);
    (on_shared.receive_depth, on_shared.scatter_max) = (0, 0);
    let mut taker = domain.queue_pair_on(&shared, &sends, &on_shared)?;
    let mut peer = Peer::new(context, domain, 4)?;
    bring_up(port, &mut taker.control, peer.parts.control.qpn())?;
    bring_up(port, &mut peer.parts.control, taker.control.qpn())?;
    let mut batch = shared.stage();
    for _ in 0..2 {
        batch.push([slot(arena, b"")?]).map_err(|error| refused(&error))?;
    }
    batch.ring()?;
    shared.set_limit(2)?;
    peer.post(arena, Operation::Send, b"to whoever")?;
    let completion = next(&mut receives, "a message to the shared queue")?;
    if completion.qpn() != taker.control.qpn() {
        return Err(End::Wrong(format!("taken by {:?}", completion.qpn())));
    }
    shared.retire(completion.lend(), |_, slot| arena.release(slot))?;
    let deadline = Instant::now() + PATIENCE;
    while context.next_event()?.is_none() {
        if Instant::now() > deadline {
            return Err(End::Silence("the limit event"));
        }
    }
    Ok(())
}

/// A datagram, to the queue pair that sends it: released while it may be looked at, then once more.
fn datagrams(
    context: &Context,
    domain: &ProtectionDomain,
    port: &PortReport,
    arena: &mut Arena,
) -> Result<(), End> {
    let (mut sends, mut receives) = (queue(context)?, queue(context)?);
    let config = DatagramConfig {
        channel: 5,
        send_depth: 2,
        receive_depth: 2,
        gather_max: 1,
        inline_bytes_max: 0,
        addresses_max: 1,
    };
    let mut parts = domain.datagram_queue_pair(&sends, &receives, &config)?;
    let qkey = Qkey::from_low_bits(7);
    parts.control.initialize(port.port, qkey)?;
    parts.control.ready_to_receive()?;
    parts.control.ready_to_send(Psn::from_low_bits(7))?;
    parts.control.state()?;
    let vector = way_to_itself(port)?;
    for text in [b"one", b"two"] {
        let address = parts.send.address_handle(&vector)?;
        let to = Destination {
            address,
            qpn: parts.control.qpn(),
            qkey,
        };
        let mut batch = parts.receive.stage();
        batch.push(slot(arena, b"")?).map_err(|error| refused(&error))?;
        batch.ring()?;
        let mut batch = parts.send.stage();
        batch
            .push(to, [slot(arena, text)?], PostFlags::SIGNALED)
            .map_err(|error| refused(&error))?;
        batch.ring()?;
        // Kept as long as the request may be in flight: there is no place for another.
        parts.send.release(address);
        if parts.send.address_handle(&vector).is_ok() {
            return Err(End::Wrong("an address handle went under its request".to_owned()));
        }
        let completion = next(&mut sends, "the end of a datagram")?;
        let retired = parts
            .send
            .retire(completion.lend(), |_, slot| arena.release(slot))?;
        if !retired.status.is_success() {
            return Err(End::Status(retired.status));
        }
        let completion = next(&mut receives, "a datagram")?;
        let mut bytes = Vec::new();
        let came = parts.receive.retire(completion.lend(), |_, slot| {
            bytes.extend_from_slice(slot.payload());
            arena.release(slot);
        })?;
        if !came.arrival.status.is_success() {
            return Err(End::Status(came.arrival.status));
        }
        let is_its = came.source_qpn == parts.control.qpn()
            && came.grh.is_some_and(|grh| grh.source == vector.destination);
        if bytes != text || !is_its {
            return Err(End::Wrong(format!("{came:?} of {bytes:?}")));
        }
    }
    // One goes with the queue pair.
    parts.send.address_handle(&vector)?;
    Ok(())
}
