//! The `doorbell` program as it is started: processes of their own, over the fake libibverbs where they open a device.

mod broker;
mod documents;
mod job_keys;
mod json;
mod keys;
mod opened;
mod pipe;
#[path = "../../src/schema.rs"]
mod schema;
mod serve;
#[path = "../../src/documents.rs"]
mod shown;
mod started;
mod status;
mod unit;
mod unread;
mod xfer;
