//! Staged requests that the device never got, and how they are taken back.

use doorbell_core::Ticket;
use doorbell_core::provider::{PostError, ProviderError};

use crate::queue_pair::Table;
use crate::shared_receive_queue::SharedTable;
use crate::{Slot, errno};

/// A table of requests that can be staged.
pub(crate) trait Staging {
    /// How many requests are staged and not posted.
    fn staged(&self) -> u32;
    /// Takes back the staged requests, in order.
    fn unstage(&mut self, each: impl FnMut(Ticket, Slot));
}

impl Staging for Table {
    #[inline]
    fn staged(&self) -> u32 {
        Self::staged(self)
    }

    fn unstage(&mut self, each: impl FnMut(Ticket, Slot)) {
        Self::unstage(self, each);
    }
}

impl Staging for SharedTable {
    #[inline]
    fn staged(&self) -> u32 {
        Self::staged(self)
    }

    fn unstage(&mut self, each: impl FnMut(Ticket, Slot)) {
        Self::unstage(self, each);
    }
}

/// Unstages everything, and returns the slots to their arenas.
#[cold]
#[cfg_attr(not(doorbell_in_line), inline(never))]
pub(crate) fn discard(table: &mut impl Staging) {
    table.unstage(|_, slot| drop(slot));
}

/// Returns the error of a post call that did not take the requests that are still staged.
#[cold]
pub(crate) fn refused(table: &impl Staging, call: &'static str, status: i32, posted: u32) -> PostError {
    let unposted = table.staged();
    let cause = errno::from_value(call, status).err();
    PostError {
        posted,
        unposted,
        cause: cause.unwrap_or(ProviderError {
            call,
            errno: libc::EIO,
        }),
    }
}
