//! Every memory ordering of this crate that is stronger than relaxed, with its partner.
//!
//! The models weaken each ordering in turn, and one model must then fail. A relaxed ordering is written as
//! `Relaxed` at its place of use, with the reason.

doorbell_core::named_orderings! {
    /// The count of receives is published after they were posted, so a thread announces a receive only after the
    /// device has it. Pairs with [`CREDITS_READ`].
    CREDITS_POSTED = Release;

    /// The count of receives is read, to be announced or to count on. Pairs with
    /// [`CREDITS_POSTED`].
    CREDITS_READ = Acquire;

    /// A report is made. Release: what was done before is visible to the taker, even if the flag was raised
    /// already and is not passed on again. Acquire: the report is passed on again only after the taker read the
    /// earlier list or descriptor. Pairs with [`NOTIFY_TAKE`].
    NOTIFY_SET = AcqRel;

    /// The taker clears the flag, which may be raised again from here on. Pairs with [`NOTIFY_SET`], both ways.
    NOTIFY_TAKE = AcqRel;

    /// A producer publishes one slot: the word with the lap goes last.
    /// Pairs with [`RING_TAKE`].
    RING_PUBLISH = Release;

    /// The consumer looks whether a slot is written. Pairs with [`RING_PUBLISH`].
    RING_TAKE = Acquire;

    /// The consumer hands slots back: the head moves behind what was read out of them.
    /// Pairs with [`RING_REUSE`].
    RING_HAND_BACK = Release;

    /// A producer looks how far the slots may be written again. Pairs with [`RING_HAND_BACK`].
    RING_REUSE = Acquire;

    /// A producer publishes a batch of a ring between processes: its position moves behind the descriptors.
    /// Pairs with [`INDEX_TAKE`].
    INDEX_PUBLISH = Release;

    /// The consumer of a ring between processes reads how far descriptors are published. Pairs with [`INDEX_PUBLISH`].
    INDEX_TAKE = Acquire;

    /// The consumer of a ring between processes hands slots back: its position moves behind what was read out of them.
    /// Pairs with [`INDEX_REUSE`].
    INDEX_HAND_BACK = Release;

    /// The producer of a ring between processes reads how far slots may be written again. Pairs with [`INDEX_HAND_BACK`].
    INDEX_REUSE = Acquire;

    /// A half of a single-producer ring is dropped: what it did, its place in the ring
    /// included, is done for the next to claim it. Pairs with [`SPSC_CLAIM`].
    SPSC_UNCLAIM = Release;

    /// A half of a single-producer ring is claimed. Pairs with the [`SPSC_UNCLAIM`] before.
    SPSC_CLAIM = Acquire;

    /// A side closes a single-producer ring: what it published, and all else it did, is visible to a side that
    /// learns of it. Pairs with [`SPSC_CLOSED`].
    SPSC_CLOSE = Release;

    /// A side learns that the other closed a single-producer ring. Pairs with [`SPSC_CLOSE`],
    /// and with [`SPSC_UNCLAIM`] where the producer went from a closed ring.
    SPSC_CLOSED = Acquire;

    /// The consumer of a many-producer ring is dropped: its place in the ring is known to the
    /// next to claim it. Pairs with [`MPSC_CLAIM`].
    MPSC_UNCLAIM = Release;

    /// The consumer half of a many-producer ring is claimed. Pairs with the [`MPSC_UNCLAIM`]
    /// before.
    MPSC_CLAIM = Acquire;

    /// Either side closes a many-producer ring: what it did before is visible to a side that learns of it. Pairs
    /// with [`MPSC_CLOSED`].
    MPSC_CLOSE = Release;

    /// A producer or the consumer learns that a many-producer ring is closed.
    /// Pairs with [`MPSC_CLOSE`].
    MPSC_CLOSED = Acquire;

    /// A fence between announcing a sleep and the last look for work: either that look finds the work, or the
    /// thread that put it sees the announcement. Pairs with [`SLEEP_LOOKED`].
    SLEEP_ANNOUNCED = SeqCst;

    /// A fence between putting work and looking whether a sleep is announced. Pairs with [`SLEEP_ANNOUNCED`].
    SLEEP_LOOKED = SeqCst;
}
