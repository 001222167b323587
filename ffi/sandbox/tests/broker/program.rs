//! Programs in the sandbox: raw system calls, since a hostile program is bound by no library.

use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use core::time::Duration;
use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::thread;

const ALLOWED: &CStr = c"/dev/infiniband/uverbs0";
const DENIED: &CStr = c"/dev/infiniband/uverbs1";
const NULL: u64 = 0x103;

/// A system call with any numbers.
fn call(number: libc::c_long, arguments: &[u64]) -> Result<i64, i32> {
    let mut all = [0; 6];
    all[..arguments.len()].copy_from_slice(arguments);
    let [a, b, c, d, e, f] = all;
    // SAFETY: addresses that the kernel writes to are of memory that the caller has for it, or are not mapped.
    let result = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    if result == -1 {
        Err(std::io::Error::last_os_error().raw_os_error().unwrap())
    } else {
        Ok(result)
    }
}

fn open_at(path: u64) -> Result<u32, i32> {
    let flags = (libc::O_RDWR | libc::O_CLOEXEC) as u64;
    call(libc::SYS_openat, &[libc::AT_FDCWD as u64, path, flags]).map(|number| number as u32)
}

fn open(path: &CStr) -> Result<u32, i32> {
    open_at(path.as_ptr() as u64)
}

fn close(number: u32) {
    call(libc::SYS_close, &[number.into()]).unwrap();
}

fn device(number: u32) -> u64 {
    fs::metadata(format!("/proc/self/fd/{number}")).unwrap().rdev()
}

/// Runs one part, which fails by a panic.
pub(crate) fn run(part: &str) {
    match part {
        "allowed" => allowed(),
        "denied" => denied(),
        "changing" => changing(),
        "pointers" => pointers(),
        "pages" => pages(),
        "limit" => limit(),
        "locks" => locks(),
        "doorbells" => doorbells(),
        "killed" => killed(),
        "signals" => signals(),
        "threads" => threads(),
        "privileges" => privileges(),
        "orphan" => orphan(),
        "absent" => absent(),
        "limit-of-two" => limit_of_two(),
        "unsupervised" => unsupervised(),
        _ => panic!("{part}"),
    }
    println!("part {part} is done");
}

fn allowed() {
    // By statx, and by the older call that libibverbs of a C library makes.
    let facts = fs::metadata(ALLOWED.to_str().unwrap()).unwrap();
    assert!(facts.file_type().is_char_device());
    assert_eq!(facts.rdev(), NULL);
    let mut plain = [0_u8; 256];
    let here = libc::AT_FDCWD as u64;
    call(
        libc::SYS_newfstatat,
        &[here, ALLOWED.as_ptr() as u64, plain.as_mut_ptr() as u64, 0],
    )
    .unwrap();
    let at = core::mem::offset_of!(libc::stat, st_rdev);
    assert_eq!(plain[at..at + 8], NULL.to_ne_bytes());
    let (one, two) = (open(ALLOWED).unwrap(), open(ALLOWED).unwrap());
    assert_ne!(one, two);
    for number in [one, two] {
        assert_eq!(device(number), NULL);
        let flags = call(libc::SYS_fcntl, &[number.into(), libc::F_GETFD as u64]).unwrap();
        assert_eq!(flags, i64::from(libc::FD_CLOEXEC), "closed by an exec");
    }
    // All else is as it was.
    assert!(fs::metadata("/etc").unwrap().is_dir());
    assert_eq!(open(c"/nonexistent"), Err(libc::ENOENT));
    assert_eq!(device(open(c"/dev/zero").unwrap()), 0x105);
}

fn denied() {
    assert!(fs::metadata(DENIED.to_str().unwrap()).is_err());
    assert_eq!(open(DENIED), Err(libc::ENOENT));
    assert_eq!(open(c"/dev/infiniband/uverbs2"), Err(libc::ENOENT));
    let watch = call(libc::SYS_inotify_init1, &[0]).unwrap() as u64;
    for (folder, answer) in [(c"/dev/char/", Err(libc::ENOENT)), (c"/dev", Ok(()))] {
        let create = u64::from(libc::IN_CREATE);
        let watched = call(
            libc::SYS_inotify_add_watch,
            &[watch, folder.as_ptr() as u64, create],
        );
        assert_eq!(watched.map(drop), answer, "{folder:?}");
    }
}

/// One thread writes the number of the device while another opens it: what was opened is allowed.
fn changing() {
    let mut path = ALLOWED.to_bytes_with_nul().to_vec();
    let digit = path.len() - 2;
    // The bytes are read by the kernel and by the broker alone.
    let digit = path[digit..].as_mut_ptr() as usize;
    let address = path.as_ptr() as u64;
    let (stop, next) = (AtomicBool::new(false), AtomicU8::new(b'1'));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let byte = next.fetch_xor(1, Ordering::Relaxed);
                // SAFETY: a byte of `path`, which outlives this scope and which nothing borrows here.
                unsafe { core::ptr::write_volatile(digit as *mut u8, byte) };
            }
        });
        let (mut opened, mut refused) = (0, 0);
        while opened < 200 || refused < 200 {
            match open_at(address) {
                Ok(number) => {
                    assert_eq!(device(number), NULL, "the denied device was opened");
                    close(number);
                    opened += 1;
                }
                Err(error) => {
                    assert_eq!(error, libc::ENOENT);
                    refused += 1;
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
}

const BAD: [u64; 5] = [0, 1, 4095, 0x7FFF_FFFF_F000, u64::MAX - 7];

fn pointers() {
    let here = libc::AT_FDCWD as u64;
    let number = u64::from(open(ALLOWED).unwrap());
    for bad in BAD {
        assert_eq!(open_at(bad), Err(libc::EFAULT), "{bad:#x}");
        assert_eq!(call(libc::SYS_newfstatat, &[here, bad, 0, 0]), Err(libc::EFAULT));
        let into = [here, ALLOWED.as_ptr() as u64, bad, 0];
        assert_eq!(call(libc::SYS_newfstatat, &into), Err(libc::EFAULT), "{bad:#x}");
        let into = [
            here,
            ALLOWED.as_ptr() as u64,
            0,
            u64::from(libc::STATX_BASIC_STATS),
            bad,
        ];
        assert_eq!(call(libc::SYS_statx, &into), Err(libc::EFAULT), "{bad:#x}");
        // The kernel looks at no byte that is written to this stand-in.
        let _ = call(libc::SYS_write, &[number, bad, 32]);
        let watched = call(libc::SYS_inotify_add_watch, &[0, bad, u64::from(libc::IN_CREATE)]);
        assert!(watched.is_err());
    }
    let long = vec![b'x'; 1 << 20];
    assert_eq!(open_at(long.as_ptr() as u64), Err(libc::ENAMETOOLONG));
    let mut long = ALLOWED.to_bytes().to_vec();
    long.resize(1 << 20, b'0');
    assert_eq!(open_at(long.as_ptr() as u64), Err(libc::ENAMETOOLONG));
    close(number as u32);
}

fn pages() {
    let (read_write, private) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
    );
    let two = [0, 8192, read_write as u64, private as u64, u64::MAX, 0];
    let start = call(libc::SYS_mmap, &two).unwrap() as u64;
    call(libc::SYS_munmap, &[start + 4096, 4096]).unwrap();
    let put = |bytes: &[u8]| {
        let at = start + 4096 - bytes.len() as u64;
        // SAFETY: the last bytes of the page that is mapped, which nothing borrows.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len()) };
        at
    };
    let whole = put(ALLOWED.to_bytes_with_nul());
    assert_eq!(device(open_at(whole).unwrap()), NULL);
    let without_end = put(ALLOWED.to_bytes());
    assert_eq!(open_at(without_end), Err(libc::EFAULT));
    // It goes on in the next page.
    let across = call(libc::SYS_mmap, &two).unwrap() as u64 + 4096 - 20;
    // SAFETY: bytes on both sides of an end of a page, both mapped, which nothing borrows.
    unsafe { core::ptr::copy_nonoverlapping(DENIED.as_ptr().cast(), across as *mut u8, 24) };
    assert_eq!(open_at(across), Err(libc::ENOENT));
}

/// A child of this process, which runs `part` and ends.
fn child(part: impl FnOnce()) -> u64 {
    // SAFETY: the child makes system calls alone, and ends by one.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        part();
        let _ = call(libc::SYS_exit_group, &[0]);
    }
    u64::try_from(pid).unwrap()
}

fn end(pid: u64, signal: i32) {
    call(libc::SYS_kill, &[pid, signal as u64]).unwrap();
    call(libc::SYS_wait4, &[pid, 0, 0, 0]).unwrap();
}

fn sleep_for_ever() {
    loop {
        thread::sleep(Duration::from_secs(1));
    }
}

fn limit() {
    for _ in 0..3000 {
        close(open(ALLOWED).unwrap());
    }
    let mut held: Vec<_> = (0..4).map(|_| open(ALLOWED).unwrap()).collect();
    for _ in 0..3000 {
        assert_eq!(open(ALLOWED), Err(libc::EMFILE));
    }
    // A copy keeps the context open, wherever it is.
    let last = held.pop().unwrap();
    let copy = call(libc::SYS_dup, &[last.into()]).unwrap() as u32;
    close(last);
    assert_eq!(open(ALLOWED), Err(libc::EMFILE), "a copy is open");
    close(copy);
    held.push(open(ALLOWED).unwrap());
    let last = held.pop().unwrap();
    let heir = child(sleep_for_ever);
    close(last);
    assert_eq!(open(ALLOWED), Err(libc::EMFILE), "a child has it");
    end(heir, libc::SIGKILL);
    held.push(open(ALLOWED).unwrap());
    // Nor do locks of its own make room.
    for number in &held {
        let mut lock = [0_u64; 4];
        lock[0] = libc::F_UNLCK as u64;
        for command in [libc::F_OFD_SETLK, libc::F_SETLK] {
            let _ = call(
                libc::SYS_fcntl,
                &[u64::from(*number), command as u64, lock.as_mut_ptr() as u64],
            );
        }
    }
    assert_eq!(open(ALLOWED), Err(libc::EMFILE), "its locks do not count");
}

fn locks() {
    let number = open(ALLOWED).unwrap();
    let mut lock = [0_u64; 4];
    lock[0] = libc::F_UNLCK as u64;
    for command in [libc::F_OFD_SETLK, libc::F_OFD_SETLKW] {
        let locked = call(
            libc::SYS_fcntl,
            &[number.into(), command as u64, lock.as_mut_ptr() as u64],
        );
        assert_eq!(locked, Err(libc::EINVAL));
    }
}

fn doorbells() {
    let number = open(ALLOWED).unwrap();
    let mut doorbell = [0_u32; 8];
    doorbell[0] = 28;
    doorbell[1] = 1 << 16 | 8;
    let write = |number: u64, words: &[u32; 8], bytes: u64| {
        call(libc::SYS_write, &[number, words.as_ptr() as u64, bytes])
    };
    // The stand-in has no doorbell: the error is that of the ioctl, and shows that the broker made it.
    assert_eq!(write(number.into(), &doorbell, 32), Err(libc::ENOTTY));
    // A write with requests, of other bytes, or of another size is the kernel's, and this file takes all.
    let mut requests = doorbell;
    requests[5] = 1;
    assert_eq!(write(number.into(), &requests, 32), Ok(32));
    assert_eq!(write(number.into(), &[7; 8], 32), Ok(32));
    assert_eq!(write(number.into(), &doorbell, 31), Ok(31));
    // A device that was not given is not rung, whatever its number.
    let zero = open(c"/dev/zero").unwrap();
    close(number);
    call(libc::SYS_dup3, &[zero.into(), number.into(), 0]).unwrap();
    assert_eq!(write(number.into(), &doorbell, 32), Ok(32));
    close(number);
    assert_eq!(write(number.into(), &doorbell, 32), Err(libc::EBADF));
}

fn killed() {
    for round in 0..100 {
        let opener = child(|| {
            loop {
                if let Ok(number) = open(ALLOWED) {
                    let _ = call(libc::SYS_close, &[number.into()]);
                }
            }
        });
        thread::sleep(Duration::from_micros(round * 30));
        end(opener, libc::SIGKILL);
    }
    let both = [open(ALLOWED).unwrap(), open(ALLOWED).unwrap()];
    assert_eq!(open(ALLOWED), Err(libc::EMFILE));
    both.into_iter().for_each(close);
}

fn signals() {
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: a handler that does nothing (signal(2)).
    unsafe { libc::signal(libc::SIGALRM, nothing as *const () as usize) };
    let every = [0_i64, 100, 0, 100];
    call(
        libc::SYS_setitimer,
        &[libc::ITIMER_REAL as u64, every.as_ptr() as u64, 0],
    )
    .unwrap();
    for _ in 0..2000 {
        let number = open(ALLOWED).unwrap();
        assert!(number > 2, "{number}");
        assert_eq!(device(number), NULL);
        close(number);
    }
    call(
        libc::SYS_setitimer,
        &[libc::ITIMER_REAL as u64, [0_i64; 4].as_ptr() as u64, 0],
    )
    .unwrap();
}

fn threads() {
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..100 {
                    let number = open(ALLOWED).unwrap();
                    assert_eq!(device(number), NULL);
                    close(number);
                }
            });
        }
    });
}

fn privileges() {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert!(status.contains(&format!("{set}:\t0000000000000000")), "{status}");
    }
    assert!(
        status.contains("NoNewPrivs:\t1") && status.contains("Seccomp:\t2"),
        "{status}"
    );
    let mut nodes = fs::read_dir("/dev/infiniband").unwrap();
    assert!(nodes.next().is_none(), "nodes are hidden");
    for folder in [c"/dev", c"/dev/null"] {
        let path = folder.as_ptr() as u64;
        assert_eq!(call(libc::SYS_umount2, &[path, 0]), Err(libc::EPERM));
    }
    hidden_whenever_they_come();
    // The listener is the broker's alone.
    for descriptor in fs::read_dir("/proc/self/fd").unwrap() {
        let target = fs::read_link(descriptor.unwrap().path()).unwrap_or_default();
        assert!(!target.to_str().unwrap().contains("seccomp"), "{target:?}");
    }
    open(ALLOWED).unwrap();
}

/// `/dev` is a folder of this sandbox's own, with what is there for all others.
fn hidden_whenever_they_come() {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let of_dev = |line: &&str| line.split(' ').nth(4) == Some("/dev");
    let dev = mounts.lines().rfind(of_dev).unwrap();
    assert!(dev.contains(" - tmpfs ") && dev.contains(" ro,"), "{dev}");
    assert_eq!(fs::metadata("/dev/null").unwrap().rdev(), NULL);
    fs::write("/dev/null", "x").unwrap();
    assert!(fs::read_link("/dev/fd").is_err() || fs::read_dir("/dev/fd").is_ok());
    let made = fs::create_dir("/dev/infiniband/uverbs0").unwrap_err();
    assert_eq!(made.raw_os_error(), Some(libc::EROFS));
    std::env::set_current_dir("/dev").unwrap();
    assert!(fs::read_dir("infiniband").unwrap().next().is_none());
}

fn orphan() {
    let parent = child(|| {
        child(|| {
            // Its parent ends, and then this program does.
            thread::sleep(Duration::from_millis(100));
            open(ALLOWED).unwrap();
        });
    });
    call(libc::SYS_wait4, &[parent, 0, 0, 0]).unwrap();
}

fn absent() {
    assert!(fs::metadata(ALLOWED.to_str().unwrap()).is_err());
    assert_eq!(open(ALLOWED), Err(libc::ENOENT));
}

fn limit_of_two() {
    for _ in 0..100 {
        let both = [open(ALLOWED).unwrap(), open(ALLOWED).unwrap()];
        assert_eq!(open(ALLOWED), Err(libc::EMFILE));
        both.into_iter().for_each(close);
    }
}

/// A trapped call waits until the listener is closed, and is none then.
fn unsupervised() {
    assert_eq!(open(ALLOWED), Err(libc::ENOSYS));
    assert_eq!(open(c"/dev/zero"), Err(libc::ENOSYS));
}
