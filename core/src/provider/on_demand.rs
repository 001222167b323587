//! On-demand paging: the device faults pages in when it accesses them.

use core::fmt;

use super::{MemoryError, RemoteAccess, Shortfall, Wish};

bitflags::bitflags! {
    /// The operations of a reliable connection whose memory may be paged on demand. Empty if the device has no on-demand paging.
    ///
    /// The bits are those of `enum ibv_odp_transport_cap_bits`. Source: `ibv_query_device_ex(3)`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct OnDemand: u32 {
        /// The memory that a SEND reads.
        const SEND = 1;
        /// The memory that a receive writes.
        const RECEIVE = 1 << 1;
        /// The memory that a WRITE reads at the requester, and writes at the responder.
        const WRITE = 1 << 2;
        /// The memory that a READ reads at the responder, and writes at the requester.
        const READ = 1 << 3;
        /// The memory that an atomic changes.
        const ATOMIC = 1 << 4;
        /// The memory that a receive of a shared receive queue writes.
        const SHARED_RECEIVE = 1 << 5;
    }
}

impl OnDemand {
    /// Checks that a device with these operations can page a window with these rights on demand.
    ///
    /// # Errors
    /// The device lacks a needed operation. Every window needs SEND, WRITE and READ, since this host may post them on its ranges.
    pub fn check_window(self, remote: RemoteAccess) -> Result<(), MemoryError> {
        let mut needed = Self::SEND | Self::WRITE | Self::READ;
        needed.set(Self::ATOMIC, remote.atomic);
        let lacks = needed.difference(self);
        if lacks.is_empty() {
            return Ok(());
        }
        Err(MemoryError::Unmet(
            Wish::OnDemand,
            Shortfall::Operations { lacks },
        ))
    }

    /// The names of the operations.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let names = [
            (Self::SEND, "SEND"),
            (Self::RECEIVE, "receive"),
            (Self::WRITE, "WRITE"),
            (Self::READ, "READ"),
            (Self::ATOMIC, "atomics"),
            (Self::SHARED_RECEIVE, "shared receive"),
        ];
        let named = names.into_iter().filter(move |(bit, _)| self.contains(*bit));
        named.map(|(_, name)| name)
    }
}

impl fmt::Display for OnDemand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for name in self.names() {
            write!(f, "{separator}{name}")?;
            separator = ", ";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{MemoryError, OnDemand, RemoteAccess, Shortfall, Wish};
    use std::string::ToString as _;

    #[test]
    fn what_a_window_needs_is_named() {
        let most = OnDemand::SEND | OnDemand::WRITE | OnDemand::READ;
        assert_eq!(most.check_window(RemoteAccess::NONE), Ok(()));
        let refused = |device: OnDemand, remote, lacks| {
            let why = Shortfall::Operations { lacks };
            assert_eq!(
                device.check_window(remote),
                Err(MemoryError::Unmet(Wish::OnDemand, why))
            );
        };
        refused(OnDemand::empty(), RemoteAccess::NONE, most);
        refused(most - OnDemand::READ, RemoteAccess::NONE, OnDemand::READ);
        refused(most, RemoteAccess::ALL, OnDemand::ATOMIC);
        let error = most.check_window(RemoteAccess::ALL).unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot provide the required on-demand paging: the device has none for atomics"
        );
    }
}
