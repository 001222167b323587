//! Rights that a registration or a queue pair grants to others.

bitflags::bitflags! {
    /// Rights on registered memory, or of a peer through a queue pair.
    ///
    /// The bits are those of `enum ibv_access_flags`. Local read is always allowed.
    /// Source: `ibv_reg_mr(3)`, `ibv_modify_qp(3)`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Access: u32 {
        /// The local device may write here: received messages, results of READs and atomics.
        const LOCAL_WRITE = 1;
        /// A peer may WRITE here; needs `LOCAL_WRITE` too.
        const REMOTE_WRITE = 1 << 1;
        /// A peer may READ here.
        const REMOTE_READ = 1 << 2;
        /// A peer may run atomics here; needs `LOCAL_WRITE` too.
        const REMOTE_ATOMIC = 1 << 3;
        /// WRITEs of a peer may become visible out of order; a provider may ignore this right.
        const RELAXED_ORDERING = 1 << 20;
    }
}

impl Access {
    /// Whether a registration may have these rights: a peer's right to change memory
    /// needs `LOCAL_WRITE`, too.
    ///
    /// Source: `ibv_reg_mr(3)`.
    #[must_use]
    pub const fn is_valid_for_registration(self) -> bool {
        !self.intersects(Self::REMOTE_WRITE.union(Self::REMOTE_ATOMIC)) || self.contains(Self::LOCAL_WRITE)
    }
}

#[cfg(test)]
mod tests {
    use super::Access;

    #[test]
    fn remote_change_needs_local_write() {
        assert!(Access::REMOTE_READ.is_valid_for_registration());
        assert!(!Access::REMOTE_WRITE.is_valid_for_registration());
        assert!(!Access::REMOTE_ATOMIC.is_valid_for_registration());
        assert!((Access::REMOTE_WRITE | Access::LOCAL_WRITE).is_valid_for_registration());
    }
}
