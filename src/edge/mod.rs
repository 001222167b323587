//! Where decisions meet the world: the clock, entropy, and TCP. Nothing here decides.

pub(crate) mod clock;
pub(crate) mod entropy;
pub(crate) mod tcp;
