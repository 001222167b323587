//! The parts of a context that sends and receives need: a comm, and the way of a message over its link.

use doorbell::link::{LinkId, Links};

use super::comm::{Comm, Stage};
use super::{Context, Said, open_comm, push};
use crate::failure::Failure;
use crate::memory::Memory;
use crate::places::{Key, Places};
use crate::relay::credit::Credit;

/// A comm that has not failed, and what sends and receives of it need.
pub(super) struct Posting<'c> {
    pub(super) comm: &'c mut Comm,
    pub(super) memories: &'c Places<Memory, 16>,
    pub(super) serial: &'c mut u32,
    pub(super) outlet: Outlet<'c>,
}

/// The links, and the message that goes over one of them.
pub(super) struct Outlet<'c> {
    links: &'c mut Links,
    circuits: &'c mut [(LinkId, Credit)],
    pub(super) buffer: &'c mut [u8],
    is_dirty: &'c mut bool,
}

impl Outlet<'_> {
    /// Sends so many bytes of the buffer.
    #[inline]
    pub(super) fn push(&mut self, link: LinkId, length: usize) -> Said {
        let message = self.buffer.get(..length).unwrap_or_default();
        let said = push(self.links, self.circuits, link, message);
        *self.is_dirty |= matches!(said, Said::Taken(_));
        said
    }
}

impl Context {
    #[inline]
    pub(super) fn posting(&mut self, key: Key) -> Result<Posting<'_>, Failure> {
        let state = &mut self.state;
        let comm = open_comm(&mut state.comms, key)?;
        if let Stage::Failed(code) = comm.stage {
            return Err(Failure::logged(code));
        }
        Ok(Posting {
            comm,
            memories: &state.memories,
            serial: &mut state.serial,
            outlet: Outlet {
                links: &mut self.links,
                circuits: &mut state.circuits,
                buffer: &mut self.buffer,
                is_dirty: &mut self.is_dirty,
            },
        })
    }
}
