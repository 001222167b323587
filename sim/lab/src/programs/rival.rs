//! Programs of others, by name.

/// Other people's crates, by which the same loops are written in `ffi/rivals`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rival {
    Sideway,
    Ibverbs,
}

impl Rival {
    pub(crate) const ALL: [Self; 2] = [Self::Sideway, Self::Ibverbs];

    /// The crate's name, which is that of the feature too.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Sideway => "sideway",
            Self::Ibverbs => "ibverbs",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|rival| rival.name() == name)
    }
}
