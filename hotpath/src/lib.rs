//! TEMP.
#![no_std]
