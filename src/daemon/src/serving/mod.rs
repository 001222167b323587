//! The daemon as a process: its socket, the life of its clients, its sleep.

mod asking;
mod closer;
mod pace;
mod pending;
mod replacing;
mod server;
pub(crate) mod shortage;
pub(crate) mod socket;

pub use asking::StatusError;
pub use server::{Server, ServerConfig, ServerError};
