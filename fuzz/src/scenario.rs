//! The lab's reading of scenario files, without the lab: its own modules, as far as reading needs them.
#![expect(dead_code, reason = "whoever runs a scenario uses more of it")]

#[path = "../../sim/lab/src/scenario/blocks.rs"]
mod blocks;
#[path = "../../sim/lab/src/scenario/check.rs"]
mod check;
#[path = "../../sim/lab/src/scenario/expand.rs"]
mod expand;
#[path = "../../sim/lab/src/scenario/goal.rs"]
mod goal;
#[path = "../../sim/lab/src/scenario/hostile.rs"]
pub(crate) mod hostile;
#[path = "../../sim/lab/src/scenario/model.rs"]
mod model;
#[path = "../../sim/lab/src/scenario/schema.rs"]
mod schema;
#[path = "../../sim/lab/src/scenario/template.rs"]
mod template;
