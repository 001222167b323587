//! Parameters of a ping-pong: the file of the program itself.
#![expect(dead_code, reason = "the program uses more of it")]

#[path = "../../src/program/src/pingpong/arguments.rs"]
mod arguments;
#[path = "../../src/program/src/pingpong/source.rs"]
mod source;

pub(crate) use arguments::Arguments;
