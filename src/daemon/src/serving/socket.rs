//! Packets and descriptors over a Unix socket, none of which waits.

use core::mem::MaybeUninit;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use doorbell::interprocess::PeerCredentials;
use rustix::cmsg_space;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use crate::name::Credentials;
use crate::packet::{PACKET_BYTES, Packet};
use crate::reason::AttachRefusal;

/// The most descriptors of an attach packet: the rings, the cells and the arena.
const DESCRIPTORS: usize = 3;

/// One end of a connection.
#[derive(Debug)]
pub(crate) struct PacketSocket(OwnedFd);

/// Something that came.
#[derive(Debug)]
pub(crate) enum Came {
    /// Nothing is there.
    Nothing,
    /// The other side is gone.
    End,
    /// A packet, or the reason why it is none, with the descriptors that came with it.
    Packet(Result<Packet, AttachRefusal>, Vec<OwnedFd>),
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

/// Listens at a path, with a mode for the file of the socket. A file that a daemon left behind is replaced. Returns whether there was
/// one, too.
///
/// # Errors
/// Another daemon listens there, or the system refuses.
pub(crate) fn listen(path: &Path, mode: u32) -> io::Result<(OwnedFd, bool)> {
    let address = SocketAddrUnix::new(path)?;
    let listener = new_socket()?;
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
    rustix::fs::chmod(path, rustix::fs::Mode::from_bits_truncate(mode))?;
    rustix::net::listen(&listener, 64)?;
    Ok((listener, is_left_behind))
}

impl PacketSocket {
    /// The next connection; `None` if nobody waits for one.
    pub(crate) fn accept(listener: &OwnedFd) -> io::Result<Option<Self>> {
        match rustix::net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => Ok(Some(Self(socket))),
            // A connection that ended before it was accepted is nobody's fault.
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

    /// The process on the other side, as it was when it connected.
    pub(crate) fn credentials(&self) -> io::Result<Credentials> {
        let of = PeerCredentials::of(self.0.as_fd());
        let PeerCredentials { uid, gid, pid } =
            of.map_err(|error| io::Error::from_raw_os_error(error.errno))?;
        Ok(Credentials { uid, gid, pid })
    }

    /// Sends a packet. `false` if the other side's queue is full: it then has packets to read, and is awake.
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

    /// Takes what came. Descriptors that are not expected are closed.
    pub(crate) fn receive(&self) -> io::Result<Came> {
        // One byte more than a packet has, so that a longer one is seen as such.
        let mut bytes = [0; PACKET_BYTES.saturating_add(1)];
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let mut received =
            rustix::net::recvmsg(&self.0, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags);
        if received.as_ref().err() == Some(&rustix::io::Errno::CONNRESET) {
            // Reported once, in front of what the other side sent before it closed: its reason, for one.
            received = rustix::net::recvmsg(&self.0, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags);
        }
        let received = match received {
            Ok(received) => received,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(Came::Nothing),
            Err(rustix::io::Errno::CONNRESET) => return Ok(Came::End),
            Err(errno) => return Err(errno.into()),
        };
        let mut descriptors = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        if received.bytes == 0 {
            return Ok(Came::End);
        }
        if received
            .flags
            .intersects(ReturnFlags::CTRUNC | ReturnFlags::TRUNC)
        {
            // Some of its descriptors may be lost.
            return Ok(Came::Packet(Err(AttachRefusal::Descriptors), Vec::new()));
        }
        let packet = Packet::parse(bytes.get(..received.bytes).unwrap_or(&[]));
        Ok(Came::Packet(packet, descriptors))
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
