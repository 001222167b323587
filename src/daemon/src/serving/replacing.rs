//! The question of a daemon to the one before: to end.

use core::time::Duration;
use std::io;
use std::path::Path;

use doorbell::{Deadline, now, within};
use rustix::event::{PollFd, PollFlags, Timespec};

use super::socket::{Came, PacketSocket};
use crate::name::Credentials;
use crate::packet::Packet;
use crate::reason::AttachRefusal;

/// How long a daemon that is replaced may take to end.
const REPLACED_WITHIN: Duration = Duration::from_secs(30);

/// How often a daemon without a place for the question is asked again.
const ASK_EVERY: Duration = Duration::from_millis(1);

/// Whether the process behind a socket is of the daemon's user, or of the root user: it may end this daemon, and sees endpoints of others.
pub(super) fn is_owner(who: Credentials) -> bool {
    who.uid == rustix::process::geteuid().as_raw() || who.uid == 0
}

/// Asks the daemon at a path to end, and waits for that. `false` if there is none.
pub(super) fn replace(path: &Path) -> io::Result<bool> {
    let deadline = within(REPLACED_WITHIN);
    loop {
        match ask_for_place(path, deadline) {
            // Others of this user are about to attach, or as many connections wait as fit: there is a place soon.
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

/// Asks once. `WouldBlock` if the daemon has no place for the question now.
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
        // Refused before it was read: the reason is there.
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
