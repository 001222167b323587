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

    /// A connection is published: it is in the table for the thread that takes it. Pairs with [`ACCEPT_TAKE`].
    ACCEPT_PUBLISH = Release;

    /// A connection is taken, by one of the threads that try. Pairs with [`ACCEPT_PUBLISH`].
    ACCEPT_TAKE = Acquire;

    /// An accept queue is closed: operations before it are done for every thread that learns of it. Pairs with
    /// [`ACCEPT_CLOSED`].
    ACCEPT_CLOSE = Release;

    /// A place of an accept queue is no longer counted: its uses are done for a thread that learns that the queue is
    /// over. Pairs with [`ACCEPT_CLOSED`]; the counts form one release sequence, since each change is a
    /// read-modify-write.
    ACCEPT_SETTLE = Release;

    /// A thread learns that an accept queue is closed, or over. Pairs with [`ACCEPT_CLOSE`] and with every
    /// [`ACCEPT_SETTLE`].
    ACCEPT_CLOSED = Acquire;

    /// A slot is detached: bytes written to it before are there for the thread that attaches it. Pairs with [`ATTACH`].
    DETACH = Release;

    /// A slot is attached by its tag, by one of the threads that try. Pairs with the [`DETACH`] that gave the tag.
    ATTACH = Acquire;

    /// An index is put on a free list: its uses before are done for the thread that takes it. Pairs with
    /// [`FREE_LIST_TAKE`]; the puts form one release sequence, since each is a read-modify-write of the head.
    FREE_LIST_PUT = Release;

    /// Everything is taken off a free list. Pairs with every [`FREE_LIST_PUT`] on it.
    FREE_LIST_TAKE = Acquire;
}
