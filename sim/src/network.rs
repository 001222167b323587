//! A host's network: the streams that connections are made over, in the time of the fabric.
//!
//! # What it is
//! Streams take the same links as packets, with their latency and bandwidth. Bytes lost on a link that is down are sent
//! again after a fifth of a second, then after twice as long, and so on. A peer that never answers is given up after a
//! minute and a half. A port without a listener, and a peer that was killed and came back, answer with a reset; a killed
//! peer is silent. An end keeps 64 KiB of unread bytes; bytes without room are sent again. The bytes that no peer can guess
//! come from the fabric's seed, so each run has the same.
//!
//! Clauses of a plan about the kind `stream` describe its faults: bytes that are lost, doubled, swapped, late or changed.

use core::fmt;
use core::net::SocketAddr;
use core::time::Duration;
use std::os::fd::{AsRawFd as _, BorrowedFd};

use doorbell_core::handshake::{Io, IoError};
use doorbell_core::network::{Network, NetworkError, WaitBeside, Waited};
use doorbell_core::{Clock, Deadline, Instant};

use crate::errno::ENETDOWN;
use crate::real_time::Turns;
use crate::stream::{AcceptorKey, StreamKey};
use crate::world::World;
use crate::{Fabric, Host};

impl Clock for Host {
    /// The time of the fabric, which is that of all its hosts but for those whose clock jumped ahead.
    fn now(&self) -> Instant {
        let world = self.fabric().lock();
        Instant::from_ns(world.now_ns().saturating_add(world.ahead_ns(self.id())))
    }
}

impl Network for Host {
    type Stream = Stream;
    type Acceptor = Acceptor;

    fn connect(&self, to: SocketAddr) -> Result<Stream, NetworkError> {
        let mut world = self.fabric().lock();
        let key = world.connect(self.id(), to).map_err(refused)?;
        world.settle();
        drop(world);
        Ok(Stream {
            fabric: self.fabric().clone(),
            key,
        })
    }

    fn listen(&self, at: SocketAddr) -> Result<Acceptor, NetworkError> {
        let mut world = self.fabric().lock();
        let key = world.listen(self.id(), at).map_err(refused)?;
        let state = world.streams.acceptors.get(key);
        let address = state.map_or(at, |acceptor| acceptor.address);
        drop(world);
        Ok(Acceptor {
            fabric: self.fabric().clone(),
            key,
            address,
        })
    }

    fn accept(&self, at: &Acceptor) -> Result<Option<Stream>, NetworkError> {
        let mut world = at.fabric.lock();
        world.settle();
        let state = world.streams.acceptors.get_mut(at.key);
        let state = state
            .filter(|acceptor| !acceptor.is_dead)
            .ok_or(refused(ENETDOWN))?;
        let arrived = state.arrived.pop_front();
        drop(world);
        Ok(arrived.map(|key| Stream {
            fabric: at.fabric.clone(),
            key,
        }))
    }

    /// Lets the time of the fabric pass, driven or not, until the awaited condition holds, or to the very nanosecond of the
    /// deadline, by the host's clock. If nobody drives the fabric, other threads get their turn before.
    fn wait<'s>(
        &self,
        acceptor: Option<&'s Acceptor>,
        streams: impl Iterator<Item = Waited<'s, Stream>>,
        deadline: Deadline,
    ) -> Result<(), NetworkError> {
        self.wait_beside(core::iter::empty(), acceptor, streams, deadline)
            .map(drop)
    }

    /// The next bytes of the fabric's seed.
    fn random(&self, into: &mut [u8]) -> Result<(), NetworkError> {
        let mut world = self.fabric().lock();
        for chunk in into.chunks_mut(size_of::<u64>()) {
            let drawn = world.entropy.draw().to_le_bytes();
            chunk.iter_mut().zip(drawn).for_each(|(to, byte)| *to = byte);
        }
        Ok(())
    }
}

impl<'d> WaitBeside<BorrowedFd<'d>> for Host {
    /// Waits as [`Network::wait`] does, and for descriptors of completion queues of the same fabric. Other descriptors are not
    /// looked at.
    fn wait_beside<'s>(
        &self,
        descriptors: impl Iterator<Item = BorrowedFd<'d>>,
        acceptor: Option<&'s Acceptor>,
        streams: impl Iterator<Item = Waited<'s, Stream>>,
        deadline: Deadline,
    ) -> Result<bool, NetworkError> {
        let descriptors: Vec<_> = descriptors.map(|one| one.as_raw_fd()).collect();
        let streams: Vec<_> = streams
            .map(|waited| (waited.stream.key, waited.has_unsent))
            .collect();
        let acceptor = acceptor.map(|acceptor| acceptor.key);
        let may_move = |world: &World| {
            let acceptor = acceptor.and_then(|key| world.streams.acceptors.get(key));
            let mut queues = world.completion_queues.iter();
            acceptor.is_some_and(|acceptor| acceptor.is_dead || !acceptor.arrived.is_empty())
                || streams.iter().any(|(key, has_unsent)| {
                    let end = world.streams.ends.get(*key);
                    end.is_none_or(|end| end.is_readable() || (*has_unsent && end.is_writable()))
                })
                || queues.any(|(_, queue)| queue.is_readable(&descriptors))
        };
        let ahead_ns = self.fabric().lock().ahead_ns(self.id());
        let until_ns = deadline.instant().to_ns().saturating_sub(ahead_ns);
        let is_over = |world: &World| {
            let now_ns = world.now_ns().saturating_add(world.ahead_ns(self.id()));
            now_ns >= deadline.instant().to_ns()
        };
        let is_found = |world: &World| may_move(world) || is_over(world);
        self.fabric().wait(is_found, Instant::from_ns(until_ns));
        Ok(may_move(&self.fabric().lock()))
    }
}

const fn refused(errno: i32) -> NetworkError {
    NetworkError { errno }
}

/// A stream to a peer on the same fabric.
pub struct Stream {
    fabric: Fabric,
    key: StreamKey,
}

impl Io for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, IoError> {
        let mut world = self.fabric.lock();
        world.settle();
        let end = world.streams.ends.get_mut(self.key);
        end.map_or(Err(IoError::Closed), |end| end.read(buffer))
    }

    fn write(&mut self, bytes: &[u8]) -> Result<usize, IoError> {
        let mut world = self.fabric.lock();
        world.settle();
        let end = world.streams.ends.get_mut(self.key);
        let written = end.map_or(Err(IoError::Closed), |end| end.write(bytes))?;
        world.attend_stream(self.key);
        world.settle();
        Ok(written)
    }
}

impl doorbell_core::network::Stream for Stream {
    fn is_connecting(&self) -> bool {
        let world = self.fabric.lock();
        let end = world.streams.ends.get(self.key);
        end.is_some_and(|end| end.is_connecting())
    }

    fn peer_address(&self) -> Option<SocketAddr> {
        let world = self.fabric.lock();
        Some(world.streams.ends.get(self.key)?.remote)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let mut world = self.fabric.lock();
        world.let_go(self.key);
        world.settle();
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({:?})", self.key)
    }
}

/// A port of a host at which peers of the same fabric arrive.
pub struct Acceptor {
    fabric: Fabric,
    key: AcceptorKey,
    address: SocketAddr,
}

impl doorbell_core::network::Acceptor for Acceptor {
    fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        let mut world = self.fabric.lock();
        world.give_up(self.key);
        world.settle();
    }
}

impl fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Acceptor({})", self.address)
    }
}

impl Fabric {
    /// Blocks until the awaited condition holds, or up to this time: which passes meanwhile, by itself or by its clock.
    pub(crate) fn wait(&self, is_found: impl Fn(&World) -> bool, until: Instant) {
        if let Some(real_time) = self.real_time() {
            return real_time.wait(is_found, until);
        }
        let until_ns = until.to_ns();
        loop {
            let mut world = self.lock();
            world.settle();
            // Other threads finish their present calls before time passes.
            let mut turns = None;
            while !world.is_driven
                && !is_found(&world)
                && turns.get_or_insert_with(Turns::begin).is_left(world.is_shared())
            {
                drop(world);
                std::thread::yield_now();
                world = self.lock();
                world.settle();
            }
            let now_ns = world.now_ns();
            if is_found(&world) || now_ns >= until_ns {
                return;
            }
            let next_ns = if world.is_driven {
                until_ns
            } else {
                now_ns.saturating_add(NAP_NS).min(until_ns)
            };
            world.pass(&is_found, next_ns);
        }
    }

    /// Blocks for a span of time at most.
    pub(crate) fn wait_for(&self, is_found: impl Fn(&World) -> bool, span: Duration) {
        let until = self.now().after(span);
        self.wait(is_found, until);
    }
}

/// Time that passes at once while a thread waits and nobody drives.
const NAP_NS: u64 = 1_000_000;
