//! The cases, in the order of their rows.

mod cells;
mod changes;
mod completions;
mod data;
mod datagrams;
mod events;
mod one_sided;
mod posting;
mod process;
mod ranges;
mod refused;
mod retries;
mod shared;
mod states;

use crate::{Notes, Rig, Trouble};

/// One thing that verbs promise, and how to see whether it is so.
#[derive(Clone, Copy, Debug)]
pub struct Case<R> {
    /// Its name, which begins with the row's.
    pub name: &'static str,
    /// The row of the table of verbs semantics: 1 to [`ROWS`].
    pub row: u8,
    /// Promise of the book, in a few words.
    pub about: &'static str,
    /// Observation that follows from it, word for word.
    pub book: &'static str,
    /// Observes.
    pub run: fn(&R, &mut Notes) -> Result<(), Trouble>,
}

/// A row, or what is left of one, that no case can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfReach {
    /// The row.
    pub row: u8,
    /// Its subject.
    pub about: &'static str,
    /// Why the provider traits do not reach it.
    pub why: &'static str,
}

/// Rows of the table of verbs semantics.
pub const ROWS: u8 = 32;

/// Promises without a case, by row.
pub const OUT_OF_REACH: &[OutOfReach] = &[
    OutOfReach {
        row: 13,
        about: "a timeout of 0: the device waits without end",
        why: "the traits refuse it, since every wait has a deadline",
    },
    OutOfReach {
        row: 24,
        about: "more events acknowledged than were taken",
        why: "`acknowledge` takes no number, and gives back what was taken, no more. Told of mlx5: it hangs then",
    },
    OutOfReach {
        row: 25,
        about: "memory windows of type 1 and 2",
        why: "the traits have none: a window there is a registration of its own",
    },
    OutOfReach {
        row: 32,
        about: "ibv_fork_init once memory is registered: EINVAL",
        why: "a provider asks before anything can be registered; on the fake libibverbs and on Soft-RoCE it is shown by \
              `ffi/tests/device/children.rs`",
    },
];

/// All cases, by row.
#[must_use]
pub fn cases<R: Rig>() -> Vec<Case<R>> {
    let mut all: Vec<Case<R>> = Vec::new();
    all.extend(states::cases());
    all.extend(changes::cases());
    all.extend(posting::cases());
    all.extend(cells::cases());
    all.extend(completions::cases());
    all.extend(refused::cases());
    all.extend(ranges::cases());
    all.extend(retries::cases());
    all.extend(process::cases());
    all.extend(data::cases());
    all.extend(one_sided::cases());
    all.extend(shared::cases());
    all.extend(events::cases());
    all.extend(datagrams::cases());
    // A stable sort: those of a row stay as they stand in the files.
    all.sort_by_key(|case| case.row);
    all
}

/// A table of cases as a function that is generic over the rig.
macro_rules! table {
    ($($row:literal $name:ident $about:literal => $book:literal;)+) => {
        pub(super) fn cases<R: crate::Rig>() -> Vec<super::Case<R>> {
            vec![$(super::Case {
                name: stringify!($name),
                row: $row,
                about: $about,
                book: $book,
                run: $name,
            },)+]
        }
    };
}
use table;
