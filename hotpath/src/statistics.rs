//! Counters of the data path: the owning thread adds to them, and any thread can read them.
//!
//! Completions do not show the device's retransmissions, for lost packets or for a receiver without a posted
//! receive. The device's own counters do: `hw_counters` of its port in sysfs.

use core::fmt;

use doorbell_core::sync::{AtomicU64, Ordering};

/// The number of buckets of the batch-size histogram: 1, 2, 3 to 4, 5 to 8, and so on by powers of two.
pub const BATCH_BUCKETS: usize = 17;

/// A counter that one thread adds to and any thread reads. Different counters may have different threads.
///
/// Ordering: relaxed on both sides. A reader sees a recent value of each counter, but the values of several
/// counters need not fit together.
#[derive(Debug)]
pub struct Counter(AtomicU64);

impl Default for Counter {
    fn default() -> Self {
        Self(AtomicU64::new(0))
    }
}

impl Counter {
    /// Adds to the count. Only the owner calls this: if two threads added at once, one addition might be lost.
    #[inline]
    pub fn add(&self, count: u64) {
        // A load and a store, not a read-modify-write: no locked instruction.
        let value = self.0.load(Ordering::Relaxed).wrapping_add(count);
        self.0.store(value, Ordering::Relaxed);
    }

    /// Adds to the count from any thread. It costs more than [`Counter::add`].
    #[inline]
    pub fn add_from_any(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// Returns the count so far.
    #[must_use]
    #[inline]
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Makes the fields after it begin on a new cache line. It aligns to two lines, since processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct LineBegins;

macro_rules! statistics {
    (
        sends { $($(#[$send_doc:meta])+ $send:ident,)+ }
        receives { $($(#[$receive_doc:meta])+ $receive:ident,)+ }
    ) => {
        /// The counters of the owner of some queues, on separate cache lines. Counters of sends and of receives are also
        /// on different lines, since they may belong to two threads.
        #[derive(Debug, Default)]
        #[repr(C, align(128))]
        #[non_exhaustive]
        pub struct Statistics {
            $($(#[$send_doc])+ pub $send: Counter,)+
            /// Doorbells by their number of requests: bucket `n` counts those of more than half of
            /// `2^n` and at most `2^n`.
            pub batches: [Counter; BATCH_BUCKETS],
            receives_begin: LineBegins,
            $($(#[$receive_doc])+ pub $receive: Counter,)+
        }

        statistics! { snapshot $($(#[$send_doc])+ $send,)+ $($(#[$receive_doc])+ $receive,)+ }
    };
    (snapshot $($(#[$doc:meta])+ $name:ident,)+) => {

        /// The values of [`Statistics`] at one time.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct StatisticsSnapshot {
            $($(#[$doc])+ pub $name: u64,)+
            /// Doorbells by their number of requests: bucket `n` counts those of more than half of
            /// `2^n` and at most `2^n`.
            pub batches: [u64; BATCH_BUCKETS],
        }

        impl Statistics {
            /// Reads all counters.
            #[must_use]
            pub fn snapshot(&self) -> StatisticsSnapshot {
                StatisticsSnapshot {
                    $($name: self.$name.value(),)+
                    batches: core::array::from_fn(|bucket| {
                        self.batches.get(bucket).map_or(0, Counter::value)
                    }),
                }
            }
        }

        impl StatisticsSnapshot {
            /// Returns the counts since `earlier`, a snapshot of these statistics.
            #[must_use]
            pub fn since(&self, earlier: &Self) -> Self {
                Self {
                    $($name: self.$name.wrapping_sub(earlier.$name),)+
                    batches: core::array::from_fn(|bucket| {
                        let at = |counts: &[u64; BATCH_BUCKETS]| counts.get(bucket).copied().unwrap_or(0);
                        at(&self.batches).wrapping_sub(at(&earlier.batches))
                    }),
                }
            }

            /// Passes each counter with its name, for printing or exporting. The histogram is not included.
            pub fn each(&self, mut counter: impl FnMut(&'static str, u64)) {
                $(counter(stringify!($name), self.$name);)+
            }
        }
    };
}

statistics! {
    sends {
        /// Post calls for sends of which the device accepted at least one request.
        doorbells,
        /// Requests of these post calls.
        requests,
        /// Payload bytes of these requests: sent, written, or requested by READs and atomics.
        bytes,
        /// Requests with inline bytes.
        inline,
        /// Announcements of credits to peers, each a separate WRITE among the requests.
        announcements,
        /// Requests refused for lack of room or credit, to be tried again.
        would_block,
        /// Post calls for sends of which the device refused a part, or all.
        refused,
        /// Completions of sends.
        completions,
    }
    receives {
        /// Messages received.
        received,
        /// Payload bytes received.
        received_bytes,
        /// Receives posted.
        receives_posted,
        /// Completions of sends and receives that named no request in flight: stale, duplicate, or of another
        /// queue.
        rejected,
        /// Completions of sends and receives of channels that are closed or do not exist.
        orphaned,
    }
}

impl Statistics {
    /// Counts a doorbell for one request with `bytes` bytes.
    #[inline]
    pub(crate) fn doorbell_of_one(&self, bytes: u64) {
        self.doorbells.add(1);
        self.requests.add(1);
        self.bytes.add(bytes);
        let [of_one, ..] = &self.batches;
        of_one.add(1);
    }

    /// Counts a doorbell for `requests` requests with `bytes` bytes in all, of which `inline` requests were inline.
    #[inline]
    pub fn doorbell(&self, requests: u32, bytes: u64, inline: u32) {
        self.doorbells.add(1);
        self.requests.add(requests.into());
        self.bytes.add(bytes);
        self.inline.add(inline.into());
        if let Some(bucket) = self.batches.get(bucket_of(requests)) {
            bucket.add(1);
        }
    }

    /// Counts a post of which the device accepted only `posted` requests, or none. Their bytes are unknown.
    #[cold]
    pub(crate) fn refusal(&self, posted: u32) {
        if posted != 0 {
            self.doorbell(posted, 0, 0);
        }
        self.refused.add(1);
    }
}

/// The histogram bucket of a doorbell for this many requests.
#[inline]
const fn bucket_of(requests: u32) -> usize {
    (u32::BITS.wrapping_sub(requests.saturating_sub(1).leading_zeros())) as usize
}

impl fmt::Display for StatisticsSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut outcome = Ok(());
        let mut first = true;
        self.each(|name, value| {
            if value != 0 && outcome.is_ok() {
                let separator = if first { "" } else { ", " };
                outcome = write!(f, "{separator}{name} {value}");
                first = false;
            }
        });
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::{BATCH_BUCKETS, Counter, Statistics, bucket_of};
    use std::string::ToString;

    #[test]
    fn buckets_end_at_powers_of_two() {
        let expected = [
            (1, 0),
            (2, 1),
            (3, 2),
            (4, 2),
            (5, 3),
            (8, 3),
            (9, 4),
            (65_536, 16),
        ];
        for (requests, bucket) in expected {
            assert_eq!(bucket_of(requests), bucket, "{requests}");
        }
        assert!(bucket_of(65_536) < BATCH_BUCKETS, "the deepest queue there is");
    }

    #[test]
    fn sends_and_receives_are_counted_on_lines_apart() {
        let received = core::mem::offset_of!(Statistics, received);
        assert_eq!(received % 128, 0);
        let last = core::mem::offset_of!(Statistics, batches) + size_of::<[Counter; BATCH_BUCKETS]>();
        assert!(last <= received);
    }

    #[test]
    fn several_threads_may_add_to_one() {
        let counter = Counter::default();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| (0..10_000).for_each(|_| counter.add_from_any(1)));
            }
        });
        assert_eq!(counter.value(), 20_000);
    }

    #[test]
    fn a_snapshot_says_what_was_counted_since() {
        let statistics = Statistics::default();
        statistics.doorbell(16, 1024, 2);
        let earlier = statistics.snapshot();
        statistics.doorbell(1, 64, 1);
        statistics.received.add(3);
        let since = statistics.snapshot().since(&earlier);
        assert_eq!(
            (since.doorbells, since.requests, since.bytes, since.inline),
            (1, 1, 64, 1)
        );
        assert_eq!((since.received, earlier.received), (3, 0));
        assert_eq!((since.batches[0], since.batches[4]), (1, 0));
        assert_eq!(earlier.batches[4], 1);
        assert_eq!(
            since.to_string(),
            "doorbells 1, requests 1, bytes 64, inline 1, received 3"
        );
    }
}
