//! The stream a handshake runs over, as little of it as is needed.

use core::fmt;

/// A reliable stream of bytes that never waits: TCP, or a simulator's.
pub trait Io {
    /// Reads waiting bytes into `buffer`, and returns how many; zero means the peer closed.
    ///
    /// # Errors
    /// [`IoError::WouldBlock`] if no bytes are waiting.
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, IoError>;

    /// Writes from the start of `bytes` as many as there is room for, and returns how many.
    ///
    /// # Errors
    /// [`IoError::WouldBlock`] if there is no room yet.
    fn write(&mut self, bytes: &[u8]) -> Result<usize, IoError>;
}

/// Why a stream gave or took nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum IoError {
    /// Nothing now; later perhaps. The implementor maps an interrupted call to this, or tries it again.
    WouldBlock,
    /// The peer closed or reset the stream.
    Closed,
    /// Anything else, by the errno of the platform.
    Failed(i32),
}

impl fmt::Display for IoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WouldBlock => f.write_str("would block"),
            Self::Closed => f.write_str("the peer closed the stream"),
            Self::Failed(errno) => write!(f, "the stream failed: {}", StreamErrno(*errno)),
        }
    }
}

/// The errno of a failed stream, displayed in words if it is a known one. Source: `connect(2)`, Linux numbers.
pub(super) struct StreamErrno(pub(super) i32);

impl fmt::Display for StreamErrno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = match self.0 {
            13 => "permission denied",
            99 => "no such local address",
            101 => "network unreachable",
            104 => "reset by the peer",
            110 => "timed out",
            111 => "connection refused: nobody listens there",
            113 => "no route to host",
            errno => return write!(f, "errno {errno}"),
        };
        write!(f, "{words} (errno {})", self.0)
    }
}

impl core::error::Error for IoError {}
