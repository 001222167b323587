//! Types, wire formats, provider traits and state machines of doorbell, without I/O.
//!
//! This crate has the ids, states, wire formats, routing, the handshake state machine, the
//! provider traits and the data structures that every provider embeds. It uses no socket,
//! thread, clock, allocator or device.
#![no_std]

#[cfg(test)]
extern crate std;

pub mod access;
pub mod address;
pub mod address_handles;
mod advertised_rail;
pub mod collective;
pub mod detached;
pub mod free_list;
pub mod gid;
pub mod grh;
pub mod handshake;
pub mod id;
pub mod in_flight;
pub mod in_place;
pub mod interprocess;
pub mod ledger;
pub mod mtu;
pub mod network;
pub mod ordering;
mod pieces;
pub mod port;
pub mod provider;
pub mod qp_state;
pub mod rail;
pub mod rank;
pub mod registrations;
mod remote;
pub mod route;
mod sequence;
pub mod session;
pub mod shared_in_flight;
pub mod sync;
pub mod time;
pub mod transfer;
pub mod unwinding;
pub mod wc_status;
pub mod wire;
pub mod work_id;

pub use access::Access;
pub use address::{IpPrefix, ParsePrefixError, PrefixError};
pub use address_handles::AddressHandle;
pub use gid::Gid;
pub use grh::Grh;
pub use id::{Lkey, Psn, Qkey, Qpn, Rkey, SharedReceiveId};
pub use mtu::Mtu;
pub use port::{GidEntry, GidKind, PortReport, PortState};
pub use qp_state::QpState;
pub use rank::{Rank, Ranks};
pub use time::{Clock, Deadline, Instant};
pub use wc_status::WcStatus;
pub use work_id::{Ticket, WorkId, WorkKind};
