//! Which programs a scenario asks for: of the lab itself.

#[path = "../../sim/lab/src/programs/rival.rs"]
mod rival;

pub(crate) use rival::Rival;
