//! Posting of submitted requests. One doorbell posts the requests that wait at a channel and the requests of submitters for it.

use std::sync::Arc;

use doorbell_core::provider::{Operation, PostError, PostFlags, Provider, PushError, Refused, Slot as _};
use doorbell_core::{Ticket, WcStatus};
use doorbell_hotpath::Batch;

use super::submissions::{Inlets, Queue};
use crate::worker::channel::ChannelId;
use crate::worker::half::{SendHalf, Sends};
use crate::worker::submission::SubmissionError;
use crate::worker::submission::{Deferred, Records};

/// Requests staged for one doorbell.
type Staged<'q, P> = Batch<'q, <P as Provider>::SendQueue, Arc<<P as Provider>::Window>>;

/// A limit on the bytes of a doorbell.
pub(super) trait Limit {
    /// Whether own requests and submitters' requests of the channel take turns by doorbells, so that neither uses all the bytes.
    const IS_ONE: bool;

    /// Whether another request may be staged.
    fn admits(&self) -> bool;

    /// Counts a staged request of this many bytes.
    fn take(&mut self, bytes: usize);
}

/// No limit.
struct Unlimited;

impl Limit for Unlimited {
    const IS_ONE: bool = false;

    #[inline(always)]
    fn admits(&self) -> bool {
        true
    }

    #[inline(always)]
    fn take(&mut self, _bytes: usize) {}
}

/// Limits on the requests that may still be staged for the doorbell.
struct Left<'l, B> {
    room: u32,
    credits: u32,
    bytes: &'l mut B,
    /// The limit for automatic inline, if the request is alone in its doorbell.
    inline_bytes_max: Option<usize>,
}

impl<B: Limit> Left<'_, B> {
    #[inline]
    fn admits(&self, takes_receive: bool) -> bool {
        self.room > 0 && (self.credits > 0 || !takes_receive) && self.bytes.admits()
    }

    #[inline]
    fn take(&mut self, takes_receive: bool, bytes: usize) {
        self.bytes.take(bytes);
        self.room = self.room.saturating_sub(1);
        self.credits = self.credits.saturating_sub(u32::from(takes_receive));
    }

    /// Reserves room and credits for up to `count` requests. Returns what was reserved.
    #[inline]
    fn set_aside(&mut self, count: u32) -> [u32; 2] {
        [&mut self.room, &mut self.credits].map(|left| {
            let aside = count.min(*left);
            *left = left.saturating_sub(aside);
            aside
        })
    }

    /// Returns the reserved room and credits.
    #[inline]
    fn take_back(&mut self, [room, credits]: [u32; 2]) {
        self.room = self.room.saturating_add(room);
        self.credits = self.credits.saturating_add(credits);
    }

    #[inline]
    fn flags(&self, operation: Operation, bytes: usize, flags: PostFlags) -> PostFlags {
        let is_inline = self.inline_bytes_max.is_some_and(|most| bytes <= most);
        if is_inline && !operation.writes_slots() {
            flags | PostFlags::INLINE
        } else {
            flags
        }
    }
}

/// Posts the requests that wait for a channel with one doorbell, as far as room and credits allow. The channel's own requests,
/// submitted on the Worker's thread, go first, then the requests of submitters. If own requests leave no room for submitters, the
/// submitters get room first the next time. Requests for an earlier channel with the same index fail.
///
/// Own requests that come back stay with the channel until they are reported ([`Deferred::take_refused`]).
#[inline]
pub(super) fn post<P: Provider, C: Sends<P>>(queue: &mut Queue, inlets: &mut Inlets<P>, channel: &mut C) {
    post_within(queue, inlets, channel, &mut Unlimited);
}

/// Posts as [`post`] does, within a limit on the bytes.
#[inline(always)]
pub(super) fn post_within<P: Provider, C: Sends<P>>(
    queue: &mut Queue,
    inlets: &mut Inlets<P>,
    channel: &mut C,
    limit: &mut impl Limit,
) {
    let id = channel.reservation().id;
    let is_open = channel.is_open();
    let half = channel.send_half();
    if !is_open {
        return fail(queue, inlets, half, id);
    }
    if ring(queue, inlets, half, id, (true, limit)) {
        post_others(queue, inlets, half, id, limit);
    }
}

/// Posts the submitters' requests in another doorbell, after the device refused an own request ahead of them.
#[cold]
fn post_others<P: Provider>(
    queue: &mut Queue,
    inlets: &mut Inlets<P>,
    half: &mut SendHalf<P>,
    id: ChannelId,
    limit: &mut impl Limit,
) {
    ring(queue, inlets, half, id, (false, limit));
}

/// Stages the requests and rings one doorbell. Returns whether submitters' requests wait again, because the device refused an own
/// request ahead of them.
#[inline(always)]
fn ring<P: Provider, B: Limit>(
    queue: &mut Queue,
    inlets: &mut Inlets<P>,
    half: &mut SendHalf<P>,
    id: ChannelId,
    (with_own, limit): (bool, &mut B),
) -> bool {
    let SendHalf {
        sender,
        records,
        deferred,
        inline_alone_bytes_max,
        notice,
        ..
    } = half;
    let mut deferred = deferred.as_deref_mut().filter(|_| with_own);
    let own = deferred.as_ref().map_or(0, |deferred| deferred.waiting());
    let is_alone = own.wrapping_add(queue.count) == 1;
    let mut left = Left {
        room: sender.room(),
        credits: sender.credits(),
        bytes: limit,
        inline_bytes_max: is_alone.then_some(usize::from(*inline_alone_bytes_max)),
    };
    // Checked before anything is staged: if nothing can be posted, which may last for many polls, no batch is begun.
    let can_others = inlets
        .at(queue.head)
        .is_some_and(|(_, node)| node.request.channel() != id || left.admits(node.request.takes_receive()));
    let is_their_turn = queue.is_their_turn && can_others;
    let aside = left.set_aside(if is_their_turn { queue.count } else { 0 });
    let can_own = deferred
        .as_mut()
        .and_then(|deferred| deferred.oldest())
        .is_some_and(|next| left.admits(next.operation.takes_receive()));
    if !can_own && !can_others {
        return false;
    }
    let mut batch = sender.stage();
    let first = deferred
        .as_mut()
        .filter(|_| !(B::IS_ONE && is_their_turn))
        .and_then(|deferred| stage_own(deferred, &mut batch, &mut left));
    let own = batch.staged();
    left.take_back(aside);
    stage_others(queue, inlets, id, records, &mut batch, &mut left);
    queue.is_their_turn = own > 0 && !is_their_turn && !queue.is_empty();
    if batch.staged() > own {
        // The last request is signaled, since submitters may have no memory left for a later one.
        batch.signal_last();
    }
    let mut unposted = Queue::EMPTY;
    let mut is_own_refused = false;
    let outcome = batch.ring_returning(|ticket, slot| {
        // A submitter's staged request has a record, and its node has no slot meanwhile.
        match (records.take(ticket), &mut deferred, first) {
            (Some(record), ..) => unposted.push_back(inlets, &record, slot),
            (None, Some(deferred), Some(first)) => {
                is_own_refused = true;
                let before = ticket.position().wrapping_sub(first.position());
                deferred.return_one(before, slot);
            }
            (None, ..) => {}
        }
    });
    match outcome {
        Ok(_) => false,
        Err(error) => {
            notice.note_not_posted();
            let own = deferred.filter(|_| first.is_some());
            give_back(queue, inlets, own, unposted, is_own_refused, error)
        }
    }
}

/// Handles a doorbell that the device took only in part. The channel's own requests get the refusal. Submitters' requests fail,
/// or wait again if an own request was refused ahead of them. Returns whether submitters' requests wait again.
#[cold]
fn give_back<P: Provider>(
    queue: &mut Queue,
    inlets: &mut Inlets<P>,
    own: Option<&mut Deferred<P>>,
    mut unposted: Queue,
    is_own_refused: bool,
    error: PostError,
) -> bool {
    if let Some(deferred) = own {
        deferred.note_refusal(error);
    }
    if is_own_refused {
        queue.put_in_front(inlets, unposted);
        return !queue.is_empty();
    }
    let errno = error.cause.errno;
    unposted.fail(inlets, |_| SubmissionError::Post { errno });
    false
}

/// Stages the requests that wait at the channel. Returns the ticket of the first one.
#[inline(always)]
fn stage_own<P: Provider>(
    deferred: &mut Deferred<P>,
    batch: &mut Staged<'_, P>,
    left: &mut Left<'_, impl Limit>,
) -> Option<Ticket> {
    let mut first = None;
    deferred.begin_doorbell();
    while let Some(next) = deferred.oldest() {
        let (operation, flags) = (next.operation, next.flags);
        let takes_receive = operation.takes_receive();
        if !left.admits(takes_receive) {
            break;
        }
        // A waiting request has its slot.
        if let Some(slot) = next.slot.take() {
            let bytes = slot.len_bytes();
            let flags = left.flags(operation, bytes, flags);
            match batch.push(operation, [slot], flags) {
                Ok(ticket) => {
                    first = first.or(Some(ticket));
                    left.take(takes_receive, bytes);
                }
                Err(Refused { reason, item: [slot] }) => {
                    next.slot = Some(slot);
                    if matches!(reason, PushError::Full | PushError::NoCredit) {
                        break;
                    }
                    next.refused = Some(reason.into());
                }
            }
        }
        deferred.pass();
    }
    first
}

/// Stages the requests of submitters.
#[inline(always)]
fn stage_others<P: Provider>(
    queue: &mut Queue,
    inlets: &mut Inlets<P>,
    id: ChannelId,
    records: &mut Records<P>,
    batch: &mut Staged<'_, P>,
    left: &mut Left<'_, impl Limit>,
) {
    while let Some((return_path, node)) = inlets.at(queue.head) {
        let request = node.request;
        let takes_receive = request.takes_receive();
        if request.channel() == id && !left.admits(takes_receive) {
            break;
        }
        // A waiting request has its slot.
        if let Some(slot) = node.slot.take() {
            if request.channel() != id {
                return_path.failed(request.channel(), slot, SubmissionError::NoChannel);
                queue.pop(inlets);
                continue;
            }
            let index = slot.index();
            let operation = request.operation(|| return_path.detail(index));
            let bytes = slot.len_bytes();
            let flags = left.flags(operation, bytes, request.flags());
            match batch.push(operation, [slot], flags) {
                Ok(ticket) => {
                    records.note(ticket, return_path.number(), index);
                    left.take(takes_receive, bytes);
                }
                Err(Refused { reason, item: [slot] }) => match reason {
                    PushError::Full | PushError::NoCredit => {
                        node.slot = Some(slot);
                        break;
                    }
                    reason => return_path.failed(id, slot, reason.into()),
                },
            }
        }
        queue.pop(inlets);
    }
}

/// Fails all requests that wait for a failed channel.
#[cold]
fn fail<P: Provider>(queue: &mut Queue, inlets: &mut Inlets<P>, half: &mut SendHalf<P>, id: ChannelId) {
    let cause = half.sender.cause();
    let status = cause.map_or(WcStatus::WR_FLUSH_ERR, |cause| cause.status);
    queue.fail(inlets, |of| match of == id {
        true => SubmissionError::ChannelFailed(status),
        false => SubmissionError::NoChannel,
    });
    half.refuse_deferred(status);
}
