//! The daemon process: its socket, the life cycle of its clients, and its sleep.

mod asking;
mod helpers;
mod pace;
mod pending;
mod replacing;
mod server;
pub(crate) mod shortage;
pub(crate) mod socket;

pub use asking::StatusError;
pub use server::{Server, ServerConfig, ServerError};
