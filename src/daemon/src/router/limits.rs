//! Limits and counts of a router.

/// Limits of a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouterLimits {
    /// Maximum number of clients: 512 by default. Each costs the daemon some KiB, and maps memory that is charged to the client.
    pub clients_max: usize,
    /// Maximum number of clients of one user: 256 by default.
    pub clients_of_user_max: usize,
    /// Maximum number of clients of one job: 128 by default, so that one job does not keep out its user's other jobs.
    pub clients_of_job_max: usize,
    /// Maximum number of endpoints that an endpoint exchanges messages with: 1024 by default. For each on another node, up to 16 messages
    /// may wait in the daemon's memory.
    pub contacts_max: usize,
    /// Maximum number of submissions that are taken from a client in one turn: 32 by default.
    pub turn: usize,
    /// Number of bytes of messages and operations after which a client's turn ends: 256 KiB by default. So a transfer does not delay the
    /// messages of other clients.
    pub turn_bytes: u64,
    /// Maximum number of bytes of messages and operations from other nodes that wait for one user's processes: 256 MiB by default. Beyond
    /// it they are refused as [`UndeliveredReason::ReceiverFull`](crate::UndeliveredReason::ReceiverFull).
    pub kept_bytes_of_user_max: u64,
    /// The same for one job's processes: 128 MiB by default.
    pub kept_bytes_of_job_max: u64,
    /// Maximum number of bytes of shared memory of one user's processes, rings and cells included ([`EndpointLayout::bytes`]): 4 GiB by
    /// default. The pages are charged to each process.
    ///
    /// [`EndpointLayout::bytes`]: crate::EndpointLayout::bytes
    pub bytes_of_user_max: u64,
    /// Maximum number of bytes of shared memory of one job's processes on this node: 2 GiB by default.
    pub bytes_of_job_max: u64,
}

impl Default for RouterLimits {
    fn default() -> Self {
        Self {
            clients_max: 512,
            clients_of_user_max: 256,
            clients_of_job_max: 128,
            contacts_max: 1024,
            turn: 32,
            turn_bytes: 256 << 10,
            kept_bytes_of_user_max: 256 << 20,
            kept_bytes_of_job_max: 128 << 20,
            bytes_of_user_max: 4 << 30,
            bytes_of_job_max: 2 << 30,
        }
    }
}

/// Declares counts, and functions that list all of them in order.
macro_rules! counts {
    ($($(#[$of:meta])* $count:ident,)*) => {
        /// Counts of a router since it was created.
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
    /// Clients that attached.
    attached,
    /// Clients that were cut off.
    cut,
    /// Messages between endpoints of this node.
    local,
    /// Messages and operations that were sent to other nodes.
    sent,
    /// Messages from other nodes that were delivered to clients.
    received,
    /// Messages and operations that were reported as undelivered.
    undelivered,
    /// Operations on arenas of this node that were executed.
    operations,
    /// Bytes of messages and operations that were taken from clients.
    taken_bytes,
    /// Messages and operations that arrived from other nodes.
    arrived,
    /// Arrived messages and operations that have an outcome: an answer was sent, or the node was lost.
    answered,
}
