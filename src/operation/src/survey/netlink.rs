//! Requests to the kernel by rtnetlink, and the common part of the answers.
//!
//! Source: `netlink(7)`, `rtnetlink(7)`.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::time::Duration;
use std::os::fd::OwnedFd;

use doorbell::connect::Tcp;
use doorbell::provider::{Clock as _, Deadline, Instant};
use doorbell::within;
use rustix::io::{Errno, Result, retry_on_intr};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with};

const NLM_F_REQUEST: u16 = 1;
const NLM_F_DUMP: u16 = 0x300;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;

/// Length of a message's header.
const HEADER_BYTES: usize = 16;

/// Timeout for an answer of the kernel, which normally comes at once, and the maximum number of its
/// parts.
const PATIENCE: Duration = Duration::from_secs(2);
const PARTS_MAX: usize = 4096;

/// Larger than any part that the kernel sends.
const PART_BYTES: usize = 64 << 10;

/// A netlink socket for requests, one after the other.
#[derive(Debug)]
pub(super) struct Netlink {
    socket: OwnedFd,
    part: Vec<u8>,
}

impl Netlink {
    pub(super) fn open() -> Result<Self> {
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            None,
        )?;
        Ok(Self {
            socket,
            part: vec![0; PART_BYTES],
        })
    }

    /// Requests all objects of a kind, and passes the messages of the answer to `each`: type and body.
    pub(super) fn dump(&mut self, kind: u16, body: &[u8], mut each: impl FnMut(u16, &[u8])) -> Result<()> {
        self.send(&request(kind, NLM_F_REQUEST | NLM_F_DUMP, body))?;
        let until = within(PATIENCE);
        for _ in 0..PARTS_MAX {
            if read_part(self.receive(until)?, &mut each)? {
                return Ok(());
            }
        }
        Err(Errno::MSGSIZE)
    }

    /// Requests one object, and passes the messages of the answer to `each`.
    pub(super) fn ask(&mut self, kind: u16, body: &[u8], mut each: impl FnMut(u16, &[u8])) -> Result<()> {
        self.send(&request(kind, NLM_F_REQUEST, body))?;
        read_part(self.receive(within(PATIENCE))?, &mut each).map(|_| ())
    }

    fn send(&self, request: &[u8]) -> Result<usize> {
        retry_on_intr(|| send(&self.socket, request, SendFlags::empty()))
    }

    /// Receives one part of an answer until this time. A signal handler interrupts the call, since the socket has a timeout.
    fn receive(&mut self, until: Deadline) -> Result<&[u8]> {
        let (bytes, _) = retry_until(
            until,
            || Tcp.now(),
            |left| {
                set_socket_timeout(&self.socket, Timeout::Recv, Some(left))?;
                recv(&self.socket, self.part.as_mut_slice(), RecvFlags::empty())
            },
        )?;
        Ok(self.part.get(..bytes).unwrap_or_default())
    }
}

/// Repeats a call that a signal interrupted, with the time that is left. Returns [`Errno::AGAIN`] at the deadline, as a timeout does.
fn retry_until<T>(
    until: Deadline,
    clock: impl Fn() -> Instant,
    mut call: impl FnMut(Duration) -> Result<T>,
) -> Result<T> {
    loop {
        let left = until.remaining(clock());
        if left.is_zero() {
            return Err(Errno::AGAIN);
        }
        match call(left) {
            Err(Errno::INTR) => {}
            outcome => return outcome,
        }
    }
}

fn request(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
    let mut request = Vec::new();
    let bytes = u32::try_from(HEADER_BYTES.saturating_add(body.len())).unwrap_or(0);
    request.extend(bytes.to_ne_bytes());
    request.extend(kind.to_ne_bytes());
    request.extend(flags.to_ne_bytes());
    // Sequence number and sender are 0: there is only one request at a time on this socket.
    request.extend([0; 8]);
    request.extend(body);
    request
}

/// Parses one part of an answer. Returns whether it was the last part of a dump.
pub(super) fn read_part(mut part: &[u8], mut each: impl FnMut(u16, &[u8])) -> Result<bool> {
    while !part.is_empty() {
        let bytes = u32_at(part, 0).and_then(|bytes| usize::try_from(bytes).ok());
        let bytes = bytes
            .filter(|bytes| *bytes >= HEADER_BYTES)
            .ok_or(Errno::BADMSG)?;
        let message = part.get(..bytes).ok_or(Errno::BADMSG)?;
        let body = message.get(HEADER_BYTES..).unwrap_or_default();
        match u16_at(message, 4) {
            // The end of a dump has its error, too.
            Some(kind @ (NLMSG_DONE | NLMSG_ERROR)) => {
                return match body.first_chunk().map(|errno| i32::from_ne_bytes(*errno)) {
                    Some(errno @ -4095..=-1) => Err(Errno::from_raw_os_error(errno.wrapping_neg())),
                    Some(0) | None if kind == NLMSG_DONE => Ok(true),
                    _ => Err(Errno::BADMSG),
                };
            }
            Some(kind) => each(kind, body),
            None => {}
        }
        part = part.get(aligned(bytes)..).unwrap_or_default();
    }
    Ok(false)
}

/// The value of the first attribute of this kind.
pub(super) fn attribute(mut attributes: &[u8], kind: u16) -> Option<&[u8]> {
    loop {
        let bytes = usize::from(u16_at(attributes, 0)?);
        let value = attributes.get(4..bytes)?;
        if u16_at(attributes, 2)? == kind {
            return Some(value);
        }
        attributes = attributes.get(aligned(bytes)..)?;
    }
}

/// Converts a value to an address.
pub(super) fn address_of(value: &[u8]) -> Option<IpAddr> {
    match (<[u8; 4]>::try_from(value), <[u8; 16]>::try_from(value)) {
        (Ok(v4), _) => Some(IpAddr::V4(Ipv4Addr::from(v4))),
        (_, Ok(v6)) => Some(IpAddr::V6(Ipv6Addr::from(v6))),
        _ => None,
    }
}

/// Rounds a length up to 4 bytes, the alignment of attributes and messages.
pub(super) const fn aligned(bytes: usize) -> usize {
    bytes.saturating_add(3) & !3
}

pub(super) fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(offset..)?.first_chunk()?))
}

pub(super) fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(offset..)?.first_chunk()?))
}

#[cfg(test)]
pub(super) fn message(kind: u16, body: &[u8]) -> Vec<u8> {
    let mut bytes = request(kind, 0, body);
    bytes.resize(aligned(bytes.len()), 0);
    bytes
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;

    use super::{
        Deadline, Duration, Errno, Instant, NLMSG_DONE, NLMSG_ERROR, Result, message, read_part, retry_until,
    };

    #[test]
    fn the_end_of_a_dump_and_a_refusal_have_their_error() {
        let read = |kind, errno: i32| read_part(&message(kind, &errno.to_ne_bytes()), |_, _| ());
        assert_eq!(read(NLMSG_DONE, 0), Ok(true));
        assert_eq!(read_part(&message(NLMSG_DONE, &[]), |_, _| ()), Ok(true));
        for kind in [NLMSG_DONE, NLMSG_ERROR] {
            assert_eq!(read(kind, -1), Err(Errno::PERM));
            for strange in [1, i32::MIN, i32::MAX] {
                assert_eq!(read(kind, strange), Err(Errno::BADMSG), "{kind} {strange}");
            }
        }
        assert_eq!(read(NLMSG_ERROR, 0), Err(Errno::BADMSG));
    }

    #[test]
    fn signals_do_not_prolong_a_wait() {
        let at = |ms: u64| Instant::from_ns(ms * 1_000_000);
        let passed_ms = Cell::new(0);
        let clock = || at(passed_ms.get());
        let until = Deadline::at(at(2000));
        let mut spans_ms = Vec::new();
        let outcome: Result<()> = retry_until(until, clock, |left| {
            spans_ms.push(left.as_millis());
            passed_ms.set(passed_ms.get() + 800);
            Err(Errno::INTR)
        });
        assert_eq!((outcome, spans_ms), (Err(Errno::AGAIN), vec![2000, 1200, 400]));
        // The last call may succeed, however late.
        passed_ms.set(1999);
        let call = |left: Duration| {
            passed_ms.set(3000);
            Ok(left.as_millis())
        };
        assert_eq!(retry_until(until, clock, call), Ok(1));
    }
}
