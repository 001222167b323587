//! The TCP part of the exchange: connecting, accepting, sending and receiving, each with a
//! deadline.

use core::net::SocketAddr;
use core::time::Duration;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::wire::{Destination, Inbox, Message};
use crate::address::{anywhere, resolve, share};
use crate::report::Failure;

/// Connects to the first address of `host` that responds.
pub(super) fn connect(host: &str, port: u16, timeout: Duration) -> Result<TcpStream, Failure> {
    let deadline = Instant::now().checked_add(timeout);
    let addresses = resolve((host.to_owned(), port), timeout)
        .map_err(|error| format!("cannot look up {host}: {error}"))?;
    let stream = connect_to(&addresses, deadline)
        .map_err(|error| format!("cannot connect to {host} port {port}: {error}"))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Connects to the first of these addresses that responds.
fn connect_to(addresses: &[SocketAddr], deadline: Option<Instant>) -> io::Result<TcpStream> {
    let mut last = io::Error::new(
        io::ErrorKind::TimedOut,
        "looking it up took all the time there was",
    );
    for (address, untried) in addresses.iter().zip((1..=addresses.len()).rev()) {
        let Some(remaining) = remaining(deadline) else {
            break;
        };
        match TcpStream::connect_timeout(address, share(remaining, untried)) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Listens at a port of every address.
pub(super) fn listen(port: u16) -> Result<TcpListener, Failure> {
    let listener = TcpListener::bind(anywhere(port))
        .map_err(|error| format!("cannot listen on port {port}: {error}"))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Waits for one peer.
pub(super) fn accept(listener: &TcpListener, timeout: Duration) -> Result<TcpStream, Failure> {
    let deadline = Instant::now().checked_add(timeout);
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) if is_transient(&error) => {}
            Err(error) => return Err(error.into()),
        }
        let Some(remaining) = remaining(deadline) else {
            return Err(format!("no peer connected within {}", seconds(timeout)).into());
        };
        let span = Timespec {
            tv_sec: i64::try_from(remaining.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: remaining.subsec_nanos().into(),
        };
        match poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&span)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Sends a message. The socket's buffer has room for it, so that this normally does not block.
pub(super) fn send(stream: &mut TcpStream, bytes: &[u8], timeout: Duration) -> Result<(), Failure> {
    stream.set_write_timeout(Some(timeout))?;
    stream
        .write_all(bytes)
        .map_err(|error| format!("cannot send to the peer: {error}").into())
}

/// Receives the peer's address.
pub(super) fn destination(stream: &mut TcpStream, timeout: Duration) -> Result<Destination, Failure> {
    Ok(receive(stream, Message::Destination, timeout)?.destination()?)
}

/// Receives the peer's `done`.
pub(super) fn done(stream: &mut TcpStream, timeout: Duration) -> Result<(), Failure> {
    Ok(receive(stream, Message::Done, timeout)?.done()?)
}

fn receive(stream: &mut TcpStream, message: Message, timeout: Duration) -> Result<Inbox, Failure> {
    let deadline = Instant::now().checked_add(timeout);
    let mut inbox = Inbox::new(message);
    // Longer than the longest message, so that excess bytes are detected.
    let mut buffer = [0; 64];
    loop {
        let Some(remaining) = remaining(deadline) else {
            let (got, whole) = (inbox.got(), message.bytes());
            return Err(format!(
                "the peer sent {got} of the {whole} bytes of {message} within {}",
                seconds(timeout)
            )
            .into());
        };
        stream.set_read_timeout(Some(remaining))?;
        let read = match stream.read(&mut buffer) {
            Ok(read) => read,
            Err(error) if is_transient(&error) => continue,
            Err(error) => return Err(format!("waiting for {message} of the peer: {error}").into()),
        };
        if inbox.take(buffer.get(..read).unwrap_or_default())? {
            return Ok(inbox);
        }
    }
}

/// Returns the time left until the deadline, or `None` after it has passed.
fn remaining(deadline: Option<Instant>) -> Option<Duration> {
    // A deadline that cannot be represented is never reached.
    let Some(deadline) = deadline else {
        return Some(Duration::from_secs(3600));
    };
    let remaining = deadline.saturating_duration_since(Instant::now());
    (!remaining.is_zero()).then_some(remaining)
}

fn is_transient(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock
            | io::ErrorKind::TimedOut
            | io::ErrorKind::Interrupted
            | io::ErrorKind::ConnectionAborted
    )
}

/// A duration as text.
fn seconds(span: Duration) -> String {
    format!("{} s", span.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::{accept, connect, connect_to, destination, done, listen};
    use crate::address::silent;
    use core::time::Duration;
    use std::io::Write;
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::time::Instant;

    const SOON: Duration = Duration::from_millis(150);
    const LONG: Duration = Duration::from_secs(20);

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (ours, listener.accept().unwrap().0)
    }

    #[test]
    fn a_peer_that_says_nothing_is_given_up_at_the_deadline() {
        let (mut ours, _theirs) = pair();
        let began = Instant::now();
        let error = destination(&mut ours, SOON).unwrap_err().to_string();
        assert!(
            error.starts_with("the peer sent 0 of the 52 bytes of its address"),
            "{error}"
        );
        assert!(began.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn a_peer_that_trickles_does_not_move_the_deadline() {
        let (mut ours, mut theirs) = pair();
        let trickle = std::thread::spawn(move || {
            while theirs.write_all(b"0").is_ok() {
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let error = destination(&mut ours, SOON).unwrap_err().to_string();
        assert!(error.contains("of the 52 bytes of its address"), "{error}");
        drop(ours);
        trickle.join().unwrap();
    }

    #[test]
    fn a_peer_that_goes_away_in_the_middle_is_told() {
        let (mut ours, mut theirs) = pair();
        theirs.write_all(b"0000:0000").unwrap();
        theirs.shutdown(Shutdown::Both).unwrap();
        let error = destination(&mut ours, LONG).unwrap_err().to_string();
        assert_eq!(
            error,
            "the peer closed the connection after 9 of the 52 bytes of its address (LID:QPN:PSN:GID)"
        );
    }

    #[test]
    fn garbage_and_too_much_are_told() {
        let (mut ours, mut theirs) = pair();
        theirs.write_all(&[b'z'; 52]).unwrap();
        let error = destination(&mut ours, LONG).unwrap_err().to_string();
        assert_eq!(error, "the peer's address is garbled: byte 0 (LID) is 'z'");
        let (mut ours, mut theirs) = pair();
        theirs.write_all(b"GET / HTTP/1.1\r\n").unwrap();
        let error = done(&mut ours, LONG).unwrap_err().to_string();
        assert_eq!(error, "the peer sent more than the 5 bytes of \"done\"");
    }

    #[test]
    fn a_silent_address_leaves_time_to_the_next() {
        let (first, _kept) = silent();
        let second = listen(0).unwrap();
        let port = second.local_addr().unwrap().port();
        let addresses = [first.local_addr().unwrap(), ([127, 0, 0, 1], port).into()];
        let deadline = Instant::now().checked_add(Duration::from_secs(4));
        let stream = connect_to(&addresses, deadline).unwrap();
        assert_eq!(stream.peer_addr().unwrap(), addresses[1]);
    }

    #[test]
    fn no_server_and_no_peer_are_told() {
        let listener = listen(0).unwrap();
        let port = listener.local_addr().unwrap().port();
        let error = accept(&listener, SOON).unwrap_err().to_string();
        assert_eq!(error, "no peer connected within 0.15 s");
        drop(listener);
        let error = connect("127.0.0.1", port, LONG).unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("cannot connect to 127.0.0.1 port {port}: ")),
            "{error}"
        );
    }
}
