//! Notifies systemd that the daemon is ready, for a unit of `Type=notify`, and that it runs, for `WatchdogSec=`: one datagram each to the
//! socket that `NOTIFY_SOCKET` names.
//!
//! Source: sd_notify(3), "Notes"; sd_watchdog_enabled(3).

use core::time::Duration;
use std::env;
use std::ffi::OsString;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use crate::log;

/// Sends a notification to the service manager, if it requested notifications, and logs a failure. Returns whether it need not be repeated.
pub(super) fn notify(what: &str) -> bool {
    let sent = send(what);
    if let Err(error) = &sent {
        log::write_line(&format!("doorbell: {what} for the service manager: {error}"));
    }
    !is_busy(&sent)
}

/// Repeats a notification, and logs nothing. Returns whether it need not be repeated again.
pub(super) fn repeat(what: &str) -> bool {
    !is_busy(&send(what))
}

/// Does nothing if `NOTIFY_SOCKET` is not set.
///
/// # Errors
/// The socket cannot accept the datagram now. This does not wait, since the daemon's processes would have to wait, too.
fn send(what: &str) -> io::Result<()> {
    env::var_os("NOTIFY_SOCKET").map_or(Ok(()), |socket| send_to(&socket, what))
}

/// Whether the service manager's socket is full, so that the notification has to be repeated. A missing socket is a permanent error.
fn is_busy(sent: &io::Result<()>) -> bool {
    sent.as_ref()
        .is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}

/// Interval at which the service manager expects `WATCHDOG=1`, as a third of the time after which it ends this process. `None` if it expects
/// nothing.
pub(super) fn watchdog() -> Option<Duration> {
    let [time, process] = ["WATCHDOG_USEC", "WATCHDOG_PID"].map(env::var);
    watchdog_of(time.ok().as_deref(), process.ok().as_deref(), std::process::id())
}

fn watchdog_of(time: Option<&str>, process: Option<&str>, own: u32) -> Option<Duration> {
    // The variables of another process may be inherited.
    if process.is_some_and(|process| process != own.to_string()) {
        return None;
    }
    let time: u64 = time?.parse().ok().filter(|time| *time > 0)?;
    Some(Duration::from_micros(time / 3))
}

fn send_to(socket: &OsString, what: &str) -> io::Result<()> {
    let address = match socket.as_bytes().split_first() {
        // An abstract socket address.
        Some((b'@', name)) => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(socket)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.send_to_addr(what.as_bytes(), &address)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::{SocketAddr, UnixDatagram};

    use super::{send_to, watchdog_of};

    #[test]
    fn a_watchdog_of_this_process_is_told_three_times_in_its_time() {
        let of = |time, process| watchdog_of(time, process, 7).map(|time| time.as_micros());
        assert_eq!(of(Some("30000000"), Some("7")), Some(10_000_000));
        assert_eq!(of(Some("30000000"), None), Some(10_000_000));
        for (time, process) in [
            (None, Some("7")),
            (Some("30000000"), Some("8")),
            (Some("0"), None),
            (Some("-1"), None),
        ] {
            assert_eq!(of(time, process), None, "{time:?} {process:?}");
        }
    }

    #[test]
    fn a_manager_is_told_at_a_path_or_at_an_abstract_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let name = format!("doorbell-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let managers = [
            (UnixDatagram::bind(&path).unwrap(), path.clone().into_os_string()),
            (
                UnixDatagram::bind_addr(&address).unwrap(),
                format!("@{name}").into(),
            ),
        ];
        for (manager, socket) in managers {
            send_to(&socket, "READY=1").unwrap();
            let mut told = [0; 64];
            let length = manager.recv(&mut told).unwrap();
            assert_eq!(&told[..length], b"READY=1");
        }
        assert!(send_to(&folder.path().join("nobody").into_os_string(), "READY=1").is_err());
    }

    #[test]
    fn a_manager_that_does_not_read_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        let socket = path.into_os_string();
        // Each is sent from its own socket, so that no sender runs out of room first.
        let error = loop {
            if let Err(error) = send_to(&socket, "STATUS=") {
                break error;
            }
        };
        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "{error}");
        drop(manager);
    }
}
