//! Descriptors that tokio watches, and the one unsafe call of this package.

use core::future::poll_fn;
use core::task::Poll;
use core::time::Duration;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A copy of a descriptor, which tokio watches.
#[derive(Debug)]
pub(crate) struct Watched {
    descriptor: AsyncFd<OwnedFd>,
    /// Whether room is waited for, too.
    room: bool,
}

impl Watched {
    /// Watches it for input, and for room where that is asked for.
    ///
    /// # Errors
    /// The system gave no descriptor, or epoll refused it.
    pub(crate) fn new(descriptor: BorrowedFd<'_>, room: bool) -> io::Result<Self> {
        let interest = if room {
            Interest::READABLE | Interest::WRITABLE
        } else {
            Interest::READABLE
        };
        let copy = descriptor.try_clone_to_owned()?;
        // SAFETY: an `OwnedFd` is open until it is dropped, and has the same number all along. It is dropped by the
        // `AsyncFd` alone, which lends it to nobody who could exchange it: the field is private, and `get_mut` is not called.
        let watched = unsafe { AsyncFd::register_with_interest(copy, interest) };
        let descriptor = watched.map_err(io::Error::from)?;
        Ok(Self { descriptor, room })
    }
}

/// Waits until one of them is ready, or for so long. Tokio's memory of readiness is cleared for them.
///
/// # Errors
/// The runtime is shutting down.
pub(crate) async fn ready<'w>(
    watched: impl Iterator<Item = &'w Watched> + Clone,
    at_most: Option<Duration>,
) -> io::Result<()> {
    let any = poll_fn(|cx| {
        let mut is_ready = false;
        for Watched { descriptor, room } in watched.clone() {
            if let Poll::Ready(guard) = descriptor.poll_read_ready(cx) {
                guard?.clear_ready();
                is_ready = true;
            }
            if !room {
                continue;
            }
            if let Poll::Ready(guard) = descriptor.poll_write_ready(cx) {
                guard?.clear_ready();
                is_ready = true;
            }
        }
        if is_ready {
            Poll::Ready(Ok(()))
        } else {
            Poll::Pending
        }
    });
    match at_most {
        // A span that is over is no error: the caller looks again.
        Some(span) => tokio::time::timeout(span, any).await.unwrap_or(Ok(())),
        None => any.await,
    }
}
