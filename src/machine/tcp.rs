//! This host's network: non-blocking TCP, waits, the clock and entropy of the operating system.

use core::net::SocketAddr;
use core::task::Waker;
use core::time::Duration;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use doorbell_core::handshake::{Io, IoError};
use doorbell_core::network::{Acceptor, Network, NetworkError, Stream, WaitBeside, Waited};
use doorbell_core::{Clock, Deadline, Instant};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};

use crate::machine::watch::Watch;

/// Backlog of the listening socket, as far as `net.core.somaxconn` permits: four times the default limit on concurrent handshakes,
/// at a few KiB of kernel memory each. Beyond the limit the kernel drops the SYN of a peer, which retransmits it a second later.
///
/// Source: `listen(2)`.
const ARRIVED_MAX: i32 = 1024;

/// The network of this host: TCP, the clock and the random bytes of the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tcp;

impl Clock for Tcp {
    fn now(&self) -> Instant {
        doorbell_ffi::now()
    }
}

impl Network for Tcp {
    type Stream = TcpHandshake;
    type Acceptor = TcpAcceptor;

    fn connect(&self, to: SocketAddr) -> Result<TcpHandshake, NetworkError> {
        TcpHandshake::begin(to).map_err(refused)
    }

    fn listen(&self, at: SocketAddr) -> Result<TcpAcceptor, NetworkError> {
        TcpAcceptor::bind(at).map_err(refused)
    }

    fn accept(&self, at: &TcpAcceptor) -> Result<Option<TcpHandshake>, NetworkError> {
        loop {
            match at.listener.accept() {
                Ok((stream, _)) => {
                    let stream = TcpHandshake::accepted(stream, &at.watch);
                    return stream.map(Some).map_err(refused);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if is_of_one_peer(&error) => {}
                Err(error) => return Err(refused(error)),
            }
        }
    }

    fn wait<'s>(
        &self,
        acceptor: Option<&'s TcpAcceptor>,
        streams: impl Iterator<Item = Waited<'s, TcpHandshake>>,
        deadline: Deadline,
    ) -> Result<(), NetworkError> {
        let none = core::iter::empty::<BorrowedFd<'_>>();
        self.wait_beside(none, acceptor, streams, deadline).map(drop)
    }

    fn random(&self, into: &mut [u8]) -> Result<(), NetworkError> {
        getrandom::fill(into).map_err(|error| NetworkError {
            errno: error.raw_os_error().unwrap_or(0),
        })
    }
}

impl<D: AsFd> WaitBeside<D> for Tcp {
    fn wait_beside<'s>(
        &self,
        descriptors: impl Iterator<Item = D>,
        acceptor: Option<&'s TcpAcceptor>,
        streams: impl Iterator<Item = Waited<'s, TcpHandshake>>,
        deadline: Deadline,
    ) -> Result<bool, NetworkError> {
        let descriptors: Vec<D> = descriptors.collect();
        let beside = descriptors.iter();
        let mut fds: Vec<_> = beside.map(|one| PollFd::new(one, PollFlags::IN)).collect();
        // The watch of a port reports its accepted streams, too.
        let mut watch = acceptor.map(|acceptor| &*acceptor.watch);
        for Waited { stream, has_unsent } in streams {
            match &stream.watched {
                Some((of, _)) => watch = watch.or(Some(of)),
                None => fds.push(stream.interest(has_unsent)),
            }
        }
        let watched = watch.map(Watch::descriptor);
        fds.extend(
            watched
                .as_ref()
                .map(|watched| PollFd::new(watched, PollFlags::IN)),
        );
        wait_at(&mut fds, deadline.remaining(self.now()))
    }
}

/// Waits for these descriptors. Returns whether one of them is ready.
fn wait_at(fds: &mut [PollFd<'_>], span: Duration) -> Result<bool, NetworkError> {
    let timeout = Timespec {
        tv_sec: i64::try_from(span.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: span.subsec_nanos().into(),
    };
    match poll(fds, Some(&timeout)) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(refused(error.into())),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "it is what errors are mapped by")]
fn refused(error: io::Error) -> NetworkError {
    NetworkError {
        errno: error.raw_os_error().unwrap_or(0),
    }
}

/// A listening TCP socket.
#[derive(Debug)]
pub struct TcpAcceptor {
    listener: TcpListener,
    address: SocketAddr,
    watch: Arc<Watch>,
}

impl TcpAcceptor {
    fn bind(at: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(at)?;
        // std has set a backlog of 128.
        rustix::net::listen(&listener, ARRIVED_MAX)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let watch = Arc::new(Watch::new(&listener)?);
        Ok(Self {
            listener,
            address,
            watch,
        })
    }

    /// Descriptor that becomes readable when a peer has connected, an accepted stream has an event, or the waker was woken.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.watch.descriptor()
    }
}

impl Acceptor for TcpAcceptor {
    fn address(&self) -> SocketAddr {
        self.address
    }

    fn waker(&self) -> Option<Waker> {
        Some(Arc::clone(self.watch.signal()).into())
    }

    fn collect(&self) {
        self.watch.collect();
    }
}

/// Whether an error of `accept` concerns only the new connection, and not the listening socket.
///
/// Source: `accept(2)`, which returns errors that are pending on the new socket.
fn is_of_one_peer(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(
            Errno::INTR
                | Errno::CONNABORTED
                | Errno::NETDOWN
                | Errno::PROTO
                | Errno::NOPROTOOPT
                | Errno::HOSTDOWN
                | Errno::NONET
                | Errno::HOSTUNREACH
                | Errno::OPNOTSUPP
                | Errno::NETUNREACH
        )
    )
}

/// A connected or connecting stream that never blocks.
#[derive(Debug)]
pub struct TcpHandshake {
    stream: TcpStream,
    /// Whether the connection is not known to be up yet.
    connecting: bool,
    /// The watch that reports the stream's events, and its number there; only for an accepted stream.
    watched: Option<(Arc<Watch>, u64)>,
}

impl TcpHandshake {
    /// Begins to connect. The first read or write reports whether that succeeded.
    fn begin(address: SocketAddr) -> io::Result<Self> {
        let family = if address.is_ipv4() {
            AddressFamily::INET
        } else {
            AddressFamily::INET6
        };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::STREAM, flags, None)?;
        let connecting = match rustix::net::connect(&socket, &address) {
            Ok(()) => false,
            Err(Errno::INPROGRESS) => true,
            Err(error) => return Err(error.into()),
        };
        let stream = TcpStream::from(socket);
        // Frames are small, and each waits for an answer.
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            connecting,
            watched: None,
        })
    }

    /// Makes an accepted stream, whose events the port's watch reports.
    fn accepted(stream: TcpStream, watch: &Arc<Watch>) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let number = watch.add(&stream)?;
        Ok(Self {
            stream,
            connecting: false,
            watched: Some((Arc::clone(watch), number)),
        })
    }

    /// The events to wait for: writable while connecting, then readable, and also writable if bytes are unsent.
    fn interest(&self, has_unsent: bool) -> PollFd<'_> {
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
        let at_once = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        is_ready(poll(&mut fds, Some(&at_once)))?;
        self.connecting = false;
        match sockopt::socket_error(&self.stream) {
            Ok(Ok(())) => Ok(()),
            // The peer may have closed the connection before this first check.
            Ok(Err(errno)) | Err(errno) => Err(classify(&errno.into())),
        }
    }
}

/// Checks the outcome of a poll that does not wait.
fn is_ready(polled: Result<usize, Errno>) -> Result<(), IoError> {
    match polled.map_err(|errno| classify(&errno.into()))? {
        0 => Err(IoError::WouldBlock),
        _ => Ok(()),
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

impl Drop for TcpHandshake {
    /// Closes the stream so that the last written bytes, such as a refusal, still arrive. Unread bytes of the peer would turn the close
    /// into a reset, which discards them.
    fn drop(&mut self) {
        if let Some((watch, number)) = &self.watched {
            watch.remove(&self.stream, *number);
        }
        let _ = self.stream.shutdown(Shutdown::Write);
        let mut unread = [0; 4096];
        // An honest peer has not sent more than this.
        let _ = self.stream.read(&mut unread);
    }
}

impl Stream for TcpHandshake {
    fn is_connecting(&self) -> bool {
        self.connecting
    }

    fn peer_address(&self) -> Option<SocketAddr> {
        self.stream.peer_addr().ok()
    }

    fn is_due(&self) -> bool {
        let due = self
            .watched
            .as_ref()
            .map(|(watch, number)| watch.take_due(*number));
        due.unwrap_or(true)
    }
}

impl AsFd for TcpHandshake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Io for TcpHandshake {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, IoError> {
        self.check_connected()?;
        self.stream.read(buffer).map_err(|error| classify(&error))
    }

    fn write(&mut self, bytes: &[u8]) -> Result<usize, IoError> {
        self.check_connected()?;
        // std sends with MSG_NOSIGNAL, so a closed connection causes an error and no SIGPIPE.
        self.stream.write(bytes).map_err(|error| classify(&error))
    }
}

#[cfg(test)]
mod tests {
    use super::{ARRIVED_MAX, Acceptor as _, Errno, IoError, Network as _, Tcp, is_ready};
    use core::time::Duration;
    use std::fs;
    use std::net::TcpStream;

    #[test]
    fn hundreds_that_come_at_once_wait_and_none_is_dropped() {
        let allowed = fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap();
        if allowed.trim().parse::<i32>().unwrap() < ARRIVED_MAX {
            println!("SKIPPED: this host lets fewer wait");
            return;
        }
        let acceptor = Tcp.listen(([127, 0, 0, 1], 0).into()).unwrap();
        let arrived: Vec<_> = (0..300)
            .map(|_| TcpStream::connect_timeout(&acceptor.address(), Duration::from_millis(900)).unwrap())
            .collect();
        let taken = core::iter::from_fn(|| Tcp.accept(&acceptor).unwrap());
        assert_eq!(taken.count(), arrived.len());
    }

    #[test]
    fn a_poll_that_a_signal_interrupts_fails_no_attempt() {
        assert_eq!(is_ready(Err(Errno::INTR)), Err(IoError::WouldBlock));
        assert_eq!(is_ready(Ok(0)), Err(IoError::WouldBlock));
        assert_eq!(is_ready(Ok(1)), Ok(()));
        let memory = Errno::NOMEM;
        assert_eq!(is_ready(Err(memory)), Err(IoError::Failed(memory.raw_os_error())));
    }
}
