//! Where decisions meet the world: the clock, entropy and TCP of this host, as a `Network` that another can
//! stand in for, and the thread that destroys. Nothing here decides.

pub(crate) mod clock;
pub(crate) mod reaper;
pub(crate) mod tcp;
