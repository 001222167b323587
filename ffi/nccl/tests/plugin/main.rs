//! The plugin as C and as NCCL see it: a library that is loaded.
#![expect(clippy::unwrap_used, reason = "tests")]

mod built;
mod driver;
mod layout;
