//! Completion queues: they are polled, or armed to notify through a descriptor.

use core::fmt;
use core::mem::ManuallyDrop;
use core::ops::Range;
use core::ptr::{self, NonNull};
use core::time::Duration;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::sync::Arc;

use doorbell_core::WorkKind;
use doorbell_core::ledger::{Ledger, Origin, QueueId};
use doorbell_core::provider::{CompletionQueueConfig, ProviderError};
use rdma_sys::ibv_wc;

use crate::channels::Channels;
use crate::completion::{Completion, LentCompletion, fresh_queue};
use crate::context::ContextInner;
use crate::leak::Leaked;
use crate::{Claim, Descriptor, Waker, errno, events};

/// How many completions one call takes from the device at most.
pub(crate) const POLL_MAX: usize = 16;

/// How many notifications are acknowledged at once. Each call takes a lock, so few calls are better. The number only has
/// to be small compared with 2^32, since libibverbs counts in 32 bits. Source: `ibv_get_cq_event(3)`.
const ACKNOWLEDGED_AT_ONCE: u32 = 64;

/// The queue in the device. It lives as long as a queue pair completes into it.
///
/// Queue pairs that complete into it hold an `Arc` of this, and so does the [`CompletionQueue`]. The latter takes
/// all events and has acknowledged each before it is dropped, so destroying the queue does not wait.
pub(crate) struct CompletionInner {
    cq: NonNull<rdma_sys::ibv_cq>,
    id: QueueId,
    channels: Channels,
    notifier: ManuallyDrop<Option<Notifier>>,
    context: ManuallyDrop<Arc<ContextInner>>,
}

// SAFETY: libibverbs may be called from any thread, on any object, at any time
// (rdma-core Documentation/libibverbs.md).
unsafe impl Send for CompletionInner {}
// SAFETY: as above.
unsafe impl Sync for CompletionInner {}

impl CompletionInner {
    /// The handle, live as long as `self`.
    pub(crate) const fn as_ptr(&self) -> *mut rdma_sys::ibv_cq {
        self.cq.as_ptr()
    }

    pub(crate) const fn channels(&self) -> &Channels {
        &self.channels
    }

    pub(crate) fn context(&self) -> &Arc<ContextInner> {
        &self.context
    }

    /// Makes the ledger of a queue that completes here and began after this many completions had been polled.
    pub(crate) const fn ledger(&self, polled: u64) -> Ledger {
        Ledger::new(self.id, polled)
    }
}

impl Drop for CompletionInner {
    #[doc(alias = "ibv_destroy_cq")]
    fn drop(&mut self) {
        // SAFETY: made in `CompletionQueue::new` and destroyed only here, when nothing completes into it any more and
        // all its events are acknowledged, as the type describes (ibv_create_cq(3), ibv_get_cq_event(3)).
        let status = unsafe { rdma_sys::ibv_destroy_cq(self.cq.as_ptr()) };
        if errno::from_value("ibv_destroy_cq", status).is_err() {
            // The queue still exists, so its channel and its device have to stay as well.
            Leaked::CompletionQueue.count();
            return;
        }
        // SAFETY: dropped here once, after the queue that used it.
        unsafe { ManuallyDrop::drop(&mut self.notifier) };
        // SAFETY: dropped here once, last.
        unsafe { ManuallyDrop::drop(&mut self.context) };
    }
}

/// The completion channel of one queue, the descriptors that are lent to event loops, and the waker.
struct Notifier {
    notification: Descriptor,
    waking: Descriptor,
    waker: Waker,
    // Dropped last: the notification descriptor watches it.
    channel: NotificationChannel,
}

impl Notifier {
    fn new(context: &Arc<ContextInner>) -> Result<Self, ProviderError> {
        let waker = Waker::new()?;
        let channel = NotificationChannel::new(context)?;
        events::set_nonblocking(channel.fd)?;
        // SAFETY: open as long as the channel, and not used after this function returns.
        let fd = unsafe { BorrowedFd::borrow_raw(channel.fd) };
        Ok(Self {
            notification: Descriptor::new(fd)?,
            waking: Descriptor::new(waker.descriptor())?,
            waker,
            channel,
        })
    }
}

/// A completion channel, with its descriptor.
struct NotificationChannel {
    channel: NonNull<rdma_sys::ibv_comp_channel>,
    fd: i32,
    /// Open as long as the channel.
    context: ManuallyDrop<Arc<ContextInner>>,
}

impl NotificationChannel {
    #[doc(alias = "ibv_create_comp_channel")]
    fn new(context: &Arc<ContextInner>) -> Result<Self, ProviderError> {
        // SAFETY: the context is live (ibv_create_comp_channel(3)).
        let channel = unsafe { rdma_sys::ibv_create_comp_channel(context.as_ptr()) };
        let channel = errno::from_pointer("ibv_create_comp_channel", channel)?;
        Ok(Self {
            channel,
            // SAFETY: the channel is live, and its descriptor was set before it was returned.
            fd: unsafe { channel.as_ref() }.fd,
            context: ManuallyDrop::new(Arc::clone(context)),
        })
    }

    /// The handle, live as long as `self`.
    const fn as_ptr(&self) -> *mut rdma_sys::ibv_comp_channel {
        self.channel.as_ptr()
    }
}

impl Drop for NotificationChannel {
    #[doc(alias = "ibv_destroy_comp_channel")]
    fn drop(&mut self) {
        // SAFETY: made in `new`, and destroyed only here, after the one queue that used it
        // (ibv_create_comp_channel(3)).
        let status = unsafe { rdma_sys::ibv_destroy_comp_channel(self.channel.as_ptr()) };
        if errno::from_value("ibv_destroy_comp_channel", status).is_err() {
            // The channel still exists, so its device has to stay open as well.
            Leaked::CompletionChannel.count();
            return;
        }
        // SAFETY: dropped here once, after the channel that was made from it.
        unsafe { ManuallyDrop::drop(&mut self.context) };
    }
}

type PollCq = unsafe extern "C" fn(*mut rdma_sys::ibv_cq, i32, *mut ibv_wc) -> i32;

/// A completion queue. One thread polls it.
pub struct CompletionQueue {
    inner: Arc<CompletionInner>,
    poll_cq: PollCq,
    depth: u32,
    /// How many completions it has handed out.
    polled: u64,
    /// How many polls found nothing.
    emptied: u64,
    /// Notifications taken, but not yet acknowledged to libibverbs.
    unacknowledged: u32,
    /// Completions as the device writes them. They begin zeroed, so the fields that a failed completion does not write
    /// are never uninitialised (S7).
    batch: Box<[ibv_wc; POLL_MAX]>,
    /// The rest of a batch whose callback panicked. Until a poll takes it, `poll_cq` is [`left_over`].
    rest: Range<usize>,
}

impl CompletionQueue {
    #[doc(alias = "ibv_create_cq")]
    pub(crate) fn new(
        context: &Arc<ContextInner>,
        config: &CompletionQueueConfig,
    ) -> Result<Self, ProviderError> {
        let invalid = ProviderError {
            call: "ibv_create_cq",
            errno: libc::EINVAL,
        };
        let depth = i32::try_from(config.depth)
            .ok()
            .filter(|depth| *depth > 0)
            .ok_or(invalid)?;
        let notifier = if config.notify {
            Some(Notifier::new(context)?)
        } else {
            None
        };
        let channel = notifier
            .as_ref()
            .map_or(ptr::null_mut(), |notifier| notifier.channel.as_ptr());
        // SAFETY: the context is live, and the channel, if there is one, is of that context and outlives the queue
        // (ibv_create_cq(3)).
        let cq = unsafe { rdma_sys::ibv_create_cq(context.as_ptr(), depth, ptr::null_mut(), channel, 0) };
        let cq = errno::from_pointer("ibv_create_cq", cq)?;
        // SAFETY: the queue is live, and its size was set before it was returned.
        let granted = unsafe { (*cq.as_ptr()).cqe };
        // SAFETY: integers only, for which zero bytes are a value.
        let zeroed: ibv_wc = unsafe { core::mem::zeroed() };
        Ok(Self {
            inner: Arc::new(CompletionInner {
                cq,
                id: fresh_queue(),
                channels: Channels::default(),
                notifier: ManuallyDrop::new(notifier),
                context: ManuallyDrop::new(Arc::clone(context)),
            }),
            poll_cq: context.data_path().poll_cq,
            depth: u32::try_from(granted).unwrap_or(config.depth),
            polled: 0,
            emptied: 0,
            unacknowledged: 0,
            batch: Box::new([zeroed; POLL_MAX]),
            rest: 0..0,
        })
    }

    /// Moves the completions that a panicking callback left to the start of the batch, and returns their number.
    #[cold]
    fn take_left_over(&mut self, status: i32) -> Result<i32, ProviderError> {
        let rest = core::mem::take(&mut self.rest);
        let taken = rest.len();
        let (Ok(count @ 1..), Ok(again)) = (i32::try_from(taken), u64::try_from(taken)) else {
            return Err(poll_failed(status));
        };
        self.poll_cq = self.inner.context.data_path().poll_cq;
        // The poll counts them again, so they keep their numbers.
        self.polled = self.polled.wrapping_sub(again);
        if rest.end <= self.batch.len() {
            self.batch.copy_within(rest, 0);
        }
        Ok(count)
    }

    pub(crate) const fn inner(&self) -> &Arc<CompletionInner> {
        &self.inner
    }

    /// Makes the ledger of a queue that is created now and completes here.
    pub(crate) fn ledger(&self) -> Ledger {
        self.inner.ledger(self.polled)
    }

    /// How many completions it has handed out.
    pub(crate) const fn polled(&self) -> u64 {
        self.polled
    }

    /// How many polls found nothing.
    pub(crate) const fn emptied(&self) -> u64 {
        self.emptied
    }

    /// Acknowledges to libibverbs the notifications taken so far.
    #[doc(alias = "ibv_ack_cq_events")]
    fn acknowledge_taken(&mut self) {
        if self.unacknowledged > 0 {
            // SAFETY: the queue is live. No other queue uses its channel, so every event taken is about this queue,
            // and each is acknowledged once (ibv_get_cq_event(3)).
            unsafe { rdma_sys::ibv_ack_cq_events(self.inner.as_ptr(), self.unacknowledged) };
            self.unacknowledged = 0;
        }
    }

    fn notifier(&self, call: &'static str) -> Result<&Notifier, ProviderError> {
        self.inner.notifier.as_ref().ok_or(ProviderError {
            call,
            errno: libc::EOPNOTSUPP,
        })
    }
}

impl doorbell_core::provider::CompletionQueue for CompletionQueue {
    type Completion = Completion;
    type Waker = Waker;
    type Claim = Claim;
    type Descriptor = Descriptor;

    #[inline]
    #[doc(alias = "ibv_poll_cq")]
    fn poll<F: FnMut(LentCompletion<'_>)>(&mut self, mut each: F) -> Result<u32, ProviderError> {
        const ROOM: i32 = 16;
        const { assert!(POLL_MAX == ROOM as usize) };
        // SAFETY: the queue is live, the function is its provider's, or `left_over`, and the array has room for the
        // number of completions asked for (ibv_poll_cq(3)).
        let mut count = unsafe { (self.poll_cq)(self.inner.as_ptr(), ROOM, self.batch.as_mut_ptr()) };
        if count == 0 {
            self.emptied = self.emptied.wrapping_add(1);
            return Ok(0);
        }
        if count < 0 {
            count = self.take_left_over(count)?;
        }
        let (Ok(taken), Some(polled)) = (
            u32::try_from(count),
            usize::try_from(count)
                .ok()
                .and_then(|count| self.batch.get(..count)),
        ) else {
            return Err(poll_failed(count));
        };
        let mut origin = Origin {
            queue: self.inner.id,
            sequence: self.polled,
        };
        // Before the callbacks, which may panic, so that no two completions have the same number.
        self.polled = self.polled.wrapping_add(taken.into());
        let mut left = LeftOver {
            completions: polled.iter(),
            taken: polled.len(),
            rest: &mut self.rest,
            poll_cq: &mut self.poll_cq,
        };
        for wc in left.completions.by_ref() {
            origin.sequence = origin.sequence.wrapping_add(1);
            each(LentCompletion::new(wc, &origin));
        }
        core::mem::forget(left);
        Ok(taken)
    }

    fn depth(&self) -> u32 {
        self.depth
    }

    fn claim_sends(&self, channel: u32) -> Result<Claim, ProviderError> {
        Claim::new(self, WorkKind::Send, channel)
    }

    fn claim_receives(&self, channel: u32) -> Result<Claim, ProviderError> {
        Claim::new(self, WorkKind::Receive, channel)
    }

    fn is_claimed(&self, channel: u32) -> bool {
        self.inner.channels().is_taken(WorkKind::Send, channel)
    }

    fn notification(&self) -> Option<&Descriptor> {
        Some(&self.inner.notifier.as_ref()?.notification)
    }

    fn waking(&self) -> Option<&Descriptor> {
        Some(&self.inner.notifier.as_ref()?.waking)
    }

    #[doc(alias = "ibv_req_notify_cq")]
    fn arm(&mut self, solicited_only: bool) -> Result<(), ProviderError> {
        self.notifier("ibv_req_notify_cq")?;
        let req_notify_cq = self.inner.context.data_path().req_notify_cq;
        // SAFETY: the queue is live and has a channel, and the function is its provider's
        // (ibv_req_notify_cq(3)).
        let status = unsafe { req_notify_cq(self.inner.as_ptr(), i32::from(solicited_only)) };
        errno::from_value("ibv_req_notify_cq", status)
    }

    #[doc(alias = "ibv_get_cq_event")]
    fn acknowledge(&mut self) -> Result<u32, ProviderError> {
        let notifier = self.notifier("ibv_get_cq_event")?;
        notifier.waker.take()?;
        let mut taken = 0_u32;
        let outcome = loop {
            let (mut cq, mut cq_context) = (ptr::null_mut(), ptr::null_mut());
            // SAFETY: a live channel and two writable pointers (ibv_get_cq_event(3)).
            let status = unsafe {
                rdma_sys::ibv_get_cq_event(notifier.channel.as_ptr(), &raw mut cq, &raw mut cq_context)
            };
            match errno::from_minus_one("ibv_get_cq_event", status) {
                Ok(_) => taken = taken.saturating_add(1),
                Err(error) if events::is_empty(error) => break Ok(taken),
                Err(error) if error.errno == libc::EINTR => {}
                Err(error) => break Err(error),
            }
        };
        self.unacknowledged = self.unacknowledged.saturating_add(taken);
        if self.unacknowledged >= ACKNOWLEDGED_AT_ONCE {
            self.acknowledge_taken();
        }
        outcome
    }

    fn waker(&self) -> Option<Waker> {
        Some(self.inner.notifier.as_ref()?.waker.clone())
    }

    fn sleep<const N: usize>(queues: [&Self; N], span: Duration) -> Result<(), ProviderError> {
        let mut entries = [[libc::pollfd {
            fd: -1,
            events: libc::POLLIN,
            revents: 0,
        }; 2]; N];
        for ([completions, wake_ups], queue) in entries.iter_mut().zip(queues) {
            let notifier = queue.notifier("ppoll")?;
            completions.fd = notifier.channel.fd;
            wake_ups.fd = notifier.waker.descriptor().as_raw_fd();
        }
        let entries = entries.as_flattened_mut();
        let span = libc::timespec {
            tv_sec: i64::try_from(span.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: span.subsec_nanos().into(),
        };
        // SAFETY: as many writable entries as the count states, and a time, which all outlive the call; no signal
        // mask (ppoll(2)).
        let status = unsafe {
            libc::ppoll(
                entries.as_mut_ptr(),
                entries.len() as libc::nfds_t,
                &raw const span,
                ptr::null(),
            )
        };
        match errno::from_minus_one("ppoll", status) {
            Err(error) if error.errno != libc::EINTR => Err(error),
            _ => Ok(()),
        }
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        self.acknowledge_taken();
    }
}

/// A batch that is being handed out. If a panic drops it, it keeps its remaining completions for the next poll.
struct LeftOver<'q> {
    completions: core::slice::Iter<'q, ibv_wc>,
    taken: usize,
    rest: &'q mut Range<usize>,
    poll_cq: &'q mut PollCq,
}

impl Drop for LeftOver<'_> {
    // Inlined, so that it stays in registers while nothing panics.
    #[inline(always)]
    fn drop(&mut self) {
        keep_rest(self.completions.len(), self.taken, self.rest, self.poll_cq);
    }
}

#[cold]
fn keep_rest(left: usize, taken: usize, rest: &mut Range<usize>, poll_cq: &mut PollCq) {
    if left > 0 {
        *rest = taken.saturating_sub(left)..taken;
        *poll_cq = left_over;
    }
}

/// Replaces the device's function while completions are left over, so that a poll checks for them only on its failure
/// path.
unsafe extern "C" fn left_over(_: *mut rdma_sys::ibv_cq, _: i32, _: *mut ibv_wc) -> i32 {
    -1
}

#[cold]
fn poll_failed(status: i32) -> ProviderError {
    errno::from_value("ibv_poll_cq", status)
        .err()
        .unwrap_or(ProviderError {
            call: "ibv_poll_cq",
            errno: libc::EIO,
        })
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue")
            .field("device", self.inner.context.name())
            .field("id", &self.inner.id)
            .field("depth", &self.depth)
            .field("polled", &self.polled)
            .finish_non_exhaustive()
    }
}
