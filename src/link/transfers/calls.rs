//! The calls of [`Links`] about transfers.

use doorbell_core::Instant;
use doorbell_core::network::Network;
use doorbell_core::provider::{Provider, RemoteAccess};
use doorbell_core::session::SESSION_GRANTS_MAX;
use doorbell_core::transfer::TransferRole;

use super::{LoanId, TransferCounts, TransferId, TransferOptions, TransferRefusal, TransferTotals};
use crate::connect::node::Node;
use crate::link::event::LinkId;
use crate::link::links::Links;
use crate::link::state::Link;
use crate::memory::Region;

impl<P: Provider, N: Network> Links<P, N> {
    /// Begins a transfer of bytes of a region, from an offset on, to the link's peer. The peer gets
    /// [`TransferEvent::Offered`](crate::link::TransferEvent::Offered), and joins with memory for them. The bytes are read while
    /// the transfer is open: what is copied in meanwhile may arrive or not.
    ///
    /// # Errors
    /// [`TransferRefusal::Full`] is backpressure. Otherwise the link or the region does not allow it.
    pub fn offer(
        &mut self,
        node: &Node<P, N>,
        id: LinkId,
        (region, offset, bytes): (&Region<P>, usize, u64),
        options: &TransferOptions,
    ) -> Result<TransferId, TransferRefusal> {
        self.begin_transfer(node, (id, TransferRole::Giver), (region, offset, bytes), options)
    }

    /// Begins a transfer of so many bytes from the link's peer into a region, from an offset on. The peer gets
    /// [`TransferEvent::Offered`](crate::link::TransferEvent::Offered), and joins with the bytes. The bytes of that part of the region are
    /// undefined until the transfer ended as [`TransferEnd::Done`](crate::link::TransferEnd::Done).
    ///
    /// # Errors
    /// As for [`Links::offer`].
    pub fn ask(
        &mut self,
        node: &Node<P, N>,
        id: LinkId,
        (region, offset, bytes): (&Region<P>, usize, u64),
        options: &TransferOptions,
    ) -> Result<TransferId, TransferRefusal> {
        self.begin_transfer(node, (id, TransferRole::Taker), (region, offset, bytes), options)
    }

    fn begin_transfer(
        &mut self,
        node: &Node<P, N>,
        (id, role): (LinkId, TransferRole),
        (region, offset, bytes): (&Region<P>, usize, u64),
        options: &TransferOptions,
    ) -> Result<TransferId, TransferRefusal> {
        let (link, now) = self.open_link(node, id, Some(region))?;
        let whom = link.whom();
        let by = (now, node.makers(), whom);
        let begun = link.transfers.begin((role, bytes), (region, offset), options, by);
        let is_full = matches!(begun, Err(TransferRefusal::Full { .. }));
        self.waiting.note_refused(is_full);
        begun
    }

    /// Joins a transfer that the peer began, with the part of a region that begins at this offset: its bytes are given, or are memory for
    /// what comes, as the offer says.
    ///
    /// # Errors
    /// The transfer is not on offer any more, or the link or the region does not allow it. The offer stands then.
    pub fn join(
        &mut self,
        node: &Node<P, N>,
        (id, transfer): (LinkId, TransferId),
        (region, offset): (&Region<P>, usize),
        options: &TransferOptions,
    ) -> Result<(), TransferRefusal> {
        let (link, now) = self.open_link(node, id, Some(region))?;
        let by = (now, node.makers(), link.whom());
        link.transfers.join(transfer, (region, offset), options, by)
    }

    /// Ends a transfer before it is done, or declines one that the peer offered. [`TransferEvent::Ended`](crate::link::TransferEvent::Ended)
    /// follows at both sides. A taker may have all bytes by then, and reports the transfer as done.
    ///
    /// # Errors
    /// There is no such transfer any more.
    pub fn cancel(
        &mut self,
        node: &Node<P, N>,
        (id, transfer): (LinkId, TransferId),
    ) -> Result<(), TransferRefusal> {
        let (link, now) = self.open_link(node, id, None)?;
        link.transfers.cancel(transfer, now)
    }

    /// Lets a link's peer write to a part of a region, of so many bytes from an offset on, until it is revoked. It is registered once, for
    /// this peer alone, on another thread. Transfers come into it by [`TransferOptions::loan`], and register nothing.
    ///
    /// The peer may write there at any time, whether or not a transfer is open. So read bytes only after [`TransferEnd::Done`], and trust
    /// them as far as you trust the peer. [`LinkEvent::Revoked`](crate::link::LinkEvent::Revoked) reports the end: after [`Links::revoke`],
    /// at the end of the link, or if the device does not register the memory.
    ///
    /// # Errors
    /// [`TransferRefusal::LoansFull`] is backpressure. Otherwise the link or the region does not allow it.
    ///
    /// [`TransferEnd::Done`]: crate::link::TransferEnd::Done
    pub fn lend(
        &mut self,
        node: &Node<P, N>,
        id: LinkId,
        (region, offset, bytes): (&Region<P>, usize, usize),
    ) -> Result<LoanId, TransferRefusal> {
        let (link, _) = self.open_link(node, id, Some(region))?;
        let by = (node.makers(), link.whom());
        let write = RemoteAccess::WRITE;
        link.transfers
            .loans
            .lend((region, offset, bytes), write, || Ok(None), by)
    }

    /// Lends a part of a region as [`Links::lend`] does, with this access, and grants it to the peer as a window that
    /// [`Links::request`] names. Returns the loan, and the number of the window: that of [`LinkEvent::Granted`](crate::link::LinkEvent) at
    /// the peer, which follows once the memory is registered.
    ///
    /// The key is of this loan alone, and no other peer is sent it. [`Links::revoke`] withdraws the window, too. Unlike a window of
    /// [`Links::grant`], it needs no memory of a Worker, and nothing outlives its end: requests that the peer made before fail, and
    /// lose the connection that they were posted on.
    ///
    /// READ and atomics also need the right in [`ChannelConfig::remote`](crate::ChannelConfig::remote) of this side's channels.
    ///
    /// # Errors
    /// [`TransferRefusal::LoansFull`] is backpressure: loans, or windows of the link. Otherwise the link or the region does not allow it.
    pub fn lend_window(
        &mut self,
        node: &Node<P, N>,
        id: LinkId,
        (region, offset, bytes): (&Region<P>, usize, usize),
        access: RemoteAccess,
    ) -> Result<(LoanId, u32), TransferRefusal> {
        let (link, _) = self.open_link(node, id, Some(region))?;
        let by = (node.makers(), link.whom());
        let (loans, windows) = (&mut link.transfers.loans, &mut link.one_sided.ours);
        let mut number = 0;
        let name = || {
            let loans_max = u32::from(SESSION_GRANTS_MAX);
            number = windows
                .grant(&[], access)
                .ok_or(TransferRefusal::LoansFull { loans_max })?;
            Ok(Some(number))
        };
        let loan = loans.lend((region, offset, bytes), access, name, by)?;
        Ok((loan, number))
    }

    /// Takes a loan out of the peer's reach, and withdraws its window if it has one. Open transfers into it end as [`EndReason::CANCELLED`](crate::link::EndReason). From
    /// [`LinkEvent::Revoked`](crate::link::LinkEvent::Revoked) on, nothing on the wire writes there. A peer that writes meanwhile loses the
    /// connection that it writes over.
    ///
    /// # Errors
    /// There is no such loan, or it is revoked ([`TransferRefusal::NoLoan`]).
    pub fn revoke(&mut self, node: &Node<P, N>, (id, loan): (LinkId, LoanId)) -> Result<(), TransferRefusal> {
        let (link, now) = self.open_link(node, id, None)?;
        link.transfers.revoke(loan, now)
    }

    /// The counts of a transfer that has no reported end. `None` if there is no such transfer.
    #[must_use]
    pub fn transfer_counts(&self, id: LinkId, transfer: TransferId) -> Option<TransferCounts> {
        self.core.link(id)?.transfers.counts(transfer)
    }

    /// The counts of all transfers of all links, those that are over included.
    #[must_use]
    pub fn transfer_totals(&self) -> TransferTotals {
        let links = self.core.links().map(|(_, link)| link.transfers.totals());
        links.fold(self.core.gone.transfers, TransferTotals::plus)
    }

    fn open_link(
        &mut self,
        node: &Node<P, N>,
        id: LinkId,
        region: Option<&Region<P>>,
    ) -> Result<(&mut Link<P, N>, Instant), TransferRefusal> {
        if region.is_some_and(|region| !region.domains().eq(self.core.domains.iter().copied())) {
            return Err(TransferRefusal::OtherWorkers);
        }
        let over = self.core.over(id);
        let Some(link) = self.core.link_mut(id) else {
            return Err(over.map_or(TransferRefusal::Closing, TransferRefusal::Over));
        };
        if let Some(reason) = link.session.over() {
            return Err(TransferRefusal::Over(reason));
        }
        if region.is_some() && link.session.is_closing() {
            return Err(TransferRefusal::Closing);
        }
        Ok((link, node.network.now()))
    }
}
