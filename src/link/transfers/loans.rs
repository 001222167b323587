//! Loans of a link: ranges of regions that its peer can access until they are revoked.
//!
//! A loan is registered once, only for this peer. A transfer into the loan uses its key, limited to the range of the transfer. The end of
//! a transfer does not end the peer's access; only the end of the loan does. A loan may also be granted as a window for the peer's
//! requests.

use doorbell_core::provider::{MemoryError, Provider, RemoteAccess};
use doorbell_core::wire::RemoteWindow;

use super::reach::Reach;
use super::{LoanId, TransferRefusal};
use crate::link::grants::Ours;
use crate::machine::makers::{Makers, Whom};
use crate::memory::Region;

/// Maximum number of loans of a link.
const LOANS_MAX: u32 = 64;

struct Loan<P: Provider> {
    id: LoanId,
    region: Region<P>,
    offset: usize,
    bytes: usize,
    access: RemoteAccess,
    /// The number of its window, until the window is withdrawn. `None` if it is not granted as a window.
    window: Option<u32>,
    is_announced: bool,
    reach: Reach<P>,
    is_revoked: bool,
    /// Why a device did not register it.
    error: Option<MemoryError>,
    /// Why the device did not deregister it.
    kept: Option<MemoryError>,
}

/// End of a loan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum LoanEnd {
    /// The peer cannot access the memory any more. The error is that of a device that did not register it.
    Withdrawn(Option<MemoryError>),
    /// A device did not deregister the memory, so the peer may still access it.
    Kept(MemoryError),
}

impl<P: Provider> Loan<P> {
    /// The offset within the loan of a range of the region, if the loan contains the range.
    fn within(&self, offset: usize, bytes: u64) -> Option<usize> {
        let start = offset.checked_sub(self.offset)?;
        let end = start.checked_add(usize::try_from(bytes).ok()?)?;
        (end <= self.bytes).then_some(start)
    }
}

/// The loans of a link, until the end of each is reported.
pub(super) struct Loans<P: Provider> {
    list: Vec<Loan<P>>,
    next: u32,
}

impl<P: Provider> Loans<P> {
    pub(super) const fn new() -> Self {
        Self {
            list: Vec::new(),
            next: 0,
        }
    }

    /// Lends a range of a region. If `name` returns a number, the loan is also the window of that number.
    pub(super) fn lend(
        &mut self,
        (region, offset, bytes): (&Region<P>, usize, usize),
        access: RemoteAccess,
        name: impl FnOnce() -> Result<Option<u32>, TransferRefusal>,
        by: (&Makers, Whom),
    ) -> Result<LoanId, TransferRefusal> {
        let length = u64::try_from(bytes).unwrap_or(u64::MAX);
        if bytes == 0 {
            return Err(TransferRefusal::Length { bytes: length });
        }
        if access == RemoteAccess::NONE {
            return Err(TransferRefusal::NoAccess);
        }
        if (access.write || access.atomic) && !region.is_writable() {
            return Err(TransferRefusal::ReadOnly);
        }
        if offset.checked_add(bytes).is_none_or(|end| end > region.bytes()) {
            return Err(TransferRefusal::OutOfRegion {
                offset,
                bytes: length,
                region_bytes: region.bytes(),
            });
        }
        let full = TransferRefusal::LoansFull { loans_max: LOANS_MAX };
        if self.list.len() >= LOANS_MAX as usize {
            return Err(full);
        }
        let id = LoanId(self.next);
        let next = self.next.checked_add(1).ok_or(full)?;
        let window = name()?;
        self.next = next;
        self.list.push(Loan {
            id,
            region: region.clone(),
            offset,
            bytes,
            access,
            window,
            is_announced: false,
            reach: Reach::register(region, (offset, bytes), access, by),
            is_revoked: false,
            error: None,
            kept: None,
        });
        Ok(id)
    }

    fn find(&self, id: LoanId) -> Option<&Loan<P>> {
        self.list.iter().find(|loan| loan.id == id)
    }

    /// Whether a loan that the peer may write to, and that is not revoked, contains a range of a region.
    pub(super) fn covers(&self, id: LoanId, (region, offset, bytes): (&Region<P>, usize, u64)) -> bool {
        let loan = self.find(id).filter(|loan| loan.access.write && !loan.is_revoked);
        loan.is_some_and(|loan| loan.region.is_same(region) && loan.within(offset, bytes).is_some())
    }

    /// The key of a range of a loan's region, on this Worker's device.
    pub(super) fn key(
        &self,
        id: LoanId,
        (offset, bytes): (usize, u64),
        worker: usize,
    ) -> Option<RemoteWindow> {
        let loan = self.find(id).filter(|loan| !loan.is_revoked)?;
        let start = u64::try_from(loan.within(offset, bytes)?).ok()?;
        let window = loan.reach.key(worker)?;
        let address = window.address().checked_add(start)?;
        Some(RemoteWindow::new(address, bytes, window.rkey()))
    }

    /// Marks a loan as revoked. Returns whether there is such a loan, and it was not revoked before.
    pub(super) fn revoke(&mut self, id: LoanId) -> bool {
        let loan = self
            .list
            .iter_mut()
            .find(|loan| loan.id == id && !loan.is_revoked);
        loan.map(|loan| loan.is_revoked = true).is_some()
    }

    /// Marks all loans as revoked.
    pub(super) fn revoke_all(&mut self) {
        for loan in &mut self.list {
            loan.is_revoked = true;
        }
    }

    /// Takes the results of threads that register or deregister memory. Returns the first loan whose registration failed, and marks it as
    /// revoked. There may be more of them.
    pub(super) fn look(&mut self, (makers, whom): (&Makers, Whom)) -> Option<(LoanId, MemoryError)> {
        for loan in &mut self.list {
            if let Err(error) = loan.reach.look() {
                (loan.error, loan.is_revoked) = (Some(error), true);
                return Some((loan.id, error));
            }
            if loan.is_revoked {
                loan.kept = loan.kept.or(loan.reach.fence((makers, whom)).err());
            }
        }
        None
    }

    /// Announces the windows of loans that are registered, and withdraws those of revoked loans.
    pub(super) fn announce(&mut self, windows: &mut Ours) {
        for loan in &mut self.list {
            let Some(window) = loan.window else {
                continue;
            };
            if loan.is_revoked {
                windows.withdraw(window);
                loan.window = None;
            } else if let Some(keys) = loan.reach.keys().filter(|_| !loan.is_announced) {
                windows.announce(window, keys);
                loan.is_announced = true;
            }
        }
    }

    /// Removes and returns a revoked loan, to be reported: the peer cannot access its memory any more, or a device failed to deregister it.
    pub(super) fn take_over(&mut self) -> Option<(LoanId, LoanEnd)> {
        let is_over = |loan: &Loan<P>| loan.is_revoked && matches!(loan.reach, Reach::None);
        let place = self.list.iter().position(is_over)?;
        let loan = self.list.remove(place);
        let withdrawn = LoanEnd::Withdrawn(loan.error);
        Some((loan.id, loan.kept.map_or(withdrawn, LoanEnd::Kept)))
    }

    /// Whether there is a loan whose end is not reported.
    pub(super) fn is_any(&self) -> bool {
        !self.list.is_empty()
    }

    /// Whether a thread works on a loan, or the end of one is to be reported.
    pub(super) fn is_any_busy(&self) -> bool {
        self.list
            .iter()
            .any(|loan| loan.is_revoked || loan.reach.is_busy())
    }
}
