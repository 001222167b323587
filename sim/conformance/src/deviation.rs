//! Deviations: their providers, and whether an observation passes.

use core::fmt;

use crate::known::DEVIATIONS;

/// Provider whose behaviour is observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProviderName {
    /// The simulated fabric, by the book.
    Simulated,
    /// The simulated fabric where every packet comes twice, and some late, which changes nothing (S15).
    SimulatedDoubled,
    /// The simulated fabric as Soft-RoCE of a kernel.
    SimulatedRxe,
    /// The same fabric, with queue pairs that repeat their last message as they fail.
    SimulatedRxeRepeating,
    /// The simulated fabric as hardware that others' tests describe.
    SimulatedMlx5,
    /// The fake libibverbs.
    Fake,
    /// Soft-RoCE.
    Rxe,
}

impl ProviderName {
    /// In a word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Simulated => "simulated",
            Self::SimulatedDoubled => "simulated-doubled",
            Self::SimulatedRxe => "simulated-rxe",
            Self::SimulatedRxeRepeating => "simulated-rxe-repeating",
            Self::SimulatedMlx5 => "simulated-mlx5",
            Self::Fake => "fake",
            Self::Rxe => "rxe",
        }
    }
}

/// A kernel: major and minor number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kernel(
    /// The first number.
    pub u16,
    /// The second.
    pub u16,
);

impl Kernel {
    /// Parses a release as `uname -r` prints it; `None` if it begins otherwise.
    #[must_use]
    pub fn of_release(release: &str) -> Option<Self> {
        let mut numbers = release.split(|c: char| !c.is_ascii_digit());
        Some(Self(numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

/// A provider, on a kernel where that matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subject {
    /// The observed provider.
    pub provider: ProviderName,
    /// On which kernel, or as on which.
    pub kernel: Option<Kernel>,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.provider.name())?;
        match self.kernel {
            Some(kernel) => write!(f, " {kernel}"),
            None => Ok(()),
        }
    }
}

/// Something that a provider does otherwise than the book.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deviation {
    /// Its name. Several cases may show the same.
    pub name: &'static str,
    /// The case that shows it.
    pub case: &'static str,
    /// Observation instead of the book's, word for word.
    pub observed: &'static str,
    /// Providers that have it.
    pub providers: &'static [ProviderName],
    /// The first kernel it holds on; `None` where all before do, or kernels do not matter.
    pub from: Option<Kernel>,
    /// The first kernel it does not hold on any more; `None` where there is none yet.
    pub until: Option<Kernel>,
    /// Whether it depends on which side comes first, so that the book's words may be observed, too.
    pub is_a_race: bool,
    /// Place where it is written, or the reason for it.
    pub source: &'static str,
}

impl Deviation {
    /// Whether it is to be observed of this one.
    #[must_use]
    pub fn is_of(&self, subject: Subject) -> bool {
        let in_range = subject.kernel.is_none_or(|kernel| {
            self.from.is_none_or(|from| from <= kernel) && self.until.is_none_or(|until| kernel < until)
        });
        self.providers.contains(&subject.provider) && in_range
    }

    /// The kernels it holds on, in words.
    #[must_use]
    pub fn range(&self) -> String {
        match (self.from, self.until) {
            (None, None) => "all kernels".to_owned(),
            (Some(from), None) => format!("from {from}"),
            (None, Some(until)) => format!("before {until}"),
            (Some(from), Some(until)) => format!("from {from}, before {until}"),
        }
    }
}

/// Verdict on an observation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// It is as the book says.
    Same,
    /// It is what is named for the subject.
    Deviates(&'static Deviation),
    /// It is what is named as a race for the subject, or as the book says, which then is luck.
    Sometimes(&'static Deviation),
    /// It is neither.
    Unnamed,
    /// It is another than the one that is named.
    Otherwise(&'static Deviation),
    /// It is the book's, where a deviation is named.
    NoLonger(&'static Deviation),
}

impl Verdict {
    /// Whether it passes.
    #[must_use]
    pub const fn is_good(&self) -> bool {
        matches!(self, Self::Same | Self::Deviates(_) | Self::Sometimes(_))
    }
}

/// Judges what was observed in a case.
#[must_use]
pub fn judge(subject: Subject, case: &str, book: &str, observed: &str) -> Verdict {
    judge_by(DEVIATIONS, subject, case, book, observed)
}

fn judge_by(
    known: &'static [Deviation],
    subject: Subject,
    case: &str,
    book: &str,
    observed: &str,
) -> Verdict {
    let named = known
        .iter()
        .find(|known| known.case == case && known.is_of(subject));
    match named {
        None if observed == book => Verdict::Same,
        None => Verdict::Unnamed,
        Some(named) if named.is_a_race && [book, named.observed].contains(&observed) => {
            Verdict::Sometimes(named)
        }
        Some(named) if observed == named.observed => Verdict::Deviates(named),
        Some(named) if observed == book => Verdict::NoLonger(named),
        Some(named) => Verdict::Otherwise(named),
    }
}

#[cfg(test)]
mod tests {
    use super::{Deviation, Kernel, ProviderName, Subject, Verdict, judge_by};

    const KNOWN: &[Deviation] = &[Deviation {
        name: "late",
        case: "s01_x",
        observed: "then: late",
        providers: &[ProviderName::Rxe],
        from: Some(Kernel(6, 9)),
        until: Some(Kernel(6, 12)),
        is_a_race: false,
        source: "a file",
    }];

    const RACE: &[Deviation] = &[Deviation {
        is_a_race: true,
        ..KNOWN[0]
    }];

    fn verdict(provider: ProviderName, kernel: Option<Kernel>, case: &str, observed: &str) -> Verdict {
        judge_by(KNOWN, Subject { provider, kernel }, case, "then: soon", observed)
    }

    #[test]
    fn only_the_book_or_the_very_words_of_a_named_deviation_pass() {
        use ProviderName::{Fake, Rxe};
        let named = &KNOWN[0];
        let on = |kernel, observed| verdict(Rxe, Some(kernel), "s01_x", observed);
        assert_eq!(on(Kernel(6, 8), "then: soon"), Verdict::Same);
        assert_eq!(on(Kernel(6, 8), "then: late"), Verdict::Unnamed);
        assert_eq!(on(Kernel(6, 9), "then: late"), Verdict::Deviates(named));
        assert_eq!(on(Kernel(6, 11), "then: soon"), Verdict::NoLonger(named));
        assert_eq!(on(Kernel(6, 11), "then: never"), Verdict::Otherwise(named));
        assert_eq!(on(Kernel(6, 12), "then: late"), Verdict::Unnamed);
        assert_eq!(on(Kernel(7, 0), "then: soon"), Verdict::Same);
        assert_eq!(verdict(Fake, None, "s01_x", "then: late"), Verdict::Unnamed);
        assert_eq!(
            verdict(Rxe, Some(Kernel(6, 9)), "s01_y", "then: late"),
            Verdict::Unnamed
        );
        for good in [Verdict::Same, Verdict::Deviates(named)] {
            assert!(good.is_good());
        }
        for bad in [
            Verdict::Unnamed,
            Verdict::Otherwise(named),
            Verdict::NoLonger(named),
        ] {
            assert!(!bad.is_good());
        }
    }

    #[test]
    fn of_a_race_the_book_passes_too_and_nothing_else() {
        let subject = Subject {
            provider: ProviderName::Rxe,
            kernel: Some(Kernel(6, 9)),
        };
        let judged = |observed| judge_by(RACE, subject, "s01_x", "then: soon", observed);
        for good in ["then: soon", "then: late"] {
            assert_eq!(judged(good), Verdict::Sometimes(&RACE[0]));
        }
        assert_eq!(judged("then: never"), Verdict::Otherwise(&RACE[0]));
    }

    #[test]
    fn kernels_are_ordered_by_number_and_read_from_releases() {
        assert!(Kernel(6, 9) < Kernel(6, 12) && Kernel(6, 12) < Kernel(7, 0));
        assert_eq!(Kernel::of_release("6.12.95+deb12-amd64"), Some(Kernel(6, 12)));
        assert_eq!(Kernel::of_release("7.2"), Some(Kernel(7, 2)));
        assert_eq!(Kernel::of_release("rolling"), None);
    }
}
