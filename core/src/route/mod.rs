//! Routes through a mesh in which not every pair shares a subnet.
//!
//! Each member announces its neighbours ([`Announcement`]). All announcements together are a [`Map`], and the shortest
//! routes follow from it ([`Routes`]). Members with the same map choose routes that fit together: each hop leaves a
//! route that is one hop shorter, so no message goes round in circles. While the maps differ, a message might; the
//! count of hops left then ends it.
//!
//! The way in which neighbours are found, and the content of messages, must not be known here.

mod announcement;
mod map;
mod relay;

pub use announcement::{ANNOUNCEMENT_BYTES, Announcement};
pub use map::{Heard, Map, Routes};
pub use relay::{RELAY_HEADER_BYTES, RelayHeader};
