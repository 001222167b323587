//! Windows: memory that peers may reach, which lives in the fabric.

use core::fmt;
use core::ops::Range;
use std::sync::{Arc, Weak};

use doorbell_core::provider::{
    DomainId, MemoryError, OutOfWindow, Placement, ProviderError, RemoteAccess, RevokeError, WindowConfig,
};
use doorbell_core::wire::RemoteWindow;
use doorbell_core::{Access, Rkey};

use crate::Slot;
use crate::errno::{EINVAL, ENOMEM, failed};
use crate::host::DomainInner;
use crate::host::on_demand;
use crate::id::Id;
use crate::memory::{Home, WORD_ALIGN_MASK, WORD_BYTES, WindowBytes, placed};
use crate::world::DeviceId;

/// A window, as the device knows it.
struct WindowState {
    device: DeviceId,
    access: Access,
    address: u64,
    /// The registration, which is there while the window is, or a request that names a range of it.
    home: Weak<Home>,
}

impl WindowState {
    fn is_there(&self) -> bool {
        self.home.strong_count() > 0
    }
}

/// Bytes that a peer may reach.
pub(crate) struct Reach {
    /// None if there are no bytes.
    memory: Option<Arc<WindowBytes>>,
    offset: usize,
    bytes: usize,
}

impl Reach {
    /// Gives `each` the bytes.
    pub(crate) fn with<T>(&self, each: impl FnOnce(&mut [u8]) -> T) -> T {
        match &self.memory {
            Some(memory) => memory.with(self.offset, self.bytes, |bytes| each(bytes.unwrap_or_default())),
            None => each(&mut []),
        }
    }
}

/// A place in the table of windows.
#[derive(Default)]
struct WindowEntry {
    /// Counts the windows that were here; part of the key.
    generation: u32,
    window: Option<WindowState>,
}

/// Every window of the fabric.
#[derive(Default)]
pub(crate) struct Windows {
    places: Vec<WindowEntry>,
    free: Vec<u32>,
    /// Places of windows that were dropped while requests held them.
    held: Vec<u32>,
}

/// How many bits of a key name the place. The rest counts its windows.
const PLACE_BITS: u32 = 20;
const PLACES_MAX: u32 = 1 << PLACE_BITS;

/// Spreads the words of 32 bits over each other, one to one: the finisher of `MurmurHash3`.
/// So the same keys come in each run, but none follows from the one before in a way that a
/// mistaken caller could hit on.
const fn scatter(word: u32) -> u32 {
    let word = (word ^ (word >> 16)).wrapping_mul(0x85eb_ca6b);
    let word = (word ^ (word >> 13)).wrapping_mul(0xc2b2_ae35);
    word ^ (word >> 16)
}

/// The way back, by the inverses of the factors.
const fn gather(word: u32) -> u32 {
    let word = (word ^ (word >> 16)).wrapping_mul(0x7ed1_b41d);
    let word = (word ^ (word >> 13) ^ (word >> 26)).wrapping_mul(0xa5cb_9243);
    word ^ (word >> 16)
}

impl Windows {
    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        let windows = self.places.iter().filter_map(|place| place.window.as_ref());
        windows.filter(|window| window.is_there()).count()
    }

    fn insert(&mut self, window: WindowState) -> Option<Rkey> {
        for index in core::mem::take(&mut self.held) {
            self.clear(index, 0);
        }
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                // Place 0 stays empty: with it goes the key that is zero.
                if self.places.is_empty() {
                    self.places.push(WindowEntry::default());
                }
                let index = u32::try_from(self.places.len()).ok()?;
                if index >= PLACES_MAX {
                    return None;
                }
                self.places.push(WindowEntry::default());
                index
            }
        };
        let place = self.places.get_mut(index as usize)?;
        place.window = Some(window);
        Some(Rkey(scatter((place.generation << PLACE_BITS) | index)))
    }

    fn find(&self, rkey: Rkey) -> Option<&WindowState> {
        let word = gather(rkey.0);
        let place = self.places.get((word & (PLACES_MAX - 1)) as usize)?;
        let is_it = place.generation & (u32::MAX >> PLACE_BITS) == word >> PLACE_BITS;
        let window = place.window.as_ref().filter(|_| is_it);
        window.filter(|window| window.is_there())
    }

    /// Takes out the window of this key, which is being dropped. Its place stays taken while requests hold the window.
    fn remove(&mut self, rkey: Rkey) {
        self.clear(gather(rkey.0) & (PLACES_MAX - 1), 1);
    }

    /// Frees a place, unless more than so many hold the window there.
    fn clear(&mut self, index: u32, own: usize) {
        let Some(place) = self.places.get_mut(index as usize) else {
            return;
        };
        let holders = place
            .window
            .as_ref()
            .map_or(0, |window| window.home.strong_count());
        if holders > own {
            self.held.push(index);
        } else if place.window.take().is_some() {
            place.generation = place.generation.wrapping_add(1);
            self.free.push(index);
        }
    }

    /// The bytes that a peer may reach through a queue pair of this domain with this key and
    /// right, or `None`: no such key, another domain's, out of bounds, or not allowed (S9).
    pub(crate) fn reach(
        &mut self,
        (device, domain): (DeviceId, Id),
        rkey: Rkey,
        address: u64,
        bytes: usize,
        right: Access,
    ) -> Option<Reach> {
        if bytes == 0 {
            // Neither key nor address is looked at where nothing is touched. Source:
            // InfiniBand Architecture volume 1, section 9.7.4.1.
            return Some(Reach {
                memory: None,
                offset: 0,
                bytes: 0,
            });
        }
        let window = self.find(rkey)?;
        let home = window.home.upgrade()?;
        let is_ours = window.device == device && home.domain() == domain;
        if !is_ours || !window.access.contains(right) {
            return None;
        }
        let offset = usize::try_from(address.checked_sub(window.address)?).ok()?;
        let memory = home.window()?;
        let is_inside = memory.with(offset, bytes, |bytes| bytes.is_some());
        is_inside.then(|| Reach {
            memory: Some(Arc::clone(memory)),
            offset,
            bytes,
        })
    }
}

/// Memory a peer may reach. Dropping it takes the right away, once no slot of a request of its ranges is left. If a plan has the device
/// refuse that, the right stays.
pub struct Window {
    domain: Arc<DomainInner>,
    /// The registration. Each slot of a range has a clone.
    home: Arc<Home>,
    memory: Arc<WindowBytes>,
    rkey: Rkey,
    address: u64,
    bytes: usize,
    remote: RemoteAccess,
    placement: Placement,
    is_registered: bool,
}

impl Window {
    pub(crate) fn new(domain: &Arc<DomainInner>, config: &WindowConfig) -> Result<Self, MemoryError> {
        const CALL: &str = "window";
        if config.bytes == 0 {
            return Err(failed(CALL, EINVAL).into());
        }
        let placement = placed(config.bytes, &config.placement)?;
        let memory = WindowBytes::zeroed(config.bytes).ok_or(failed(CALL, ENOMEM))?;
        let device = domain.context().device();
        let mut world = domain.context().fabric().lock();
        if config.placement.on_demand {
            on_demand(world.quirks(device)).check_window(config.remote)?;
        }
        let address = world
            .draw_address(device, config.bytes)
            .ok_or(failed(CALL, ENOMEM))?;
        drop(world);
        let registered = Self::register(domain, memory, address, config, placement);
        Ok(registered.map_err(|errno| failed(CALL, errno))?)
    }

    /// Registers a part of the memory of a window of the same host once more.
    pub(crate) fn again(
        domain: &Arc<DomainInner>,
        (window, part): (&Self, Range<usize>),
        remote: RemoteAccess,
    ) -> Result<Self, ProviderError> {
        const CALL: &str = "window_of";
        if !domain.context().is_beside(window.domain.context()) {
            return Err(failed(CALL, EINVAL));
        }
        let config = WindowConfig::new(part.len(), remote);
        let address = window.address.saturating_add(part.start as u64);
        let memory = window.memory.part(part).ok_or(failed(CALL, EINVAL))?;
        let registered = Self::register(domain, memory, address, &config, window.placement);
        registered.map_err(|errno| failed(CALL, errno))
    }

    /// Registers memory. The device refuses it with an error number: so a plan says, or there is no key left.
    fn register(
        domain: &Arc<DomainInner>,
        memory: Arc<WindowBytes>,
        address: u64,
        config: &WindowConfig,
        placement: Placement,
    ) -> Result<Self, i32> {
        let home = Home::of_window(domain.id(), Arc::clone(&memory));
        let state = WindowState {
            device: domain.context().device(),
            access: config.remote.to_access(),
            address,
            home: Arc::downgrade(&home),
        };
        let mut world = domain.context().fabric().lock();
        if let Some(errno) = world.judge_registration(domain.context().device()) {
            return Err(errno);
        }
        let rkey = world.windows.insert(state).ok_or(ENOMEM)?;
        drop(world);
        Ok(Self {
            domain: Arc::clone(domain),
            home,
            memory,
            rkey,
            address,
            bytes: config.bytes,
            remote: config.remote,
            placement,
            is_registered: true,
        })
    }

    /// Takes the right away, unless the device refuses with an error number.
    fn let_go(&mut self) -> Result<(), i32> {
        if !self.is_registered {
            return Ok(());
        }
        let context = self.domain.context();
        let mut world = context.fabric().lock();
        if let Some(errno) = world.judge_deregistration(context.device()) {
            return Err(errno);
        }
        world.windows.remove(self.rkey);
        self.is_registered = false;
        Ok(())
    }

    /// A slot that holds the window for a request of these bytes of it.
    pub(crate) fn hold(&self, offset: usize, bytes: u32) -> Slot {
        Slot::of_window(&self.home, offset, bytes)
    }

    /// Gives `each` the bytes at `offset`.
    fn with<T>(
        &self,
        offset: usize,
        bytes: usize,
        each: impl FnOnce(&mut [u8]) -> T,
    ) -> Result<T, OutOfWindow> {
        let context = self.domain.context();
        let mut world = context.fabric().lock();
        // A thread that reads memory again and again may be waiting for it to change.
        world.idle(|_| false, 1);
        let outcome = self.memory.with(offset, bytes, |bytes| bytes.map(each));
        outcome.ok_or(OutOfWindow {
            offset,
            bytes,
            window_bytes: self.bytes,
        })
    }
}

impl Window {
    /// Gives `each` the aligned word at `offset`, in host byte order.
    fn with_word<T>(&self, offset: usize, each: impl FnOnce(&mut u64) -> T) -> Result<T, OutOfWindow> {
        if self.address.wrapping_add(offset as u64) & WORD_ALIGN_MASK != 0 {
            return Err(OutOfWindow {
                offset,
                bytes: WORD_BYTES,
                window_bytes: self.bytes,
            });
        }
        self.with(offset, WORD_BYTES, |bytes| {
            let mut place = [0; WORD_BYTES];
            place.copy_from_slice(bytes);
            let mut word = u64::from_ne_bytes(place);
            let outcome = each(&mut word);
            bytes.copy_from_slice(&word.to_ne_bytes());
            outcome
        })
    }
}

impl doorbell_core::provider::Window for Window {
    fn domain(&self) -> DomainId {
        DomainId(self.domain.id().to_u64())
    }

    fn is_in_flight(&self) -> bool {
        // Locked, since a packet that arrives holds the registration for a moment.
        let _world = self.domain.context().fabric().lock();
        Arc::strong_count(&self.home) > 1
    }

    fn deregister(&mut self) -> Result<(), RevokeError> {
        if self.is_in_flight() {
            return Err(RevokeError::InFlight);
        }
        let refused = |errno| RevokeError::Provider(failed("deregister", errno));
        self.let_go().map_err(refused)
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn placement(&self) -> Placement {
        self.placement
    }

    fn remote(&self) -> RemoteWindow {
        RemoteWindow::new(self.address, self.bytes as u64, self.rkey).with_access(self.remote)
    }

    fn copy_out(&self, offset: usize, destination: &mut [u8]) -> Result<(), OutOfWindow> {
        self.with(offset, destination.len(), |bytes| {
            destination.copy_from_slice(bytes)
        })
    }

    fn copy_in(&self, offset: usize, source: &[u8]) -> Result<(), OutOfWindow> {
        self.with(offset, source.len(), |bytes| bytes.copy_from_slice(source))
    }

    fn load_u8(&self, offset: usize) -> Result<u8, OutOfWindow> {
        let mut byte = [0];
        self.copy_out(offset, &mut byte)?;
        let [byte] = byte;
        Ok(byte)
    }

    fn load_u64(&self, offset: usize) -> Result<u64, OutOfWindow> {
        self.with_word(offset, |word| *word)
    }

    fn store_u64(&self, offset: usize, new: u64) -> Result<(), OutOfWindow> {
        self.with_word(offset, |word| *word = new)
    }

    fn compare_exchange_u64(&self, offset: usize, current: u64, new: u64) -> Result<u64, OutOfWindow> {
        self.with_word(offset, |word| {
            let before = *word;
            if before == current {
                *word = new;
            }
            before
        })
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        if self.let_go().is_err() {
            // The registration stays.
            core::mem::forget(Arc::clone(&self.home));
        }
    }
}

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Window({} bytes at {:#x})", self.bytes, self.address)
    }
}
