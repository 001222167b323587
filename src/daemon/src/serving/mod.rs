//! The daemon as a process: its socket, the life of its clients, its sleep.

mod pace;
mod server;
pub(crate) mod socket;

pub use server::{Server, ServerConfig, ServerError};
