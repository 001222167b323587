//! Packets and descriptors over a Unix socket. No call blocks.

use core::mem::MaybeUninit;
use core::time::Duration;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use doorbell::interprocess::PeerCredentials;
use doorbell::{now, within};
use rustix::cmsg_space;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType,
};

use crate::name::Credentials;
use crate::packet::{PACKET_BYTES, Packet};
use crate::reason::AttachRefusal;

/// Maximum number of descriptors of an attach packet: the rings, the cells and the arena.
const DESCRIPTORS: usize = 3;

/// One end of a connection.
#[derive(Debug)]
pub(crate) struct PacketSocket(OwnedFd);

/// A received packet, or the state of the connection.
#[derive(Debug)]
pub(crate) enum Came {
    /// No packet is there.
    Nothing,
    /// The other side has closed the connection.
    End,
    /// A packet, or the reason why it is invalid.
    Packet(Result<Packet, AttachRefusal>),
}

/// The state of the first packet in the queue.
#[derive(Debug)]
pub(crate) enum Seen {
    /// No packet is there.
    Nothing,
    /// The other side has closed the connection, or sent an empty packet.
    End,
    /// A packet, or the reason why it is invalid.
    Packet {
        packet: Result<Packet, AttachRefusal>,
        has_descriptors: bool,
    },
}

/// One byte more than a packet, to detect longer packets.
const BYTES: usize = PACKET_BYTES.saturating_add(1);

/// Upper bound of the number of packets in a socket's queue. The default limit of the kernel (`net.unix.max_dgram_qlen`) is lower.
const QUEUE_MAX: usize = 16;

/// Longest time that another daemon may hold the lock while it starts to listen.
const LOCKED_WITHIN: Duration = Duration::from_secs(1);

/// A socket that listens at a path. The socket file remains after the end, by which the next daemon knows that there was one before.
#[derive(Debug)]
pub(crate) struct Listening {
    pub(crate) listener: OwnedFd,
    /// Whether the socket file of a previous daemon was there.
    pub(crate) is_left_behind: bool,
}

fn new_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        flags,
        None,
    )?)
}

/// Listens at a path, with a mode for the socket file. Replaces the socket file of a daemon that has ended, and no other file.
///
/// # Errors
/// Another daemon listens there, the file there is not a socket, or a system call failed.
pub(crate) fn listen(path: &Path, mode: u32) -> io::Result<Listening> {
    let address = SocketAddrUnix::new(path)?;
    let listener = new_socket()?;
    // `bind` and `connect` report the same errors for another file as for a socket without a listener.
    if std::fs::metadata(path).is_ok_and(|file| !file.file_type().is_socket()) {
        return Err(io::Error::from(io::ErrorKind::AlreadyExists));
    }
    // The lock prevents a race: a socket that is bound but does not listen yet looks like one of a daemon that has ended.
    let _lock = lock(path)?;
    let mut is_left_behind = false;
    match rustix::net::bind(&listener, &address) {
        Err(rustix::io::Errno::ADDRINUSE) => {
            if rustix::net::connect(new_socket()?, &address) != Err(rustix::io::Errno::CONNREFUSED) {
                return Err(io::Error::from(io::ErrorKind::AddrInUse));
            }
            std::fs::remove_file(path)?;
            is_left_behind = true;
            rustix::net::bind(&listener, &address)?;
        }
        bound => bound?,
    }
    rustix::fs::chmod(path, Mode::from_bits_truncate(mode))?;
    rustix::net::listen(&listener, 64)?;
    Ok(Listening {
        listener,
        is_left_behind,
    })
}

/// Locks a path, by a lock file next to it, which is never removed.
fn lock(path: &Path) -> io::Result<OwnedFd> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = rustix::fs::open(Path::new(&name), flags, Mode::RUSR | Mode::WUSR)?;
    let deadline = within(LOCKED_WITHIN);
    loop {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(rustix::io::Errno::WOULDBLOCK) if deadline.has_passed(now()) => {
                return Err(io::Error::from(io::ErrorKind::AddrInUse));
            }
            Err(rustix::io::Errno::WOULDBLOCK) => std::thread::sleep(Duration::from_millis(1)),
            Err(errno) => return Err(errno.into()),
        }
    }
}

impl Listening {
    /// Accepts no new connections. Connections in the backlog remain until they are accepted.
    pub(crate) fn end(&self) {
        let _ = rustix::net::shutdown(&self.listener, Shutdown::Read);
    }
}

impl PacketSocket {
    /// Accepts the next connection. Returns `None` if there is none.
    pub(crate) fn accept(listener: &OwnedFd) -> io::Result<Option<Self>> {
        match rustix::net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => Ok(Some(Self(socket))),
            // The connection ended before it was accepted.
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::CONNABORTED | rustix::io::Errno::INTR) => {
                Ok(None)
            }
            Err(errno) => Err(errno.into()),
        }
    }

    /// Connects to a daemon.
    pub(crate) fn connect(path: &Path) -> io::Result<Self> {
        let socket = new_socket()?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(Self(socket))
    }

    /// Credentials of the other process, at the time when it connected.
    pub(crate) fn credentials(&self) -> io::Result<Credentials> {
        let of = PeerCredentials::of(self.0.as_fd());
        let PeerCredentials { uid, gid, pid } =
            of.map_err(|error| io::Error::from_raw_os_error(error.errno))?;
        Ok(Credentials { uid, gid, pid })
    }

    /// Sends a packet. Returns `false` if the other side's queue is full: then it has packets to read, and is awake.
    pub(crate) fn send(&self, packet: &Packet, descriptors: &[BorrowedFd<'_>]) -> io::Result<bool> {
        let bytes = packet.bytes();
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match rustix::net::sendmsg(&self.0, &[IoSlice::new(&bytes)], &mut control, flags) {
            Ok(_) => Ok(true),
            Err(rustix::io::Errno::AGAIN) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Parses the first packet without removing it. Its descriptors are not installed in this process.
    pub(crate) fn look(&self) -> io::Result<Seen> {
        let mut bytes = [0; BYTES];
        let front = self.front(&mut bytes, &mut RecvAncillaryBuffer::default(), RecvFlags::PEEK)?;
        let Some((count, flags)) = front else {
            return Ok(Seen::Nothing);
        };
        if count == 0 {
            return Ok(Seen::End);
        }
        Ok(Seen::Packet {
            packet: parsed(&bytes, count, flags & ReturnFlags::TRUNC),
            has_descriptors: flags.contains(ReturnFlags::CTRUNC),
        })
    }

    /// Returns duplicates of the descriptors of the first packet, which keeps its own, and whether they are complete. So closing a
    /// duplicate is never the last close. It may block all the same, for example if another process serves the file.
    pub(crate) fn descriptors(&self) -> io::Result<(Vec<OwnedFd>, bool)> {
        let mut bytes = [0; BYTES];
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let front = self.front(&mut bytes, &mut control, RecvFlags::PEEK)?;
        let are_all = front.is_none_or(|(_, flags)| !flags.contains(ReturnFlags::CTRUNC));
        Ok((rights(&mut control), are_all))
    }

    /// Removes the first packet with its descriptors.
    pub(crate) fn pass(&self) {
        let _ = self.front(
            &mut [0; BYTES],
            &mut RecvAncillaryBuffer::default(),
            RecvFlags::empty(),
        );
    }

    /// Stops receiving, and removes queued packets without descriptors. Returns whether the queue is empty then, so that closing the socket
    /// closes nothing else. The other side still receives the packets that were sent to it.
    pub(crate) fn drain(&self) -> bool {
        if rustix::net::shutdown(self, Shutdown::Read).is_err() {
            return false;
        }
        for _ in 0..QUEUE_MAX {
            let Ok(Seen::Packet {
                has_descriptors: false,
                ..
            }) = self.look()
            else {
                break;
            };
            self.pass();
        }
        // From now on every packet has ancillary data (its sender's credentials), so that even an empty packet is detected by truncation.
        if rustix::net::sockopt::set_socket_passcred(self, true).is_err() {
            return false;
        }
        let mut control = RecvAncillaryBuffer::default();
        let front = self.front(&mut [0; BYTES], &mut control, RecvFlags::PEEK);
        front.is_ok_and(|front| front.is_none_or(|(_, flags)| !flags.contains(ReturnFlags::CTRUNC)))
    }

    /// Receives a packet. Descriptors are closed, and make the packet invalid. Use it only if the other side is trusted.
    pub(crate) fn receive(&self) -> io::Result<Came> {
        let mut bytes = [0; BYTES];
        let front = self.front(
            &mut bytes,
            &mut RecvAncillaryBuffer::default(),
            RecvFlags::empty(),
        )?;
        Ok(match front {
            None => Came::Nothing,
            Some((0, _)) => Came::End,
            Some((count, flags)) => Came::Packet(parsed(&bytes, count, flags)),
        })
    }

    /// Receives one packet with its flags. 0 bytes mean the end of the connection. Returns `None` if nothing is there.
    fn front(
        &self,
        bytes: &mut [u8; BYTES],
        control: &mut RecvAncillaryBuffer<'_>,
        flags: RecvFlags,
    ) -> io::Result<Option<(usize, ReturnFlags)>> {
        let flags = flags | RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let mut received = rustix::net::recvmsg(&self.0, &mut [IoSliceMut::new(bytes)], control, flags);
        if received.as_ref().err() == Some(&rustix::io::Errno::CONNRESET) {
            // The error is reported once, before the packets that the other side sent before it closed, for example its reason.
            received = rustix::net::recvmsg(&self.0, &mut [IoSliceMut::new(bytes)], control, flags);
        }
        match received {
            Ok(received) => Ok(Some((received.bytes, received.flags))),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(None),
            Err(rustix::io::Errno::CONNRESET) => Ok(Some((0, ReturnFlags::empty()))),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Two ends of a connection.
    #[cfg(test)]
    pub(crate) fn pair() -> io::Result<(Self, Self)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (one, other) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok((Self(one), Self(other)))
    }
}

/// Parses a packet. A truncated packet, or one with unexpected descriptors, is invalid.
fn parsed(bytes: &[u8; BYTES], count: usize, flags: ReturnFlags) -> Result<Packet, AttachRefusal> {
    if flags.intersects(ReturnFlags::CTRUNC | ReturnFlags::TRUNC) {
        return Err(AttachRefusal::Descriptors);
    }
    Packet::parse(bytes.get(..count).unwrap_or(&[]))
}

/// The descriptors of a packet.
fn rights(control: &mut RecvAncillaryBuffer<'_>) -> Vec<OwnedFd> {
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    descriptors
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use super::{PacketSocket, Seen, listen};
    use crate::packet::Packet;

    #[test]
    fn a_file_that_is_no_socket_stays_where_a_daemon_is_to_listen() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, "kept").unwrap();
        let refused = listen(&path, 0o600).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read(&path).unwrap(), b"kept");
        // The socket of a daemon that has ended is replaced.
        std::fs::remove_file(&path).unwrap();
        assert!(!listen(&path, 0o600).unwrap().is_left_behind);
        assert!(listen(&path, 0o600).unwrap().is_left_behind);
    }

    #[test]
    fn a_queue_with_descriptors_is_seen_and_none_of_them_is_taken() {
        let null = std::fs::File::open("/dev/null").unwrap();
        let pair = || PacketSocket::pair().unwrap();
        let (ours, theirs) = pair();
        assert!(matches!(ours.look().unwrap(), Seen::Nothing));
        theirs.send(&Packet::Wake, &[]).unwrap();
        theirs.send(&Packet::Detach, &[null.as_fd(); 2]).unwrap();
        let mut seen = Vec::new();
        for _ in 0..2 {
            let Seen::Packet {
                packet,
                has_descriptors,
            } = ours.look().unwrap()
            else {
                panic!("no packet")
            };
            seen.push((packet, has_descriptors));
            if seen.len() == 1 {
                ours.pass();
            }
        }
        assert_eq!(seen, [(Ok(Packet::Wake), false), (Ok(Packet::Detach), true)]);
        let (descriptors, are_all) = ours.descriptors().unwrap();
        assert_eq!((descriptors.len(), are_all), (2, true));
        assert!(!ours.drain(), "it is still there");
        assert!(theirs.send(&Packet::Wake, &[]).is_err(), "nothing comes any more");
        ours.pass();
        assert!(ours.drain());

        // An empty packet does not hide the packets after it.
        let (ours, theirs) = pair();
        rustix::net::send(&theirs, &[], rustix::net::SendFlags::empty()).unwrap();
        theirs.send(&Packet::Wake, &[null.as_fd()]).unwrap();
        assert!(matches!(ours.look().unwrap(), Seen::End));
        assert!(!ours.drain());
        ours.pass();
        assert!(!ours.drain());
        // The result is the same if the other side is gone.
        drop(theirs);
        assert!(!ours.drain());
        ours.pass();
        assert!(ours.drain());
        // A packet that was sent before the end can still be received.
        let (ours, theirs) = pair();
        ours.send(&Packet::Wake, &[]).unwrap();
        assert!(ours.drain());
        drop(ours);
        assert!(matches!(
            theirs.look().unwrap(),
            Seen::Packet {
                has_descriptors: false,
                ..
            }
        ));
    }
}
