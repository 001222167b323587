//! The limits of a request. A request that would fail later is refused when it is posted.

use doorbell_core::provider::{
    ATOMIC_BYTES, DomainId, Operation, PostFlags, PushError, REQUEST_BYTES_MAX, RemoteAddress, Slot, Window,
    WindowRange,
};

/// The limits of the peer and of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLimits {
    /// The maximum bytes of a message: the size of the peer's receives.
    pub message_bytes_max: u32,
    /// The maximum bytes of any request on the device.
    pub request_bytes_max: u32,
    /// The negotiated number of READs and atomics in flight; if it is zero, they are refused.
    pub rd_atomic_max: u8,
    /// Whether the device has atomics.
    pub atomics: bool,
    /// The protection domain of the queue pair, which may use only memory of this domain.
    pub domain: DomainId,
}

impl RequestLimits {
    /// The limits of a queue pair of this domain, without any knowledge of the peer and the device.
    #[must_use]
    pub const fn of_memory(domain: DomainId) -> Self {
        Self {
            message_bytes_max: REQUEST_BYTES_MAX,
            request_bytes_max: REQUEST_BYTES_MAX,
            rd_atomic_max: u8::MAX,
            atomics: true,
            domain,
        }
    }
}

/// The limits in the form in which they are compared.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    message_bytes_max: u64,
    request_bytes_max: u64,
    takes_reads: bool,
    takes_atomics: bool,
    has_atomics: bool,
    domain: DomainId,
}

impl Limits {
    pub(super) fn new(limits: &RequestLimits) -> Self {
        let request_bytes_max = limits.request_bytes_max.min(REQUEST_BYTES_MAX);
        Self {
            message_bytes_max: limits.message_bytes_max.min(request_bytes_max).into(),
            request_bytes_max: request_bytes_max.into(),
            takes_reads: limits.rd_atomic_max > 0,
            takes_atomics: limits.rd_atomic_max > 0 && limits.atomics,
            has_atomics: limits.atomics,
            domain: limits.domain,
        }
    }

    /// Checks that a request of `bytes` bytes may be posted, as far as is known here.
    // For an operation that is known at compile time, one or two comparisons remain.
    #[inline(always)]
    pub(super) fn check(&self, operation: Operation, bytes: u64) -> Result<(), PushError> {
        let may_be_posted = match operation {
            Operation::Send | Operation::SendWithImmediate(_) if bytes <= self.message_bytes_max => true,
            // This path does not need the operation itself.
            Operation::Send | Operation::SendWithImmediate(_) => return Err(self.too_long_message(bytes)),
            Operation::Write(remote) | Operation::WriteWithImmediate(remote, _) => {
                bytes <= u64::from(remote.write_bytes_max()) && bytes <= self.request_bytes_max
            }
            Operation::Read(remote) => {
                bytes <= u64::from(remote.read_bytes_max())
                    && grants_reads(remote)
                    && bytes <= self.request_bytes_max
                    && self.takes_reads
            }
            Operation::FetchAndAdd { remote, .. } | Operation::CompareAndSwap { remote, .. } => {
                remote.atomic_bytes_max() >= ATOMIC_BYTES && is_aligned(remote) && self.takes_atomics
            }
        };
        if may_be_posted {
            Ok(())
        } else {
            Err(self.refusal(operation, bytes))
        }
    }

    /// Checks that slots may be posted here. The processor copies inline bytes, so their key is not checked (S8).
    #[inline(always)]
    pub(super) fn check_memory<S: Slot>(&self, slots: &[S], flags: PostFlags) -> Result<(), PushError> {
        let is_ours = slots.iter().all(|slot| slot.domain() == self.domain);
        if is_ours || flags.contains(PostFlags::INLINE) {
            Ok(())
        } else {
            Err(PushError::OtherMemory)
        }
    }

    /// Checks that a request with these ranges may be posted, as far as is known here. Returns the bytes of the ranges.
    #[inline]
    pub(super) fn check_ranges<W: Window>(
        &self,
        operation: Operation,
        ranges: &[WindowRange<'_, W>],
    ) -> Result<u64, PushError> {
        let bytes = ranges
            .iter()
            .fold(0, |sum: u64, range| sum.wrapping_add(range.bytes.into()));
        self.check(operation, bytes)?;
        if ranges.iter().all(|range| range.window.domain() == self.domain) {
            Ok(bytes)
        } else {
            Err(PushError::OtherMemory)
        }
    }

    /// The maximum bytes of any request.
    #[inline(always)]
    pub(super) const fn request_bytes_max(&self) -> u64 {
        self.request_bytes_max
    }

    /// The error for a message of `bytes` bytes that is too long.
    #[cold]
    #[inline(never)]
    fn too_long_message(&self, bytes: u64) -> PushError {
        too_long(bytes, self.message_bytes_max)
    }

    /// The error for a request that `check` refuses.
    #[cold]
    #[inline(never)]
    fn refusal(&self, operation: Operation, bytes: u64) -> PushError {
        let (remote, range) = match operation {
            Operation::Send | Operation::SendWithImmediate(_) => return self.too_long_message(bytes),
            Operation::Write(remote) | Operation::WriteWithImmediate(remote, _) => {
                (remote, remote.write_bytes_max())
            }
            Operation::Read(_) if !self.takes_reads => return PushError::NoFetches,
            Operation::Read(remote) => (remote, remote.read_bytes_max()),
            Operation::FetchAndAdd { remote, .. } | Operation::CompareAndSwap { remote, .. } => {
                if !self.has_atomics {
                    return PushError::NoAtomics;
                }
                if !self.takes_atomics {
                    return PushError::NoFetches;
                }
                if remote.atomic_bytes_max() >= ATOMIC_BYTES {
                    return PushError::Misaligned {
                        address: remote.address(),
                    };
                }
                return out_of_window(remote, ATOMIC_BYTES.into(), remote.atomic_bytes_max());
            }
        };
        if bytes > self.request_bytes_max {
            return too_long(bytes, self.request_bytes_max);
        }
        out_of_window(remote, bytes, range)
    }
}

/// Whether the address grants READs, also of zero bytes. An address of zero bytes has no rights, and grants empty READs.
#[inline(always)]
const fn grants_reads(remote: RemoteAddress) -> bool {
    remote.read_bytes_max() > 0 || (remote.write_bytes_max() | remote.atomic_bytes_max()) == 0
}

/// The bits that are zero in the address of an aligned word.
const ALIGN_MASK: u64 = (ATOMIC_BYTES as u64).wrapping_sub(1);

#[inline(always)]
const fn is_aligned(remote: RemoteAddress) -> bool {
    remote.address() & ALIGN_MASK == 0
}

fn too_long(bytes: u64, bytes_max: u64) -> PushError {
    PushError::TooLong {
        bytes,
        bytes_max: u32::try_from(bytes_max).unwrap_or(u32::MAX),
    }
}

/// The error for an address that covers fewer bytes than the request.
fn out_of_window(remote: RemoteAddress, bytes: u64, bytes_max: u32) -> PushError {
    let reaches = remote
        .write_bytes_max()
        .max(remote.read_bytes_max())
        .max(remote.atomic_bytes_max());
    if bytes_max == 0 && reaches > 0 {
        PushError::NotGranted
    } else {
        PushError::OutOfWindow { bytes, bytes_max }
    }
}
