//! Many unknown clients connect, send many descriptors, and leave at any point. The daemon keeps no resources of them, and serves its
//! clients.

use core::mem;
use core::sync::atomic::Ordering;
use core::time::Duration;
use std::fs::{self, File};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;

use doorbell::interprocess::{SharedArena, SharedWords as _};
use doorbell_daemon::{AttachRequest, Client, DaemonStatus, Endpoint, EndpointEvent, EndpointLayout};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use crate::hostile::{answer, connected, packet, try_send};
use crate::{Daemon, at, attach, process, receives, request, soon};

/// Maximum number of descriptors of a packet. Source: `linux/net/scm.h`.
pub(crate) const DESCRIPTORS_MAX: usize = 253;

/// Resources of a process, as the kernel counts them.
#[derive(Debug)]
pub(crate) struct Held {
    descriptors: usize,
    threads: usize,
    mappings: usize,
    /// Memory that the process does not share.
    own_kib: u64,
}

impl Held {
    pub(crate) fn by(process: u32) -> Self {
        let of = |name: &str| format!("/proc/{process}/{name}");
        let status = fs::read_to_string(of("status")).unwrap();
        let own = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let own = own.and_then(|line| line.trim().strip_suffix(" kB")).unwrap();
        Self {
            descriptors: fs::read_dir(of("fd")).unwrap().count(),
            threads: fs::read_dir(of("task")).unwrap().count(),
            mappings: fs::read_to_string(of("maps")).unwrap().lines().count(),
            own_kib: own.parse().unwrap(),
        }
    }

    /// Waits until a process holds no more than this. The C library keeps stacks and arenas of some ended threads.
    pub(crate) fn is_all_of(&self, process: u32) {
        let deadline = soon();
        loop {
            let now = Self::by(process);
            if now.descriptors <= self.descriptors
                && now.threads <= self.threads
                && now.mappings <= self.mappings + 64
                && now.own_kib <= self.own_kib + 1024
            {
                return;
            }
            assert!(!deadline.has_passed(doorbell::now()), "{now:?} after {self:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

fn layout() -> EndpointLayout {
    EndpointLayout::new(4, 64).unwrap()
}

pub(crate) fn exchange(client: &mut Client) {
    client.send(client.address(), b"to itself").unwrap();
    receives(client);
}

/// Connects a client that leaves at this stage. Returns whether it got that far. It may be refused earlier, if another client is about to
/// attach, or if its name is taken.
fn stranger(socket: &Path, stage: u32) -> bool {
    const ATTACHED: u8 = 4;
    let null = File::open("/dev/null").unwrap();
    let heap = vec![null.as_fd(); DESCRIPTORS_MAX];
    let memory = Endpoint::new(layout()).unwrap();
    let connection = connected(socket);
    let say = |bytes: &[u8]| {
        let _ = rustix::net::send(&connection, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    };
    let give = |bytes: &[u8], descriptors: &[BorrowedFd<'_>]| {
        let _ = try_send(&connection, bytes, descriptors);
    };
    let attaches = || {
        give(&packet(1), &memory.descriptors());
        answer(&connection).0 == ATTACHED
    };
    match stage {
        0 => {}
        1 => [0, 1, 63, 65, 4096]
            .iter()
            .for_each(|bytes| say(&vec![7; *bytes])),
        2 => say(&packet(1)),
        3 => give(&packet(1), &heap),
        4 => [1, 2, 3, 8, 1, 2, 3, 8]
            .iter()
            .for_each(|kind| give(&packet(*kind), &heap)),
        5 => give(&packet(1), &memory.descriptors()),
        6..=8 if !attaches() => return false,
        6 => [2, 2, 3].iter().for_each(|kind| say(&packet(*kind))),
        7 => give(&packet(3), &heap),
        8 => {
            let rings = memory.descriptors()[0];
            assert_eq!(rustix::fs::ftruncate(rings, 0), Err(Errno::PERM));
            let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            assert_eq!(rustix::fs::fallocate(rings, punch, 0, 4096), Err(Errno::PERM));
        }
        9 => {
            rustix::fs::ftruncate(memory.descriptors()[0], 64).unwrap();
            assert!(!attaches(), "its memory is too short");
        }
        10 => {
            let memory = SharedArena::create(1 << 16).unwrap();
            let mut question = packet(8);
            question[12..16].copy_from_slice(&(1_u32 << 16).to_be_bytes());
            give(&question, &[memory.descriptor().unwrap()]);
        }
        _ => {}
    }
    true
}

/// Connects clients that leave at this stage, until one gets that far.
fn strangers(socket: &Path, stage: u32) {
    let deadline = soon();
    while !stranger(socket, stage) {
        assert!(
            !deadline.has_passed(doorbell::now()),
            "none comes to stage {stage}"
        );
    }
}

#[test]
fn strangers_that_leave_at_any_stage_leave_nothing_in_the_daemon() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let mut daemon = process("daemon", &socket);
    let mut client = attach(&socket, 0);
    // The C library keeps some resources of the first client of each kind, such as stacks of threads.
    (0..11).for_each(|stage| strangers(&socket, stage));
    exchange(&mut client);
    let before = Held::by(daemon.id());
    for round in 0..440 {
        strangers(&socket, round % 11);
        if round % 4 == 0 {
            exchange(&mut client);
        }
    }
    exchange(&mut client);
    before.is_all_of(daemon.id());
    let status = DaemonStatus::ask(&socket, soon()).unwrap();
    assert_eq!((status.processes, status.jobs.len()), (1, 1));
    daemon.kill().unwrap();
    daemon.wait().unwrap();
}

#[test]
fn processes_that_come_and_go_without_end_leave_nothing_in_the_daemon() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let mut daemon = process("daemon", &socket);
    let mut client = attach(&socket, 0);
    let mut come_and_go = |rounds: u32| {
        for round in 0..rounds {
            let mut other = request(1 + round);
            // The others have an arena, which a thread of the daemon unmaps.
            if round % 20 > 0 {
                other.layout = layout();
            }
            let mut other = Client::attach(&socket, &other, soon()).unwrap();
            other.send(at(0), b"hello").unwrap();
            other.detach().unwrap();
            let (deadline, mut is_gone) = (soon(), false);
            while !is_gone {
                let woken = client.wait(deadline, |event| {
                    is_gone |= matches!(event, EndpointEvent::Gone { .. });
                });
                assert!(woken.unwrap(), "no end");
            }
        }
    };
    come_and_go(100);
    let before = Held::by(daemon.id());
    come_and_go(1000);
    before.is_all_of(daemon.id());
    daemon.kill().unwrap();
    daemon.wait().unwrap();
}

#[test]
fn a_process_that_reads_no_packet_holds_up_nobody() {
    let daemon = Daemon::start(|_| {});
    let mut client = attach(&daemon.socket, 0);
    let mut deaf = attach(&daemon.socket, 1);
    let (deadline, mut bytes, mut without_more) = (soon(), 0, 0);
    while without_more < 100 {
        assert!(!deadline.has_passed(doorbell::now()), "{bytes} bytes");
        // Its flag tells that it sleeps. Each message for it then causes a packet in its socket, until the socket is full.
        let sleeps = deaf.endpoint().rings().flag(0).unwrap();
        sleeps.store(1, Ordering::Relaxed);
        client.send(at(1), b"to the deaf").unwrap();
        exchange(&mut client);
        deaf.poll(|_| {}).unwrap();
        let before = mem::replace(&mut bytes, rustix::io::ioctl_fionread(&deaf).unwrap());
        without_more = if bytes > before { 0 } else { without_more + 1 };
    }
    let mut packets = 0;
    while let Ok((64, _)) = rustix::net::recv(&deaf, &mut [0; 64][..], RecvFlags::DONTWAIT) {
        packets += 1;
    }
    assert!(packets > 0 && packets * 64 == bytes, "{packets} in {bytes} bytes");
    exchange(&mut deaf);
}

#[test]
fn messages_of_no_bytes_and_of_all_that_fit_are_exchanged() {
    let daemon = Daemon::start(|_| {});
    let request = AttachRequest {
        layout: EndpointLayout::new(2, doorbell_daemon::MESSAGE_BYTES_MAX).unwrap(),
        ..request(u32::MAX)
    };
    let mut client = Client::attach(&daemon.socket, &request, soon()).unwrap();
    for bytes in [0, 1, doorbell_daemon::MESSAGE_BYTES_MAX as usize] {
        let message = vec![5; bytes];
        client.send(at(u32::MAX), &message).unwrap();
        crate::until(&mut client, "a message", |event| match event {
            EndpointEvent::Received { from, message: came } => {
                assert_eq!((from, came), (at(u32::MAX), &message[..]));
                true
            }
            event => panic!("{event:?}"),
        });
    }
}
