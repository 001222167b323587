//! The error numbers the simulated device gives. Source: `errno(3)`, Linux numbers.

use doorbell_core::provider::ProviderError;

/// Out of memory.
pub(crate) const ENOMEM: i32 = 12;
/// In use.
pub(crate) const EBUSY: i32 = 16;
/// Taken already.
pub(crate) const EEXIST: i32 = 17;
/// No such device.
pub(crate) const ENODEV: i32 = 19;
/// Invalid argument.
pub(crate) const EINVAL: i32 = 22;
/// A queue lost what it could not hold.
pub(crate) const EOVERFLOW: i32 = 75;
/// Not supported by this object.
pub(crate) const EOPNOTSUPP: i32 = 95;
/// The address is taken.
pub(crate) const EADDRINUSE: i32 = 98;
/// The address is not of this host.
pub(crate) const EADDRNOTAVAIL: i32 = 99;
/// There is no place left.
pub(crate) const ENOBUFS: i32 = 105;
/// No route to the network.
pub(crate) const ENETUNREACH: i32 = 101;
/// The host vanished.
pub(crate) const ENETDOWN: i32 = 100;
/// The peer knows no such stream.
pub(crate) const ECONNRESET: i32 = 104;
/// Nobody listens there.
pub(crate) const ECONNREFUSED: i32 = 111;
/// The neighbour did not answer.
pub(crate) const ETIMEDOUT: i32 = 110;

/// A call that failed.
pub(crate) const fn failed(call: &'static str, errno: i32) -> ProviderError {
    ProviderError { call, errno }
}
