//! Programs of others, by name.

/// Other people's libraries, by which the same is written in `ffi/rivals`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rival {
    /// A crate: a loop of messages.
    Sideway,
    /// A crate: a loop of messages.
    Ibverbs,
    /// Debian's Open MPI: rounds of an all-to-all, in C.
    OpenMpi,
}

impl Rival {
    pub(crate) const ALL: [Self; 3] = [Self::Sideway, Self::Ibverbs, Self::OpenMpi];

    /// Its name; that of a crate is that of the feature too.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Sideway => "sideway",
            Self::Ibverbs => "ibverbs",
            Self::OpenMpi => "openmpi",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|rival| rival.name() == name)
    }
}
