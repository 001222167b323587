//! Where decisions meet the world: the clock, entropy and TCP of this host, as a `Network` that another can
//! stand in for, the thread that destroys, and a look at what this host has. Nothing here decides.

pub(crate) mod clock;
pub(crate) mod reaper;
mod survey;
pub(crate) mod tcp;
