//! Links: one ordered stream of messages to a peer over all rails that reach it, each message exactly once.
//!
//! What is to be done, `doorbell_core::session` decides. Here it is done, with channels of Workers and the handshake that
//! makes them: [`Links`] holds all links of one thread's Workers, and polls them.

mod config;
mod dialing;
mod dispatch;
mod links;
mod rail;
mod state;
mod store;

pub use config::{LinkConfig, LinkError};
pub use links::{LinkEvent, LinkId, Links};
