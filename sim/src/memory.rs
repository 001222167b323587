//! Memory of the application: slots of an arena, which own their bytes, and the bytes of windows.

use core::fmt;
use core::ops::Range;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use doorbell_core::detached::{Detachments, Word};
use doorbell_core::provider::{
    ArenaConfig, DetachedSlot, DomainId, MemoryError, NumaNode, Pages, Placement, PlacementConfig, Shortfall,
    Step, Wish,
};
use doorbell_core::sync::{AtomicU32, Ordering};

use crate::errno::{EINVAL, ENOMEM, failed};
use crate::id::Id;

/// A word that an atomic works on.
pub(crate) const WORD_BYTES: usize = size_of::<u64>();
/// The bits of an address that are zero where such a word may be.
pub(crate) const WORD_ALIGN_MASK: u64 = WORD_BYTES as u64 - 1;

/// Zeroed bytes, or `None` where there are not that many.
pub(crate) fn zeroed(bytes: usize) -> Option<Box<[u8]>> {
    let mut memory = Vec::new();
    memory.try_reserve_exact(bytes).ok()?;
    memory.resize(bytes, 0);
    Some(memory.into_boxed_slice())
}

/// Placement of simulated memory: as the process has it, whatever the wishes.
///
/// # Errors
/// A wish is required.
pub(crate) fn placed(bytes: usize, asked: &PlacementConfig) -> Result<Placement, MemoryError> {
    const NONE: Step = Step::Short(Shortfall::NotProvided);
    let mut placement = Placement::unplaced(bytes, bytes);
    placement.asked = *asked;
    if asked.pages != Pages::Ordinary {
        placement.pages = NONE;
    }
    if asked.lock {
        placement.lock = NONE;
    }
    if let NumaNode::Number(node) = asked.node {
        placement.node_asked = Some(node);
    }
    if asked.node != NumaNode::Any {
        placement.node = NONE;
    }
    placement.check()?;
    Ok(placement)
}

/// The bytes of windows: of one, or of several that are registrations of the same memory. Locked inside the lock of the world, and
/// never for longer than a copy.
pub(crate) struct WindowBytes {
    memory: Arc<Mutex<Box<[u8]>>>,
    /// The part of it that is the window's.
    part: Range<usize>,
}

impl WindowBytes {
    /// So many zeroed bytes, or `None` if there is no memory for them.
    pub(crate) fn zeroed(bytes: usize) -> Option<Arc<Self>> {
        Some(Arc::new(Self {
            memory: Arc::new(Mutex::new(zeroed(bytes)?)),
            part: 0..bytes,
        }))
    }

    /// A part of these. `None` if it is empty, or does not lie within.
    pub(crate) fn part(&self, part: Range<usize>) -> Option<Arc<Self>> {
        if part.is_empty() || part.end > self.part.len() {
            return None;
        }
        let start = self.part.start;
        Some(Arc::new(Self {
            memory: Arc::clone(&self.memory),
            part: start.saturating_add(part.start)..start.saturating_add(part.end),
        }))
    }

    /// Gives `each` the bytes at `offset`, if they lie within.
    pub(crate) fn with<T>(
        &self,
        offset: usize,
        bytes: usize,
        each: impl FnOnce(Option<&mut [u8]>) -> T,
    ) -> T {
        // A copy leaves bytes, whatever it was.
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        let window = memory.get_mut(self.part.clone()).unwrap_or_default();
        let range = offset.checked_add(bytes).map(|end| offset..end);
        each(range.and_then(|range| window.get_mut(range)))
    }
}

// A request has four.
const _: () = assert!(size_of::<Option<Slot>>() == 40);

/// The memory of a slot, and which of its arena's it is.
struct Piece {
    index: u32,
    bytes: Box<[u8]>,
}

/// State that the slots of one arena share: the place that they return to. Or the registration of a window, which the window and the
/// slots of its ranges hold.
pub(crate) struct Home {
    /// The protection domain they are registered in.
    domain: Id,
    /// Counts it among the arenas there are. No way to the world: the last of a slot may go while that is locked.
    _counted: Option<Arc<()>>,
    /// The bytes of the window; none of an arena.
    window: Option<Arc<WindowBytes>>,
    returned: Mutex<Vec<Piece>>,
    detachments: Detachments<Box<[AtomicU32]>>,
    /// The memory of those that are detached.
    detached: Mutex<BTreeMap<u32, Box<[u8]>>>,
}

impl Home {
    /// The registration of a window in this domain.
    pub(crate) fn of_window(domain: Id, bytes: Arc<WindowBytes>) -> Arc<Self> {
        Arc::new(Self {
            domain,
            _counted: None,
            window: Some(bytes),
            returned: Mutex::default(),
            detachments: Detachments::new(Box::default(), 0),
            detached: Mutex::default(),
        })
    }

    /// The protection domain that it is registered in.
    pub(crate) const fn domain(&self) -> Id {
        self.domain
    }

    /// The bytes of the window; none of an arena.
    pub(crate) const fn window(&self) -> Option<&Arc<WindowBytes>> {
        self.window.as_ref()
    }

    fn returned(&self) -> MutexGuard<'_, Vec<Piece>> {
        // Pushing and taking leave the list whole.
        self.returned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn detached(&self) -> MutexGuard<'_, BTreeMap<u32, Box<[u8]>>> {
        // Inserting and removing leave the map whole.
        self.detached.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An owned piece of an arena's memory. Dropping it sends it home from any thread.
///
/// It cannot be cloned:
/// ```compile_fail,E0599
/// # fn f(slot: doorbell_sim::Slot) {
/// let twin = slot.clone();
/// # }
/// ```
/// nor used after it was posted:
/// ```compile_fail,E0382
/// # use doorbell_core::provider::{Operation, PostFlags, SendBatch as _, SendQueue as _, Slot as _};
/// # fn f(send: &mut doorbell_sim::SendQueue, slot: doorbell_sim::Slot) {
/// let mut batch = send.stage();
/// batch.push(Operation::Send, [slot], PostFlags::SIGNALED).ok();
/// slot.payload();
/// # }
/// ```
/// nor after it was detached:
/// ```compile_fail,E0382
/// # use doorbell_core::provider::Slot as _;
/// # fn f(slot: doorbell_sim::Slot) {
/// let detached = slot.detach();
/// slot.payload();
/// # }
/// ```
pub struct Slot {
    memory: SlotMemory,
    index: u32,
    /// How many bytes are meant; at most the capacity. Bytes of the window, while a request has a slot that holds one.
    len: usize,
    home: Arc<Home>,
}

/// Memory of a slot.
enum SlotMemory {
    /// Its own; empty only while it is taken apart, since a slot of an arena holds at least a byte.
    Own(Box<[u8]>),
    /// None. It holds a window, of which the bytes from this offset on are meant.
    Window(usize),
}

impl Slot {
    /// One without bytes, which holds the registration of a window for a request of so many bytes of it.
    pub(crate) fn of_window(home: &Arc<Home>, offset: usize, bytes: u32) -> Self {
        Self {
            memory: SlotMemory::Window(offset),
            index: 0,
            len: bytes as usize,
            home: Arc::clone(home),
        }
    }

    /// As it is given back: one that holds a window means no bytes of that any more.
    pub(crate) fn without_range(mut self) -> Self {
        if let SlotMemory::Window(_) = self.memory {
            self.len = 0;
        }
        self
    }

    /// Takes its memory out, so that dropping it sends nothing home.
    fn take(&mut self) -> Piece {
        let bytes = match &mut self.memory {
            SlotMemory::Own(bytes) => core::mem::take(bytes),
            SlotMemory::Window(_) => Box::default(),
        };
        Piece {
            index: self.index,
            bytes,
        }
    }

    /// All its bytes.
    pub(crate) fn buffer(&self) -> &[u8] {
        match &self.memory {
            SlotMemory::Own(bytes) => bytes,
            SlotMemory::Window(_) => &[],
        }
    }

    /// Gives `each` so many of the bytes that are meant, beginning at `skip`.
    pub(crate) fn look(&self, skip: usize, bytes: usize, each: impl FnOnce(&[u8])) {
        match (&self.memory, &self.home.window) {
            (SlotMemory::Window(offset), Some(window)) => {
                let offset = offset.saturating_add(skip);
                window.with(offset, bytes, |bytes| each(bytes.unwrap_or_default()));
            }
            _ => {
                let end = skip.saturating_add(bytes);
                each(self.buffer().get(skip..end).unwrap_or_default());
            }
        }
    }

    /// Writes bytes, beginning at `skip`.
    pub(crate) fn write(&mut self, skip: usize, bytes: &[u8]) {
        let copy = |place: Option<&mut [u8]>| {
            if let Some(place) = place {
                place.copy_from_slice(bytes);
            }
        };
        match (&mut self.memory, &self.home.window) {
            (SlotMemory::Window(offset), Some(window)) => {
                window.with(offset.saturating_add(skip), bytes.len(), copy);
            }
            (SlotMemory::Own(own), _) => {
                let end = skip.saturating_add(bytes.len());
                copy(own.get_mut(skip..end));
            }
            (SlotMemory::Window(_), None) => {}
        }
    }

    /// The protection domain it is registered in.
    pub(crate) fn domain(&self) -> Id {
        self.home.domain
    }

    /// Whether the other is of the same arena.
    pub(crate) fn is_beside(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.home, &other.home)
    }
}

impl doorbell_core::provider::Slot for Slot {
    fn domain(&self) -> DomainId {
        DomainId(self.home.domain.to_u64())
    }

    fn index(&self) -> u32 {
        self.index
    }

    fn capacity_bytes(&self) -> usize {
        self.buffer().len()
    }

    fn len_bytes(&self) -> usize {
        self.len
    }

    fn set_len_bytes(&mut self, bytes: usize) {
        self.len = bytes.min(self.capacity_bytes());
    }

    fn payload(&self) -> &[u8] {
        self.buffer().get(..self.len).unwrap_or_default()
    }

    fn buffer_mut(&mut self) -> &mut [u8] {
        match &mut self.memory {
            SlotMemory::Own(bytes) => bytes,
            SlotMemory::Window(_) => &mut [],
        }
    }

    fn detach(mut self) -> DetachedSlot {
        let Piece { index, bytes } = self.take();
        if !bytes.is_empty() {
            self.home.detached().insert(index, bytes);
        }
        DetachedSlot {
            index,
            // At most the capacity, which is a u32.
            len_bytes: u32::try_from(self.len).unwrap_or(u32::MAX),
            // There is a word for every index of the arena, and none of a window. 0 attaches nothing.
            tag: self.home.detachments.word(index).map_or(0, Word::detach),
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let piece = self.take();
        if !piece.bytes.is_empty() {
            self.home.returned().push(piece);
        }
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use doorbell_core::provider::Slot as _;
        write!(
            f,
            "Slot({} of {} bytes)",
            self.payload().len(),
            self.buffer().len()
        )
    }
}

/// Memory cut into slots of exactly the size asked for.
///
/// Dropped while slots are out, it is gone when the last of them is; those that are detached
/// then are gone with it.
pub struct Arena {
    home: Arc<Home>,
    free: Vec<Piece>,
    slots: u32,
    slot_bytes: u32,
    placement: Placement,
}

impl Arena {
    pub(crate) fn new(domain: Id, counted: Arc<()>, config: &ArenaConfig) -> Result<Self, MemoryError> {
        const CALL: &str = "arena";
        let total = (config.slots as usize)
            .checked_mul(config.slot_bytes as usize)
            .filter(|bytes| *bytes != 0 && isize::try_from(*bytes).is_ok())
            .ok_or(failed(CALL, EINVAL))?;
        if config.placement.on_demand {
            return Err(MemoryError::Unmet(Wish::OnDemand, Shortfall::NotProvided));
        }
        let placement = placed(total, &config.placement)?;
        let free: Option<Vec<_>> = (0..config.slots)
            .rev()
            .map(|index| {
                let bytes = zeroed(config.slot_bytes as usize)?;
                Some(Piece { index, bytes })
            })
            .collect();
        let words = (0..config.slots).map(|_| AtomicU32::new(0)).collect();
        Ok(Self {
            home: Arc::new(Home {
                domain,
                _counted: Some(counted),
                window: None,
                returned: Mutex::default(),
                detachments: Detachments::new(words, fresh_number()),
                detached: Mutex::default(),
            }),
            free: free.ok_or(failed(CALL, ENOMEM))?,
            slots: config.slots,
            slot_bytes: config.slot_bytes,
            placement,
        })
    }

    fn collect(&mut self) {
        self.free.append(&mut self.home.returned());
    }
}

/// Returns a number that distinguishes an arena from others in the tags of its detached slots.
#[expect(clippy::cast_possible_truncation, reason = "modulo 2^16 is what is meant")]
fn fresh_number() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Relaxed: only the number matters.
    NEXT.fetch_add(1, Ordering::Relaxed) as u16
}

/// Makes slots of what was detached from one arena, on any thread.
#[derive(Clone)]
pub struct Attacher {
    home: Arc<Home>,
}

/// Makes a slot of what was detached from there.
fn attach(home: &Arc<Home>, slot: DetachedSlot) -> Option<Slot> {
    let DetachedSlot {
        index,
        len_bytes,
        tag,
    } = slot;
    if !home.detachments.attach(index, tag) {
        return None;
    }
    let bytes = home.detached().remove(&index)?;
    let len = bytes.len().min(len_bytes as usize);
    Some(Slot {
        memory: SlotMemory::Own(bytes),
        index,
        len,
        home: Arc::clone(home),
    })
}

impl doorbell_core::provider::Attacher for Attacher {
    type Slot = Slot;

    fn attach(&self, slot: DetachedSlot) -> Option<Slot> {
        attach(&self.home, slot)
    }

    fn owns(&self, slot: &Slot) -> bool {
        Arc::ptr_eq(&slot.home, &self.home)
    }
}

impl fmt::Debug for Attacher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attacher").finish_non_exhaustive()
    }
}

impl doorbell_core::provider::Arena for Arena {
    type Slot = Slot;
    type Attacher = Attacher;

    fn lease(&mut self) -> Option<Slot> {
        if self.free.is_empty() {
            self.collect();
        }
        let Piece { index, bytes } = self.free.pop()?;
        Some(Slot {
            memory: SlotMemory::Own(bytes),
            index,
            len: 0,
            home: Arc::clone(&self.home),
        })
    }

    fn release(&mut self, mut slot: Slot) {
        if Arc::ptr_eq(&slot.home, &self.home) {
            self.free.push(slot.take());
        }
        // Another arena's goes to its own as it is dropped here.
    }

    fn attach(&mut self, slot: DetachedSlot) -> Option<Slot> {
        attach(&self.home, slot)
    }

    fn attacher(&self) -> Attacher {
        Attacher {
            home: Arc::clone(&self.home),
        }
    }

    fn slots(&self) -> u32 {
        self.slots
    }

    fn free_slots(&mut self) -> u32 {
        self.collect();
        // At most `slots`, which is a u32.
        u32::try_from(self.free.len()).unwrap_or(u32::MAX)
    }

    fn slot_bytes(&self) -> u32 {
        self.slot_bytes
    }

    fn placement(&self) -> Placement {
        self.placement
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arena")
            .field("slots", &self.slots)
            .field("slot_bytes", &self.slot_bytes)
            .finish_non_exhaustive()
    }
}
