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
}
