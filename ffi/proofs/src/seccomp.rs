//! A filter under which a thread may make two system calls only: write one verdict, and exit.

use std::io;

use libc::{c_ulong, sock_fprog};

/// Number by which `seccomp(2)` names the architecture that the program was built for.
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

/// The descriptor of standard output: below 2^32, so its upper half is not looked at.
const STANDARD_OUTPUT: u32 = 1;

/// Offsets in `struct seccomp_data`, whose words of 64 bits have their lower half first: both
/// architectures are little-endian.
const NUMBER_OFFSET: u32 = 0;
const ARCHITECTURE_OFFSET: u32 = 4;
const FIRST_ARGUMENT_OFFSET: u32 = 16;
const SECOND_ARGUMENT_OFFSET: u32 = 24;

/// The words of a filter.
#[expect(clippy::cast_possible_truncation, reason = "constants of libc that fit")]
mod word {
    use libc::sock_filter;

    const fn word(code: u32, value: u32, when_equal: u8, otherwise: u8) -> sock_filter {
        sock_filter {
            code: code as u16,
            jt: when_equal,
            jf: otherwise,
            k: value,
        }
    }

    /// Loads 32 bits of what describes the call.
    pub(super) const fn load(offset: u32) -> sock_filter {
        word(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset, 0, 0)
    }

    /// Skips so many words where what was loaded equals the value, or does not.
    pub(super) const fn skip(value: u32, when_equal: u8, otherwise: u8) -> sock_filter {
        word(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            value,
            when_equal,
            otherwise,
        )
    }

    /// Ends with what the kernel shall do.
    pub(super) const fn end(action: u32) -> sock_filter {
        word(libc::BPF_RET | libc::BPF_K, action, 0, 0)
    }
}

/// From here on this thread may call `write` of this very verdict to standard output, `exit` and
/// `exit_group`. Any other call, or another `write`, ends the process by `SIGSYS`.
///
/// # Errors
/// The kernel takes no filter.
pub fn allow_only_verdict(verdict: &'static [u8]) -> io::Result<()> {
    let [write, exit, exit_group] = [libc::SYS_write, libc::SYS_exit, libc::SYS_exit_group]
        .map(|number| u32::try_from(number).unwrap_or(u32::MAX));
    let address = verdict.as_ptr().expose_provenance() as u64;
    let [low, high] = halves(address);
    let mut program = [
        word::load(ARCHITECTURE_OFFSET),
        word::skip(ARCHITECTURE, 0, 10),
        word::load(NUMBER_OFFSET),
        word::skip(exit, 9, 0),
        word::skip(exit_group, 8, 0),
        word::skip(write, 0, 6),
        word::load(FIRST_ARGUMENT_OFFSET),
        word::skip(STANDARD_OUTPUT, 0, 4),
        word::load(SECOND_ARGUMENT_OFFSET),
        word::skip(low, 0, 2),
        word::load(SECOND_ARGUMENT_OFFSET + 4),
        word::skip(high, 1, 0),
        word::end(libc::SECCOMP_RET_KILL_PROCESS),
        word::end(libc::SECCOMP_RET_ALLOW),
    ];
    let filter = sock_fprog {
        len: u16::try_from(program.len()).unwrap_or(u16::MAX),
        filter: program.as_mut_ptr(),
    };
    let [one, none]: [c_ulong; 2] = [1, 0];
    // SAFETY: takes plain numbers (PR_SET_NO_NEW_PRIVS(2const)).
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, one, none, none, none) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mode = c_ulong::from(libc::SECCOMP_MODE_FILTER);
    // SAFETY: the program and its words are readable, and the kernel copies them (PR_SET_SECCOMP(2const)).
    if unsafe { libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const filter) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[expect(clippy::cast_possible_truncation, reason = "halves are what is meant")]
const fn halves(word: u64) -> [u32; 2] {
    [word as u32, (word >> 32) as u32]
}
