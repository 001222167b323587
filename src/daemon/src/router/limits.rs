//! Limits of a router, and its counts.

/// Limits of a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouterLimits {
    /// The most clients: 256 by default. Each costs the daemon some KiB, and maps memory that the client pays for.
    pub clients_max: usize,
    /// The most clients of one user: 128 by default.
    pub clients_of_user_max: usize,
    /// The most endpoints that one endpoint exchanges messages with: 1024 by default. Each on another node can keep 16 messages in the
    /// daemon's memory.
    pub contacts_max: usize,
    /// The most messages that are taken of a client in one turn: 32 by default.
    pub turn: usize,
    /// The bytes of messages and operations after which a client's turn ends: 256 KiB by default. So a transfer does not hold up the
    /// messages of others.
    pub turn_bytes: u64,
    /// The most bytes of messages and operations of other nodes that wait for one user's processes: 256 MiB by default. One beyond that is
    /// refused as [`UndeliveredReason::ReceiverFull`](crate::UndeliveredReason::ReceiverFull).
    pub kept_bytes_of_user_max: u64,
    /// The most bytes of the memory of one user's processes, rings and cells included ([`EndpointLayout::bytes`]): 4 GiB by default. Its
    /// pages are of the account of each process.
    ///
    /// [`EndpointLayout::bytes`]: crate::EndpointLayout::bytes
    pub bytes_of_user_max: u64,
    /// The most bytes of the memory of one job's processes on this node: 2 GiB by default.
    pub bytes_of_job_max: u64,
}

impl Default for RouterLimits {
    fn default() -> Self {
        Self {
            clients_max: 256,
            clients_of_user_max: 128,
            contacts_max: 1024,
            turn: 32,
            turn_bytes: 256 << 10,
            kept_bytes_of_user_max: 256 << 20,
            bytes_of_user_max: 4 << 30,
            bytes_of_job_max: 2 << 30,
        }
    }
}

/// Declares counts, and lists of all of them in order.
macro_rules! counts {
    ($($(#[$of:meta])* $count:ident,)*) => {
        /// Counts of a router since it was made.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct RouterCounts {
            $($(#[$of])* pub $count: u64,)*
        }

        impl RouterCounts {
            pub(crate) const fn all(&self) -> [u64; [$(stringify!($count)),*].len()] {
                [$(self.$count),*]
            }

            pub(crate) const fn all_mut(&mut self) -> [&mut u64; [$(stringify!($count)),*].len()] {
                [$(&mut self.$count),*]
            }
        }
    };
}

counts! {
    /// Clients that were attached.
    attached,
    /// Clients that were cut off.
    cut,
    /// Messages between endpoints of this node.
    local,
    /// Messages and operations that were sent to other nodes.
    sent,
    /// Messages of other nodes that clients were given.
    received,
    /// Messages and operations that were reported as undelivered.
    undelivered,
    /// Operations on arenas of this node that were carried out.
    operations,
    /// Bytes of messages and operations that were taken of clients.
    taken_bytes,
    /// Messages and operations that came of other nodes.
    arrived,
    /// How many of these have an outcome: it was sent back, or their node was lost.
    answered,
}
