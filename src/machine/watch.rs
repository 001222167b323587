//! Events of a listening socket, of the streams accepted from it, and of a signal, by one `epoll(7)`. The cost of a wait depends on the
//! number of events, not on the number of silent streams.
//!
//! Events of the socket and the streams are edge-triggered. An event makes a stream due until [`Watch::take_due`] is called, after which
//! the caller reads until nothing is left. So waits need no preparation, and an event that is not handled ends only one wait.

use core::mem::MaybeUninit;
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::Timespec;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::io::Errno;

use crate::machine::signal::Signal;

/// Numbers of the signal's and the listening socket's events. Streams have higher numbers.
const SIGNAL: u64 = 0;
const PORT: u64 = 1;

/// Maximum number of events for each system call.
const EVENTS_MAX: usize = 64;

const AT_ONCE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Watch {
    epoll: OwnedFd,
    signal: Arc<Signal>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The number of the last added stream.
    last: u64,
    /// Streams with an event since they were last asked.
    due: BTreeSet<u64>,
}

impl Watch {
    /// Makes a watch of a listening socket, with a new signal.
    ///
    /// # Errors
    /// The system gave no descriptor.
    pub(super) fn new(port: &impl AsFd) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let signal = Signal::new()?;
        let number = EventData::new_u64(SIGNAL);
        epoll::add(&epoll, signal.descriptor(), number, EventFlags::IN)?;
        let number = EventData::new_u64(PORT);
        epoll::add(&epoll, port, number, EventFlags::IN | EventFlags::ET)?;
        Ok(Self {
            epoll,
            signal: Arc::new(signal),
            state: Mutex::new(State {
                last: PORT,
                due: BTreeSet::new(),
            }),
        })
    }

    /// The signal that ends a wait from another thread.
    pub(super) const fn signal(&self) -> &Arc<Signal> {
        &self.signal
    }

    /// The descriptor that is readable when there is an event that was not [collected](Self::collect).
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a stream, and returns its number.
    ///
    /// # Errors
    /// The system refuses to watch it, for example at a limit.
    pub(super) fn add(&self, stream: &impl AsFd) -> io::Result<u64> {
        let mut state = self.state();
        state.last = state.last.wrapping_add(1);
        let number = state.last;
        drop(state);
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        epoll::add(&self.epoll, stream, EventData::new_u64(number), flags)?;
        Ok(number)
    }

    /// Removes a stream. Closing alone may not: the descriptor may still be open in a child of this process.
    pub(super) fn remove(&self, stream: &impl AsFd, number: u64) {
        let _ = epoll::delete(&self.epoll, stream);
        self.state().due.remove(&number);
    }

    /// Notes the events since the last call, and resets the signal. A signal that is raised during the call or later ends the next wait.
    pub(super) fn collect(&self) {
        self.signal.take();
        let mut events = [const { MaybeUninit::<Event>::uninit() }; EVENTS_MAX];
        loop {
            let came = match epoll::wait(&self.epoll, &mut events, Some(&AT_ONCE)) {
                Ok((came, _)) => came,
                Err(Errno::INTR) => continue,
                // Other errors mean an invalid descriptor, which this is not.
                Err(_) => return,
            };
            let count = came.len();
            let numbers = came.iter().map(|event| event.data.u64());
            self.state().due.extend(numbers.filter(|number| *number > PORT));
            if count < EVENTS_MAX {
                return;
            }
        }
    }

    /// Returns whether a stream had an event since the last call.
    pub(super) fn take_due(&self, number: u64) -> bool {
        self.state().due.remove(&number)
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;
    use std::io::{Read as _, Write as _};
    use std::net::TcpStream;
    use std::os::fd::AsFd as _;

    use doorbell_core::handshake::Io as _;
    use doorbell_core::network::{Acceptor as _, Network as _, Stream as _, Waited};
    use doorbell_core::{Clock as _, Instant};

    use crate::machine::tcp::Tcp;
    use crate::machine::tcp::{TcpAcceptor, TcpHandshake};

    const SOON: Duration = Duration::from_secs(20);
    const MOMENT: Duration = Duration::from_millis(20);

    fn port() -> TcpAcceptor {
        Tcp.listen(([127, 0, 0, 1], 0).into()).unwrap()
    }

    /// An accepted stream, and the peer's end.
    fn stream(port: &TcpAcceptor) -> (TcpHandshake, TcpStream) {
        let other = TcpStream::connect(port.address()).unwrap();
        (Tcp.accept(port).unwrap().unwrap(), other)
    }

    /// Waits for at most this span, and collects events. Returns whether the wait ended early.
    fn waits(port: &TcpAcceptor, streams: &[&TcpHandshake], span: Duration) -> bool {
        let waited = streams.iter().map(|stream| Waited {
            stream: *stream,
            has_unsent: false,
        });
        let deadline = Tcp.within(span);
        Tcp.wait(Some(port), waited, deadline).unwrap();
        port.collect();
        !deadline.has_passed(Tcp.now())
    }

    /// Waits until there are no more events, and resets the streams.
    fn quiet(port: &TcpAcceptor, streams: &[&TcpHandshake]) {
        while waits(port, streams, MOMENT) {}
        for stream in streams {
            stream.is_due();
        }
    }

    #[test]
    fn of_many_the_ones_are_due_of_which_something_came_and_once() {
        let port = port();
        let [(mut one, mut to_one), (two, _to_two), (three, to_three)] = [0; 3].map(|_| stream(&port));
        quiet(&port, &[&one, &two, &three]);
        to_one.write_all(b"x").unwrap();
        assert!(waits(&port, &[&one, &two, &three], SOON));
        assert_eq!(
            [&one, &two, &three].map(|stream| stream.is_due()),
            [true, false, false]
        );
        // The bytes are not read, and end no further wait.
        assert!(!one.is_due() && !waits(&port, &[&one], MOMENT));
        to_one.write_all(b"y").unwrap();
        assert!(waits(&port, &[&one], SOON) && one.is_due());
        assert_eq!(one.read(&mut [0; 8]), Ok(2));
        drop(to_three);
        assert!(waits(&port, &[&three], SOON));
        assert_eq!(
            [&one, &two, &three].map(|stream| stream.is_due()),
            [false, false, true]
        );
    }

    #[test]
    fn a_stream_with_the_descriptor_of_one_that_was_closed_is_another() {
        let port = port();
        for _ in 0..3 {
            let (stream, mut other) = stream(&port);
            quiet(&port, &[&stream]);
            other.write_all(b"x").unwrap();
            assert!(waits(&port, &[&stream], SOON) && stream.is_due());
        }
    }

    #[test]
    fn of_one_that_is_closed_here_alone_nothing_comes() {
        let port = port();
        let (stream, mut other) = stream(&port);
        quiet(&port, &[&stream]);
        // A duplicate stays open, as in a child of this process.
        let kept = stream.as_fd().try_clone_to_owned().unwrap();
        drop(stream);
        other.write_all(b"x").unwrap();
        assert!(!waits(&port, &[], MOMENT));
        drop(kept);
    }

    #[test]
    fn room_ends_a_wait_once_there_was_none() {
        let port = port();
        let (mut stream, mut other) = stream(&port);
        while stream.write(&[0; 1 << 16]).is_ok() {}
        quiet(&port, &[&stream]);
        let began = Tcp.now();
        while !waits(&port, &[&stream], Duration::ZERO) && !stream.is_due() {
            assert!(Tcp.now() < Instant::after(began, SOON));
            assert!(other.read(&mut [0; 1 << 16]).unwrap() > 0);
        }
        assert!(stream.write(b"x").is_ok());
    }

    #[test]
    fn who_arrives_and_who_wakes_end_a_wait() {
        let port = port();
        quiet(&port, &[]);
        let _other = TcpStream::connect(port.address()).unwrap();
        assert!(waits(&port, &[], SOON));
        // The peer was not accepted, and its event does not end another wait.
        assert!(!waits(&port, &[], MOMENT));
        assert!(Tcp.accept(&port).unwrap().is_some());
        port.waker().unwrap().wake();
        assert!(waits(&port, &[], SOON));
        assert!(!waits(&port, &[], MOMENT));
    }
}
