//! Processes that send packets to the daemon's socket that could block the daemon.

use core::time::Duration;
use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use doorbell::within;
use doorbell_daemon::{ClientError, CutReason, EndpointEvent};
use rustix::net::sockopt::Timeout;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};

use super::attacks::receives_itself;
use super::{Daemon, at, attach, receives, soon, until};

/// Creates a packet of this kind, with the sizes of an attach packet.
pub(crate) fn packet(kind: u8) -> [u8; 64] {
    let mut bytes = [0; 64];
    bytes[..8].copy_from_slice(&[0x64, 0x6f, 0x6f, 0x72, 0, 1, 0, kind]);
    if kind == 1 {
        bytes[8..16].copy_from_slice(&[0, 0, 0, 4, 0, 0, 0, 64]);
        bytes[23] = 9;
    }
    bytes
}

/// Creates a TCP socket whose last close blocks for an hour: it lingers, and its peer reads nothing.
fn lingering() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (peer, _) = listener.accept().unwrap();
    rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::from_secs(3600))).unwrap();
    stream.set_nonblocking(true).unwrap();
    while stream.write(&[0; 1 << 16]).is_ok() {}
    (stream, peer)
}

pub(crate) fn connected(socket: &Path) -> OwnedFd {
    let kind = SocketType::SEQPACKET;
    let connection = rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
    rustix::net::connect(&connection, &SocketAddrUnix::new(socket).unwrap()).unwrap();
    let patience = Some(Duration::from_secs(120));
    rustix::net::sockopt::set_socket_timeout(&connection, Timeout::Recv, patience).unwrap();
    connection
}

/// Receives a packet of the daemon, and returns its kind and reason.
pub(crate) fn answer(connection: &OwnedFd) -> (u8, u8) {
    let mut answer = [0; 64];
    rustix::net::recv(connection, &mut answer[..], RecvFlags::empty()).unwrap();
    (answer[7], answer[51])
}

/// Sends a packet with copies of a descriptor.
fn send(connection: impl AsFd, bytes: &[u8], rights: &[BorrowedFd<'_>]) {
    try_send(connection, bytes, rights).unwrap();
}

/// Does the same for a connection that may already be refused.
pub(crate) fn try_send(
    connection: impl AsFd,
    bytes: &[u8],
    rights: &[BorrowedFd<'_>],
) -> rustix::io::Result<usize> {
    let mut space = [core::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(rights)));
    let parts = [std::io::IoSlice::new(bytes)];
    rustix::net::sendmsg(connection, &parts, &mut control, SendFlags::NOSIGNAL)
}

#[test]
fn a_descriptor_whose_close_waits_holds_up_nobody_else() {
    // One is refused for its packet, the other for its descriptors.
    for (kind, reason) in [(2, 1), (1, 4)] {
        let (stream, peer) = lingering();
        let mut hostile = None;
        let daemon = Daemon::start_after(
            |config| config.attach_within = Duration::from_millis(50),
            |socket| {
                // The packet is queued before the daemon polls, which then holds the last copies of
                // the descriptor.
                let connection = connected(socket);
                send(&connection, &packet(kind), &[stream.as_fd(); 2]);
                drop(stream);
                hostile = Some(connection);
            },
        );
        assert_eq!(answer(&hostile.unwrap()), (5, reason));
        // Another job of its user attaches meanwhile. A process of the same job waits until its deadline if the packet was of that job,
        // and is refused.
        receives_itself(&mut attach(&daemon.socket, 1));
        let same = connected(&daemon.socket);
        send(&same, &packet(1), &[]);
        assert_eq!(answer(&same), (5, if kind == 1 { 11 } else { 3 }));
        drop(peer);
        let mut client = attach(&daemon.socket, 0);
        client.send(at(0), b"to itself").unwrap();
        receives(&mut client);
    }
}

#[test]
fn descriptors_of_a_client_cut_it_off() {
    let daemon = Daemon::start(|_| {});
    let mut client = attach(&daemon.socket, 0);
    let mut villain = attach(&daemon.socket, 1);
    client.send(at(1), b"they met").unwrap();
    client.poll(|_| {}).unwrap();
    receives(&mut villain);
    let (stream, peer) = lingering();
    send(villain.as_fd(), &packet(3), &[stream.as_fd()]);
    until(&mut client, "its end", |event| {
        matches!(event, EndpointEvent::Gone { .. })
    });
    client.send(at(0), b"to itself").unwrap();
    receives(&mut client);
    // This closes the last copy, or the daemon does. Neither blocks when the peer is gone.
    drop(peer);
    drop(stream);
}

#[test]
fn a_client_that_wakes_the_daemon_without_end_is_cut_off() {
    let daemon = Daemon::start(|_| {});
    let mut other = attach(&daemon.socket, 0);
    let mut villain = attach(&daemon.socket, 1);
    let deadline = soon();
    let cut = loop {
        for _ in 0..8 {
            // The queue may be full, or the connection may have ended.
            let _ = rustix::net::send(
                villain.as_fd(),
                &packet(3),
                SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
            );
        }
        if let Err(error) = villain.wait(within(Duration::from_micros(100)), |_| {}) {
            break error;
        }
        assert!(!deadline.has_passed(doorbell::now()), "not cut off");
    };
    assert!(matches!(cut, ClientError::Cut(CutReason::Packet)), "{cut}");
    other.send(at(0), b"to itself").unwrap();
    receives(&mut other);
}
