//! Frames between the members of a mesh: the file of the library itself.

#[path = "../../src/mesh/frame.rs"]
mod frame;
#[path = "../../src/mesh/hostile.rs"]
pub(crate) mod hostile;
