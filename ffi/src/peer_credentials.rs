//! The process on the other side of a Unix socket.

use std::os::fd::{AsRawFd, BorrowedFd};

use doorbell_core::provider::ProviderError;

use crate::errno;

/// The credentials of a process, as the kernel recorded them at the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCredentials {
    /// User of the process.
    pub uid: u32,
    /// Group of the process.
    pub gid: u32,
    /// Process number in this process's namespace. `None` if the namespace does not contain the peer, for example in another
    /// container.
    pub pid: Option<core::num::NonZeroU32>,
}

impl PeerCredentials {
    /// Returns the credentials of the peer of a Unix socket. Source: `unix(7)`, `SO_PEERCRED`.
    ///
    /// # Errors
    /// The descriptor is not a connected Unix socket.
    pub fn of(socket: BorrowedFd<'_>) -> Result<Self, ProviderError> {
        let mut found = libc::ucred {
            pid: 0,
            uid: 0,
            gid: 0,
        };
        let mut bytes = libc::socklen_t::try_from(size_of_val(&found)).unwrap_or(0);
        // SAFETY: an open descriptor, and a writable structure with its size (getsockopt(2)).
        let status = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut found).cast(),
                &raw mut bytes,
            )
        };
        errno::from_minus_one("getsockopt", status)?;
        Ok(Self {
            uid: found.uid,
            gid: found.gid,
            pid: u32::try_from(found.pid).ok().and_then(core::num::NonZeroU32::new),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;
    use std::os::unix::net::UnixStream;

    use super::PeerCredentials;

    #[test]
    fn a_socket_says_who_connected_it() {
        let (a, _b) = UnixStream::pair().unwrap();
        let found = PeerCredentials::of(a.as_fd()).unwrap();
        assert_eq!(found.pid.unwrap().get(), std::process::id());
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(
            PeerCredentials::of(file.as_fd()).unwrap_err().errno,
            libc::ENOTSOCK
        );
    }
}
