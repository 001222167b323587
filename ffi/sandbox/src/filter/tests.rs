//! The filter, run by an interpreter of the few instructions that it has.

use libc::{
    BPF_ABS, BPF_ALU, BPF_AND, BPF_JEQ, BPF_JGE, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W, SECCOMP_RET_ALLOW,
    SECCOMP_RET_ERRNO, SECCOMP_RET_USER_NOTIF,
};

use super::{NATIVE, Reserved, X32, profile_rules, program};

const HERE: u64 = libc::AT_FDCWD as u64;
const OPEN: u64 = (libc::O_RDWR | libc::O_CLOEXEC) as u64;

/// The answer of the filter to a call.
fn run(abi: u32, call: i64, arguments: [u64; 6]) -> u32 {
    let mut data = Vec::new();
    data.extend((call as u32).to_le_bytes());
    data.extend(abi.to_le_bytes());
    data.extend(0_u64.to_le_bytes());
    for argument in arguments {
        data.extend(argument.to_le_bytes());
    }
    let program = program(&Reserved::below(1024, 8).unwrap());
    let (mut at, mut a) = (0, 0_u32);
    loop {
        let one = program[at];
        at += 1;
        let code = u32::from(one.code);
        let skip = |holds: bool| usize::from(if holds { one.jt } else { one.jf });
        if code == BPF_LD | BPF_W | BPF_ABS {
            let from = one.k as usize;
            a = u32::from_le_bytes(data[from..from + 4].try_into().unwrap());
        } else if code == BPF_ALU | BPF_AND | BPF_K {
            a &= one.k;
        } else if code == BPF_JMP | BPF_JEQ | BPF_K {
            at += skip(a == one.k);
        } else if code == BPF_JMP | BPF_JGE | BPF_K {
            at += skip(a >= one.k);
        } else if code == BPF_RET | BPF_K {
            return one.k;
        } else {
            panic!("{code:#x}");
        }
    }
}

fn of(call: i64, arguments: &[u64]) -> u32 {
    let mut all = [0x7777; 6];
    all[..arguments.len()].copy_from_slice(arguments);
    run(NATIVE, call, all)
}

const TRAP: u32 = SECCOMP_RET_USER_NOTIF;
const ALLOW: u32 = SECCOMP_RET_ALLOW;

#[test]
fn opens_of_a_device_are_trapped_and_those_of_a_loader_are_not() {
    assert_eq!(of(libc::SYS_openat, &[HERE, 0, OPEN]), TRAP);
    // The kernel takes 32 bits of a descriptor: the upper ones do not lead past the filter.
    assert_eq!(of(libc::SYS_openat, &[HERE & 0xFFFF_FFFF, 0, OPEN]), TRAP);
    assert_eq!(of(libc::SYS_openat, &[HERE, 0, OPEN | 1 << 32]), TRAP);
    assert_eq!(of(libc::SYS_openat, &[3, 0, OPEN]), ALLOW);
    for flags in [
        libc::O_RDONLY | libc::O_CLOEXEC,
        libc::O_RDWR,
        libc::O_RDWR | libc::O_CLOEXEC | libc::O_CREAT,
    ] {
        assert_eq!(
            of(libc::SYS_openat, &[HERE, 0, flags as u64]),
            ALLOW,
            "{flags:#x}"
        );
    }
}

#[test]
#[cfg(target_arch = "x86_64")]
fn the_older_calls_of_this_machine_are_trapped() {
    assert_eq!(of(libc::SYS_open, &[0, OPEN | 0x8000]), TRAP, "as musl opens");
    assert_eq!(of(libc::SYS_open, &[0, OPEN]), TRAP);
    assert_eq!(of(libc::SYS_open, &[0, 0]), ALLOW);
    assert_eq!(of(libc::SYS_stat, &[0, 0]), TRAP);
    assert_eq!(of(libc::SYS_lstat, &[0, 0]), ALLOW);
}

#[test]
fn stats_of_a_path_are_trapped_and_those_of_a_descriptor_are_not() {
    assert_eq!(of(libc::SYS_newfstatat, &[HERE, 0, 0, 0]), TRAP);
    assert_eq!(of(libc::SYS_newfstatat, &[5, 0, 0, 0]), ALLOW);
    let empty = libc::AT_EMPTY_PATH as u64;
    assert_eq!(of(libc::SYS_newfstatat, &[HERE, 0, 0, empty]), ALLOW);
    for flags in [0, libc::AT_NO_AUTOMOUNT as u64] {
        assert_eq!(of(libc::SYS_statx, &[HERE, 0, flags]), TRAP);
    }
    assert_eq!(
        of(libc::SYS_statx, &[HERE, 0, libc::AT_SYMLINK_NOFOLLOW as u64]),
        ALLOW
    );
    assert_eq!(of(libc::SYS_fstat, &[HERE, 0]), ALLOW);
}

#[test]
fn a_write_of_a_doorbell_to_a_reserved_number_is_trapped() {
    for (number, bytes, answer) in [
        (1016, 32, TRAP),
        (1023, 32, TRAP),
        (1 << 32 | 1020, 32, TRAP),
        (1015, 32, ALLOW),
        (1024, 32, ALLOW),
        (1016, 31, ALLOW),
        (1016, 33, ALLOW),
        (1, 32, ALLOW),
    ] {
        assert_eq!(
            of(libc::SYS_write, &[number, 0, bytes]),
            answer,
            "{number} {bytes}"
        );
    }
    assert_eq!(of(libc::SYS_writev, &[1016, 0, 32]), ALLOW);
}

#[test]
fn the_wait_for_udev_is_trapped_and_other_watches_are_not() {
    let create = u64::from(libc::IN_CREATE);
    assert_eq!(of(libc::SYS_inotify_add_watch, &[3, 0, create]), TRAP);
    let more = create | u64::from(libc::IN_DELETE);
    assert_eq!(of(libc::SYS_inotify_add_watch, &[3, 0, more]), ALLOW);
}

#[test]
fn locks_of_open_files_are_refused_and_those_of_processes_are_not() {
    let invalid = SECCOMP_RET_ERRNO | libc::EINVAL as u32;
    for (command, answer) in [
        (libc::F_OFD_SETLK, invalid),
        (libc::F_OFD_SETLKW, invalid),
        (libc::F_OFD_GETLK, ALLOW),
        (libc::F_SETLK, ALLOW),
    ] {
        assert_eq!(of(libc::SYS_fcntl, &[3, command as u64]), answer, "{command}");
        // The kernel takes 32 bits of a command.
        assert_eq!(of(libc::SYS_fcntl, &[3, command as u64 | 1 << 40]), answer);
    }
}

#[test]
fn calls_of_a_foreign_abi_do_not_exist() {
    let absent = SECCOMP_RET_ERRNO | libc::ENOSYS as u32;
    assert_eq!(run(0x4000_0003, libc::SYS_read, [0; 6]), absent, "of i386");
    assert_eq!(of(libc::SYS_read, &[]), ALLOW);
    if cfg!(target_arch = "x86_64") {
        assert_eq!(of(libc::SYS_read | i64::from(X32), &[]), absent);
    }
}

#[test]
fn reserved_numbers_leave_the_program_most_of_its_own() {
    assert_eq!(*Reserved::below(1024, 8).unwrap().numbers(), 1016..1024);
    assert_eq!(*Reserved::below(u64::MAX, 4).unwrap().numbers(), 16380..16384);
    assert!(Reserved::below(72, 8).is_some());
    assert!(Reserved::below(71, 8).is_none());
    assert!(Reserved::below(4, 8).is_none());
}

#[test]
fn the_profile_of_a_container_traps_what_the_filter_of_a_program_traps() {
    let rules = profile_rules();
    let answer = |call: &str, arguments: &[u64]| {
        let mut all = [0x7777; 6];
        all[..arguments.len()].copy_from_slice(arguments);
        let met = rules.iter().find(|rule| {
            let holds = |test: &super::MaskedArgument| all[test.index as usize] & test.mask == test.value;
            rule.call == call && rule.arguments.iter().all(holds)
        });
        met.map_or(ALLOW, |rule| match rule.error {
            Some(error) => SECCOMP_RET_ERRNO | u32::from(error),
            None => TRAP,
        })
    };
    // The filter keeps the last 8 numbers below 1024: all of these are of the 512 that a profile keeps, or of neither.
    let calls: [(&str, i64, &[u64]); 16] = [
        ("openat", libc::SYS_openat, &[HERE, 0, OPEN]),
        (
            "openat",
            libc::SYS_openat,
            &[HERE & 0xFFFF_FFFF, 0, OPEN | 1 << 32],
        ),
        ("openat", libc::SYS_openat, &[HERE, 0, OPEN | 0x8000]),
        ("openat", libc::SYS_openat, &[HERE, 0, 2]),
        ("openat", libc::SYS_openat, &[3, 0, OPEN]),
        ("newfstatat", libc::SYS_newfstatat, &[HERE, 0, 0, 0]),
        ("newfstatat", libc::SYS_newfstatat, &[HERE, 0, 0, 0x1000]),
        ("statx", libc::SYS_statx, &[HERE, 0, 0x800]),
        ("statx", libc::SYS_statx, &[HERE, 0, 0x100]),
        ("inotify_add_watch", libc::SYS_inotify_add_watch, &[0, 0, 0x100]),
        ("inotify_add_watch", libc::SYS_inotify_add_watch, &[0, 0, 0x101]),
        ("fcntl", libc::SYS_fcntl, &[0, 37]),
        ("fcntl", libc::SYS_fcntl, &[0, 6]),
        ("write", libc::SYS_write, &[1023, 0, 32]),
        ("write", libc::SYS_write, &[1024, 0, 32]),
        ("write", libc::SYS_write, &[1023, 0, 31]),
    ];
    for (name, call, arguments) in calls {
        assert_eq!(
            answer(name, arguments),
            of(call, arguments),
            "{name} {arguments:?}"
        );
    }
    assert_eq!(answer("write", &[512, 0, 32]), TRAP);
    assert_eq!(answer("write", &[511, 0, 32]), ALLOW);
    for (count, first) in [(1, 1023), (8, 1016), (512, 512), (4096, 512)] {
        assert_eq!(*Reserved::of_containers(count).numbers(), first..1024);
    }
}
