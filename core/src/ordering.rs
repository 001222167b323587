//! Every memory ordering of this crate that is stronger than relaxed, with its partner.
//!
//! Each is weakened in turn by the models, one of which must then fail.

crate::named_orderings! {
    /// A slot is detached: bytes written to it before are there for the thread that attaches it. Pairs with [`ATTACH`].
    DETACH = Release;

    /// A slot is attached by its tag, by one of the threads that try. Pairs with the [`DETACH`] that gave the tag.
    ATTACH = Acquire;

    /// An index is put on a free list: its uses before are done for the thread that takes it. Pairs with
    /// [`FREE_LIST_TAKE`]; the puts form one release sequence, since each is a read-modify-write of the head.
    FREE_LIST_PUT = Release;

    /// Everything is taken off a free list. Pairs with every [`FREE_LIST_PUT`] on it.
    FREE_LIST_TAKE = Acquire;

    /// A registration is there for lookups: its key and its tag are written. Pairs with [`REGISTRATION_FIND`].
    REGISTRATION_PUBLISH = Release;

    /// A lookup reads which registration a place has. Pairs with the [`REGISTRATION_PUBLISH`] of it; uses that begin and end go on with its
    /// release sequence, since each is a read-modify-write.
    REGISTRATION_FIND = Acquire;

    /// A use of a registration ends: it is done for the thread that deregisters, by the last end or by the [`REGISTRATION_UNLINK`] behind it.
    /// Pairs with both.
    REGISTRATION_END = AcqRel;

    /// A registration is taken out of reach of lookups. Pairs with the [`REGISTRATION_END`] of its uses.
    REGISTRATION_UNLINK = Acquire;
}
