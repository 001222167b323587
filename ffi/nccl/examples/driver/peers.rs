//! Ranks that are connected to each other.

use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::time::Instant;

use doorbell_nccl::abi::NcclResult;

use crate::buffer::Buffer;
use crate::plugin::{Net, Object, Part};

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// The same between hosts, which may be emulated ones.
const PATIENCE_BETWEEN: Duration = Duration::from_secs(90);

/// How often a rank calls the plugin where ranks share the processors of one emulated machine.
const CALLED_EVERY: Duration = Duration::from_micros(200);

/// Whether this process is a rank that others on slow hosts wait for.
static IS_PATIENT: AtomicBool = AtomicBool::new(false);

/// Waits longer from now on, and leaves the processor to others meanwhile.
pub(crate) fn be_patient() {
    IS_PATIENT.store(true, Ordering::Relaxed);
}

/// Says which call failed.
pub(crate) fn told<T>(what: &str, result: Result<T, NcclResult>) -> Result<T, String> {
    result.map_err(|NcclResult(code)| format!("{what} returned {code}"))
}

/// Calls until there is a result, or no patience left.
pub(crate) fn eventually<T>(
    what: &str,
    mut attempt: impl FnMut() -> Result<Option<T>, String>,
) -> Result<T, String> {
    let (began, mut attempts) = (Instant::now(), 0_u64);
    let is_patient = IS_PATIENT.load(Ordering::Relaxed);
    let patience = if is_patient { PATIENCE_BETWEEN } else { PATIENCE };
    loop {
        if let Some(result) = attempt()? {
            return Ok(result);
        }
        attempts = attempts.wrapping_add(1);
        if is_patient && attempts > 20 {
            std::thread::sleep(CALLED_EVERY);
        } else {
            // As NCCL's own threads do.
            std::thread::yield_now();
        }
        if began.elapsed() > patience {
            return Err(format!(
                "{what}: nothing within {patience:?}, and {attempts} attempts"
            ));
        }
    }
}

/// Checks that a call is refused with this code.
pub(crate) fn refused<T>(what: &str, result: Result<T, NcclResult>, code: NcclResult) -> Result<(), String> {
    match result {
        Err(found) if found == code => Ok(()),
        Err(found) => Err(format!("{what} returned {}, and {} is right", found.0, code.0)),
        Ok(_) => Err(format!("{what} succeeded, and {} is right", code.0)),
    }
}

/// A rank: its context, and a listener.
pub(crate) struct Rank {
    pub(crate) net: Net,
    pub(crate) context: Object,
}

impl Rank {
    pub(crate) fn new(net: &Net) -> Result<Self, String> {
        let context = told("init", net.init())?;
        Ok(Self { net: *net, context })
    }

    pub(crate) fn finalize(self) -> Result<(), String> {
        told("finalize", self.net.finalize(self.context))
    }
}

/// Two ranks on one thread, and a comm from the first to the second.
pub(crate) struct Pair {
    pub(crate) net: Net,
    pub(crate) a: Rank,
    pub(crate) b: Rank,
    pub(crate) listener: Object,
    pub(crate) handle: [u8; 128],
    pub(crate) send: Object,
    pub(crate) receive: Object,
}

impl Pair {
    pub(crate) fn connect(net: &Net) -> Result<Self, String> {
        let (a, b) = (Rank::new(net)?, Rank::new(net)?);
        let (listener, handle) = told("listen", net.listen(b.context))?;
        let (send, receive) = connected(net, a.context, &mut handle.clone(), listener)?;
        Ok(Self {
            net: *net,
            a,
            b,
            listener,
            handle,
            send,
            receive,
        })
    }

    pub(crate) fn close(self) -> Result<(), String> {
        let net = self.net;
        told("closeSend", net.close_send(self.send))?;
        told("closeRecv", net.close_receive(self.receive))?;
        told("closeListen", net.close_listener(self.listener))?;
        self.a.finalize()?;
        self.b.finalize()
    }

    pub(crate) fn memory(&self, bytes: usize) -> Result<(Memory, Memory), String> {
        Ok((
            Memory::new(&self.net, self.send, bytes)?,
            Memory::new(&self.net, self.receive, bytes)?,
        ))
    }
}

/// Connects and accepts in turns, as both ranks do.
pub(crate) fn connected(
    net: &Net,
    from: Object,
    handle: &mut [u8; 128],
    listener: Object,
) -> Result<(Object, Object), String> {
    let (mut send, mut receive) = (None, None);
    eventually("connect and accept", || {
        if send.is_none() {
            send = told("connect", net.connect(from, handle))?;
        }
        if receive.is_none() {
            receive = told("accept", net.accept(listener))?;
        }
        Ok(send.zip(receive))
    })
}

/// Memory of a rank that is registered for a comm.
pub(crate) struct Memory {
    net: Net,
    comm: Object,
    pub(crate) buffer: Buffer,
    pub(crate) handle: Object,
}

impl Memory {
    pub(crate) fn new(net: &Net, comm: Object, bytes: usize) -> Result<Self, String> {
        let buffer = Buffer::new(bytes);
        let handle = told("regMr", net.register(comm, buffer.at(0), buffer.bytes()))?;
        Ok(Self {
            net: *net,
            comm,
            buffer,
            handle,
        })
    }

    /// A message's memory.
    pub(crate) fn part(&self, offset: usize, bytes: usize, tag: i32) -> Part {
        Part {
            data: self.buffer.at(offset),
            bytes,
            tag,
            memory: self.handle,
        }
    }

    pub(crate) fn deregister(self) -> Result<(), String> {
        told("deregMr", self.net.deregister(self.comm, self.handle))
    }
}

/// Sends bytes, as soon as the other side has a receive for them.
pub(crate) fn send(net: &Net, comm: Object, from: Part) -> Result<Object, String> {
    eventually("isend", || {
        let sent = net.send(comm, (from.data, from.bytes), from.tag, from.memory);
        told("isend", sent)
    })
}

/// Posts a receive.
pub(crate) fn receive(net: &Net, comm: Object, into: &[Part]) -> Result<Object, String> {
    eventually("irecv", || told("irecv", net.receive(comm, into)))
}

/// Waits until all requests are done; their sizes.
pub(crate) fn finish(net: &Net, requests: &[Object]) -> Result<Vec<[i32; 8]>, String> {
    let mut sizes: Vec<Option<[i32; 8]>> = vec![None; requests.len()];
    eventually("test", || {
        for (request, size) in requests.iter().zip(&mut sizes) {
            if size.is_none() {
                *size = told("test", net.test(*request))?;
            }
        }
        Ok(sizes.iter().copied().collect::<Option<Vec<_>>>())
    })
}

/// Waits until a request failed, with this code.
pub(crate) fn fails(net: &Net, request: Object, code: NcclResult) -> Result<(), String> {
    eventually("a failure", || match net.test(request) {
        Ok(None) => Ok(None),
        other => refused("test", other, code).map(Some),
    })
}
