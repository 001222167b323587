//! A process's end of the daemon: its endpoint, and the socket by which it sleeps and wakes the daemon.

use core::fmt;
use core::time::Duration;
use std::io;
use std::path::Path;

use doorbell::interprocess::SharedMemoryError;
use doorbell::{Deadline, now};
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::endpoint::{Endpoint, EndpointEvent, EndpointRefusal};
use crate::name::EndpointAddress;
use crate::packet::{AttachRequest, Packet};
use crate::reason::{AttachRefusal, CutReason};
use crate::serving::socket::{Came, PacketSocket};

/// How often a connection is tried anew while the daemon has as many in its queue as fit.
const RETRY_EVERY: Duration = Duration::from_millis(1);

/// Reason why a client cannot attach, or go on.
#[derive(Debug)]
#[non_exhaustive]
pub enum ClientError {
    /// The daemon refuses the process.
    Refused(AttachRefusal),
    /// The daemon cut this client off: what it wrote into its rings was not in order.
    Cut(CutReason),
    /// The daemon is gone, with all endpoints: attach again once there is another.
    DaemonGone,
    /// The daemon did not answer by the deadline.
    TooLate,
    /// The memory could not be made.
    Memory(SharedMemoryError),
    /// The daemon broke the protocol of the rings.
    Broken(EndpointRefusal),
    /// A call of the system failed: if it is the connection, no daemon listens there, or this user may not reach it.
    System {
        /// The call.
        call: &'static str,
        /// The error.
        error: io::Error,
    },
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(reason) => write!(f, "the daemon refuses this process: {reason}"),
            Self::Cut(reason) => write!(f, "the daemon cut this process off: {reason}"),
            Self::DaemonGone => f.write_str("the daemon is gone: attach again once there is another"),
            Self::TooLate => f.write_str("the daemon did not answer by the deadline"),
            Self::Memory(error) => error.fmt(f),
            Self::Broken(refusal) => refusal.fmt(f),
            Self::System { call, error } => write!(f, "{call}: {error}"),
        }
    }
}

impl core::error::Error for ClientError {}

fn failed(call: &'static str) -> impl FnOnce(io::Error) -> ClientError {
    move |error| ClientError::System { call, error }
}

/// A process that is attached to its node's daemon. Its peers learn of [`Client::detach`] as such; dropping it is reported as a death.
#[derive(Debug)]
pub struct Client {
    endpoint: Endpoint,
    socket: PacketSocket,
    address: EndpointAddress,
}

impl Client {
    /// Attaches this process to the daemon that listens at `path`, by the deadline. It waits and makes system calls.
    ///
    /// # Errors
    /// No daemon listens there, it refuses this process with its reason, or it does not answer by the deadline.
    pub fn attach(path: &Path, request: &AttachRequest, deadline: Deadline) -> Result<Self, ClientError> {
        let endpoint = Endpoint::new(request.layout).map_err(ClientError::Memory)?;
        let socket = loop {
            match PacketSocket::connect(path) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if deadline.has_passed(now()) {
                        return Err(ClientError::TooLate);
                    }
                    std::thread::sleep(RETRY_EVERY);
                }
                connected => break connected.map_err(failed("connect"))?,
            }
        };
        let descriptors = [endpoint.rings().descriptor(), endpoint.arena().descriptor()];
        socket
            .send(&Packet::Attach(*request), &descriptors)
            .map_err(failed("sendmsg"))?;
        loop {
            match socket.receive().map_err(failed("recvmsg"))? {
                Came::Nothing => {
                    if !sleep(&socket, deadline)? && deadline.has_passed(now()) {
                        return Err(ClientError::TooLate);
                    }
                }
                Came::Packet(Ok(Packet::Attached(node)), _) => {
                    let address = EndpointAddress {
                        node,
                        endpoint: request.endpoint,
                    };
                    return Ok(Self {
                        endpoint,
                        socket,
                        address,
                    });
                }
                Came::Packet(Ok(Packet::Refused(reason)), _) => return Err(ClientError::Refused(reason)),
                Came::Packet(..) => return Err(ClientError::Refused(AttachRefusal::Packet)),
                Came::End => return Err(ClientError::DaemonGone),
            }
        }
    }

    /// The address by which the endpoints of its job reach it.
    #[must_use]
    pub const fn address(&self) -> EndpointAddress {
        self.address
    }

    /// Takes a message, as [`Endpoint::send`] does: [`Client::poll`] publishes it.
    ///
    /// # Errors
    /// As for [`Endpoint::send`].
    #[inline]
    pub fn send(&mut self, to: EndpointAddress, message: &[u8]) -> Result<u64, EndpointRefusal> {
        self.endpoint.send(to, message)
    }

    /// Publishes the messages that were taken, and gives each event that is there to `each`. It makes a system call only if the daemon
    /// sleeps and has to be woken. The end of the daemon is found by [`Client::wait`].
    ///
    /// # Errors
    /// The daemon is gone or broke the protocol, or it cut this process off.
    #[inline]
    pub fn poll(&mut self, each: impl FnMut(EndpointEvent<'_>)) -> Result<(), ClientError> {
        if self.endpoint.poll(each).map_err(ClientError::Broken)? {
            self.wake_daemon()?;
        }
        Ok(())
    }

    /// Polls, and sleeps while there is nothing to do: until there was an event, until there is room again if there was none for a
    /// message, or until the deadline. Returns whether there was an event or there is room.
    ///
    /// # Errors
    /// As for [`Client::poll`].
    pub fn wait(
        &mut self,
        deadline: Deadline,
        mut each: impl FnMut(EndpointEvent<'_>),
    ) -> Result<bool, ClientError> {
        let mut had_room = None;
        loop {
            let mut count = 0_u32;
            self.poll(|event| {
                count = count.saturating_add(1);
                each(event);
            })?;
            let has_room = self.endpoint.has_room().map_err(ClientError::Broken)?;
            if count > 0 || (has_room && had_room == Some(false)) {
                return Ok(true);
            }
            had_room = Some(has_room);
            if self
                .endpoint
                .prepare_sleep(!has_room)
                .map_err(ClientError::Broken)?
            {
                let slept = sleep(&self.socket, deadline);
                self.endpoint.end_sleep();
                let is_woken = slept?;
                self.take_packets()?;
                if !is_woken && deadline.has_passed(now()) {
                    return Ok(false);
                }
            }
        }
    }

    /// Says farewell: its peers learn that it detached. All messages that were published before are routed first, if there is room for
    /// them; those without room are lost.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn detach(mut self) -> Result<(), ClientError> {
        self.poll(|_| {})?;
        self.socket
            .send(&Packet::Detach, &[])
            .map_err(failed("sendmsg"))?;
        Ok(())
    }

    /// The endpoint. Writing into its memory by hand can only get this process cut off.
    #[must_use]
    pub const fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    #[cold]
    fn wake_daemon(&self) -> Result<(), ClientError> {
        if self.socket.send(&Packet::Wake, &[]).is_err() {
            self.take_packets()?;
            return Err(ClientError::DaemonGone);
        }
        Ok(())
    }

    fn take_packets(&self) -> Result<(), ClientError> {
        loop {
            match self.socket.receive().map_err(failed("recvmsg"))? {
                Came::Nothing => return Ok(()),
                Came::Packet(Ok(Packet::Wake), _) => {}
                Came::Packet(Ok(Packet::Cut(reason)), _) => return Err(ClientError::Cut(reason)),
                Came::Packet(..) | Came::End => return Err(ClientError::DaemonGone),
            }
        }
    }
}

/// Sleeps until something comes. `false` at the deadline, or if a signal came.
fn sleep(socket: &PacketSocket, deadline: Deadline) -> Result<bool, ClientError> {
    let timeout = Timespec::try_from(deadline.remaining(now())).ok();
    match rustix::event::poll(&mut [PollFd::new(socket, PollFlags::IN)], timeout.as_ref()) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(errno) => Err(failed("poll")(errno.into())),
    }
}
