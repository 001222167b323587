//! Every memory ordering of this crate that is stronger than relaxed, with the ordering that it pairs with.
//!
//! The models weaken each in turn, and one of them must then fail.

crate::named_orderings! {
    /// A slot is detached: bytes written to it before are visible to the thread that attaches it. Pairs with [`ATTACH`].
    DETACH = Release;

    /// One of the threads that try attaches a slot by its tag. Pairs with the [`DETACH`] that returned the tag.
    ATTACH = Acquire;

    /// An index is put on a free list: its earlier uses happen before those of the thread that takes it. Pairs with
    /// [`FREE_LIST_TAKE`]. The puts form one release sequence, since each is a read-modify-write of the head.
    FREE_LIST_PUT = Release;

    /// All indices are taken off a free list. Pairs with every [`FREE_LIST_PUT`] on it.
    FREE_LIST_TAKE = Acquire;

    /// A registration is published to lookups: its key and its tag are written. Pairs with [`REGISTRATION_FIND`].
    REGISTRATION_PUBLISH = Release;

    /// A lookup reads which registration a place has. Pairs with its [`REGISTRATION_PUBLISH`]. Uses that begin and end continue the
    /// release sequence, since each is a read-modify-write.
    REGISTRATION_FIND = Acquire;

    /// A use of a registration ends: its accesses happen before the deregistration. The deregistering thread sees this by the last end or
    /// by a later [`REGISTRATION_UNLINK`]. Pairs with both.
    REGISTRATION_END = AcqRel;

    /// A registration is hidden from lookups. Pairs with the [`REGISTRATION_END`] of its uses.
    REGISTRATION_UNLINK = Acquire;
}
