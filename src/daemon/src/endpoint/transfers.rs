//! Transfers: a process copies a range of another process's arena into its own arena, in parts of up to 64 KiB.
//!
//! The giver grants read access. The taker submits READs, a few at a time. It then reports the end to the giver by a special operation, which needs
//! no room in the giver's ring. The taker's memory is free after its last part, and the giver's memory after the end of the grant: then no other
//! process accesses it.

use core::fmt;

use doorbell::provider::Instant;
use doorbell::{Deadline, RemoteAccess};

use super::{Endpoint, EndpointEvent, EndpointRefusal};
use crate::descriptor::{Report, Requested, Submission};
use crate::name::EndpointAddress;
use crate::one_sided::{Action, ArenaGrant, ArenaOffer, ArenaRange, Asked, OPERATION_BYTES_MAX};
use crate::reason::{GoneReason, UndeliveredReason};

/// Maximum number of open transfers of a process, as giver and as taker together.
pub const TRANSFERS_MAX: usize = 64;

/// Maximum length of a part. Unit tests use a shorter one.
const PART_BYTES: u32 = if cfg!(test) { 256 } else { OPERATION_BYTES_MAX };

/// Maximum number of outstanding parts of a transfer: half of the credits of a pair of endpoints on two nodes.
const PARTS_OPEN_MAX: usize = 8;

/// Name of a transfer in the process that gives or takes it. Names are not reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ArenaTransfer(u64);

/// How a transfer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ArenaTransferEnd {
    /// The taker has received all bytes.
    Done,
    /// This process cancelled the transfer, or revoked its grant.
    Cancelled,
    /// The deadline that this process set has passed.
    Deadline,
    /// The other process ended the transfer: it cancelled, its deadline passed, or a part failed there.
    ByPeer,
    /// The other process is gone.
    Gone(GoneReason),
    /// A part was refused, or its outcome is unknown.
    Refused(UndeliveredReason),
    /// The daemon of this process ended. Grants end with their daemon, and the next daemon executes no earlier operation.
    DaemonEnded,
}

impl fmt::Display for ArenaTransferEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done => f.write_str("done"),
            Self::Cancelled => f.write_str("cancelled here"),
            Self::Deadline => f.write_str("the deadline passed"),
            Self::ByPeer => f.write_str("ended by the other process"),
            Self::Gone(reason) => write!(f, "the other process is gone: {reason}"),
            Self::Refused(reason) => write!(f, "a part was not carried out: {reason}"),
            Self::DaemonEnded => f.write_str("the daemon ended"),
        }
    }
}

/// The number by which a taker reports that it has all bytes. Any other number reports failure.
const DONE: u32 = 0;
const NOT_DONE: u32 = 1;

#[derive(Debug)]
struct Transfer {
    id: ArenaTransfer,
    grant: ArenaGrant,
    deadline: Deadline,
    /// How the transfer ends, once that is decided. The memory may still be accessed.
    end: Option<ArenaTransferEnd>,
    /// The end was reported to the application.
    is_reported: bool,
    side: Side,
}

#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "at most 64, and no memory is allocated while they are polled"
)]
enum Side {
    Giver {
        to: EndpointAddress,
        /// The grant has ended, so the taker cannot access the memory any more.
        is_fenced: bool,
    },
    Taker(Taker),
}

#[derive(Debug)]
struct Taker {
    bytes: u64,
    /// Offset in the taker's own arena.
    own: u64,
    /// Number of bytes that were requested.
    asked: u64,
    landed: u64,
    /// A part failed: `landed` counts only the bytes before it.
    has_gap: bool,
    /// Outstanding parts: submission number and length.
    open: [Option<(u64, u32)>; PARTS_OPEN_MAX],
    report: ToGiver,
}

/// State of the taker's report to the giver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ToGiver {
    Owed,
    /// The report was submitted under this number. Its outcome has not come, and does not matter.
    Open(u64),
    /// The report is done, or cannot be sent since the daemon ended.
    None,
}

/// Open transfers of an endpoint.
#[derive(Debug, Default)]
pub(super) struct Transfers {
    next: u64,
    all: Vec<Transfer>,
    /// Number of outstanding parts of all transfers.
    open: u32,
    /// The transfer that last requested a part. The one after it is next.
    served: Option<ArenaTransfer>,
    /// A part, a report or a revocation waits for room in the ring.
    is_short: bool,
}

impl Transfers {
    fn add(&mut self, grant: ArenaGrant, deadline: Deadline, side: Side) -> ArenaTransfer {
        let id = ArenaTransfer(self.next);
        self.next = self.next.wrapping_add(1);
        self.all.push(Transfer {
            id,
            grant,
            deadline,
            end: None,
            is_reported: false,
            side,
        });
        id
    }

    /// Examines a report. Returns whether it concerns only a transfer, so that the application does not see it.
    pub(super) fn intercept(&mut self, report: &Report) -> bool {
        match *report {
            Report::Completed { number, .. } => self.landed(number, None),
            Report::Undelivered { number, reason, .. } => self.landed(number, Some(reason)),
            Report::Written {
                from,
                place,
                immediate,
                ..
            } => {
                let given = self.all.iter_mut().find(
                    |one| matches!(one.side, Side::Giver { to, .. } if to == from && one.grant.place == place),
                );
                let end = if immediate == DONE {
                    ArenaTransferEnd::Done
                } else {
                    ArenaTransferEnd::ByPeer
                };
                given.is_some_and(|one| one.ends(end))
            }
            Report::Revoked(of) => {
                let mut given = self.all.iter_mut().filter(|one| one.grant.place == of);
                given.any(|one| {
                    let Side::Giver { is_fenced, .. } = &mut one.side else {
                        return false;
                    };
                    *is_fenced = true;
                    // The application revoked the grant, unless the end was decided before.
                    one.ends(ArenaTransferEnd::Cancelled)
                })
            }
            Report::Gone { who, reason } => {
                for one in &mut self.all {
                    let other = match one.side {
                        Side::Giver { to, .. } => to,
                        Side::Taker(_) => one.grant.owner,
                    };
                    if other == who {
                        one.ends(ArenaTransferEnd::Gone(reason));
                    }
                }
                false
            }
            Report::Message { .. } => false,
        }
    }

    /// Records the outcome of a part, or of a taker's report. Returns `false` if the number belongs to neither.
    fn landed(&mut self, number: u64, refused: Option<UndeliveredReason>) -> bool {
        for one in &mut self.all {
            let Side::Taker(taker) = &mut one.side else {
                continue;
            };
            if taker.report == ToGiver::Open(number) {
                taker.report = ToGiver::None;
                return true;
            }
            let part = taker
                .open
                .iter_mut()
                .find(|part| part.is_some_and(|(of, _)| of == number));
            let Some((_, bytes)) = part.and_then(Option::take) else {
                continue;
            };
            self.open = self.open.saturating_sub(1);
            taker.has_gap |= refused.is_some();
            if !taker.has_gap {
                taker.landed = taker.landed.saturating_add(bytes.into());
            }
            return match refused {
                None => true,
                // The giver ended the grant.
                Some(UndeliveredReason::NoGrant) => one.ends(ArenaTransferEnd::ByPeer),
                Some(reason) => one.ends(ArenaTransferEnd::Refused(reason)),
            };
        }
        false
    }

    /// Ends all transfers: the daemon ended, with all submissions that it had not executed.
    pub(super) fn end_all(&mut self) {
        self.open = 0;
        for one in &mut self.all {
            one.ends(ArenaTransferEnd::DaemonEnded);
            match &mut one.side {
                Side::Giver { is_fenced, .. } => *is_fenced = true,
                Side::Taker(taker) => (taker.open, taker.report) = ([None; PARTS_OPEN_MAX], ToGiver::None),
            }
        }
    }
}

impl Taker {
    fn is_open(&self) -> bool {
        self.open.iter().any(Option::is_some)
    }
}

impl Endpoint {
    /// Offers a range of the arena, up to the whole arena, to an endpoint of the job, which can take it until the deadline. Send the offer in a
    /// message ([`ArenaOffer::to_bytes`]). [`EndpointEvent::TransferEnded`] reports the end; after it no process reads the range.
    ///
    /// # Errors
    /// As for [`Endpoint::grant`]; the limit of open transfers is reached.
    pub fn offer(
        &mut self,
        to: EndpointAddress,
        range: ArenaRange,
        deadline: Deadline,
    ) -> Result<(ArenaTransfer, ArenaOffer), EndpointRefusal> {
        self.check_transfers()?;
        let grant = self.grant(to, range, RemoteAccess::READ)?;
        let is_fenced = false;
        let id = self.transfers.add(grant, deadline, Side::Giver { to, is_fenced });
        let bytes = range.bytes as u64;
        Ok((id, ArenaOffer { grant, bytes }))
    }

    /// Copies an offered range into this process's arena at `offset`, until the deadline. [`EndpointEvent::TransferEnded`] reports the end; after it
    /// nothing is written to the range. Polling requests the parts. The giver need not poll for them.
    ///
    /// # Errors
    /// The range is not within the arena, or the limit of open transfers is reached.
    pub fn take(
        &mut self,
        offer: &ArenaOffer,
        offset: usize,
        deadline: Deadline,
    ) -> Result<ArenaTransfer, EndpointRefusal> {
        self.check_transfers()?;
        let bytes = usize::try_from(offer.bytes).map_err(|_| self.out_of_arena())?;
        let (own, bytes) = self.within(ArenaRange { offset, bytes })?;
        let taker = Taker {
            bytes,
            own,
            asked: 0,
            landed: 0,
            has_gap: false,
            open: [None; PARTS_OPEN_MAX],
            report: ToGiver::Owed,
        };
        Ok(self.transfers.add(offer.grant, deadline, Side::Taker(taker)))
    }

    /// Cancels a transfer. [`EndpointEvent::TransferEnded`] follows in both processes; the taker may have received all bytes by then. Returns `false`
    /// if the transfer does not exist any more.
    pub fn cancel(&mut self, transfer: ArenaTransfer) -> bool {
        let mut open = self.transfers.all.iter_mut();
        let open = open.find(|one| one.id == transfer && !one.is_reported);
        open.is_some_and(|one| one.ends(ArenaTransferEnd::Cancelled))
    }

    /// Number of bytes of a transfer that have arrived in this process, counted from the beginning without a gap. `None` if this process is the
    /// giver, and after the end.
    #[must_use]
    pub fn landed(&self, transfer: ArenaTransfer) -> Option<u64> {
        let open = self.transfers.all.iter().find(|one| one.id == transfer)?;
        match &open.side {
            Side::Taker(taker) if !open.is_reported => Some(taker.landed),
            _ => None,
        }
    }

    /// Whether there are transfers, so that [`Endpoint::advance`] has work.
    #[must_use]
    pub fn has_transfers(&self) -> bool {
        !self.transfers.all.is_empty()
    }

    /// The earliest deadline of an open transfer.
    pub(crate) fn transfers_until(&self) -> Option<Deadline> {
        let open = self.transfers.all.iter().filter(|one| one.end.is_none());
        open.map(|one| one.deadline).min()
    }

    /// Outstanding parts and reports, each with the owner of the arena.
    #[cfg(test)]
    pub(crate) fn open_parts(&self) -> impl Iterator<Item = (u64, EndpointAddress)> {
        self.transfers.all.iter().flat_map(|one| {
            let (open, report) = match &one.side {
                Side::Taker(taker) => (taker.open, taker.report),
                Side::Giver { .. } => ([None; PARTS_OPEN_MAX], ToGiver::None),
            };
            let report = match report {
                ToGiver::Open(number) => Some(number),
                _ => None,
            };
            let open = open.into_iter().flatten().map(|(number, _)| number);
            open.chain(report).map(|number| (number, one.grant.owner))
        })
    }

    /// Whether transfers wait for room in the ring, and there is room.
    pub(crate) fn has_room_for_transfers(&mut self) -> Result<bool, EndpointRefusal> {
        Ok(self.transfers.is_short && self.has_room()?)
    }

    /// Requests the next parts of transfers, ends transfers whose deadline has passed, and passes each end to `each`. Call it after
    /// [`Endpoint::poll`]. Returns whether the daemon sleeps and has to be woken.
    ///
    /// # Errors
    /// The daemon violated the protocol.
    pub fn advance(
        &mut self,
        now: Instant,
        mut each: impl FnMut(EndpointEvent<'_>),
    ) -> Result<bool, EndpointRefusal> {
        self.transfers.is_short = false;
        while let Some(event) = self.next_ended(now)? {
            each(event);
        }
        Ok(self.flush())
    }

    /// Advances the transfers until one ends, and returns that end.
    fn next_ended(&mut self, now: Instant) -> Result<Option<EndpointEvent<'static>>, EndpointRefusal> {
        // Put back below in every case: no callback of the application runs in between.
        let mut all = core::mem::take(&mut self.transfers.all);
        let mut ended = Ok(None);
        // Round robin, since the limit of outstanding parts is common to all. Transfers are sorted by name.
        let first = all.partition_point(|one| Some(one.id) <= self.transfers.served);
        let (before, after) = all.split_at_mut(first);
        for one in after.iter_mut().chain(before) {
            ended = self.step(one, now);
            if !matches!(ended, Ok(None)) {
                break;
            }
        }
        all.retain(|one| !one.is_over());
        self.transfers.all = all;
        ended
    }

    /// Advances one transfer. Returns its end, once.
    fn step(
        &mut self,
        one: &mut Transfer,
        now: Instant,
    ) -> Result<Option<EndpointEvent<'static>>, EndpointRefusal> {
        if one.end.is_none() && one.deadline.has_passed(now) {
            one.end = Some(ArenaTransferEnd::Deadline);
        }
        if one.is_reported {
            return Ok(None);
        }
        let grant = one.grant;
        let landed = match &mut one.side {
            Side::Giver { is_fenced, .. } => {
                if one.end.is_some() && !*is_fenced && self.given.stands(grant.place) {
                    match self.revoke(&grant) {
                        Err(EndpointRefusal::Full) => self.transfers.is_short = true,
                        revoked => revoked?,
                    }
                }
                is_fenced.then_some(0)
            }
            Side::Taker(taker) => {
                while one.end.is_none() && taker.asked < taker.bytes && self.ask(taker, &grant)? {
                    self.transfers.served = Some(one.id);
                }
                if one.end.is_none() && taker.landed == taker.bytes {
                    one.end = Some(ArenaTransferEnd::Done);
                }
                if one.end.is_none() || taker.is_open() {
                    return Ok(None);
                }
                if taker.report == ToGiver::Owed {
                    let number = match one.end {
                        Some(ArenaTransferEnd::Done) => DONE,
                        _ => NOT_DONE,
                    };
                    let report = self.part(&grant, Action::End(number), (0, 0, 0))?;
                    let Some(number) = report else { return Ok(None) };
                    taker.report = ToGiver::Open(number);
                }
                Some(taker.landed)
            }
        };
        one.is_reported = one.end.is_some() && landed.is_some();
        let ended = one.end.zip(landed);
        let transfer = one.id;
        Ok(ended.map(|(end, bytes)| EndpointEvent::TransferEnded { transfer, end, bytes }))
    }

    /// Requests the next part of a transfer. Returns `false` if it has to wait.
    fn ask(&mut self, taker: &mut Taker, grant: &ArenaGrant) -> Result<bool, EndpointRefusal> {
        // Half of the ring is reserved for the application.
        let is_full = self.transfers.open >= self.layout.depth() / 2;
        let place = taker.open.iter_mut().find(|part| part.is_none());
        let Some(place) = place.filter(|_| !is_full) else {
            return Ok(false);
        };
        let left = taker.bytes.saturating_sub(taker.asked);
        let bytes = u32::try_from(left).map_or(PART_BYTES, |left| left.min(PART_BYTES));
        let own = taker.own.saturating_add(taker.asked);
        let Some(number) = self.part(grant, Action::Read, (taker.asked, own, bytes))? else {
            return Ok(false);
        };
        *place = Some((number, bytes));
        self.transfers.open = self.transfers.open.saturating_add(1);
        taker.asked = taker.asked.saturating_add(bytes.into());
        Ok(true)
    }

    /// Submits a part, given as its offset in the grant, its offset in the own arena, and its length. Returns `None` if the ring has no room.
    fn part(
        &mut self,
        grant: &ArenaGrant,
        action: Action,
        (offset, own, bytes): (u64, u64, u32),
    ) -> Result<Option<u64>, EndpointRefusal> {
        if !self.has_room()? {
            self.transfers.is_short = true;
            return Ok(None);
        }
        let asked = Asked {
            action,
            place: grant.place,
            offset,
            bytes,
        };
        let requested = Requested {
            to: grant.owner,
            number: self.sent,
            asked,
            own,
        };
        self.submit(&Submission::Operation(requested)).map(Some)
    }

    fn check_transfers(&self) -> Result<(), EndpointRefusal> {
        if self.transfers.all.len() >= TRANSFERS_MAX {
            return Err(EndpointRefusal::TooManyTransfers);
        }
        Ok(())
    }
}

impl Transfer {
    /// Sets how the transfer ends, unless that is decided already. Always returns `true`.
    fn ends(&mut self, end: ArenaTransferEnd) -> bool {
        self.end.get_or_insert(end);
        true
    }

    /// Whether the transfer can be removed.
    const fn is_over(&self) -> bool {
        let is_awaited = matches!(&self.side, Side::Taker(taker) if !matches!(taker.report, ToGiver::None));
        self.is_reported && !is_awaited
    }
}

#[cfg(test)]
mod tests {
    use super::{ArenaGrant, PARTS_OPEN_MAX, Side, Taker, ToGiver, Transfers};
    use crate::descriptor::Report;
    use crate::name::{EndpointAddress, NodeNumber};
    use crate::one_sided::GrantPlace;
    use crate::reason::UndeliveredReason;

    #[test]
    fn bytes_behind_a_part_that_did_not_arrive_do_not_count() {
        let to = EndpointAddress {
            node: NodeNumber(0),
            endpoint: 1,
        };
        let place = GrantPlace {
            index: 0,
            generation: 1,
        };
        let grant = ArenaGrant { owner: to, place };
        let mut open = [None; PARTS_OPEN_MAX];
        open[..3].copy_from_slice(&[Some((0, 64)), Some((1, 64)), Some((2, 64))]);
        let taker = Taker {
            bytes: 192,
            own: 0,
            asked: 192,
            landed: 0,
            has_gap: false,
            open,
            report: ToGiver::Owed,
        };
        let mut transfers = Transfers::default();
        transfers.add(
            grant,
            doorbell::within(core::time::Duration::ZERO),
            Side::Taker(taker),
        );
        let completed = |number| Report::Completed { to, number, value: 0 };
        let reason = UndeliveredReason::NoGrant;
        for report in [
            completed(0),
            Report::Undelivered {
                to,
                number: 1,
                reason,
            },
            completed(2),
        ] {
            assert!(transfers.intercept(&report));
        }
        assert!(matches!(&transfers.all[0].side, Side::Taker(taker) if taker.landed == 64));
    }
}
