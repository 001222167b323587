//! What becomes of staged requests that the device never got.

use doorbell_core::Ticket;
use doorbell_core::provider::{PostError, ProviderError};

use crate::queue_pair::Table;
use crate::{Slot, errno};

/// Unstages everything, and sends the slots home.
#[cold]
#[inline(never)]
pub(crate) fn discard(table: &mut Table) {
    table.unstage(|_, slot| drop(slot));
}

/// Unstages what a post call did not take; `each` gets the slots.
#[cold]
pub(crate) fn refused(
    table: &mut Table,
    call: &'static str,
    status: i32,
    posted: u32,
    each: impl FnMut(Ticket, Slot),
) -> PostError {
    let unposted = table.staged();
    table.unstage(each);
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
