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

/// Numbers that the profile of a container keeps for devices. They are a power of two, which one comparison of libseccomp tests.
const OF_CONTAINERS: Range<u32> = 512..1024;

impl Reserved {
    /// Numbers for `count` devices, at most 512, of those that [`profile_rules`] keeps. They end below 1024, the usual limit of open files.
    #[must_use]
    pub fn of_containers(count: u32) -> Self {
        let Range { start, end } = OF_CONTAINERS;
        Self(end.saturating_sub(count).max(start)..end)
    }
}

/// A rule of the filter for the profile of a container. Source: `linux.seccomp.syscalls` of the OCI runtime specification.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProfileRule {
    /// The name of the call.
    pub call: &'static str,
    /// The error that the call is answered with. `None` traps it (`SCMP_ACT_NOTIFY`).
    pub error: Option<u16>,
    /// Arguments that are tested, each for a value under a mask (`SCMP_CMP_MASKED_EQ`). All hold.
    pub arguments: Vec<MaskedArgument>,
}

/// A test of an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MaskedArgument {
    /// The number of the argument, from 0.
    pub index: u32,
    /// The bits that count.
    pub mask: u64,
    /// Their value.
    pub value: u64,
}

/// The rules by which a container runtime makes a filter that traps as the filter of a launched program does.
#[must_use]
pub fn profile_rules() -> Vec<ProfileRule> {
    let Range { start, end } = OF_CONTAINERS;
    let number = is_but_for(0, end.saturating_sub(start).saturating_sub(1), start);
    let masked = |condition: &Condition| match condition.compared {
        Compared::Equal(value) => Some(MaskedArgument {
            index: condition.argument,
            mask: (!condition.ignored).into(),
            value: value.into(),
        }),
        Compared::AtLeast(_) | Compared::Below(_) => None,
    };
    let rules = rules(&[number]).into_iter();
    rules
        .map(|rule| ProfileRule {
            call: rule.name,
            error: (rule.action != SECCOMP_RET_USER_NOTIF).then_some(rule.action as u16),
            arguments: rule.conditions.iter().filter_map(masked).collect(),
        })
        .collect()
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
    /// The call's name in a profile. Empty for a rule that is in none.
    name: &'static str,
    conditions: Vec<Condition>,
    action: u32,
}

/// Allows a call on one descriptor, or any call of that number.
pub(crate) fn allow(call: libc::c_long, descriptor: Option<u32>) -> Rule {
    Rule {
        call,
        name: "",
        conditions: descriptor.map(|number| is(0, number)).into_iter().collect(),
        action: SECCOMP_RET_ALLOW,
    }
}

fn trap(call: libc::c_long, name: &'static str, conditions: &[Condition]) -> Rule {
    Rule {
        call,
        name,
        conditions: conditions.to_vec(),
        action: SECCOMP_RET_USER_NOTIF,
    }
}

/// The test of a write for a descriptor of a device.
fn is_reserved(reserved: &Reserved) -> [Condition; 2] {
    let of = |compared| Condition {
        argument: 0,
        ignored: 0,
        compared,
    };
    [
        of(Compared::AtLeast(reserved.0.start)),
        of(Compared::Below(reserved.0.end)),
    ]
}

/// The rules. The first that a call meets holds.
fn rules(is_reserved: &[Condition]) -> Vec<Rule> {
    let is_doorbell = [is_reserved, &[is(2, DOORBELL_BYTES as u32)]].concat();
    let mut rules = vec![
        trap(libc::SYS_write, "write", &is_doorbell),
        trap(
            libc::SYS_openat,
            "openat",
            &[is(0, HERE), is_but_for(2, LARGE_FILE, OPEN_FLAGS)],
        ),
        trap(libc::SYS_newfstatat, "newfstatat", &[is(0, HERE), is(3, 0)]),
        // AT_NO_AUTOMOUNT is what a C library adds.
        trap(
            libc::SYS_statx,
            "statx",
            &[is(0, HERE), is_but_for(2, libc::AT_NO_AUTOMOUNT as u32, 0)],
        ),
        // libibverbs waits for udev in vain, and by this call alone.
        trap(
            libc::SYS_inotify_add_watch,
            "inotify_add_watch",
            &[is(2, libc::IN_CREATE)],
        ),
    ];
    #[cfg(target_arch = "x86_64")]
    rules.extend([
        trap(libc::SYS_open, "open", &[is_but_for(1, LARGE_FILE, OPEN_FLAGS)]),
        trap(libc::SYS_stat, "stat", &[]),
    ]);
    // A lock of an open file tells the broker that a device is still open: the program must not take it away.
    for command in [libc::F_OFD_SETLK, libc::F_OFD_SETLKW] {
        rules.push(Rule {
            call: libc::SYS_fcntl,
            name: "fcntl",
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
    assemble(&rules(&is_reserved(reserved)), absent, SECCOMP_RET_ALLOW)
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
