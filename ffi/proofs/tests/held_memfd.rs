//! A memfd that cannot be sealed, since another thread of its sender writes into it from a page that never comes. The node daemon waits
//! for it in a thread of that user, and serves all others.
#![expect(clippy::unwrap_used, reason = "tests")]

use core::mem::MaybeUninit;
use core::ptr;
use core::time::Duration;
use std::fs::File;
use std::io::{Error, IoSlice, Read as _};
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;

use doorbell::within;
use doorbell_daemon::{
    AttachRequest, Client, Endpoint, EndpointEvent, EndpointLayout, JobKey, JobNumber, Server, ServerConfig,
};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketType,
};

const SOON: Duration = Duration::from_secs(120);
const PAGE_BYTES: usize = 4096;

// Source: `linux/userfaultfd.h`.
const API: u64 = 0xaa;
const API_REQUEST: libc::Ioctl = 0xc018_aa3f_u32 as libc::Ioctl;
const REGISTER_REQUEST: libc::Ioctl = 0xc020_aa00_u32 as libc::Ioctl;
const MODE_MISSING: u64 = 1;
const MESSAGE_BYTES: usize = 32;

/// A page that is not there. An access waits until this value is dropped.
struct MissingPage {
    address: usize,
    faults: File,
}

impl MissingPage {
    fn new() -> Result<Self, Error> {
        let checked = |status: i64| {
            let status = i32::try_from(status).ok().filter(|status| *status >= 0);
            status.ok_or_else(Error::last_os_error)
        };
        // SAFETY: makes a descriptor, and touches no memory (userfaultfd(2)).
        let fd = checked(unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) })?;
        // SAFETY: made just now, and nothing else owns it.
        let faults = unsafe { File::from_raw_fd(fd) };
        let mut argument = [API, 0, 0];
        // SAFETY: an open descriptor, and the three words that this request takes (ioctl_userfaultfd(2)).
        let status = unsafe { libc::ioctl(faults.as_raw_fd(), API_REQUEST, argument.as_mut_ptr()) };
        checked(status.into())?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address that the kernel chooses touches no existing memory (mmap(2)).
        let page = unsafe { libc::mmap(ptr::null_mut(), PAGE_BYTES, libc::PROT_READ, flags, -1, 0) };
        assert_ne!(page, libc::MAP_FAILED);
        let address = page as usize;
        let mut argument = [address as u64, PAGE_BYTES as u64, MODE_MISSING, 0];
        // SAFETY: an open descriptor, and the four words that this request takes (ioctl_userfaultfd(2)).
        let status = unsafe { libc::ioctl(faults.as_raw_fd(), REGISTER_REQUEST, argument.as_mut_ptr()) };
        checked(status.into())?;
        Ok(Self { address, faults })
    }

    /// Waits until a thread waits for the page.
    fn wait(&mut self) {
        self.faults.read_exact(&mut [0; MESSAGE_BYTES]).unwrap();
    }
}

fn request(endpoint: u32) -> AttachRequest {
    AttachRequest {
        job: JobNumber(9),
        key: JobKey([0; 16]),
        endpoint,
        layout: EndpointLayout::new(4, 64).unwrap(),
    }
}

fn connected(socket: &Path) -> OwnedFd {
    let connection = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    rustix::net::connect(&connection, &SocketAddrUnix::new(socket).unwrap()).unwrap();
    set_socket_timeout(&connection, Timeout::Recv, Some(SOON)).unwrap();
    connection
}

/// Receives a packet of the daemon, and returns its kind and reason.
fn answer(connection: &OwnedFd) -> (u8, u8) {
    let mut answer = [0; 64];
    rustix::net::recv(connection, &mut answer[..], RecvFlags::empty()).unwrap();
    (answer[7], answer[51])
}

/// The attach packet of `request(0)`.
fn packet() -> [u8; 64] {
    let mut packet = [0; 64];
    packet[..16].copy_from_slice(&[0x64, 0x6f, 0x6f, 0x72, 0, 1, 0, 1, 0, 0, 0, 4, 0, 0, 0, 64]);
    packet[23] = 9;
    packet
}

#[test]
fn a_memfd_that_cannot_be_sealed_holds_up_no_daemon() {
    let mut missing = match MissingPage::new() {
        Ok(missing) => missing,
        Err(error) => {
            println!("SKIPPED: no userfaultfd here, so no daemon was held up: {error}");
            return;
        }
    };
    let memory = Endpoint::new(request(0).layout).unwrap();
    let (rings, page) = (
        memory.descriptors()[0].try_clone_to_owned().unwrap(),
        missing.address,
    );
    let writes = thread::spawn(move || {
        // SAFETY: a mapped page, and the call only reads it (write(2)).
        unsafe { libc::write(rings.as_raw_fd(), page as *const libc::c_void, 8) }
    });
    // From here on the kernel holds the lock of the file.
    missing.wait();
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let mut config = ServerConfig::new(&socket);
    config.attach_within = Duration::from_millis(50);
    let mut server = Server::bind(&config).unwrap();
    let hostile = connected(&socket);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = memory.descriptors();
    assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
    let sent = rustix::net::sendmsg(
        &hostile,
        &[IoSlice::new(&packet())],
        &mut control,
        SendFlags::empty(),
    );
    assert_eq!(sent, Ok(64));
    let (stop, stopped) = UnixStream::pair().unwrap();
    let daemon = thread::spawn(move || server.run(stopped.as_fd()).unwrap());
    // The daemon has no place for this user, and says so.
    assert_eq!(answer(&connected(&socket)), (5, 11));
    drop(missing);
    assert_eq!(writes.join().unwrap(), 8);
    assert_eq!(answer(&hostile), (4, 0), "it is attached after all");
    let mut client = Client::attach(&socket, &request(1), within(SOON)).unwrap();
    client.send(client.address(), b"to itself").unwrap();
    let mut came = 0;
    while came == 0 {
        let woken = client.wait(within(SOON), |event| {
            came += u32::from(matches!(event, EndpointEvent::Received { .. }));
        });
        assert!(woken.unwrap(), "no message");
    }
    drop(stop);
    daemon.join().unwrap();
}
