//! Scenarios: what is run on which hosts, in which order, and what is read from it.
//!
//! A scenario file becomes a [`Scenario`] (`schema`, `expand`, `check`, `blocks`, `template`, `model`), is run on any
//! [`Cluster`](crate::cluster::Cluster) (`runner`, `live`, `judging`, `output`, `counters`), and yields a [`Report`]
//! (`measure`, `statistics`, `summary`, `report`, `table`). How hosts are made is not known here. The format is
//! documented in `sim/scenarios/README.md`.

mod blocks;
mod check;
mod cli;
mod counters;
mod expand;
mod goal;
#[cfg(any(test, fuzzing))]
pub mod hostile;
mod judging;
mod live;
mod measure;
mod model;
mod output;
mod progress;
mod report;
mod runner;
mod schema;
mod statistics;
mod summary;
mod table;
mod template;
#[cfg(test)]
mod tests;

pub(crate) use cli::{
    Lab, REPORT, Request, RunArgs, deliver, lab_folder, list, load, output_folder, perform, repository, run,
};
pub(crate) use goal::Goal;
pub(crate) use measure::{TestCounts, tests as count_tests};
pub(crate) use model::{Folders, Programs, Scenario};
pub(crate) use report::{Report, Verdict};
pub(crate) use schema::Profile;
pub(crate) use table::{Detail, aligned, met, short};
