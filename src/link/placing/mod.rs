//! Long messages that are written into memory which their receiver lent: no fragment of a slot each, and one copy at either end.
//!
//! Such a message has fragments as any, by the session: numbered, acknowledged and delivered in order, each once. But the bytes of a
//! fragment go by a WRITE into a place of that memory, and the fragment's frame follows the WRITE on the same connection. So the bytes are
//! there when the frame comes (InfiniBand Architecture volume 1, section 9.5), and a fragment that is early waits in its place.
//!
//! The sender decides what is written where. It uses a place again once the peer's session has the fragment, which copies it out. And no
//! WRITE into the place may yet be carried out: each is done, or the peer takes nothing more of its connection (the session's fence).
//!
//! A side lends memory once a long message came in fragments of slots, and makes memory of its own once the peer has lent some. A device that
//! does not register it costs nothing but that: messages go in fragments of slots then, and after [`AGAIN_AFTER`] the next long one has it
//! asked again. All links together have no more such memory than [`LinkConfig::placed_bytes_all`].

mod budget;
mod places;
mod posting;

use core::time::Duration;
use std::sync::Arc;

use doorbell_core::provider::{
    MemoryError, ProtectionDomain as _, Provider, RemoteAccess, Window as _, WindowConfig,
};
use doorbell_core::session::{Epoch, SESSION_RAILS_MAX, Violation};
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

/// The bytes of a place: 100 Gb/s carry them in 5 µs, which a message of another link waits for. At 64 KiB, the frame, its completions and
/// those of the WRITE cost a fiftieth of what fragments of slots do.
const PLACE_BYTES: u32 = 64 << 10;

/// The most bytes of a WRITE. With each that is done the rail gives a sign of life, and one of 16 Mbit/s does one within
/// the timeout of its transport, 16.8 ms by default.
const PART_BYTES: u32 = 32 << 10;

/// The requests of a fragment behind its parts: its frame, and announcements of receives that posts bring along.
const BEHIND_PARTS: u32 = 3;

/// The requests of a fragment at most.
const REQUESTS_MAX: u32 = PLACE_BYTES / PART_BYTES + BEHIND_PARTS;

/// The bytes below which another rail does not get a share of a message.
const SHARE_BYTES_MIN: usize = 8 << 10;

/// WRITEs in a row that the peer's device may refuse before the link is over: a peer that ends its link may do so once for each rail.
const DENIED_MAX: u32 = 2 * SESSION_RAILS_MAX as u32;

/// A device that refused memory is not asked again sooner by a link. A call costs a thread some milliseconds, and limits on locked memory
/// are raised by people.
const AGAIN_AFTER: Duration = Duration::from_secs(10);

/// Memory that is made by a thread.
enum Memory<T: Send + 'static> {
    None,
    Making(Commission<T, MemoryError>),
    There(Reaped<T>),
    /// A device refused it: it is not asked again before this moment.
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

    /// Whether it may be asked for now.
    fn may_be_made(&self, now: Instant) -> bool {
        match self {
            Self::None => true,
            Self::Refused(until) => until.has_passed(now),
            Self::Making(_) | Self::There(_) | Self::Over => false,
        }
    }

    /// Takes what was made. Says whether it is there since now.
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

/// Memory of ours that the peer writes fragments into.
pub(super) struct Lent<P: Provider> {
    /// The memory as each Worker's device knows it.
    windows: Vec<P::Window>,
    _share: Share,
}

/// Memory of ours that fragments are written from.
struct Out<P: Provider> {
    region: Region<P>,
    /// Handed to the reaper behind the windows, which the region hands to it one by one.
    _share: Reaped<Share>,
}

/// All that a link has for messages that are written into memory of their receiver.
pub(super) struct Placing<P: Provider> {
    budget: Arc<PlacedBudget>,
    messages_over: usize,
    bytes: usize,
    place_bytes: u32,
    /// The memory that is lent, and for each rail the connection that its key was sent on last.
    lent: Memory<Lent<P>>,
    sent: [Epoch; RAILS],
    /// The places of fragments that came before one that they follow.
    early: Box<[Option<Placed>]>,
    ahead: usize,
    /// Fragments that are kept until the peer has them, at most.
    retained: usize,
    /// Whether a message came that the peer would have written, since the memory for it was asked for last.
    is_wanted: bool,
    /// Whether a message was sent that we would have written, since the memory for it was asked for last, or none was asked for yet.
    is_out_wanted: bool,
    /// Whether no share of the memory of all links was left, as it was asked for last.
    is_short: bool,
    /// The length of the peer's memory, if it lends some, and its key on each connection.
    their_bytes: u64,
    keys: [Option<(Epoch, RemoteWindow)>; RAILS],
    /// Each fragment has the same place there as at the peer.
    out: Memory<Out<P>>,
    places: Option<Places>,
    denied: u32,
}

impl<P: Provider> Placing<P> {
    pub(super) fn new(config: &LinkConfig) -> Self {
        Self {
            budget: PlacedBudget::new(config.placed_bytes_all),
            messages_over: config.place_messages_over,
            // The requests of a fragment are posted together.
            bytes: match config.channel.send_depth <= REQUESTS_MAX {
                true => 0,
                false => config.placed_bytes,
            },
            // A fragment goes as a whole, as a piece of a transfer does.
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
            denied: 0,
        }
    }

    /// Takes memory out of this budget, which all links share.
    pub(super) fn share(&mut self, budget: &Arc<PlacedBudget>) {
        self.budget = Arc::clone(budget);
    }

    /// Whether it wants memory, and found none within the bound of all links.
    pub(super) const fn is_short(&self) -> bool {
        self.is_short
    }

    /// Notes that a message of so many bytes came in fragments of slots.
    pub(super) const fn note_long(&mut self, bytes: usize) {
        self.is_wanted |= bytes > self.messages_over && self.bytes > 0;
    }

    /// Goes by what the peer lent over a rail's connection.
    ///
    /// # Errors
    /// It lends other memory than before, or memory that ends behind the last address.
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

    /// The places that there are on both sides.
    fn places(&self) -> u32 {
        let ours = u64::try_from(self.bytes).unwrap_or(u64::MAX);
        let places = ours.min(self.their_bytes).checked_div(self.place_bytes.into());
        // Each offset has to be one of 32 bits.
        let most = u32::MAX.checked_div(self.place_bytes).unwrap_or(0);
        places.map_or(0, |places| u32::try_from(places).unwrap_or(most).min(most))
    }

    /// A share of the memory of all links, of so many bytes, if there is one.
    fn share_of(&mut self, bytes: usize) -> Option<Share> {
        let share = self.budget.take(bytes);
        self.is_short |= share.is_none();
        share
    }

    /// Has memory made where it is of use, and takes what was made.
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

    /// Whether no memory is being made.
    pub(super) const fn is_at_rest(&self) -> bool {
        !self.lent.is_making() && !self.out.is_making()
    }

    /// Whether fragments may come that were written.
    pub(super) fn has_lent(&self) -> bool {
        self.lent.there().is_some()
    }

    /// The frame that is owed for the memory over a rail's connection, of this Worker's.
    fn unsent(&self, rail: u8, worker: usize, epoch: Epoch) -> Option<Lend> {
        let lent = self.lent.there()?;
        let window = lent.windows.get(worker)?.remote();
        let is_sent = self.sent.get(usize::from(rail)) == Some(&epoch);
        (!is_sent).then_some(Lend { epoch, window })
    }

    /// Whether a fragment lies in memory that is lent.
    pub(super) fn holds(&self, placed: Placed) -> bool {
        let end = usize::try_from(placed.offset)
            .ok()
            .and_then(|offset| offset.checked_add(usize::try_from(placed.bytes).ok()?));
        self.has_lent() && end.is_some_and(|end| end <= self.bytes)
    }

    /// Keeps the place of a fragment that is early. Says whether it could.
    pub(super) fn keep(&mut self, place: usize, placed: Placed) -> bool {
        let early = self.early.get_mut(place);
        early.map(|early| *early = Some(placed)).is_some()
    }

    /// The place of a fragment that was early.
    pub(super) fn kept(&self, place: usize) -> Option<Placed> {
        self.early.get(place).copied().flatten()
    }

    /// Copies a fragment out of memory that is lent. The peer may write there at any time, so nothing refers to it.
    pub(super) fn copy_out(&self, placed: Placed, target: &mut [u8]) {
        let offset = usize::try_from(placed.offset).unwrap_or(usize::MAX);
        if let Some(first) = self.lent.there().and_then(|lent| lent.windows.first()) {
            // The range was looked at before.
            let _ = first.copy_out(offset, target);
        }
    }

    /// Takes the memory that is lent, to be kept as long as the peer may write there.
    pub(super) fn take_lent(&mut self) -> Option<Reaped<Lent<P>>> {
        match core::mem::replace(&mut self.lent, Memory::Over) {
            Memory::There(lent) => Some(lent),
            _ => None,
        }
    }

    /// Notes that a WRITE on a connection is done.
    pub(super) fn completed(&mut self, place: u32, on: (u8, Epoch)) {
        self.denied = 0;
        if let Some(places) = &mut self.places {
            places.completed(place, on);
        }
    }

    /// Notes that a rail's connection is lost. Says whether the peer has to take nothing more of it.
    pub(super) fn lost(&mut self, rail: u8, epoch: Epoch) -> bool {
        let places = self.places.as_mut();
        places.is_some_and(|places| places.lost(rail, epoch))
    }

    /// Notes that the peer takes nothing more of a rail's connections up to this one.
    pub(super) fn fenced(&mut self, rail: u8, through: Epoch) {
        if let Some(places) = &mut self.places {
            places.fenced(rail, through);
        }
    }

    /// Notes that a device refused a WRITE. Says whether that is bearable: no honest peer takes its memory away before the end.
    pub(super) const fn denied(&mut self) -> bool {
        self.denied = self.denied.saturating_add(1);
        self.denied < DENIED_MAX
    }

    fn each(&self) -> usize {
        usize::try_from(self.place_bytes).unwrap_or(usize::MAX)
    }
}

type Domains<P> = Vec<Arc<<P as Provider>::ProtectionDomain>>;

/// Has memory made by a thread.
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

/// Memory of so many bytes, registered with each of the domains.
fn region<P: Provider>(domains: Domains<P>, reaper: &Reaper, bytes: usize) -> Result<Region<P>, MemoryError> {
    let first = window::<P>(&domains, bytes, RemoteAccess::NONE)?;
    Ok(Region::new(first, domains, reaper)?)
}

/// Memory of so many bytes, registered with the first of the domains.
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
