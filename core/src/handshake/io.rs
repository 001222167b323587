//! The stream of a handshake, limited to the needed calls.

use core::fmt;

/// A reliable byte stream whose calls never block: TCP, or a simulated one.
pub trait Io {
    /// Reads waiting bytes into `buffer`, and returns their number; zero means that the peer closed the stream.
    ///
    /// # Errors
    /// [`IoError::WouldBlock`] if no bytes are waiting.
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, IoError>;

    /// Writes as many bytes from the start of `bytes` as there is room for, and returns their number.
    ///
    /// # Errors
    /// [`IoError::WouldBlock`] if there is no room yet.
    fn write(&mut self, bytes: &[u8]) -> Result<usize, IoError>;
}

/// The reason why a read or write moved no bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum IoError {
    /// Nothing can be moved now. The implementor maps an interrupted call to this, or repeats the call.
    WouldBlock,
    /// The peer closed or reset the stream.
    Closed,
    /// Another error, with the errno of the platform.
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

/// The errno of a failed stream, displayed with a description if it is known. Source: `connect(2)`, Linux numbers.
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
