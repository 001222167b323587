//! Placed messages: long messages that the sender WRITEs into memory lent by the receiver, with one copy on each side.
//!
//! The session numbers, acknowledges and orders the fragments of such a message like those of any other. But the bytes of a fragment
//! are written into a place of the lent memory, and the fragment's frame follows the WRITE on the same connection. So the bytes are in
//! memory when the frame arrives (InfiniBand Architecture volume 1, section 9.5). A fragment that arrives early stays in its place.
//!
//! The sender chooses the places. A place is reused under two conditions. The peer's session has acknowledged the fragment, after copying it
//! out. And no WRITE into the place may still be executed: each has completed, or the peer accepts nothing more from its connection
//! (the session's fence).
//!
//! A side lends memory once a long message has arrived in fragments in slots, and allocates memory to send from once the peer has lent
//! some. The memory to send from is given back after [`UNUSED_MAX`], since only this side uses it. Lent memory stays lent: no frame takes it
//! back. If a device refuses to register the memory, messages go as fragments in slots. After [`AGAIN_AFTER`] the next long message
//! makes the link try again. [`LinkConfig::placed_bytes_all`] limits the memory of all links of one `Links`.

mod budget;
mod places;
mod posting;

use core::time::Duration;
use std::sync::Arc;

use doorbell_core::provider::{
    MemoryError, ProtectionDomain as _, Provider, RemoteAccess, Window as _, WindowConfig,
};
use doorbell_core::session::{Epoch, SESSION_RAILS_MAX, Sequence, Violation};
use doorbell_core::wire::{Lend, Placed, RemoteWindow};
use doorbell_core::{Deadline, Instant};

use super::config::LinkConfig;
use super::log::log_unplaced;
use crate::machine::makers::{Commission, Makers, Whom};
use crate::machine::reaper::{Reaped, Reaper};
use crate::memory::Region;
use crate::worker::Worker;
pub(super) use budget::PlacedBudget;
pub use budget::PlacedMemory;
use budget::Share;
use places::Places;

const RAILS: usize = SESSION_RAILS_MAX as usize;

/// The bytes of a place. 100 Gb/s carry them in 5 µs, and a message of another link waits as long. At 64 KiB the frame, its
/// completions and those of the WRITEs cost a fiftieth of fragments in slots.
const PLACE_BYTES: u32 = 64 << 10;

/// The maximum length of a WRITE. Each completion shows that the rail works, and a rail of 16 Mbit/s completes such a WRITE within the
/// timeout of its transport, 16.8 ms by default.
const PART_BYTES: u32 = 32 << 10;

/// The requests of a fragment after its WRITEs: its frame, and announcements of receives that are posted along with it.
const BEHIND_PARTS: u32 = 3;

/// The maximum number of requests of a fragment.
const REQUESTS_MAX: u32 = PLACE_BYTES / PART_BYTES + BEHIND_PARTS;

/// The minimum share of a message for each rail: a shorter message uses fewer rails.
const SHARE_BYTES_MIN: usize = 8 << 10;

/// Number of consecutive WRITEs whose refusal by the peer's device ends the link. A peer that ends the link itself may cause one on each
/// rail.
const DENIED_MAX: u32 = 2 * SESSION_RAILS_MAX as u32;

/// Minimum time until a link asks a device again that refused memory. A call takes a thread milliseconds, and limits on locked memory
/// are raised by hand.
const AGAIN_AFTER: Duration = Duration::from_secs(10);

/// How long memory to send from is kept after the last placed message. The next one then goes in slots, and a thread allocates and
/// registers memory again, which takes milliseconds.
const UNUSED_MAX: Duration = Duration::from_secs(60);

/// Memory that a helper thread allocates and registers.
enum Memory<T: Send + 'static> {
    None,
    Making(Commission<T, MemoryError>),
    There(Reaped<T>),
    /// A device refused it, and is not asked again before this time.
    Refused(Deadline),
    /// The link is over.
    Over,
}

impl<T: Send + 'static> Memory<T> {
    const fn is_making(&self) -> bool {
        matches!(self, Self::Making(_))
    }

    fn there(&self) -> Option<&T> {
        match self {
            Self::There(memory) => Some(memory),
            _ => None,
        }
    }

    /// Whether a thread may be asked for it now.
    fn may_be_made(&self, now: Instant) -> bool {
        match self {
            Self::None => true,
            Self::Refused(until) => until.has_passed(now),
            Self::Making(_) | Self::There(_) | Self::Over => false,
        }
    }

    /// Takes the result of the thread. Returns whether the memory became available.
    fn look(&mut self, budget: &PlacedBudget, now: Instant) -> bool {
        let Self::Making(commission) = self else {
            return false;
        };
        *self = match commission.take() {
            Ok(None) => return false,
            Ok(Some(memory)) => {
                budget.note(Ok(()));
                Self::There(memory)
            }
            Err(error) => {
                if budget.note(Err(error)) {
                    log_unplaced(error);
                }
                Self::Refused(Deadline::after(now, AGAIN_AFTER))
            }
        };
        matches!(self, Self::There(_))
    }
}

/// Memory of this side that the peer writes fragments into.
pub(super) struct Lent<P: Provider> {
    /// The memory as registered with each Worker's device.
    windows: Vec<P::Window>,
    _share: Share,
}

/// Memory of this side that fragments are written from.
struct Out<P: Provider> {
    region: Region<P>,
    /// Dropped by the reaper after the windows, which the region hands to the reaper first.
    _share: Reaped<Share>,
}

/// The state of a link's placed messages.
pub(super) struct Placing<P: Provider> {
    budget: Arc<PlacedBudget>,
    messages_over: usize,
    bytes: usize,
    place_bytes: u32,
    /// The memory that is lent, and for each rail the last connection on which its key was sent.
    lent: Memory<Lent<P>>,
    sent: [Epoch; RAILS],
    /// The places of fragments that arrived early, by their index in the session's table.
    early: Box<[Option<Placed>]>,
    ahead: usize,
    /// Maximum number of fragments that are kept until the peer acknowledges them.
    retained: usize,
    /// Whether a long message has arrived in slots since memory to lend was last requested.
    is_wanted: bool,
    /// Whether a long message was sent in slots since memory to send from was last requested. Also set before the first request.
    is_out_wanted: bool,
    /// Whether the limit of all links left too little memory for the last request.
    is_short: bool,
    /// The length of the peer's lent memory, or 0, and its key on each connection.
    their_bytes: u64,
    keys: [Option<(Epoch, RemoteWindow)>; RAILS],
    /// The memory to send from. Each fragment has the same offset here as in the peer's memory.
    out: Memory<Out<P>>,
    places: Option<Places>,
    /// When that memory is given back, while no place is taken.
    unused_until: Option<Deadline>,
    denied: u32,
}

impl<P: Provider> Placing<P> {
    pub(super) fn new(config: &LinkConfig) -> Self {
        Self {
            budget: PlacedBudget::new(config.placed_bytes_all),
            messages_over: config.place_messages_over,
            // All requests of a fragment are posted together, so a shorter send queue allows no placed messages.
            bytes: match config.channel.send_depth <= REQUESTS_MAX {
                true => 0,
                false => config.placed_bytes,
            },
            // A fragment is posted as a whole, so the limit on pieces of transfers applies to it, too.
            place_bytes: PLACE_BYTES.min(config.transfers.piece_bytes()),
            lent: Memory::None,
            sent: [Epoch::NONE; RAILS],
            early: Box::default(),
            ahead: LinkConfig::places(config.ahead),
            retained: LinkConfig::places(config.retained),
            is_wanted: false,
            is_out_wanted: true,
            is_short: false,
            their_bytes: 0,
            keys: [None; RAILS],
            out: Memory::None,
            places: None,
            unused_until: None,
            denied: 0,
        }
    }

    /// Sets the budget that all links share.
    pub(super) fn share(&mut self, budget: &Arc<PlacedBudget>) {
        self.budget = Arc::clone(budget);
    }

    /// Whether the link needs memory, and the limit of all links leaves too little.
    pub(super) const fn is_short(&self) -> bool {
        self.is_short
    }

    /// Notes that a message of this length arrived in several fragments in slots.
    pub(super) const fn note_long(&mut self, bytes: usize) {
        self.is_wanted |= bytes > self.messages_over && self.bytes > 0;
    }

    /// Notes the key of the peer's lent memory on a rail's connection.
    ///
    /// # Errors
    /// The memory has another length than before, or extends past the last address.
    pub(super) fn heard(&mut self, rail: u8, lend: &Lend) -> Result<(), Violation> {
        let bytes = lend.window.length_bytes();
        let is_other = self.their_bytes != 0 && self.their_bytes != bytes;
        if is_other || lend.window.address_of(0, bytes).is_none() {
            return Err(Violation::OutOfPlace);
        }
        self.their_bytes = bytes;
        if let Some(key) = self.keys.get_mut(usize::from(rail)) {
            *key = Some((lend.epoch, lend.window));
        }
        Ok(())
    }

    /// The number of places that the memory of both sides has.
    fn places(&self) -> u32 {
        let ours = u64::try_from(self.bytes).unwrap_or(u64::MAX);
        let places = ours.min(self.their_bytes).checked_div(self.place_bytes.into());
        // Offsets have to fit into 32 bits.
        let most = u32::MAX.checked_div(self.place_bytes).unwrap_or(0);
        places.map_or(0, |places| u32::try_from(places).unwrap_or(most).min(most))
    }

    /// Takes this many bytes of the limit of all links, if they are left.
    fn share_of(&mut self, bytes: usize) -> Option<Share> {
        let share = self.budget.take(bytes);
        self.is_short |= share.is_none();
        share
    }

    /// Requests memory that is needed, and takes memory that is ready.
    pub(super) fn go_on(
        &mut self,
        workers: &[Worker<P>],
        makers: &Makers,
        (whom, is_known): (Whom, bool),
        now: Instant,
    ) {
        self.is_short = false;
        let bytes = self.bytes;
        let is_due = self.is_wanted && is_known && self.lent.may_be_made(now);
        if let Some(share) = is_due.then(|| self.share_of(bytes)).flatten() {
            self.is_wanted = false;
            self.lent = make(workers, makers, whom, move |domains, _| {
                let first = window::<P>(&domains, bytes, RemoteAccess::WRITE)?;
                let mut windows = Vec::with_capacity(domains.len());
                for domain in domains.iter().skip(1) {
                    windows.push(domain.window_of(&first, 0..bytes, RemoteAccess::WRITE)?);
                }
                windows.insert(0, first);
                Ok(Lent {
                    windows,
                    _share: share,
                })
            });
        }
        let places = self.places();
        let bytes = usize::try_from(places).unwrap_or(0).saturating_mul(self.each());
        let is_due = places > 0 && self.is_out_wanted && self.out.may_be_made(now);
        if let Some(share) = is_due.then(|| self.share_of(bytes)).flatten() {
            self.is_out_wanted = false;
            self.out = make(workers, makers, whom, move |domains, reaper: &Reaper| {
                let region = region(domains, reaper, bytes)?;
                Ok(Out {
                    region,
                    _share: reaper.keep(share),
                })
            });
        }
        if self.lent.look(&self.budget, now) {
            self.early = vec![None; self.ahead].into_boxed_slice();
        }
        if self.out.look(&self.budget, now) {
            self.places = Some(Places::new(places));
        }
    }

    /// Gives the memory to send from back if no place has been taken for [`UNUSED_MAX`]. `is_kept` tells whether the peer has yet to
    /// acknowledge a fragment.
    fn give_back(&mut self, is_kept: impl Fn(Sequence) -> bool, now: Instant) {
        let Some(places) = &mut self.places else {
            return;
        };
        places.let_go(is_kept);
        if !places.are_all_free() {
            self.unused_until = None;
            return;
        }
        let until = self.unused_until.get_or_insert(Deadline::after(now, UNUSED_MAX));
        if until.has_passed(now) {
            (self.out, self.places, self.unused_until) = (Memory::None, None, None);
            // It may have been set by messages that went in slots while a thread made this memory.
            self.is_out_wanted = false;
        }
    }

    /// Whether no thread works on memory.
    pub(super) const fn is_at_rest(&self) -> bool {
        !self.lent.is_making() && !self.out.is_making()
    }

    /// Whether this side has memory to lend, so that placed fragments may arrive.
    pub(super) fn has_lent(&self) -> bool {
        self.lent.there().is_some()
    }

    /// Returns the frame that lends the memory over a rail's connection of this Worker, if it was not sent there.
    fn unsent(&self, rail: u8, worker: usize, epoch: Epoch) -> Option<Lend> {
        let lent = self.lent.there()?;
        let window = lent.windows.get(worker)?.remote();
        let is_sent = self.sent.get(usize::from(rail)) == Some(&epoch);
        (!is_sent).then_some(Lend { epoch, window })
    }

    /// Whether the range of a fragment is within the lent memory.
    pub(super) fn holds(&self, placed: Placed) -> bool {
        let end = usize::try_from(placed.offset)
            .ok()
            .and_then(|offset| offset.checked_add(usize::try_from(placed.bytes).ok()?));
        self.has_lent() && end.is_some_and(|end| end <= self.bytes)
    }

    /// Records the place of an early fragment. Returns whether the index is valid.
    pub(super) fn keep(&mut self, place: usize, placed: Placed) -> bool {
        let early = self.early.get_mut(place);
        early.map(|early| *early = Some(placed)).is_some()
    }

    /// Returns the place of an early fragment.
    pub(super) fn kept(&self, place: usize) -> Option<Placed> {
        self.early.get(place).copied().flatten()
    }

    /// Copies a fragment out of the lent memory. The peer may write there at any time, so the code never takes a reference to it.
    pub(super) fn copy_out(&self, placed: Placed, target: &mut [u8]) {
        let offset = usize::try_from(placed.offset).unwrap_or(usize::MAX);
        if let Some(first) = self.lent.there().and_then(|lent| lent.windows.first()) {
            // `holds` checked the range.
            let _ = first.copy_out(offset, target);
        }
    }

    /// Takes the lent memory out, to be kept as long as the peer may write there. None is lent afterwards.
    pub(super) fn take_lent(&mut self) -> Option<Reaped<Lent<P>>> {
        match core::mem::replace(&mut self.lent, Memory::Over) {
            Memory::There(lent) => Some(lent),
            _ => None,
        }
    }

    /// Notes that the WRITEs into a place on a connection are done.
    pub(super) fn completed(&mut self, place: u32, on: (u8, Epoch)) {
        self.denied = 0;
        if let Some(places) = &mut self.places {
            places.completed(place, on);
        }
    }

    /// Notes that a rail's connection is lost. Returns whether it needs a fence.
    pub(super) fn lost(&mut self, rail: u8, epoch: Epoch) -> bool {
        let places = self.places.as_mut();
        places.is_some_and(|places| places.lost(rail, epoch))
    }

    /// Notes that the peer accepts nothing more from a rail's connections up to this one.
    pub(super) fn fenced(&mut self, rail: u8, through: Epoch) {
        if let Some(places) = &mut self.places {
            places.fenced(rail, through);
        }
    }

    /// Notes that a device refused a WRITE. Returns whether the link may go on: an honest peer does not withdraw its memory before the end.
    pub(super) const fn denied(&mut self) -> bool {
        self.denied = self.denied.saturating_add(1);
        self.denied < DENIED_MAX
    }

    fn each(&self) -> usize {
        usize::try_from(self.place_bytes).unwrap_or(usize::MAX)
    }
}

type Domains<P> = Vec<Arc<<P as Provider>::ProtectionDomain>>;

/// Requests memory from a helper thread.
fn make<P: Provider, T: Send + 'static>(
    workers: &[Worker<P>],
    makers: &Makers,
    whom: Whom,
    make: impl FnOnce(Domains<P>, &Reaper) -> Result<T, MemoryError> + Send + 'static,
) -> Memory<T> {
    let Some(first) = workers.first() else {
        return Memory::Over;
    };
    let reaper = first.reaper().clone();
    let domains = workers.iter().map(|worker| Arc::clone(&worker.domain)).collect();
    Memory::Making(makers.make(whom, None, move || make(domains, &reaper)))
}

/// Allocates memory of this length, registered with each of the domains.
fn region<P: Provider>(domains: Domains<P>, reaper: &Reaper, bytes: usize) -> Result<Region<P>, MemoryError> {
    let first = window::<P>(&domains, bytes, RemoteAccess::NONE)?;
    Ok(Region::new(first, domains, reaper)?)
}

/// Allocates memory of this length, registered with the first of the domains.
fn window<P: Provider>(
    domains: &Domains<P>,
    bytes: usize,
    access: RemoteAccess,
) -> Result<P::Window, MemoryError> {
    let config = WindowConfig::new(bytes, access);
    let first = domains.first();
    first
        .ok_or(MemoryError::Unreachable("a link without a Worker"))?
        .window(&config)
}
