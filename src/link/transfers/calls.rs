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
    /// Begins a transfer of a range of a region to the link's peer. The peer gets
    /// [`TransferEvent::Offered`](crate::link::TransferEvent::Offered), and joins with memory for the bytes. The device reads the range while
    /// the transfer is open. If the application changes it meanwhile, the peer may get old or new bytes.
    ///
    /// # Errors
    /// [`TransferRefusal::Full`] is backpressure. Otherwise the link or the region does not allow the transfer.
    pub fn offer(
        &mut self,
        node: &Node<P, N>,
        id: LinkId,
        (region, offset, bytes): (&Region<P>, usize, u64),
        options: &TransferOptions,
    ) -> Result<TransferId, TransferRefusal> {
        self.begin_transfer(node, (id, TransferRole::Giver), (region, offset, bytes), options)
    }

    /// Begins a transfer from the link's peer into a range of a region. The peer gets
    /// [`TransferEvent::Offered`](crate::link::TransferEvent::Offered), and joins with the bytes. The contents of the range are undefined until
    /// the transfer has ended as [`TransferEnd::Done`](crate::link::TransferEnd::Done).
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

    /// Joins a transfer that the peer began, with the part of a region that begins at this offset. The role in the offer says whether this
    /// side gives the bytes or takes them.
    ///
    /// # Errors
    /// The transfer is not offered any more, or the link or the region does not allow it. In the second case the offer stays valid.
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

    /// Ends a transfer before it is done, or declines one that the peer offered. Both sides then get
    /// [`TransferEvent::Ended`](crate::link::TransferEvent::Ended). If the taker has all bytes already, it reports the transfer as done.
    ///
    /// # Errors
    /// There is no such transfer, or it has ended, or the link is over.
    pub fn cancel(
        &mut self,
        node: &Node<P, N>,
        (id, transfer): (LinkId, TransferId),
    ) -> Result<(), TransferRefusal> {
        let (link, now) = self.open_link(node, id, None)?;
        link.transfers.cancel(transfer, now)
    }

    /// Lends a range of a region to a link's peer: the peer may write there until the loan is revoked. Another thread registers the range
    /// once, only for this peer. Transfers into the loan ([`TransferOptions::loan`]) register nothing.
    ///
    /// The peer may write there at any time, whether or not a transfer is open. So read bytes only after [`TransferEnd::Done`], and trust
    /// them as far as you trust the peer. [`LinkEvent::Revoked`](crate::link::LinkEvent::Revoked) reports the end of the loan: after
    /// [`Links::revoke`], at the end of the link, or if the device refuses to register the memory.
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

    /// Lends a range of a region as [`Links::lend`] does, with this access, and grants it to the peer as a window for
    /// [`Links::request`]. Returns the loan, and the number of the window. The peer gets that number in
    /// [`LinkEvent::Granted`](crate::link::LinkEvent) once the memory is registered.
    ///
    /// The loan has its own key, which is sent to no other peer. [`Links::revoke`] also withdraws the window. Unlike a window of
    /// [`Links::grant`], it needs no memory of a Worker, and the access ends with it: later requests of the peer fail, and with them the
    /// connection that they were posted on.
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

    /// Ends a loan, and withdraws its window if it has one. Open transfers into it end as
    /// [`EndReason::CANCELLED`](crate::link::EndReason). After [`LinkEvent::Revoked`](crate::link::LinkEvent::Revoked) the peer cannot access the
    /// memory. A request of the peer that comes too late fails its connection.
    ///
    /// # Errors
    /// There is no such loan, or it is revoked ([`TransferRefusal::NoLoan`]).
    pub fn revoke(&mut self, node: &Node<P, N>, (id, loan): (LinkId, LoanId)) -> Result<(), TransferRefusal> {
        let (link, now) = self.open_link(node, id, None)?;
        link.transfers.revoke(loan, now)
    }

    /// The counts of a transfer whose end is not reported. `None` if there is no such transfer.
    #[must_use]
    pub fn transfer_counts(&self, id: LinkId, transfer: TransferId) -> Option<TransferCounts> {
        self.core.link(id)?.transfers.counts(transfer)
    }

    /// The counts of all transfers of all links, including those that are over.
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
