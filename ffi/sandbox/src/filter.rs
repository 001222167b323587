//! The filter: a program of classic BPF that traps the few calls by which a verbs program finds, opens and rings a device. No system call is made here.
#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "constants of the kernel, and lengths of a filter of a few dozen instructions"
)]

use core::ops::Range;

use libc::{
    BPF_ABS, BPF_ALU, BPF_AND, BPF_JEQ, BPF_JGE, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W, SECCOMP_RET_ALLOW,
    SECCOMP_RET_ERRNO, SECCOMP_RET_USER_NOTIF, sock_filter,
};

/// Bytes of the write by which the providers of `rxe` and `siw` ring. Source: `struct ibv_post_send` of rdma-core's `kern-abi.h`.
pub const DOORBELL_BYTES: usize = 32;

/// The ABI of this build, as the kernel names it. Source: `linux/audit.h`.
#[cfg(target_arch = "x86_64")]
const NATIVE: u32 = 0xC000_003E;
#[cfg(target_arch = "aarch64")]
const NATIVE: u32 = 0xC000_00B7;

/// Calls of x32 have this bit, and the ABI of x86-64.
const X32: u32 = 0x4000_0000;

/// Flags of an `open` that change nothing here, and that some C libraries add.
const LARGE_FILE: u32 = libc::O_LARGEFILE as u32
    | if cfg!(target_arch = "x86_64") {
        0x8000
    } else {
        0x2_0000
    };

const HERE: u32 = libc::AT_FDCWD as u32;
const OPEN_FLAGS: u32 = (libc::O_RDWR | libc::O_CLOEXEC) as u32;

/// Numbers of descriptors that are kept for devices, so that the filter knows a write to a device by its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reserved(Range<u32>);

impl Reserved {
    /// The last `count` numbers below the limit of open files `limit`. `None` if fewer than 64 numbers were left to the program.
    #[must_use]
    pub fn below(limit: u64, count: u32) -> Option<Self> {
        // A table of descriptors is as long as its highest number.
        let end = u32::try_from(limit.min(1 << 14)).ok()?;
        let start = end.checked_sub(count).filter(|start| *start >= 64)?;
        Some(Self(start..end))
    }

    /// The numbers.
    #[must_use]
    pub const fn numbers(&self) -> &Range<u32> {
        &self.0
    }
}

/// A test of the low word of an argument. The kernel takes no more of each argument that is tested.
#[derive(Clone, Copy)]
struct Condition {
    argument: u32,
    /// Bits that do not count.
    ignored: u32,
    compared: Compared,
}

#[derive(Clone, Copy)]
enum Compared {
    Equal(u32),
    AtLeast(u32),
    Below(u32),
}

const fn is(argument: u32, value: u32) -> Condition {
    Condition {
        argument,
        ignored: 0,
        compared: Compared::Equal(value),
    }
}

const fn is_but_for(argument: u32, ignored: u32, value: u32) -> Condition {
    Condition {
        argument,
        ignored,
        compared: Compared::Equal(value),
    }
}

#[derive(Clone)]
pub(crate) struct Rule {
    call: libc::c_long,
    conditions: Vec<Condition>,
    action: u32,
}

/// Allows a call on one descriptor, or any call of that number.
pub(crate) fn allow(call: libc::c_long, descriptor: Option<u32>) -> Rule {
    Rule {
        call,
        conditions: descriptor.map(|number| is(0, number)).into_iter().collect(),
        action: SECCOMP_RET_ALLOW,
    }
}

fn trap(call: libc::c_long, conditions: &[Condition]) -> Rule {
    Rule {
        call,
        conditions: conditions.to_vec(),
        action: SECCOMP_RET_USER_NOTIF,
    }
}

/// The rules. The first that a call meets holds.
fn rules(reserved: &Reserved) -> Vec<Rule> {
    let mut rules = vec![
        trap(
            libc::SYS_write,
            &[
                Condition {
                    argument: 0,
                    ignored: 0,
                    compared: Compared::AtLeast(reserved.0.start),
                },
                Condition {
                    argument: 0,
                    ignored: 0,
                    compared: Compared::Below(reserved.0.end),
                },
                is(2, DOORBELL_BYTES as u32),
            ],
        ),
        trap(
            libc::SYS_openat,
            &[is(0, HERE), is_but_for(2, LARGE_FILE, OPEN_FLAGS)],
        ),
        trap(libc::SYS_newfstatat, &[is(0, HERE), is(3, 0)]),
        // AT_NO_AUTOMOUNT is what a C library adds.
        trap(
            libc::SYS_statx,
            &[is(0, HERE), is_but_for(2, libc::AT_NO_AUTOMOUNT as u32, 0)],
        ),
        // libibverbs waits for udev in vain, and by this call alone.
        trap(libc::SYS_inotify_add_watch, &[is(2, libc::IN_CREATE)]),
    ];
    #[cfg(target_arch = "x86_64")]
    rules.extend([
        trap(libc::SYS_open, &[is_but_for(1, LARGE_FILE, OPEN_FLAGS)]),
        trap(libc::SYS_stat, &[]),
    ]);
    // A lock of an open file tells the broker that a device is still open: the program must not take it away.
    for command in [libc::F_OFD_SETLK, libc::F_OFD_SETLKW] {
        rules.push(Rule {
            call: libc::SYS_fcntl,
            conditions: vec![is(1, command as u32)],
            action: SECCOMP_RET_ERRNO | libc::EINVAL as u32,
        });
    }
    rules
}

const LOAD: u32 = BPF_LD | BPF_W | BPF_ABS;
const NUMBER: u32 = 0;
const ABI: u32 = 4;

const fn instruction(code: u32, k: u32) -> sock_filter {
    sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    }
}

/// A comparison that goes on if it `holds`, and else skips `rest` instructions.
const fn compare(code: u32, k: u32, holds: bool, rest: u8) -> sock_filter {
    let (jt, jf) = if holds { (0, rest) } else { (rest, 0) };
    sock_filter {
        code: (BPF_JMP | code | BPF_K) as u16,
        jt,
        jf,
        k,
    }
}

const fn answer(action: u32) -> sock_filter {
    instruction(BPF_RET | BPF_K, action)
}

/// The whole filter of the broker. Calls of a foreign ABI do not exist for the program, since their numbers are others.
pub(crate) fn program(reserved: &Reserved) -> Vec<sock_filter> {
    let absent = SECCOMP_RET_ERRNO | libc::ENOSYS as u32;
    assemble(&rules(reserved), absent, SECCOMP_RET_ALLOW)
}

/// A filter of these rules, with its answers to calls of a foreign ABI and to those that meet no rule.
pub(crate) fn assemble(rules: &[Rule], foreign: u32, other: u32) -> Vec<sock_filter> {
    let mut program = vec![
        instruction(LOAD, ABI),
        compare(BPF_JEQ, NATIVE, false, 1),
        answer(foreign),
    ];
    if cfg!(target_arch = "x86_64") {
        program.extend([
            instruction(LOAD, NUMBER),
            compare(BPF_JGE, X32, true, 1),
            answer(foreign),
        ]);
    }
    for rule in rules {
        // From the last instruction: each skip is as long as what stands behind it.
        let mut body = vec![answer(rule.action)];
        for condition in rule.conditions.iter().rev() {
            let rest = body.len() as u8;
            body.push(match condition.compared {
                Compared::Equal(value) => compare(BPF_JEQ, value, true, rest),
                Compared::AtLeast(value) => compare(BPF_JGE, value, true, rest),
                Compared::Below(value) => compare(BPF_JGE, value, false, rest),
            });
            if condition.ignored != 0 {
                body.push(instruction(BPF_ALU | BPF_AND | BPF_K, !condition.ignored));
            }
            body.push(instruction(LOAD, low_word(condition.argument)));
        }
        let rest = body.len() as u8;
        body.push(compare(BPF_JEQ, rule.call as u32, true, rest));
        body.push(instruction(LOAD, NUMBER));
        program.extend(body.into_iter().rev());
    }
    program.push(answer(other));
    program
}

/// The place of the low word of an argument in `struct seccomp_data`, on a little-endian machine.
const fn low_word(argument: u32) -> u32 {
    argument.saturating_mul(8).saturating_add(16)
}

#[cfg(test)]
mod tests;
