//! Routes through a mesh in which not every pair shares a subnet.
//!
//! Each member announces its neighbours ([`Announcement`]). All announcements together are a [`Map`], and the shortest
//! routes follow from it ([`Routes`]). Members with the same map choose consistent routes: after each hop the remaining
//! route is one hop shorter, so no message loops. While the maps differ, a message may loop until its count of hops left
//! is zero.
//!
//! This module knows neither how neighbours are found nor the content of messages.

mod announcement;
mod map;
mod relay;

pub use announcement::{ANNOUNCEMENT_BYTES, Announcement};
pub use map::{Heard, Map, Routes};
pub use relay::{RELAY_HEADER_BYTES, RelayHeader};
