//! Promises of verbs, row by row, as tests over any provider.
//!
//! A [`Case`] does something on a [`Rig`] (two ports of a provider that reach each other) and returns in
//! words what it **observed**: statuses, events, bytes, order. It asserts nothing. Beside it stand the book's
//! words for the same. A known difference of a provider is a [`Deviation`]. It has a name, the observation
//! instead, its providers and kernels, and the place where that is written.
//!
//! An observation passes where it is the book's and no deviation is named, or is word for word that of the
//! one that is named. A deviation that does not occur any more fails, and nothing can be skipped.
//!
//! A provider's tests bring a [`Rig`] and call [`run`]: the simulator in `sim/tests/conformance.rs`, the fake
//! libibverbs and devices in `ffi/tests/conformance.rs`. This package knows none of them.

mod cases;
mod deviation;
mod known;
mod notes;
mod office;
mod rig;
mod run;
mod side;

pub use cases::{Case, OUT_OF_REACH, OutOfReach, ROWS, cases};
pub use deviation::{Deviation, Kernel, ProviderName, Subject, Verdict, judge};
pub use known::DEVIATIONS;
pub use notes::{Notes, Trouble};
pub use rig::{Disturbance, End, Patience, Rig, Struck};
pub use run::{Options, Run, run};
