//! Ways through a mesh in which not every pair shares a subnet.
//!
//! Each member says who its neighbours are ([`Announcement`]); what all of them said is a [`Map`], and shortest ways follow
//! from it ([`Routes`]). Members that know the same map choose ways that fit together: at each hop the rest of the way is one
//! shorter, so nothing goes round in circles. While maps differ it might, and a count of hops left ends that.
//!
//! Who is a neighbour, and what goes along the ways, must not be known here.

mod announcement;
mod map;
mod relay;

pub use announcement::{ANNOUNCEMENT_BYTES, Announcement};
pub use map::{Heard, Map, Routes};
pub use relay::{RELAY_HEADER_BYTES, RelayHeader};
