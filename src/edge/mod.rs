//! Where decisions meet the world: the clock, entropy, TCP, and the thread that destroys. Nothing here decides.

pub(crate) mod clock;
pub(crate) mod entropy;
pub(crate) mod reaper;
pub(crate) mod tcp;
