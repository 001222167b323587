//! Every memory ordering of this crate that is stronger than relaxed, with its partner.
//!
//! Each is weakened in turn by the models, one of which must then fail.

crate::named_orderings! {
    /// A place of an accept queue is reserved: what was done with it before is done. Pairs with
    /// [`ACCEPT_FREE`].
    ACCEPT_RESERVE = Acquire;

    /// A place of an accept queue is left: given up, or taken and done with. Pairs with
    /// [`ACCEPT_RESERVE`].
    ACCEPT_FREE = Release;

    /// A connection is published: it is in the table for whoever takes it. Pairs with
    /// [`ACCEPT_TAKE`].
    ACCEPT_PUBLISH = Release;

    /// A connection is taken, by one of those who try. Pairs with [`ACCEPT_PUBLISH`].
    ACCEPT_TAKE = Acquire;

    /// An accept queue is closed: what was done before is done for whoever learns of it. Pairs with
    /// [`ACCEPT_CLOSED`].
    ACCEPT_CLOSE = Release;

    /// A place of an accept queue is no longer counted: what was done with it is done for whoever
    /// learns that all is over. Pairs with [`ACCEPT_CLOSED`]; the counts form one release sequence,
    /// each being changed by a read-modify-write.
    ACCEPT_SETTLE = Release;

    /// Somebody learns that an accept queue is closed, or over. Pairs with [`ACCEPT_CLOSE`] and with
    /// every [`ACCEPT_SETTLE`].
    ACCEPT_CLOSED = Acquire;

    /// A slot is detached: what was written to it before is there for whoever attaches it.
    /// Pairs with [`ATTACH`].
    DETACH = Release;

    /// A slot is attached by its tag, by one of those who try. Pairs with the [`DETACH`] that gave
    /// the tag.
    ATTACH = Acquire;

    /// An index is put on a free list: what was done with it before is done for whoever takes
    /// it. Pairs with [`FREE_LIST_TAKE`]; the puts form one release sequence, each being a
    /// read-modify-write of the head.
    FREE_LIST_PUT = Release;

    /// Everything is taken off a free list. Pairs with every [`FREE_LIST_PUT`] on it.
    FREE_LIST_TAKE = Acquire;
}
