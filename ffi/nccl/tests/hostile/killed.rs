//! A peer whose process is killed: a process of its own holds the lifelines, small or large, and the time until a receive fails is printed.

use core::time::Duration;
use std::net::TcpListener;
use std::os::fd::AsRawFd as _;
use std::process::{Child, Command, Stdio};
use std::sync::PoisonError;
use std::time::Instant;

use doorbell_nccl::abi::NcclResult;

use super::{CLEAR, HELLO, Hostile, NET, NetV12, Plugin, Receive, SERIAL, eventually, fake, frame};

/// Kills of each kind of process.
const KILLS: usize = 5;

/// A process that holds a listener, and memory of so many MiB; and the listener's port.
fn holder(mib: usize) -> (Child, u16) {
    let listener = TcpListener::bind("[::]:0").or_else(|_| TcpListener::bind("0.0.0.0:0"));
    let listener = listener.unwrap();
    // SAFETY: a descriptor of this process; its flags alone change, so that the program keeps it (fcntl(2)).
    assert_eq!(unsafe { libc::fcntl(listener.as_raw_fd(), libc::F_SETFD, 0) }, 0);
    // It fills its buffer, and then waits for a reader.
    let mut command = Command::new("dd");
    command
        .arg("if=/dev/zero")
        .arg(format!("bs={}", (mib << 20).max(1 << 20)));
    let child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    (child.unwrap(), listener.local_addr().unwrap().port())
}

/// Times from the kill of a peer's process until its kernel has ended it, and until a receive from it fails.
fn killed(plugin: &Plugin, mib: usize) -> [Duration; 2] {
    let mut hostile = Hostile::connect(plugin);
    let (comm, _) = hostile.open(plugin);
    let receive = Receive::new(comm, 8);
    drop(hostile.hear(CLEAR));
    let (mut child, port) = holder(mib);
    // A byte comes out once its buffer is full.
    let mut byte = [0];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut byte).unwrap();
    hostile.say(&frame(HELLO, 0, [0; 4], u32::from(port).to_be_bytes(), &[]));
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(100) {
        hostile.poll();
        assert_eq!(receive.test(), Ok(None));
    }
    let began = Instant::now();
    child.kill().unwrap();
    let waited = std::thread::spawn(move || {
        child.wait().unwrap();
        began.elapsed()
    });
    let ended = eventually("its end is noticed", || receive.test().transpose());
    let noticed = began.elapsed();
    assert_eq!(ended, Err(NcclResult::REMOTE_ERROR));
    receive.end(0);
    [waited.join().unwrap(), noticed]
}

#[test]
fn a_receive_from_a_process_that_is_killed_fails() {
    let _guard = SERIAL.lock().unwrap_or_else(PoisonError::into_inner);
    fake();
    let plugin = Plugin::new();
    for mib in [1, 512] {
        let times: Vec<_> = (0..KILLS).map(|_| killed(&plugin, mib)).collect();
        let [ended, noticed] = [0, 1].map(|which| {
            let mut all: Vec<_> = times.iter().map(|times| times[which]).collect();
            all.sort_unstable();
            all[KILLS / 2]
        });
        println!(
            "a process of {mib} MiB: its kernel ends it after {ended:.1?}, and receives fail after {noticed:.1?} (medians)"
        );
    }
    assert_eq!(call!(close_listen, plugin.listener), NcclResult::SUCCESS);
    assert_eq!(call!(finalize, plugin.context), NcclResult::SUCCESS);
}
