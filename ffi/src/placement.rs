//! Placement of memory: it is mapped with the wanted pages, given a preferred node, populated and locked. Afterwards it is
//! inspected, since the kernel does not always fulfil the wishes.

use core::ptr::{self, NonNull};

use doorbell_core::provider::{
    MemoryError, NumaNode, Pages, Placement, PlacementConfig, ProviderError, Shortfall, Step, Wish,
};

use crate::{errno, kernel_view};

/// Moves the process's pages that lie on another node: `MPOL_MF_MOVE` of `linux/mempolicy.h`.
const MOVE: libc::c_ulong = 1 << 1;

/// Memory mapped by this crate: private, zeroed and writable. Dropping it unmaps it.
pub(crate) struct Mapping {
    /// Start of everything mapped, including the guard pages that separate it from its neighbours.
    outer: NonNull<u8>,
    outer_bytes: usize,
    /// Start of the usable part.
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: plain bytes that it owns; only the code that made it accesses them through it.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly the range that `Mapping::of` mapped. The code that drops it ensures that neither a device nor a
        // reference uses it any more (munmap(2)). The call cannot fail for a whole mapping that exists.
        unsafe { libc::munmap(self.outer.as_ptr().cast(), self.outer_bytes) };
    }
}

impl Mapping {
    /// Maps `bytes` bytes with this protection and these flags, at an address that the kernel chooses.
    fn of(bytes: usize, protection: i32, flags: i32) -> Result<Self, ProviderError> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags;
        // SAFETY: a new private mapping at an address that the kernel chooses touches no existing memory (mmap(2)).
        let address = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0) };
        if address == libc::MAP_FAILED {
            return Err(refused("mmap"));
        }
        let base = errno::from_pointer("mmap", address.cast::<u8>())?;
        Ok(Self {
            outer: base,
            outer_bytes: bytes,
            base,
            bytes,
        })
    }

    /// Maps small pages from a multiple of `align`, which is a power of two and at least a page. On either side is a page
    /// that allows no access. So the kernel never merges a neighbour with the mapping, and shows exactly this memory.
    fn aligned(bytes: usize, align: usize, page: usize) -> Result<Self, ProviderError> {
        let invalid = ProviderError {
            call: "mmap",
            errno: libc::EINVAL,
        };
        let outer_bytes = page
            .checked_mul(2)
            .and_then(|guards| guards.checked_add(align)?.checked_add(bytes))
            .ok_or(invalid)?;
        let mut mapping = Self::of(outer_bytes, libc::PROT_NONE, libc::MAP_NORESERVE)?;
        let offset = mapping
            .outer
            .addr()
            .get()
            .checked_add(page)
            .and_then(|first| first.checked_next_multiple_of(align))
            .and_then(|base| base.checked_sub(mapping.outer.addr().get()))
            .ok_or(invalid)?;
        // SAFETY: at most a page plus `align` from the beginning, so within the mapping.
        mapping.base = unsafe { mapping.outer.add(offset) };
        mapping.bytes = bytes;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: within the mapping just made, which holds no data yet (mprotect(2)).
        let status = unsafe { libc::mprotect(mapping.base.as_ptr().cast(), bytes, protection) };
        errno::from_minus_one("mprotect", status)?;
        Ok(mapping)
    }

    pub(crate) const fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// How many bytes are usable.
    const fn bytes(&self) -> usize {
        self.bytes
    }

    fn advise(&self, call: &'static str, advice: i32) -> Result<(), ProviderError> {
        // SAFETY: the range is this mapping, which nothing else knows yet. None of the kinds of advice given here removes
        // bytes from it (madvise(2)).
        let status = unsafe { libc::madvise(self.base.as_ptr().cast(), self.bytes, advice) };
        errno::from_minus_one(call, status).map(drop)
    }

    /// Prefers a node for the pages of the mapping. With [`MOVE`] in `flags`, pages on other nodes are moved.
    ///
    /// The node is preferred and not bound, since the kernel kills a process when a bound node is full.
    fn prefer(&self, node: u16, flags: libc::c_ulong) -> Result<(), ProviderError> {
        const BITS: usize = 1024;
        let mut mask = [0_u64; BITS / 64];
        let Some(word) = mask.get_mut(usize::from(node) / 64) else {
            return Err(ProviderError {
                call: "mbind",
                errno: libc::EINVAL,
            });
        };
        *word = 1 << (node % 64);
        // SAFETY: this mapping, and a mask of `BITS` bits. The kernel reads one bit less than the stated number
        // (mbind(2)).
        let status = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.base.as_ptr(),
                self.bytes,
                libc::c_long::from(libc::MPOL_PREFERRED),
                mask.as_ptr(),
                BITS.wrapping_add(1),
                flags,
            )
        };
        if status == 0 {
            Ok(())
        } else {
            Err(refused("mbind"))
        }
    }

    /// Makes every page present, so that the first touch never happens on the data path.
    fn populate(&self, page: usize) -> Result<(), ProviderError> {
        let outcome = self.advise("madvise(MADV_POPULATE_WRITE)", libc::MADV_POPULATE_WRITE);
        if !outcome.is_err_and(|error| error.errno == libc::EINVAL) {
            return outcome;
        }
        // Kernels before 5.14 do not know this advice.
        for offset in (0..self.bytes).step_by(page) {
            // SAFETY: the offset lies within the mapping.
            let place = unsafe { self.base.add(offset) };
            // SAFETY: mapped writable, and nothing else knows the address yet. The write is volatile, since its purpose
            // is the fault.
            unsafe { place.write_volatile(0) };
        }
        Ok(())
    }

    fn lock(&self) -> Step {
        // SAFETY: this mapping, of which locking changes no byte (mlock(2)).
        if unsafe { libc::mlock(self.base.as_ptr().cast(), self.bytes) } == 0 {
            return Step::Done;
        }
        let error = refused("mlock");
        let locked_bytes = kernel_view::locked_bytes().unwrap_or(0);
        let needed = locked_bytes.saturating_add(self.bytes as u64);
        Step::Short(match lock_limit() {
            Some(limit_bytes) if needed > limit_bytes => Shortfall::LockLimit {
                needed_bytes: self.bytes,
                locked_bytes,
                limit_bytes,
                errno: error.errno,
            },
            _ => Shortfall::Refused(error),
        })
    }
}

/// Maps and places memory, and reports the outcome of each wish.
///
/// # Errors
/// The size is 0 or overflows, there is no memory, or a required wish was not met.
pub(crate) fn place(
    bytes: usize,
    asked: &PlacementConfig,
    device_node: Option<u16>,
) -> Result<(Mapping, Placement), MemoryError> {
    let mut report = Placement::unplaced(bytes, 0);
    report.asked = *asked;
    report.node_asked = match asked.node {
        NumaNode::OfDevice => device_node,
        NumaNode::Number(node) => Some(node),
        // `Any`, and kinds that may be added later.
        _ => None,
    };
    let page = page_bytes();
    if bytes == 0 {
        return Err(invalid().into());
    }
    let mapping = match reserved_page_bytes(asked.pages) {
        None => map_small(bytes, page, &mut report)?,
        Some(huge) => match map_reserved(bytes, huge, &mut report) {
            Ok(mapping) => mapping,
            Err(why) if asked.pages_required => {
                return Err(MemoryError::Unmet(Wish::Pages(asked.pages), why));
            }
            Err(why) => {
                let mapping = map_small(bytes, page, &mut report)?;
                report.pages = Step::Short(why);
                mapping
            }
        },
    };
    report.mapped_bytes = mapping.bytes();
    let is_reserved = reserved_page_bytes(asked.pages).is_some() && report.pages == Step::Done;
    if asked.on_demand {
        report.lock = if asked.lock {
            Step::Short(Shortfall::NotProvided)
        } else {
            Step::NotAsked
        };
        report.seen = kernel_view::look(mapping.base.addr().get(), mapping.bytes).map(|view| view.seen);
        report.check()?;
        return Ok((mapping, report));
    }
    if asked.lock {
        // Reserved pages are never swapped, and locking them would only use up the limit.
        report.lock = if is_reserved { Step::Done } else { mapping.lock() };
    }
    verify(&mapping, &mut report);
    report.check()?;
    Ok((mapping, report))
}

/// Maps reserved huge pages, prefers their node and makes them present.
fn map_reserved(bytes: usize, huge: usize, report: &mut Placement) -> Result<Mapping, Shortfall> {
    let rounded = bytes
        .checked_next_multiple_of(huge)
        .ok_or(Shortfall::Refused(invalid()))?;
    let shift = i32::try_from(huge.trailing_zeros()).unwrap_or(0);
    let flags = libc::MAP_HUGETLB | (shift << libc::MAP_HUGE_SHIFT);
    let mapping =
        Mapping::of(rounded, libc::PROT_READ | libc::PROT_WRITE, flags).map_err(|error| {
            match error.errno {
                libc::ENOMEM => Shortfall::HugePages {
                    page_bytes: huge,
                    needed: rounded.checked_div(huge).unwrap_or(0),
                    free: kernel_view::free_huge_pages(huge),
                    errno: error.errno,
                },
                _ => Shortfall::Refused(ProviderError {
                    call: "mmap(MAP_HUGETLB)",
                    ..error
                }),
            }
        })?;
    settle(&mapping, huge, report).map_err(Shortfall::Refused)?;
    report.pages = Step::Done;
    Ok(mapping)
}

/// Maps small pages, or memory for transparent huge pages if those are wanted, prefers their node and makes them present.
fn map_small(bytes: usize, page: usize, report: &mut Placement) -> Result<Mapping, ProviderError> {
    let whole = bytes.checked_next_multiple_of(page).ok_or(invalid())?;
    let wished = report.asked.pages != Pages::Ordinary;
    let huge = kernel_view::transparent_huge_page_bytes().filter(|huge| *huge >= page);
    let fits = |huge: &usize| bytes >= *huge || report.asked.pages_required;
    let mapping = match huge.filter(|huge| wished && fits(huge)) {
        None => {
            if wished {
                report.pages = Step::Short(match huge {
                    Some(page_bytes) => Shortfall::TooSmall { page_bytes },
                    None => Shortfall::NotProvided,
                });
            }
            Mapping::aligned(whole, page, page)?
        }
        Some(huge) => {
            let whole = bytes.checked_next_multiple_of(huge).ok_or(invalid())?;
            let mapping = Mapping::aligned(whole, huge, page)?;
            report.pages = match mapping.advise("madvise(MADV_HUGEPAGE)", libc::MADV_HUGEPAGE) {
                Ok(()) => Step::Done,
                Err(error) => Step::Short(Shortfall::Refused(error)),
            };
            mapping
        }
    };
    settle(&mapping, page, report)?;
    Ok(mapping)
}

/// Excludes a mapping from children, prefers its node, and makes it present unless it is paged on demand.
fn settle(mapping: &Mapping, page: usize, report: &mut Placement) -> Result<(), ProviderError> {
    // Otherwise a child made by `fork(2)` would cause pages to be copied to another place under the device (S32).
    mapping.advise("madvise(MADV_DONTFORK)", libc::MADV_DONTFORK)?;
    report.node = match (report.asked.node, report.node_asked) {
        (NumaNode::Any, _) => Step::NotAsked,
        (_, None) => Step::Short(Shortfall::NodeUnknown),
        (_, Some(node)) => match mapping.prefer(node, 0) {
            Ok(()) => Step::Done,
            Err(error) => Step::Short(Shortfall::Refused(error)),
        },
    };
    if report.asked.on_demand {
        return Ok(());
    }
    mapping.populate(page)
}

/// Inspects a mapping, moves pages that lie on another node, and corrects the report.
fn verify(mapping: &Mapping, report: &mut Placement) {
    let look = || kernel_view::look(mapping.base.addr().get(), mapping.bytes);
    let mut view = look();
    if let (Step::Done, Some(node)) = (report.node, report.node_asked) {
        let bytes_there = |view: &kernel_view::View| {
            let here = view.nodes.iter().find(|(at, _)| *at == node);
            here.map_or(0, |(_, bytes)| *bytes)
        };
        let is_shown = |view: &&kernel_view::View| !view.nodes.is_empty();
        if view
            .as_ref()
            .filter(is_shown)
            .is_some_and(|view| bytes_there(view) < mapping.bytes)
        {
            // Moving makes room on the node first, and placing does not. The report below shows pages that could not be moved.
            mapping.prefer(node, MOVE).ok();
            view = look();
        }
        report.node = match view.as_ref().filter(is_shown).map(bytes_there) {
            Some(bytes) if bytes >= mapping.bytes => Step::Done,
            Some(bytes) => Step::Short(Shortfall::Partly { bytes }),
            None => Step::Short(Shortfall::NotShown),
        };
    }
    report.seen = view.map(|view| view.seen);
    if report.pages == Step::Done {
        report.pages = match report.seen {
            Some(seen) if seen.huge_bytes >= mapping.bytes => Step::Done,
            Some(seen) => Step::Short(Shortfall::Partly {
                bytes: seen.huge_bytes,
            }),
            // For reserved pages, the mapping would have failed. Transparent ones are never guaranteed.
            None if reserved_page_bytes(report.asked.pages).is_some() => Step::Done,
            None => Step::Short(Shortfall::NotShown),
        };
    }
    if report.lock == Step::Done && report.seen.is_some_and(|seen| !seen.locked) {
        report.lock = Step::Short(Shortfall::Partly { bytes: 0 });
    }
}

/// Returns the size of the reserved pages that this asks for, if it asks for any.
const fn reserved_page_bytes(pages: Pages) -> Option<usize> {
    match pages {
        Pages::Huge2M => Some(2 << 20),
        Pages::Huge1G => Some(1 << 30),
        _ => None,
    }
}

pub(crate) fn page_bytes() -> usize {
    // SAFETY: takes a number and returns one (sysconf(3)).
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes)
        .ok()
        .filter(|bytes| bytes.is_power_of_two())
        .unwrap_or(4096)
}

/// Returns the soft limit of locked memory, or `None` if there is no limit.
pub(crate) fn lock_limit() -> Option<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: a writable structure (getrlimit(2)).
    let status = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
    (status == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// Returns the errno of a call that just failed, as an error.
fn refused(call: &'static str) -> ProviderError {
    ProviderError {
        call,
        errno: errno::last(),
    }
}

const fn invalid() -> ProviderError {
    ProviderError {
        call: "mmap",
        errno: libc::EINVAL,
    }
}

#[cfg(test)]
mod tests;
