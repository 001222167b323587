//! Routers of several nodes and their clients in one process, driven by a seed. Memory is real, there are no sockets, and frames may
//! be delayed.

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
mod turns;
mod watching;
pub(crate) mod world;
