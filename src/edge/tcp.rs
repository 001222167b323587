//! The handshake's stream and its waits, over non-blocking TCP.

use core::net::SocketAddr;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::BorrowedFd;

use doorbell_core::Deadline;
use doorbell_core::handshake::{Io, IoError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};

use super::clock;

/// A connected or connecting stream that never blocks.
#[derive(Debug)]
pub(crate) struct Stream {
    stream: TcpStream,
    /// Whether the connection is not known to be up yet.
    connecting: bool,
}

impl Stream {
    /// Begins to connect; whether it succeeds is told by the first read or write.
    pub(crate) fn begin(address: SocketAddr) -> io::Result<Self> {
        let family = if address.is_ipv4() {
            AddressFamily::INET
        } else {
            AddressFamily::INET6
        };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::STREAM, flags, None)?;
        let connecting = match rustix::net::connect(&socket, &address) {
            Ok(()) => false,
            Err(rustix::io::Errno::INPROGRESS) => true,
            Err(error) => return Err(error.into()),
        };
        let stream = TcpStream::from(socket);
        // The frames are small and each awaits an answer.
        stream.set_nodelay(true)?;
        Ok(Self { stream, connecting })
    }

    /// Takes an accepted stream.
    pub(crate) fn accepted(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            connecting: false,
        })
    }

    /// Waits until the stream may move, or the deadline.
    pub(crate) fn wait(&self, has_unsent: bool, deadline: Deadline) -> io::Result<()> {
        wait(&mut [self.interest(has_unsent)], deadline)
    }

    /// Whether nobody has answered yet, by yes or by no.
    pub(crate) const fn is_connecting(&self) -> bool {
        self.connecting
    }

    /// What to wait for: to be connected, then for bytes, and for room where some are unsent.
    pub(crate) fn interest(&self, has_unsent: bool) -> PollFd<'_> {
        let flags = match (self.connecting, has_unsent) {
            (true, _) => PollFlags::OUT,
            (false, true) => PollFlags::IN | PollFlags::OUT,
            (false, false) => PollFlags::IN,
        };
        PollFd::new(&self.stream, flags)
    }

    fn check_connected(&mut self) -> Result<(), IoError> {
        if !self.connecting {
            return Ok(());
        }
        let mut fds = [PollFd::new(&self.stream, PollFlags::OUT)];
        let ready = poll(
            &mut fds,
            Some(&Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            }),
        );
        if ready.map_err(|errno| IoError::Failed(errno.raw_os_error()))? == 0 {
            return Err(IoError::WouldBlock);
        }
        self.connecting = false;
        match sockopt::socket_error(&self.stream) {
            Ok(Ok(())) => Ok(()),
            // A peer may have closed before we looked for the first time.
            Ok(Err(errno)) | Err(errno) => Err(classify(&errno.into())),
        }
    }
}

/// Waits for a peer at `port`, or until one of the streams may move, or the deadline. Which it
/// was is for the caller to see.
pub(crate) fn wait_any<'fd>(
    port: BorrowedFd<'fd>,
    streams: impl Iterator<Item = PollFd<'fd>>,
    deadline: Deadline,
) -> io::Result<()> {
    let port = PollFd::from_borrowed_fd(port, PollFlags::IN);
    let mut fds: Vec<_> = core::iter::once(port).chain(streams).collect();
    wait(&mut fds, deadline)
}

fn wait(fds: &mut [PollFd<'_>], deadline: Deadline) -> io::Result<()> {
    let remaining = deadline.remaining(clock::now());
    let timeout = Timespec {
        tv_sec: i64::try_from(remaining.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: remaining.subsec_nanos().into(),
    };
    match poll(fds, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn classify(error: &io::Error) -> IoError {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => IoError::WouldBlock,
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionAborted => {
            IoError::Closed
        }
        _ => IoError::Failed(error.raw_os_error().unwrap_or(0)),
    }
}

impl Drop for Stream {
    /// Closes so that what was written last, a refusal perhaps, still arrives: bytes of the
    /// peer that nobody read would turn the close into a reset, which discards it.
    fn drop(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Write);
        let mut unread = [0; 4096];
        // As much as a peer can have sent by the rules; beyond that it has itself to blame.
        let _ = self.stream.read(&mut unread);
    }
}

impl Io for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, IoError> {
        self.check_connected()?;
        self.stream.read(buffer).map_err(|error| classify(&error))
    }

    fn write(&mut self, bytes: &[u8]) -> Result<usize, IoError> {
        self.check_connected()?;
        // std sends with MSG_NOSIGNAL, so that a closed peer is an error and no signal.
        self.stream.write(bytes).map_err(|error| classify(&error))
    }
}
