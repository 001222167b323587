//! The end of all capabilities of a process, also of one whose user is root.

use std::io;

/// Source: `linux/capability.h`, version 3.
const VERSION: u32 = 0x2008_0522;

#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Sets {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Root gets no capabilities by an exec, and none of this is undone. Source: `linux/securebits.h`, NOROOT and NO_SETUID_FIXUP with their locks.
const ROOT_IS_A_USER: libc::c_ulong = 0b1111;

/// Drops all capabilities of this process, for good. No memory is allocated: a child calls it before its exec.
pub(crate) fn drop_all() -> io::Result<()> {
    // Each capability that the kernel does not know is an error, and the last.
    for capability in 0..64 as libc::c_ulong {
        // SAFETY: plain numbers (prctl(2), PR_CAPBSET_DROP).
        if unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) } != 0 {
            break;
        }
    }
    // SAFETY: plain numbers (prctl(2), PR_SET_SECUREBITS).
    if unsafe { libc::prctl(libc::PR_SET_SECUREBITS, ROOT_IS_A_USER, 0, 0, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let header = Header {
        version: VERSION,
        pid: 0,
    };
    let none = [Sets {
        effective: 0,
        permitted: 0,
        inheritable: 0,
    }; 2];
    // SAFETY: a header of version 3 and its two sets (capset(2)).
    if unsafe { libc::syscall(libc::SYS_capset, &raw const header, none.as_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
