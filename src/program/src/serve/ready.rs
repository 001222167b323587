//! Notifies systemd that the daemon is ready, for a unit of `Type=notify`: one datagram to the socket that `NOTIFY_SOCKET` names.
//!
//! Source: sd_notify(3), "Notes".

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

    use super::send_to;

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
