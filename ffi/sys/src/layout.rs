//! Sizes and offsets, asserted when this crate is compiled.
