//! Asks the running daemon to end, so that a new one can replace it.

use core::time::Duration;
use std::io;
use std::path::Path;

use doorbell::{Deadline, now, within};
use rustix::event::{PollFd, PollFlags, Timespec};

use super::socket::{Came, PacketSocket};
use crate::name::Credentials;
use crate::packet::Packet;
use crate::reason::AttachRefusal;

/// Longest time that a daemon which is being replaced may take to end.
const REPLACED_WITHIN: Duration = Duration::from_secs(30);

/// Interval between attempts while the running daemon's backlog is full.
const ASK_EVERY: Duration = Duration::from_millis(1);

/// Whether a process belongs to the daemon's user or to root. Such a process may end the daemon, and sees the endpoints of all users.
pub(super) fn is_owner(who: Credentials) -> bool {
    who.uid == rustix::process::geteuid().as_raw() || who.uid == 0
}

/// Asks the daemon at a path to end, and waits for its end. Returns `false` if no daemon listens there.
pub(super) fn replace(path: &Path) -> io::Result<bool> {
    let deadline = within(REPLACED_WITHIN);
    loop {
        match ask_for_place(path, deadline) {
            // The backlog is full, or other connections of this user are pending: there is room soon.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if deadline.has_passed(now()) {
                    return Err(io::Error::from(io::ErrorKind::TimedOut));
                }
                std::thread::sleep(ASK_EVERY);
            }
            answered => return answered,
        }
    }
}

/// Makes one attempt. Returns `WouldBlock` if the daemon has no room for the connection now.
fn ask_for_place(path: &Path, deadline: Deadline) -> io::Result<bool> {
    let running = match PacketSocket::connect(path) {
        Ok(running) => running,
        Err(error) => {
            let is_none = matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
            );
            return if is_none { Ok(false) } else { Err(error) };
        }
    };
    match running.send(&Packet::Replace, &[]) {
        // The daemon refused the connection before it read the packet: the reason can still be received.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        sent => drop(sent?),
    }
    loop {
        match running.receive()? {
            Came::End => return Ok(true),
            Came::Packet(Ok(Packet::Refused(AttachRefusal::TooManyPending | AttachRefusal::TooLate))) => {
                return Err(io::Error::from(io::ErrorKind::WouldBlock));
            }
            Came::Packet(..) => return Err(io::Error::from(io::ErrorKind::PermissionDenied)),
            Came::Nothing if deadline.has_passed(now()) => {
                return Err(io::Error::from(io::ErrorKind::TimedOut));
            }
            Came::Nothing => {
                let timeout = Timespec::try_from(deadline.remaining(now())).ok();
                match rustix::event::poll(&mut [PollFd::new(&running, PollFlags::IN)], timeout.as_ref()) {
                    Ok(_) | Err(rustix::io::Errno::INTR) => {}
                    Err(errno) => return Err(errno.into()),
                }
            }
        }
    }
}
