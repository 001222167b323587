//! Which kernel a scenario asks for: of the lab itself.

#[path = "../../sim/lab/src/kernel/choice.rs"]
mod choice;

pub(crate) use choice::Choice;
