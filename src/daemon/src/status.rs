//! The state of a daemon: its counts, nodes, links, jobs and endpoints.
//!
//! The encoding is a sequence of big-endian words of 64 bits, in memory of the process that queries the status. This file has no socket.

use doorbell::link::HealthState;

use crate::name::{JobNumber, NodeNumber};
use crate::reason::{AttachRefusal, CutReason};
use crate::router::RouterCounts;

/// Version of the encoding.
const VERSION: u64 = 2;

const WORD_BYTES: usize = 8;

/// A value that is encoded as one word.
trait Word: Sized {
    fn to_word(&self) -> u64;

    fn of_word(word: u64) -> Option<Self>;
}

/// The remaining words of an encoded status.
type Words<'w> = dyn Iterator<Item = u64> + 'w;

/// A part of a status: a word, or a record.
trait Part: Sized {
    fn put(&self, words: &mut Vec<u64>);

    fn take(words: &mut Words<'_>) -> Option<Self>;
}

impl<W: Word> Part for W {
    fn put(&self, words: &mut Vec<u64>) {
        words.push(self.to_word());
    }

    fn take(words: &mut Words<'_>) -> Option<Self> {
        W::of_word(words.next()?)
    }
}

/// Encoded as the number of items, then the items.
impl<P: Part> Part for Vec<P> {
    fn put(&self, words: &mut Vec<u64>) {
        words.push(self.len() as u64);
        for part in self {
            part.put(words);
        }
    }

    fn take(words: &mut Words<'_>) -> Option<Self> {
        let count = words.next()?;
        // No memory is reserved in advance, since the count may be wrong.
        (0..count).map(|_| P::take(words)).collect()
    }
}

/// Implements `Word` for types by two conversions.
macro_rules! numbers {
    ($($name:ty: $of:expr, $to:expr;)*) => {
        $(impl Word for $name {
            fn to_word(&self) -> u64 {
                let to: fn(&Self) -> u64 = $to;
                to(self)
            }

            fn of_word(word: u64) -> Option<Self> {
                let of: fn(u64) -> Option<Self> = $of;
                of(word)
            }
        })*
    };
}

fn half(word: u64) -> Option<u32> {
    u32::try_from(word).ok()
}

numbers! {
    u64: Some, |number| *number;
    u32: half, |number| (*number).into();
    bool: |word| (word < 2).then_some(word == 1), |is| (*is).into();
    NodeNumber: |word| half(word).map(NodeNumber), |node| node.0.into();
    JobNumber: |word| Some(JobNumber(word)), |job| job.0;
    AttachRefusal: |word| half(word).and_then(AttachRefusal::of), |reason| reason.number().into();
    CutReason: |word| half(word).and_then(CutReason::of), |reason| reason.number().into();
    LinkState: LinkState::of, |state| *state as u64;
}

/// A process ID, or 0 for none.
impl Word for Option<u32> {
    fn to_word(&self) -> u64 {
        self.map_or(0, u64::from)
    }

    fn of_word(word: u64) -> Option<Self> {
        half(word).map(|number| (number != 0).then_some(number))
    }
}

/// Declares records, which are encoded field by field.
macro_rules! records {
    ($($(#[$attribute:meta])* $name:ident { $($(#[$of:meta])* $field:ident: $type:ty,)* })*) => {
        $($(#[$attribute])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name {
            $($(#[$of])* pub $field: $type,)*
        }

        impl Part for $name {
            fn put(&self, words: &mut Vec<u64>) {
                $(self.$field.put(words);)*
            }

            fn take(words: &mut Words<'_>) -> Option<Self> {
                Some(Self { $($field: Part::take(words)?,)* })
            }
        })*
    };
}

/// State of a link to another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LinkState {
    /// No rail is connected: not yet, or temporarily.
    Connecting = 1,
    /// All its rails are up.
    Up = 2,
    /// Some of its rails are not up.
    Degraded = 3,
}

impl LinkState {
    const fn of(word: u64) -> Option<Self> {
        match word {
            1 => Some(Self::Connecting),
            2 => Some(Self::Up),
            3 => Some(Self::Degraded),
            _ => None,
        }
    }

    /// The state of a link with these rails.
    pub(crate) fn of_rails(is_connected: bool, mut rails: impl Iterator<Item = HealthState>) -> Self {
        if !is_connected {
            Self::Connecting
        } else if rails.all(|state| state == HealthState::Up) {
            Self::Up
        } else {
            Self::Degraded
        }
    }

    /// The name of the state.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Up => "up",
            Self::Degraded => "degraded",
        }
    }
}

records! {
    /// Number of refused processes, for one reason.
    RefusedCount {
        /// The reason.
        reason: AttachRefusal,
        /// The number of processes.
        count: u64,
    }

    /// Number of clients that were cut off, for one reason.
    CutCount {
        /// The reason.
        reason: CutReason,
        /// The number of clients.
        count: u64,
    }

    /// Messages and operations of one process, or of all processes of a job.
    Traffic {
        /// Submissions that the daemon took: messages, operations, grants and revocations.
        submitted: u64,
        /// Bytes of the messages and operations among them.
        sent_bytes: u64,
        /// Reports that the daemon published: messages, outcomes, and the ends of other endpoints.
        reported: u64,
        /// Bytes of the messages among them.
        received_bytes: u64,
    }

    /// A link to another node.
    LinkStatus {
        /// Whether this node began the link. A node sends over the links that it began.
        is_begun_here: bool,
        /// The combined state of its rails.
        state: LinkState,
        /// Number of rails.
        rails: u32,
        /// Number of rails that are up.
        rails_up: u32,
        /// Bytes that its rails sent, including headers.
        sent_bytes: u64,
        /// Bytes that its rails received, including headers.
        received_bytes: u64,
    }

    /// Another node.
    NodeStatus {
        /// The number of the node.
        node: NodeNumber,
        /// Number of times that its links ended, with everything in flight.
        lost: u64,
        /// Frames that wait for a link to it.
        waiting_frames: u64,
        /// The bytes of these frames.
        waiting_bytes: u64,
        /// Links between the two nodes, whichever of them began the link.
        links: Vec<LinkStatus>,
    }

    /// A job on this node.
    JobStatus {
        /// The user of its processes.
        uid: u32,
        /// The number of the job.
        job: JobNumber,
        /// Rank by age: an older job has a lower number.
        age: u64,
        /// Number of attached processes.
        processes: u64,
        /// Bytes of their rings, cells and arenas.
        memory_bytes: u64,
        /// Traffic of all its processes, including the processes that have ended.
        traffic: Traffic,
    }

    /// An endpoint, that is, an attached process.
    EndpointStatus {
        /// The user of the process.
        uid: u32,
        /// The job.
        job: JobNumber,
        /// The number of the endpoint.
        endpoint: u32,
        /// The process ID. `None` if the daemon cannot see the process's PID namespace.
        pid: Option<u32>,
        /// The incarnation: a number that no other process of this daemon has had.
        incarnation: u64,
        /// Whole seconds since it attached.
        attached_s: u64,
        /// Submissions in its ring that the daemon has not taken: the first one has to wait, or has just come.
        queued: u64,
        /// Messages and operations that were taken and have no outcome yet.
        in_flight: u64,
        /// Messages and reports that wait for room in its ring.
        waiting: u64,
        /// Its traffic.
        traffic: Traffic,
    }

    /// The state of a daemon. A user sees its own jobs and endpoints. Root and the daemon's user see all of them.
    DaemonStatus {
        /// The number of its node.
        node: NodeNumber,
        /// The epoch, which increases with each daemon until the host reboots.
        epoch: u64,
        /// Whole seconds since the daemon started.
        running_s: u64,
        /// Whether the status has the jobs and endpoints of all users.
        sees_all: bool,
        /// Whether a file has the keys of jobs. Otherwise the first process of a job sets its key.
        are_keys_of_file: bool,
        /// Number of attached processes of all users.
        processes: u64,
        /// Counts since the start. For a user that does not see everything, traffic is reported as 0: here, in `kept`, and for nodes and links.
        counts: RouterCounts,
        /// Messages and operations from other nodes that wait for processes of this node.
        kept: u64,
        /// Messages and operations from other nodes that were lost without an outcome: `counts.arrived` minus `counts.answered` and `kept`.
        /// Any number but 0 is an error in the daemon.
        dropped: u64,
        /// Numbers of refused processes, by reason.
        refused: Vec<RefusedCount>,
        /// Numbers of clients that were cut off, by reason.
        cut: Vec<CutCount>,
        /// Other nodes.
        nodes: Vec<NodeStatus>,
        /// Jobs.
        jobs: Vec<JobStatus>,
        /// Number of endpoints that are left out, since the status would be too long.
        left_out: u64,
        /// Endpoints.
        endpoints: Vec<EndpointStatus>,
    }
}

impl Part for RouterCounts {
    fn put(&self, words: &mut Vec<u64>) {
        words.extend(self.all());
    }

    fn take(words: &mut Words<'_>) -> Option<Self> {
        let mut counts = Self::default();
        for count in counts.all_mut() {
            *count = words.next()?;
        }
        Some(counts)
    }
}

impl Traffic {
    /// No traffic.
    pub(crate) const NONE: Self = Self {
        submitted: 0,
        sent_bytes: 0,
        reported: 0,
        received_bytes: 0,
    };

    /// Adds the traffic of another process.
    pub(crate) const fn add(&mut self, other: &Self) {
        self.submitted = self.submitted.wrapping_add(other.submitted);
        self.sent_bytes = self.sent_bytes.wrapping_add(other.sent_bytes);
        self.reported = self.reported.wrapping_add(other.reported);
        self.received_bytes = self.received_bytes.wrapping_add(other.received_bytes);
    }
}

impl DaemonStatus {
    /// Encodes the status in at most `bytes_max` bytes, and leaves out endpoints if necessary. Returns `None` if even the rest is too long.
    pub(crate) fn write(&mut self, bytes_max: usize) -> Option<Vec<u8>> {
        let mut words = self.words();
        let words_max = bytes_max / WORD_BYTES;
        if words.len() > words_max {
            let each = self.endpoints.first().map_or(1, |endpoint| {
                let mut words = Vec::new();
                endpoint.put(&mut words);
                words.len()
            });
            let too_many = words.len().saturating_sub(words_max).div_ceil(each);
            let kept = self.endpoints.len().checked_sub(too_many)?;
            self.endpoints.truncate(kept);
            self.left_out = self.left_out.saturating_add(too_many as u64);
            words = self.words();
        }
        Some(words.into_iter().flat_map(u64::to_be_bytes).collect())
    }

    fn words(&self) -> Vec<u64> {
        let mut words = vec![VERSION];
        self.put(&mut words);
        words
    }

    /// Parses a whole encoded status.
    ///
    /// # Errors
    /// Returns `None` if the bytes have another version, or are invalid.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let chunks = bytes.chunks_exact(WORD_BYTES);
        let is_whole = chunks.remainder().is_empty();
        let mut words = chunks.map(|word| word.iter().fold(0, |word, byte| word << 8 | u64::from(*byte)));
        let is_known = is_whole && words.next() == Some(VERSION);
        let read = is_known.then(|| Self::take(&mut words))??;
        words.next().is_none().then_some(read)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use doorbell::link::HealthState;

    use super::{
        CutCount, DaemonStatus, EndpointStatus, JobStatus, LinkState, LinkStatus, NodeStatus, RefusedCount,
        Traffic, VERSION,
    };
    use crate::name::{JobNumber, NodeNumber};
    use crate::reason::{AttachRefusal, CutReason};
    use crate::router::RouterCounts;

    /// Returns a status in which no two numbers are equal.
    pub(crate) fn status() -> DaemonStatus {
        let mut next = 100;
        let mut number = || {
            next += 1;
            next
        };
        let mut counts = RouterCounts::default();
        for count in counts.all_mut() {
            *count = number();
        }
        let mut traffic = || Traffic {
            submitted: number(),
            sent_bytes: number(),
            reported: number(),
            received_bytes: number(),
        };
        let link = |is_begun_here, state| LinkStatus {
            is_begun_here,
            state,
            rails: 4,
            rails_up: 3,
            sent_bytes: u64::MAX,
            received_bytes: 7,
        };
        let endpoint = |endpoint, pid, traffic| EndpointStatus {
            uid: 1000,
            job: JobNumber(1 << 40),
            endpoint,
            pid,
            incarnation: 6,
            attached_s: 31,
            queued: 32,
            in_flight: 33,
            waiting: 34,
            traffic,
        };
        DaemonStatus {
            node: NodeNumber(5),
            epoch: 1 << 50,
            running_s: 60,
            sees_all: true,
            are_keys_of_file: false,
            processes: 2,
            counts,
            kept: 8,
            dropped: 9,
            refused: vec![RefusedCount {
                reason: AttachRefusal::JobKey,
                count: 10,
            }],
            cut: vec![CutCount {
                reason: CutReason::Length,
                count: 11,
            }],
            nodes: vec![
                NodeStatus {
                    node: NodeNumber(6),
                    lost: 12,
                    waiting_frames: 13,
                    waiting_bytes: 14,
                    links: vec![link(true, LinkState::Up), link(false, LinkState::Degraded)],
                },
                NodeStatus {
                    node: NodeNumber(7),
                    lost: 0,
                    waiting_frames: 0,
                    waiting_bytes: 0,
                    links: vec![link(true, LinkState::Connecting)],
                },
            ],
            jobs: vec![JobStatus {
                uid: 1000,
                job: JobNumber(1 << 40),
                age: 15,
                processes: 2,
                memory_bytes: 16,
                traffic: traffic(),
            }],
            left_out: 0,
            endpoints: vec![endpoint(0, Some(17), traffic()), endpoint(1, None, traffic())],
        }
    }

    #[test]
    fn a_status_is_read_as_it_was_written_and_none_that_is_cut_or_longer() {
        let mut status = status();
        let bytes = status.write(usize::MAX).unwrap();
        assert_eq!(DaemonStatus::parse(&bytes), Some(status));
        for length in 0..bytes.len() {
            assert_eq!(DaemonStatus::parse(&bytes[..length]), None, "{length}");
        }
        let longer = [&bytes[..], &[0; 8]].concat();
        assert_eq!(DaemonStatus::parse(&longer), None);
        let mut other = bytes;
        other[7] = VERSION as u8 + 1;
        assert_eq!(DaemonStatus::parse(&other), None, "another version");
    }

    #[test]
    fn words_that_are_no_values_are_refused() {
        let mut status = status();
        let bytes = status.write(usize::MAX).unwrap();
        let mut refused = 0;
        for at in (0..bytes.len()).step_by(8) {
            let mut wrong = bytes.clone();
            wrong[at..at + 8].fill(0xff);
            // The count of a list may be wrong, and no memory is allocated for it.
            refused += usize::from(DaemonStatus::parse(&wrong).is_none());
        }
        // The version, 2 nodes, 4 halves of each of 3 links, and 2 endpoints, except u64, bool, reasons and lists.
        assert!(refused >= 30, "{refused}");
    }

    #[test]
    fn endpoints_without_room_are_counted() {
        let mut all = status();
        let bytes = all.write(usize::MAX).unwrap();
        assert_eq!(all.write(bytes.len()).unwrap(), bytes, "all have room");
        let mut short = status();
        let fewer = short.write(bytes.len() - 1).unwrap();
        assert_eq!((short.left_out, short.endpoints.len()), (1, 1));
        assert_eq!(DaemonStatus::parse(&fewer), Some(short));
        let mut none = status();
        let rest = bytes.len() - 2 * 13 * 8;
        assert!(none.write(rest).is_some());
        assert_eq!((none.left_out, none.endpoints.len()), (2, 0));
        assert!(status().write(rest - 1).is_none());
    }

    #[test]
    fn a_link_is_up_if_all_its_rails_are() {
        use HealthState::{Down, Up};
        let of =
            |is_connected, rails: &[HealthState]| LinkState::of_rails(is_connected, rails.iter().copied());
        assert_eq!(of(true, &[Up, Up]), LinkState::Up);
        assert_eq!(of(true, &[Up, Down]), LinkState::Degraded);
        assert_eq!(of(false, &[Up]), LinkState::Connecting);
    }
}
