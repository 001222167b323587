//! Registration of a part of a dma-buf: memory of another device, a GPU for one, that peers reach without a copy.
//!
//! This process has no pointer to such memory, and nothing here maps it.

use core::fmt;
use core::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::sync::Arc;

use doorbell_core::Access;
use doorbell_core::provider::{ProviderError, RemoteAccess};

use crate::domain::DomainInner;
use crate::mapping::Region;
use crate::memory_region::Hold;
use crate::placement::page_bytes;
use crate::{ProtectionDomain, Window, errno};

const CALL: &str = "ibv_reg_dmabuf_mr";

/// A descriptor that is none.
const NO_DESCRIPTOR: i32 = -1;

/// The end of every file.
const FILE_BYTES_MAX: u64 = i64::MAX.unsigned_abs();

/// A part of a dma-buf, and the addresses under which work requests know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DmabufRange {
    /// The offset of its first byte in the buffer.
    pub offset: u64,
    /// Its size in bytes, not zero. It ends within the buffer.
    pub bytes: usize,
    /// The address of its first byte in work requests, this host's and a peer's. It is a number of the caller's choice, and
    /// no pointer, and not 0. It agrees with the offset modulo the size of a page.
    pub iova: u64,
}

impl DmabufRange {
    /// Checks it against the rules of `ibv_reg_mr(3)`, for a buffer of this size.
    fn check(&self, buffer_bytes: u64, page_bytes: u64) -> Result<(), DmabufError> {
        let Self { offset, bytes, iova } = *self;
        if bytes == 0 {
            return Err(DmabufError::Empty);
        }
        let in_page = page_bytes.wrapping_sub(1);
        if offset & in_page != iova & in_page {
            return Err(DmabufError::PageOffset {
                offset,
                iova,
                page_bytes,
            });
        }
        if iova == 0 {
            return Err(DmabufError::NoAddress);
        }
        let end = offset.checked_add(bytes as u64);
        if end.is_none_or(|end| end > buffer_bytes) {
            return Err(DmabufError::OutOfBuffer {
                offset,
                bytes,
                buffer_bytes,
            });
        }
        if iova.checked_add(bytes as u64).is_none() {
            return Err(DmabufError::OutOfAddresses { iova, bytes });
        }
        Ok(())
    }
}

/// Why a part of a dma-buf was not registered. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DmabufError {
    /// This device registers no dma-buf, or its kernel or libibverbs does not know how. [`Context::imports_dmabuf`] says so
    /// beforehand.
    ///
    /// [`Context::imports_dmabuf`]: crate::Context::imports_dmabuf
    Unsupported(ProviderError),
    /// Misuse: no Worker's device was given to register the range with.
    NoDevice,
    /// Misuse: the range has no byte.
    Empty,
    /// Misuse: the offset and the address stand at different places of their pages.
    PageOffset {
        /// The offset in the buffer.
        offset: u64,
        /// The address for work requests.
        iova: u64,
        /// The size of a page.
        page_bytes: u64,
    },
    /// Misuse: requests are to know the range by address 0.
    NoAddress,
    /// Misuse: the range ends behind the buffer.
    OutOfBuffer {
        /// The offset in the buffer.
        offset: u64,
        /// The size of the range.
        bytes: usize,
        /// The size of the buffer.
        buffer_bytes: u64,
    },
    /// Misuse: the addresses of the range pass 2^64.
    OutOfAddresses {
        /// The address of the first byte.
        iova: u64,
        /// The size of the range.
        bytes: usize,
    },
    /// A call failed. `EINVAL` of a device means in most cases that the descriptor is of another kind of file.
    Provider(ProviderError),
}

impl fmt::Display for DmabufError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Unsupported(error) => write!(
                f,
                "this device registers no dma-buf: {error}; dma-bufs need a device that imports them, Linux 5.12 and \
                 rdma-core 34"
            ),
            Self::NoDevice => f.write_str(
                "a dma-buf is registered with Workers' devices, and none was given: pass one Worker or more",
            ),
            Self::Empty => f.write_str("cannot register 0 bytes of a dma-buf; register 1 byte or more"),
            Self::PageOffset {
                offset,
                iova,
                page_bytes,
            } => write!(
                f,
                "offset {offset:#x} and address {iova:#x} differ modulo the page of {page_bytes} bytes; choose an address \
                 that agrees with the offset"
            ),
            Self::NoAddress => {
                f.write_str("a dma-buf cannot be registered at address 0; choose another multiple of a page")
            }
            Self::OutOfBuffer {
                offset,
                bytes,
                buffer_bytes,
            } => write!(
                f,
                "{bytes} bytes at offset {offset} end behind the dma-buf of {buffer_bytes} bytes; at most {} fit there",
                buffer_bytes.saturating_sub(offset)
            ),
            Self::OutOfAddresses { iova, bytes } => write!(
                f,
                "{bytes} bytes from address {iova:#x} on pass the last address; choose a lower address"
            ),
            Self::Provider(error) => {
                fmt::Display::fmt(&error, f)?;
                if (error.call, error.errno) == (CALL, libc::EINVAL) {
                    f.write_str("; is the descriptor a dma-buf that this device can reach?")?;
                }
                Ok(())
            }
        }
    }
}

impl core::error::Error for DmabufError {}

impl From<ProviderError> for DmabufError {
    fn from(error: ProviderError) -> Self {
        Self::Provider(error)
    }
}

impl ProtectionDomain {
    /// Whether the device registers dma-bufs ([`ProtectionDomain::register_dmabuf`]). The device is asked.
    ///
    /// # Errors
    /// A call failed, so that neither is known.
    pub fn imports_dmabuf(&self) -> Result<bool, ProviderError> {
        Ok(lack(self.inner())?.is_none())
    }

    /// Registers a part of a dma-buf as a window, for local use and for peers with these rights. The window has a descriptor of the
    /// buffer: this one may be closed.
    ///
    /// The memory is mapped nowhere. Requests of this host name ranges of the window, and the calls that copy its bytes on this host
    /// answer as for a window of no bytes.
    ///
    /// # Errors
    /// The device registers no dma-buf. The range breaks a rule, which is checked before the device is asked. The device
    /// refused.
    #[doc(alias = "ibv_reg_dmabuf_mr")]
    pub fn register_dmabuf(
        &self,
        fd: BorrowedFd<'_>,
        range: DmabufRange,
        access: RemoteAccess,
    ) -> Result<Window, DmabufError> {
        if let Some(reason) = lack(self.inner())? {
            return Err(DmabufError::Unsupported(reason));
        }
        range.check(buffer_bytes(fd)?, page_bytes() as u64)?;
        let buffer = fd.try_clone_to_owned().map_err(|error| ProviderError {
            call: "fcntl",
            errno: error.raw_os_error().unwrap_or(libc::EMFILE),
        })?;
        let region = Region::dmabuf(buffer, range).ok_or(DmabufError::NoAddress)?;
        Ok(self.window_over(Arc::new(region), access)?)
    }
}

/// Why the device of a domain registers no dma-buf; `None` if it does. It is asked to register a descriptor that is none.
///
/// # Errors
/// The answer says neither.
pub(crate) fn lack(domain: &Arc<DomainInner>) -> Result<Option<ProviderError>, ProviderError> {
    let range = DmabufRange {
        offset: 0,
        bytes: page_bytes(),
        iova: 0,
    };
    // SAFETY: there is no buffer behind this descriptor.
    match unsafe { register(domain, NO_DESCRIPTOR, range, Access::LOCAL_WRITE) } {
        Ok(mut hold) => {
            // A device that takes any number takes dma-bufs, too.
            // SAFETY: called once, and the value is not used afterwards.
            unsafe { hold.give_up() };
            Ok(None)
        }
        Err(error) => match error.errno {
            // The device came as far as the descriptor.
            libc::EBADF => Ok(None),
            // The device or its provider, the kernel, and libibverbs.
            libc::EOPNOTSUPP | libc::EPROTONOSUPPORT | libc::ENOSYS => Ok(Some(error)),
            _ => Err(error),
        },
    }
}

/// Registers a part of the buffer behind a descriptor.
///
/// # Safety
/// Until this is deregistered, an access of the device by `access` meets no Rust reference that relies on the bytes of the
/// buffer.
pub(crate) unsafe fn register(
    domain: &Arc<DomainInner>,
    fd: i32,
    range: DmabufRange,
    access: Access,
) -> Result<Hold, ProviderError> {
    let invalid = ProviderError {
        call: CALL,
        errno: libc::EINVAL,
    };
    let access = i32::try_from(access.bits()).map_err(|_| invalid)?;
    let DmabufRange { offset, bytes, iova } = range;
    // An errno of before would be taken for this call's, were it to set none.
    errno::clear();
    // SAFETY: (ibv_reg_mr(3)) The domain is live, held by the `Arc`. The kernel checks the descriptor and the range. The
    // caller vouches for what the device does.
    let mr = unsafe { rdma_sys::ibv_reg_dmabuf_mr(domain.as_ptr(), offset, bytes, iova, fd, access) };
    let mr = errno::from_pointer(CALL, mr)?;
    // SAFETY: 1. just registered in this domain, and known to nobody else; 2. as the caller vouches.
    Ok(unsafe { Hold::of(domain, mr) })
}

/// The size of the buffer behind a descriptor.
///
/// Source: the kernel's drivers/dma-buf/dma-buf.c, which sets the size of the inode.
fn buffer_bytes(fd: BorrowedFd<'_>) -> Result<u64, ProviderError> {
    let mut file = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: an open descriptor, and a writable structure (fstat(2)).
    let status = unsafe { libc::fstat(fd.as_raw_fd(), file.as_mut_ptr()) };
    errno::from_minus_one("fstat", status)?;
    // SAFETY: integers only, zeroed before the call filled them in.
    let bytes = unsafe { file.assume_init() }.st_size;
    // A file of no bytes is one whose size the kernel does not show: the device decides.
    Ok(u64::try_from(bytes)
        .ok()
        .filter(|bytes| *bytes != 0)
        .unwrap_or(FILE_BYTES_MAX))
}

#[cfg(test)]
mod tests {
    use super::{CALL, DmabufError, DmabufRange, FILE_BYTES_MAX};
    use doorbell_core::provider::ProviderError;

    const PAGE: u64 = 4096;

    fn check(offset: u64, bytes: usize, iova: u64) -> Result<(), DmabufError> {
        DmabufRange { offset, bytes, iova }.check(4 * PAGE, PAGE)
    }

    #[test]
    fn each_rule_holds_at_its_limit_and_not_one_past_it() {
        assert_eq!(check(0, 4 * 4096, PAGE), Ok(()));
        assert_eq!(check(0, 1, 0), Err(DmabufError::NoAddress));
        assert_eq!(check(0, 0, PAGE), Err(DmabufError::Empty));
        for (offset, bytes) in [(0, 4 * 4096 + 1), (4 * PAGE, 1), (u64::MAX - 4095, 4096)] {
            let expected = DmabufError::OutOfBuffer {
                offset,
                bytes,
                buffer_bytes: 4 * PAGE,
            };
            assert_eq!(check(offset, bytes, PAGE), Err(expected));
        }
        assert_eq!(check(PAGE + 7, 1, 7), Ok(()));
        assert_eq!(check(7, 1, 1 << 63 | 7), Ok(()));
        for (offset, iova) in [(PAGE + 7, 6), (0, 1), (PAGE - 1, 0)] {
            let expected = DmabufError::PageOffset {
                offset,
                iova,
                page_bytes: PAGE,
            };
            assert_eq!(check(offset, 1, iova), Err(expected));
        }
        let last = u64::MAX - 4095;
        assert_eq!(check(0, 4095, last), Ok(()));
        let (iova, bytes) = (last, 4096);
        assert_eq!(
            check(0, bytes, iova),
            Err(DmabufError::OutOfAddresses { iova, bytes })
        );
        // A buffer that does not show its size has a limit all the same.
        let range = DmabufRange {
            offset: 0,
            bytes: usize::MAX,
            iova: PAGE,
        };
        assert!(range.check(FILE_BYTES_MAX, PAGE).is_err());
    }

    #[test]
    fn texts_name_the_value_the_limit_and_the_remedy() {
        let text = |outcome: Result<(), DmabufError>| outcome.unwrap_err().to_string();
        assert_eq!(
            text(check(3 * PAGE, 8192, PAGE)),
            "8192 bytes at offset 12288 end behind the dma-buf of 16384 bytes; at most 4096 fit there"
        );
        assert_eq!(
            text(check(PAGE + 7, 1, 6)),
            "offset 0x1007 and address 0x6 differ modulo the page of 4096 bytes; choose an address that agrees with the offset"
        );
        assert_eq!(
            text(check(0, 4096, !4095)),
            "4096 bytes from address 0xfffffffffffff000 on pass the last address; choose a lower address"
        );
        assert_eq!(
            text(check(0, 0, PAGE)),
            "cannot register 0 bytes of a dma-buf; register 1 byte or more"
        );
        let refused = |errno| ProviderError { call: CALL, errno };
        assert_eq!(
            DmabufError::Provider(refused(libc::EINVAL)).to_string(),
            "ibv_reg_dmabuf_mr failed: invalid argument (errno 22); is the descriptor a dma-buf that this device can reach?"
        );
        assert_eq!(
            DmabufError::Provider(refused(libc::EBADF)).to_string(),
            "ibv_reg_dmabuf_mr failed: bad file descriptor (errno 9)"
        );
        assert_eq!(
            DmabufError::Unsupported(refused(libc::EPROTONOSUPPORT)).to_string(),
            "this device registers no dma-buf: ibv_reg_dmabuf_mr failed: not known to this kernel (errno 93); dma-bufs need \
             a device that imports them, Linux 5.12 and rdma-core 34"
        );
    }
}
