//! What the members of a mesh say to each other: of the library itself.

#[path = "../../src/mesh/frame.rs"]
mod frame;
#[path = "../../src/mesh/hostile.rs"]
pub(crate) mod hostile;
