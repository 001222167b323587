//! The `doorbell` program as it is started: processes of their own, over the fake libibverbs where they open a device.

mod documents;
mod json;
mod keys;
mod opened;
mod pipe;
#[path = "../../src/bin/doorbell/schema.rs"]
mod schema;
#[path = "../../src/bin/doorbell/documents.rs"]
mod shown;
mod started;
mod status;
