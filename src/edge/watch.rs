//! Streams that a thread waits for by `epoll(7)`: a wait costs what comes of them, and not how many are silent.

use core::mem::MaybeUninit;
use core::time::Duration;
use std::io;
use std::os::fd::OwnedFd;

use doorbell_core::network::{NetworkError, Waited};
use rustix::event::Timespec;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::io::Errno;

use super::signal::Signal;
use super::tcp::{TcpAcceptor, TcpHandshake, refused};

/// What events are numbered by that are of no stream.
const SIGNAL: u64 = 0;
const PORT: u64 = 1;

/// How many events one wait gives at most. The others are given by the next.
const EVENTS_MAX: usize = 256;

/// The longest wait: more milliseconds than the system call of old kernels takes are an error.
const SPAN_MAX: Duration = Duration::from_secs(3600);

/// See the [module](self). It knows a stream from the first wait for it on, until it is closed; no stream is in two of them.
#[derive(Debug)]
pub(super) struct Watch {
    epoll: OwnedFd,
    /// The number of the stream it came to know last.
    last: u64,
    /// Whether who arrives at the port ends a wait. It does so once each time it is asked for, so that nothing is to be done
    /// where it is not.
    awaits_port: bool,
    /// The streams of this wait, in their order, and those of which something came in the last, by their numbers: of these
    /// nothing more comes until it is asked for again.
    order: Vec<u64>,
    came: Vec<u64>,
}

impl Watch {
    /// One that is woken by a signal, too, for as long as that is there.
    ///
    /// # Errors
    /// The system gave no descriptor.
    pub(super) fn new(signal: &Signal) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let number = EventData::new_u64(SIGNAL);
        epoll::add(&epoll, signal.descriptor(), number, EventFlags::IN)?;
        Ok(Self {
            epoll,
            last: PORT,
            awaits_port: false,
            order: Vec::new(),
            came: Vec::new(),
        })
    }

    /// Waits until something comes of the signal, of the port or of a stream, or so long; `ready` is made to tell of each stream
    /// whether something came.
    ///
    /// # Errors
    /// The system cannot wait.
    pub(super) fn wait<'s>(
        &mut self,
        port: Option<&TcpAcceptor>,
        streams: impl Iterator<Item = Waited<'s, TcpHandshake>>,
        span: Duration,
        ready: &mut Vec<bool>,
    ) -> Result<(), NetworkError> {
        let outcome = self.ask(port, streams).and_then(|()| self.await_events(span));
        outcome.map_err(|errno| refused(errno.into()))?;
        ready.clear();
        let came = |number| self.came.binary_search(number).is_ok();
        ready.extend(self.order.iter().map(came));
        Ok(())
    }

    /// Has the kernel know what is waited for, where it does not yet.
    fn ask<'s>(
        &mut self,
        port: Option<&TcpAcceptor>,
        streams: impl Iterator<Item = Waited<'s, TcpHandshake>>,
    ) -> Result<(), Errno> {
        if let Some(port) = port.filter(|_| !self.awaits_port) {
            let (number, flags) = (EventData::new_u64(PORT), EventFlags::IN | EventFlags::ONESHOT);
            match epoll::modify(&self.epoll, port, number, flags) {
                Err(Errno::NOENT) => epoll::add(&self.epoll, port, number, flags)?,
                outcome => outcome?,
            }
            self.awaits_port = true;
        }
        self.order.clear();
        for Waited { stream, has_unsent } in streams {
            // Once, as for the port: of one that is closed here and open in a child of this process events would come without end.
            let room = if has_unsent {
                EventFlags::OUT
            } else {
                EventFlags::empty()
            };
            let flags = EventFlags::IN | EventFlags::ONESHOT | room;
            let number = match stream.watched() {
                Some((number, awaits_room)) => {
                    if awaits_room != has_unsent || self.came.binary_search(&number).is_ok() {
                        epoll::modify(&self.epoll, stream, EventData::new_u64(number), flags)?;
                    }
                    number
                }
                None => {
                    let number = self.last.wrapping_add(1);
                    epoll::add(&self.epoll, stream, EventData::new_u64(number), flags)?;
                    self.last = number;
                    number
                }
            };
            stream.note_watched(number, has_unsent);
            self.order.push(number);
        }
        Ok(())
    }

    fn await_events(&mut self, span: Duration) -> Result<(), Errno> {
        let span = span.min(SPAN_MAX);
        let timeout = Timespec {
            tv_sec: i64::try_from(span.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: span.subsec_nanos().into(),
        };
        self.came.clear();
        let mut events = [const { MaybeUninit::<Event>::uninit() }; EVENTS_MAX];
        match epoll::wait(&self.epoll, &mut events, Some(&timeout)) {
            Ok((events, _)) => self.came.extend(events.iter().map(|event| event.data.u64())),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        self.came.sort_unstable();
        if self.came.contains(&PORT) {
            self.awaits_port = false;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;
    use std::io::{Read as _, Write as _};
    use std::net::TcpStream;
    use std::os::fd::AsFd as _;
    use std::time::Instant;

    use doorbell_core::handshake::Io as _;
    use doorbell_core::network::{Acceptor as _, Network as _, Waited};

    use super::{Signal, Watch};
    use crate::Tcp;
    use crate::edge::tcp::{TcpAcceptor, TcpHandshake};

    const SOON: Duration = Duration::from_secs(20);
    const MOMENT: Duration = Duration::from_millis(20);

    struct Waiting {
        signal: Signal,
        port: TcpAcceptor,
        watch: Watch,
    }

    impl Waiting {
        fn new() -> Self {
            let signal = Signal::new().unwrap();
            Self {
                port: Tcp.listen(([127, 0, 0, 1], 0).into()).unwrap(),
                watch: Watch::new(&signal).unwrap(),
                signal,
            }
        }

        /// A stream of ours, and its other end.
        fn stream(&self) -> (TcpHandshake, TcpStream) {
            let other = TcpStream::connect(self.port.address()).unwrap();
            (Tcp.accept(&self.port).unwrap().unwrap(), other)
        }

        /// Waits until something comes, with those that wait for room too, and says of which streams.
        fn came(&mut self, port: bool, streams: &[(&TcpHandshake, bool)]) -> Vec<bool> {
            let began = Instant::now();
            let ready = self.wait(port, streams, SOON);
            assert!(began.elapsed() < SOON);
            ready
        }

        fn wait(&mut self, port: bool, streams: &[(&TcpHandshake, bool)], span: Duration) -> Vec<bool> {
            let waited = streams.iter().map(|(stream, has_unsent)| Waited {
                stream: *stream,
                has_unsent: *has_unsent,
            });
            let mut ready = vec![true; 9];
            let port = port.then_some(&self.port);
            self.watch.wait(port, waited, span, &mut ready).unwrap();
            ready
        }

        /// That nothing comes: the wait takes its time, and no less.
        fn is_quiet(&mut self, port: bool, streams: &[(&TcpHandshake, bool)]) {
            let began = Instant::now();
            let ready = self.wait(port, streams, MOMENT);
            assert!(ready == vec![false; streams.len()] && began.elapsed() >= MOMENT);
        }
    }

    #[test]
    fn of_many_it_tells_those_of_which_something_came_wherever_they_stand() {
        let mut waiting = Waiting::new();
        let [(mut one, mut to_one), (two, _to_two), (three, to_three)] = [0; 3].map(|_| waiting.stream());
        waiting.is_quiet(true, &[(&one, false), (&two, false), (&three, false)]);
        to_one.write_all(b"x").unwrap();
        let came = waiting.came(true, &[(&one, false), (&two, false), (&three, false)]);
        assert_eq!(came, [true, false, false]);
        // By levels, and in the order of the day.
        assert_eq!(waiting.came(true, &[(&two, false), (&one, false)]), [false, true]);
        one.read(&mut [0; 8]).unwrap();
        drop(to_three);
        assert_eq!(
            waiting.came(true, &[(&one, false), (&three, false)]),
            [false, true]
        );
    }

    #[test]
    fn a_stream_with_the_descriptor_of_one_that_was_closed_is_another() {
        let mut waiting = Waiting::new();
        for _ in 0..3 {
            let (stream, mut other) = waiting.stream();
            waiting.is_quiet(true, &[(&stream, false)]);
            other.write_all(b"x").unwrap();
            assert_eq!(waiting.came(true, &[(&stream, false)]), [true]);
        }
    }

    #[test]
    fn of_one_that_is_closed_here_alone_events_come_once() {
        let mut waiting = Waiting::new();
        let (stream, mut other) = waiting.stream();
        waiting.is_quiet(true, &[(&stream, false)]);
        // As in a child of this process.
        let kept = stream.as_fd().try_clone_to_owned().unwrap();
        drop(stream);
        other.write_all(b"x").unwrap();
        assert!(waiting.came(true, &[]).is_empty());
        waiting.is_quiet(true, &[]);
        drop(kept);
    }

    #[test]
    fn room_is_waited_for_where_something_is_unsent() {
        let mut waiting = Waiting::new();
        let (mut stream, mut other) = waiting.stream();
        waiting.is_quiet(true, &[(&stream, false)]);
        assert_eq!(waiting.came(true, &[(&stream, true)]), [true]);
        while stream.write(&[0; 1 << 16]).is_ok() {}
        waiting.is_quiet(true, &[(&stream, true)]);
        while waiting.wait(true, &[(&stream, true)], Duration::ZERO) == [false] {
            assert!(other.read(&mut [0; 1 << 16]).unwrap() > 0);
        }
        waiting.is_quiet(true, &[(&stream, false)]);
    }

    #[test]
    fn who_arrives_and_the_signal_end_a_wait_and_nothing_does_where_the_port_rests() {
        let mut waiting = Waiting::new();
        waiting.is_quiet(true, &[]);
        let _other = TcpStream::connect(waiting.port.address()).unwrap();
        waiting.came(true, &[]);
        // Nobody was taken in: still there.
        waiting.came(true, &[]);
        waiting.is_quiet(false, &[]);
        waiting.came(true, &[]);
        waiting.is_quiet(false, &[]);
        waiting.signal.raise();
        waiting.came(false, &[]);
        waiting.signal.take();
        waiting.is_quiet(false, &[]);
    }
}
