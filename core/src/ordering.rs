//! Every memory ordering of this crate that is stronger than relaxed, with its partner.
//!
//! Each is weakened in turn by the models, one of which must then fail.

crate::named_orderings! {
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
