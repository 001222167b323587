//! Seeds: a profile and a number, as `long:17` names them.

use core::fmt::{self, Display, Formatter};
use core::str::FromStr;

use clap::ValueEnum;
use serde::Serialize;

/// Kinds of cases. Each has a generator of its own, and a share of the time of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Profile {
    /// Few messages at a time, faults of milliseconds: many cases a minute
    Quick,
    /// Hundreds of milliseconds of load, ends that are made differently, and calls that take time
    Steady,
    /// Links under outages of seconds to minutes: back-off reaches its cap, recovery its deadline
    Long,
    /// Limits of one to three, and as much as reaches them: each refusal when it is due, and with its reason
    Crowded,
    /// Hosts that sleep: messages in every way there is, Workers that are taken apart, requests and answers
    Sleepy,
    /// One host lies, or speaks by the document alone, beside honest ones
    Hostile,
    /// Members of a mesh: messages through others, collectives, processes that come and go
    Mesh,
}

impl Profile {
    pub(crate) const ALL: [Self; 7] = [
        Self::Quick,
        Self::Steady,
        Self::Long,
        Self::Crowded,
        Self::Sleepy,
        Self::Hostile,
        Self::Mesh,
    ];

    /// Its part of the time that all profiles of a run have.
    pub(crate) const fn weight(self) -> u32 {
        match self {
            Self::Quick => 4,
            Self::Steady | Self::Long | Self::Crowded | Self::Sleepy | Self::Hostile | Self::Mesh => 1,
        }
    }

    /// How many of its seeds every run of the gate has: all together take two cores about a minute.
    pub(crate) const fn of_gate(self) -> u64 {
        match self {
            Self::Quick => 3000,
            Self::Steady => 150,
            Self::Long => 80,
            Self::Crowded => 3000,
            Self::Sleepy => 1000,
            Self::Hostile => 1500,
            Self::Mesh => 120,
        }
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Quick => "quick",
            Self::Steady => "steady",
            Self::Long => "long",
            Self::Crowded => "crowded",
            Self::Sleepy => "sleepy",
            Self::Hostile => "hostile",
            Self::Mesh => "mesh",
        }
    }
}

impl Display for Profile {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// All that a case is made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seed {
    pub(crate) profile: Profile,
    pub(crate) number: u64,
}

impl Seed {
    #[cfg(test)]
    pub(crate) const fn quick(number: u64) -> Self {
        Self {
            profile: Profile::Quick,
            number,
        }
    }
}

impl Display for Seed {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.profile, self.number)
    }
}

impl FromStr for Seed {
    type Err = String;

    /// A number alone is one of the quick profile.
    fn from_str(text: &str) -> Result<Self, String> {
        let (profile, number) = text.split_once(':').unwrap_or(("quick", text));
        let profile = Profile::ALL.into_iter().find(|each| each.name() == profile);
        let profile = profile.ok_or_else(|| {
            let names = Profile::ALL.map(Profile::name).join(", ");
            format!("a seed is a number behind one of the profiles {names} and a colon, not {text:?}")
        })?;
        let number = number
            .parse()
            .map_err(|_| format!("no number in the seed {text:?}"))?;
        Ok(Self { profile, number })
    }
}

#[cfg(test)]
mod tests {
    use super::{Profile, Seed};

    #[test]
    fn seeds_are_read_as_they_are_shown() {
        for profile in Profile::ALL {
            let seed = Seed { profile, number: 17 };
            assert_eq!(seed.to_string().parse(), Ok(seed));
        }
        assert_eq!("17".parse(), Ok(Seed::quick(17)));
        for text in ["", "long", "long:", "slow:1", "quick:-1"] {
            assert!(text.parse::<Seed>().is_err(), "{text}");
        }
    }
}
