//! Reasons why a process is not attached or is cut off, why a message is not delivered, and why an endpoint is gone.
//!
//! Each reason has a number in packets, descriptors and frames.

use core::fmt;

/// Declares reasons with their numbers and texts.
macro_rules! reasons {
    ($(#[$attribute:meta])* $name:ident { $($(#[$of:meta])* $variant:ident = $number:literal, $text:literal;)* }) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum $name {
            $($(#[$of])* $variant,)*
        }

        impl $name {
            pub(crate) const fn number(self) -> u32 {
                match self {
                    $(Self::$variant => $number,)*
                }
            }

            /// The name of the reason in metrics and JSON documents: `job_key` for `JobKey`.
            #[must_use]
            pub fn name(self) -> String {
                let mut name = String::new();
                for letter in format!("{self:?}").chars() {
                    if letter.is_ascii_uppercase() && !name.is_empty() {
                        name.push('_');
                    }
                    name.push(letter.to_ascii_lowercase());
                }
                name
            }

            pub(crate) const fn of(number: u32) -> Option<Self> {
                match number {
                    $($number => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $(Self::$variant => $text,)*
                })
            }
        }

        impl core::error::Error for $name {}
    };
}

reasons! {
    /// Reason why the daemon refuses to attach a process.
    AttachRefusal {
        /// The packet is not an attach packet of a version that the daemon knows.
        Packet = 1, "the packet is no attach packet of a known version";
        /// The ring depth, the message size or the arena size is invalid.
        Geometry = 2, "the ring depth or the message size is out of bounds";
        /// A descriptor is missing, or there is one too many.
        Descriptors = 3, "the attach packet has to come with the descriptors of rings and cells, and of the arena if there is one";
        /// The descriptor of the rings is not a memfd of the right size, without seals and holes.
        Rings = 4, "the rings are no unsealed memfd of the right size with all its pages";
        /// The descriptor of the cells is not a memfd of the right size, without seals and holes.
        Cells = 5, "the cells are no unsealed memfd of the right size with all their pages";
        /// The descriptor of the arena is not a memfd of the right size, without seals and holes.
        Arena = 6, "the arena is no unsealed memfd of the right size with all its pages";
        /// The key is not the key of the job.
        JobKey = 7, "the job has another key";
        /// Another process of the job has this endpoint number.
        NameTaken = 8, "the endpoint number is taken in this job";
        /// The daemon has reached its limit of clients.
        TooManyClients = 9, "the daemon has reached its limit of clients";
        /// The user has reached its limit of clients.
        TooManyOfUser = 10, "this user has reached its limit of clients";
        /// The process did not send its attach packet in time.
        TooLate = 11, "no attach packet came in time";
        /// The process ended before it was attached.
        Gone = 12, "the process was gone before it was attached";
        /// Too many connections of this user have not sent their attach packets yet: try again.
        TooManyPending = 15, "too many connections of this user have not sent their attach packets: try again";
        /// The memory of this user's processes would exceed its limit.
        MemoryOfUser = 13, "the rings, cells and arenas of this user would exceed its limit of bytes";
        /// The memory of this job's processes would exceed its limit.
        MemoryOfJob = 14, "the rings, cells and arenas of this job would exceed its limit of bytes";
        /// The daemon cannot get more memory or another mapping: try again.
        NoMemory = 16, "the daemon cannot get more memory, or another mapping (vm.max_map_count): try again";
        /// The daemon has reached its limit of descriptors: try again.
        NoDescriptors = 17, "the daemon has reached its limit of open files (ulimit -n): try again";
        /// The daemon has a file of job keys ([`JobKeys`](crate::JobKeys)), and the file does not list the job.
        UnlistedJob = 18, "the daemon's file of job keys does not list this job";
        /// The file of job keys lists the job for other users.
        UserOfJob = 19, "the daemon's file of job keys lists this job for other users";
        /// The job has reached its limit of clients.
        TooManyOfJob = 20, "this job has reached its limit of clients";
    }
}

reasons! {
    /// Reason why a message was not delivered, or an operation was not executed.
    UndeliveredReason {
        /// The sender's job has no such endpoint.
        NoEndpoint = 1, "no such endpoint is attached in this job";
        /// The daemon does not know that node.
        NoNode = 2, "the daemon knows no way to that node";
        /// The message is longer than the receiver's cells.
        TooLong = 3, "the message is longer than the receiver takes";
        /// The sender or the receiver has reached its limit of peers.
        TooManyPeers = 4, "one of the two endpoints has reached its limit of peers";
        /// The link ended before the outcome was known: the message may have been delivered.
        Unknown = 5, "the link to that node ended before the outcome was known";
        /// The receiver ended while the message waited for it.
        ReceiverGone = 6, "the receiver ended before it took the message";
        /// The receiver does not read, and the limit of waiting messages from other nodes is reached.
        ReceiverFull = 7, "the receiver does not read, and too many messages wait for it";
        /// The grant is not valid for this process: it was revoked, belongs to another process, or never existed.
        NoGrant = 8, "no such grant stands for this process";
        /// The grant does not allow this operation.
        NoRight = 9, "the grant does not allow this operation";
        /// The range is not within the grant.
        OutOfGrant = 10, "the range is not within the grant";
        /// The target word of an atomic is not aligned to eight bytes in the arena.
        Unaligned = 11, "the word of an atomic is not aligned to eight bytes";
    }
}

reasons! {
    /// Reason why an endpoint is gone.
    GoneReason {
        /// Its process detached.
        Detached = 1, "the process detached";
        /// Its process died.
        Died = 2, "the process died, or closed its socket without a farewell";
        /// Its process violated the protocol, and was cut off.
        CutOff = 3, "the process broke the protocol of its rings";
        /// The link to its node ended.
        NodeLost = 4, "the link to its node ended";
    }
}

reasons! {
    /// Reason why the daemon cut a client off. The client has an error, or attacks the daemon.
    CutReason {
        /// An index of a ring jumped or went back.
        Index = 1, "an index of a ring jumped or went back";
        /// A descriptor has an unknown kind, or a reserved bit is set.
        Descriptor = 2, "a descriptor has an unknown kind, or bits that have to be zero";
        /// A message is longer than a cell.
        Length = 3, "a message is longer than its cell";
        /// A packet on the socket is invalid.
        Packet = 4, "a packet on the socket is none of the protocol";
        /// A grant is invalid, or the client revoked a grant that it had not given.
        Grant = 5, "a grant is none that this process may give or revoke";
        /// The local range of an operation is outside of the client's own arena.
        Range = 6, "an operation names bytes outside of the arena of its own process";
    }
}
