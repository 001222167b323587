//! Routers of several nodes and their clients in one process, from a seed: real memory, no sockets, and frames that are late or wait.

mod book;
mod golden;
mod hostile;
mod limits;
mod links;
mod one_sided;
mod oracle;
mod random;
mod restarts;
mod transfers;
mod watching;
pub(crate) mod world;
