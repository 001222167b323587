//! The filter that a program puts on itself: it is killed at its first call that is not on a short list.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

use libc::{SECCOMP_FILTER_FLAG_TSYNC, SECCOMP_RET_KILL_PROCESS};

use crate::filter::{Rule, allow, assemble};

/// The system calls that a program may still make. Everything else kills the process (`SIGSYS`), calls of a foreign ABI included.
///
/// A process of the node daemon needs none while it and the daemon poll. One that sleeps needs its socket
/// ([`Confinement::may_sleep_at`]).
#[derive(Clone)]
pub struct Confinement {
    rules: Vec<Rule>,
}

impl core::fmt::Debug for Confinement {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Confinement")
            .field("rules", &self.rules.len())
            .finish()
    }
}

impl Default for Confinement {
    /// The end of a program: `exit_group(2)`, and `munmap(2)` and `sigaltstack(2)`, by which the standard library gives up a stack of its own.
    fn default() -> Self {
        let calls = [libc::SYS_exit_group, libc::SYS_munmap, libc::SYS_sigaltstack];
        Self {
            rules: calls.into_iter().map(|call| allow(call, None)).collect(),
        }
    }
}

impl Confinement {
    /// Allows the sleep at one socket: `sendmsg(2)` and `recvmsg(2)` there, `ppoll(2)`, and the clock where reading it is a system call.
    #[must_use]
    pub fn may_sleep_at(mut self, socket: BorrowedFd<'_>) -> Self {
        let socket = Some(number(socket));
        self.rules.extend([
            allow(libc::SYS_sendmsg, socket),
            allow(libc::SYS_recvmsg, socket),
            allow(libc::SYS_ppoll, None),
            allow(libc::SYS_clock_gettime, None),
        ]);
        self
    }

    /// Allows `write(2)` to one file.
    #[must_use]
    pub fn may_write_to(mut self, file: BorrowedFd<'_>) -> Self {
        self.rules.push(allow(libc::SYS_write, Some(number(file))));
        self
    }

    /// Confines all threads of this process, for good. It cannot gain privileges by an exec from then on.
    ///
    /// # Errors
    /// The kernel refuses: it is older than 4.14, or a thread has another filter.
    pub fn enter(&self) -> io::Result<()> {
        let kill = SECCOMP_RET_KILL_PROCESS;
        let filter = assemble(&self.rules, kill, kill);
        let program = libc::sock_fprog {
            len: filter.len().try_into().map_err(|_| io::ErrorKind::InvalidInput)?,
            filter: filter.as_ptr().cast_mut(),
        };
        // SAFETY: plain numbers (prctl(2), PR_SET_NO_NEW_PRIVS).
        if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a program with its length, which the kernel copies and checks (seccomp(2)).
        let thread = unsafe {
            libc::syscall(
                libc::SYS_seccomp,
                libc::c_ulong::from(libc::SECCOMP_SET_MODE_FILTER),
                SECCOMP_FILTER_FLAG_TSYNC,
                &raw const program,
            )
        };
        match thread {
            0 => Ok(()),
            -1 => Err(io::Error::last_os_error()),
            // The number of a thread that has a filter which is not one of this thread's.
            _ => Err(io::ErrorKind::ResourceBusy.into()),
        }
    }
}

fn number(descriptor: BorrowedFd<'_>) -> u32 {
    // Never negative.
    descriptor.as_raw_fd().unsigned_abs()
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::fd::AsFd as _;
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::{Command, ExitStatus};

    use super::Confinement;

    const PART: &str = "DOORBELL_CONFINED";

    #[test]
    fn part_of_a_confined_process() {
        let Ok(part) = std::env::var(PART) else { return };
        let error = std::io::stderr();
        let confinement = Confinement::default();
        match part.as_str() {
            "writes" | "asks" => confinement.may_write_to(error.as_fd()).enter().unwrap(),
            _ => confinement.enter().unwrap(),
        }
        if part != "ends" {
            (&error).write_all(b"written").unwrap();
        }
        if part == "asks" {
            // SAFETY: no arguments (getppid(2)).
            unsafe { libc::getppid() };
        }
        std::process::exit(7);
    }

    fn end_of(part: &str) -> (ExitStatus, bool) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([
            "--exact",
            "confinement::tests::part_of_a_confined_process",
            "--nocapture",
        ]);
        let output = command.env(PART, part).output().unwrap();
        (output.status, output.stderr.ends_with(b"written"))
    }

    #[test]
    fn a_call_that_is_not_allowed_kills_the_process_and_an_allowed_one_is_made() {
        let code = |part| {
            let (status, is_written) = end_of(part);
            (status.code(), status.signal(), is_written)
        };
        assert_eq!(code("ends"), (Some(7), None, false));
        assert_eq!(code("writes"), (Some(7), None, true));
        assert_eq!(code("asks"), (None, Some(libc::SIGSYS), true));
        assert_eq!(code("writes elsewhere"), (None, Some(libc::SIGSYS), false));
    }
}
