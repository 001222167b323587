//! The `doorbell` program as it is started: processes of their own, over the fake libibverbs where they open a device.

mod keys;
mod opened;
mod pipe;
mod started;
mod status;
