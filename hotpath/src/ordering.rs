//! Every memory ordering of this crate that is stronger than relaxed, with the ordering that it pairs with.
//!
//! The models weaken each ordering in turn, and one model must then fail. A relaxed ordering is written as
//! `Relaxed` at its place of use, with the reason.

doorbell_core::named_orderings! {
    /// The count of receives is published after they were posted, so a thread announces a receive only after the
    /// device has accepted it. Pairs with [`CREDITS_READ`].
    CREDITS_POSTED = Release;

    /// The count of receives is read, to be announced or continued. Pairs with
    /// [`CREDITS_POSTED`].
    CREDITS_READ = Acquire;

    /// A report is made. Release: what was done before is visible to the taker, even if the flag was already set, so
    /// that this report is not passed on. Acquire: the report is passed on only after the taker read the earlier list
    /// or descriptor. Pairs with [`NOTIFY_TAKE`].
    NOTIFY_SET = AcqRel;

    /// The taker clears the flag, which may be set again from then on. Pairs with [`NOTIFY_SET`], in both directions.
    NOTIFY_TAKE = AcqRel;

    /// A producer publishes one slot: the word with the lap is stored last.
    /// Pairs with [`RING_TAKE`].
    RING_PUBLISH = Release;

    /// The consumer checks whether a slot is written. Pairs with [`RING_PUBLISH`].
    RING_TAKE = Acquire;

    /// The consumer returns slots: the head moves past the slots that were read.
    /// Pairs with [`RING_REUSE`].
    RING_HAND_BACK = Release;

    /// A producer reads up to which position slots may be written again. Pairs with [`RING_HAND_BACK`].
    RING_REUSE = Acquire;

    /// The producer of a ring between processes publishes a batch: its position moves past the descriptors.
    /// Pairs with [`INDEX_TAKE`].
    INDEX_PUBLISH = Release;

    /// The consumer of a ring between processes reads up to which position descriptors are published. Pairs with [`INDEX_PUBLISH`].
    INDEX_TAKE = Acquire;

    /// The consumer of a ring between processes returns slots: its position moves past the slots that were read.
    /// Pairs with [`INDEX_REUSE`].
    INDEX_HAND_BACK = Release;

    /// The producer of a ring between processes reads up to which position slots may be written again. Pairs with [`INDEX_HAND_BACK`].
    INDEX_REUSE = Acquire;

    /// A half of a single-producer ring is dropped. All that it did, including its position in the
    /// ring, is visible to the next owner of the half. Pairs with [`SPSC_CLAIM`].
    SPSC_UNCLAIM = Release;

    /// A half of a single-producer ring is claimed. Pairs with the preceding [`SPSC_UNCLAIM`].
    SPSC_CLAIM = Acquire;

    /// A side closes a single-producer ring: all that it published or did before is visible to a side that learns of
    /// the close. Pairs with [`SPSC_CLOSED`].
    SPSC_CLOSE = Release;

    /// A side learns that the other closed a single-producer ring. Pairs with [`SPSC_CLOSE`],
    /// and with [`SPSC_UNCLAIM`] if the producer of a closed ring was dropped.
    SPSC_CLOSED = Acquire;

    /// The consumer of a many-producer ring is dropped: its position in the ring is visible to the
    /// next consumer. Pairs with [`MPSC_CLAIM`].
    MPSC_UNCLAIM = Release;

    /// The consumer half of a many-producer ring is claimed. Pairs with the preceding
    /// [`MPSC_UNCLAIM`].
    MPSC_CLAIM = Acquire;

    /// Either side closes a many-producer ring: what it did before is visible to a side that learns of the close. Pairs
    /// with [`MPSC_CLOSED`].
    MPSC_CLOSE = Release;

    /// A producer or the consumer learns that a many-producer ring is closed.
    /// Pairs with [`MPSC_CLOSE`].
    MPSC_CLOSED = Acquire;

    /// A fence between announcing a sleep and the last check for work. Either that check finds the work, or the
    /// thread that added it sees the announcement. Pairs with [`SLEEP_LOOKED`].
    SLEEP_ANNOUNCED = SeqCst;

    /// A fence between adding work and checking whether a sleep is announced. Pairs with [`SLEEP_ANNOUNCED`].
    SLEEP_LOOKED = SeqCst;
}
