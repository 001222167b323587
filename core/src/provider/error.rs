//! Errors of the provider traits, by the party at fault.

use core::fmt;
use core::ops::RangeInclusive;

use super::{ATOMIC_BYTES, DomainId, Operation, PostFlags, Slot, Window, WindowRange};

/// A call of the provider failed.
///
/// The errno shows who can fix it. The call changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProviderError {
    /// The call, by its name in the provider's own manual.
    pub call: &'static str,
    /// The error number.
    pub errno: i32,
}

impl fmt::Display for ProviderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed: ", self.call)?;
        match describe_errno(self.call, self.errno) {
            Some(text) => write!(f, "{text} (errno {})", self.errno),
            None => write!(f, "errno {}", self.errno),
        }
    }
}

impl core::error::Error for ProviderError {}

/// A setting that is out of its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SettingError {
    /// The field.
    pub setting: &'static str,
    /// The value of the field.
    pub value: u64,
    /// The minimum.
    pub value_min: u64,
    /// The maximum.
    pub value_max: u64,
}

impl fmt::Display for SettingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            setting,
            value,
            value_min,
            value_max,
        } = self;
        write!(f, "{setting} is {value}: set it from {value_min} to {value_max}")
    }
}

impl core::error::Error for SettingError {}

impl SettingError {
    /// Checks that a value is in its range.
    ///
    /// # Errors
    /// The value is out of its range.
    pub fn check<L: Into<u64>>(
        setting: &'static str,
        value: impl Into<u64>,
        range: RangeInclusive<L>,
    ) -> Result<(), Self> {
        let (value, (least, most)) = (value.into(), range.into_inner());
        let (value_min, value_max) = (least.into(), most.into());
        if (value_min..=value_max).contains(&value) {
            return Ok(());
        }
        Err(Self {
            setting,
            value,
            value_min,
            value_max,
        })
    }
}

/// A device, or one port of it, could not be queried. Its other ports can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LookFailure {
    /// The port; `None` for the device as a whole.
    pub port: Option<u8>,
    /// The call and its error number.
    pub error: ProviderError,
}

impl fmt::Display for LookFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) => write!(f, "port {port}: {}", self.error),
            None => self.error.fmt(f),
        }
    }
}

impl core::error::Error for LookFailure {}

/// Describes the errors that verbs calls return in practice. Source: `errno(3)`, Linux numbers.
fn describe_errno(call: &str, errno: i32) -> Option<&'static str> {
    Some(match errno {
        1 => "operation not permitted",
        2 => "no such file or directory",
        9 => "bad file descriptor",
        11 => "try again",
        12 if call.starts_with("ibv_reg_") => "locked-memory limit reached or out of memory (`ulimit -l`)",
        12 if call.starts_with("ibv_post_") => "the queue is full",
        12 => "out of memory, or a limit of the device or on locked memory is reached",
        13 => "permission denied",
        14 => "bad address",
        16 => "in use",
        19 => "no such device",
        22 => "invalid argument",
        24 => "too many open files",
        28 => "no space left",
        38 => "not implemented",
        93 => "not known to this kernel",
        95 => "not supported by this device",
        101 => "network unreachable",
        110 => "timed out: the neighbour did not resolve",
        113 => "no route to host",
        _ => return None,
    })
}

/// The reason why a request was not staged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PushError {
    /// Backpressure: the maximum number of requests is in flight. Retire some.
    Full,
    /// Backpressure: the peer has no receive left for another message. The data path that counts receives reports this,
    /// never a provider.
    NoCredit,
    /// Caller misuse: more bytes than the inline limit.
    InlineTooLong {
        /// The bytes of the request.
        bytes: u32,
        /// The limit of the queue pair.
        bytes_max: u32,
    },
    /// Caller misuse: more gather elements than the queue pair was made with.
    TooManySegments {
        /// The elements of the request.
        segments: u8,
        /// The limit of the queue pair.
        segments_max: u8,
    },
    /// Caller misuse: an atomic needs exactly one slot of at least eight bytes, or one range of eight bytes.
    AtomicNeedsEightBytes,
    /// Caller misuse: a request that cannot be inline or from a cell, because it returns data or names ranges of windows.
    NotInline,
    /// Caller misuse: the range exceeds the local window.
    OutOfOwnWindow {
        /// The bytes of the range.
        bytes: u32,
        /// The bytes of the window from the beginning of the range on; 0 if the range begins beyond its end.
        bytes_left: u64,
    },
    /// Caller misuse: the operation returns data into a range of memory that was lent without write access.
    ReadOnly,
    /// Caller misuse: the queue has no cells.
    NoCells,
    /// Caller misuse: more bytes than a cell has.
    CellTooLong {
        /// The bytes of the request.
        bytes: u32,
        /// The bytes of each cell.
        bytes_max: u32,
    },
    /// Caller misuse: the address handle belongs to another queue pair, or was released.
    UnknownAddress,
    /// Caller misuse: more bytes than a receive of the peer, or than the port carries in one request.
    /// The data path, which knows the peer, reports this and the errors below. A provider reports it only for ranges of windows that
    /// together exceed [`REQUEST_BYTES_MAX`](super::REQUEST_BYTES_MAX).
    TooLong {
        /// The bytes of the request.
        bytes: u64,
        /// The maximum.
        bytes_max: u32,
    },
    /// Caller misuse: the request exceeds the range of the peer's window for which its address was made.
    OutOfWindow {
        /// The bytes of the request.
        bytes: u64,
        /// The bytes of the range.
        bytes_max: u32,
    },
    /// Caller misuse: the peer's window does not grant the operation.
    NotGranted,
    /// Caller misuse: an atomic at an address that is not a multiple of eight.
    Misaligned {
        /// The address.
        address: u64,
    },
    /// Caller misuse: the memory belongs to another protection domain than the queue pair, and so to another Worker.
    OtherMemory,
    /// The connection was negotiated without READs and atomics.
    NoFetches,
    /// The device has no atomics.
    NoAtomics,
    /// The queue pair is in a state that does not accept such a request.
    State(crate::QpState),
}

impl fmt::Display for PushError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => f.write_str("the queue is full: poll, and try again"),
            Self::NoCredit => f.write_str("the peer has no receive left for it: poll until it announces one"),
            Self::InlineTooLong { bytes, bytes_max } => {
                write!(
                    f,
                    "{bytes} bytes inline, but the queue pair takes at most {bytes_max}: raise inline_bytes_max, or send from a cell or lease"
                )
            }
            Self::TooManySegments {
                segments,
                segments_max,
            } => {
                write!(
                    f,
                    "{segments} gather elements, but the queue pair takes at most {segments_max}: gather fewer, or raise gather_max"
                )
            }
            Self::AtomicNeedsEightBytes => {
                f.write_str("an atomic needs one slot of at least eight bytes, or one range of eight")
            }
            Self::NotInline => f.write_str(
                "a READ, an atomic or a request with ranges of windows cannot be inline or from a cell: lease memory for READs and atomics, and omit PostFlags::INLINE for ranges",
            ),
            Self::OutOfOwnWindow { bytes, bytes_left } => write!(
                f,
                "{bytes} bytes of a window, which has only {bytes_left} after the range's offset: shorten the range"
            ),
            Self::ReadOnly => f.write_str(
                "the memory was lent without write access, and a READ or an atomic writes to it: lend it with LOCAL_WRITE",
            ),
            Self::NoCells => f.write_str("the queue has no cells: set cell_bytes above 0, or send by a lease"),
            Self::CellTooLong { bytes, bytes_max } => {
                write!(
                    f,
                    "{bytes} bytes from a cell, but a cell has only {bytes_max}: raise cell_bytes, or send by a lease"
                )
            }
            Self::UnknownAddress => f.write_str("the address handle belongs to another queue pair, or was released: make one with this queue pair"),
            Self::TooLong { bytes, bytes_max } => write!(
                f,
                "{bytes} bytes, but the peer or the port takes at most {bytes_max} in one request: send less, or have the peer \
                 give its receives larger slots"
            ),
            Self::OutOfWindow { bytes, bytes_max } => write!(
                f,
                "{bytes} bytes, but the address covers only {bytes_max} of the peer's window: make it by RemoteAddress::within for the whole \
                 range"
            ),
            Self::NotGranted => f.write_str("the peer's window does not grant this operation: let the peer grant it in its WindowConfig"),
            Self::Misaligned { address } => {
                write!(f, "an atomic at {address:#x}, which is no multiple of eight: align its address")
            }
            Self::OtherMemory => f.write_str(
                "the memory belongs to another Worker: lease from the channel's own Worker, or register the window there, too",
            ),
            Self::NoFetches => f.write_str(
                "the connection was negotiated without READs and atomics: give both sides an rd_atomic_max above 0",
            ),
            Self::NoAtomics => f.write_str("the device has no atomics: use READ and WRITE, or another device"),
            Self::State(state) => write!(
                f,
                "the queue pair is in {state}, which takes no such request: connect again if it failed"
            ),
        }
    }
}

impl core::error::Error for PushError {}

impl PushError {
    /// Checks that a request of `bytes` bytes may be sent from a cell. The limits are the bytes of the cell, and the inline bytes.
    ///
    /// # Errors
    /// The request may not be sent from the cell.
    #[inline(always)]
    pub const fn check_cell(
        operation: Operation,
        bytes: u32,
        flags: PostFlags,
        [bytes_max, inline_bytes_max]: [u32; 2],
    ) -> Result<(), Self> {
        if operation.writes_slots() {
            return Err(Self::NotInline);
        }
        if bytes > bytes_max {
            return Err(Self::CellTooLong { bytes, bytes_max });
        }
        if flags.contains(PostFlags::INLINE) && bytes > inline_bytes_max {
            return Err(Self::InlineTooLong {
                bytes,
                bytes_max: inline_bytes_max,
            });
        }
        Ok(())
    }
}

impl PushError {
    /// Checks that a request may have these ranges, except for their number.
    ///
    /// # Errors
    /// [`PushError::AtomicNeedsEightBytes`], [`PushError::NotInline`], [`PushError::ReadOnly`], [`PushError::TooLong`],
    /// or as for [`WindowRange::check`].
    #[inline]
    pub fn check_ranges<W: Window>(
        operation: Operation,
        ranges: &[WindowRange<'_, W>],
        flags: PostFlags,
    ) -> Result<(), Self> {
        if operation.is_atomic() && !matches!(ranges, [range] if range.bytes == ATOMIC_BYTES) {
            return Err(Self::AtomicNeedsEightBytes);
        }
        if flags.contains(PostFlags::INLINE) {
            return Err(Self::NotInline);
        }
        if operation.writes_slots() && ranges.iter().any(|range| !range.window.is_writable()) {
            return Err(Self::ReadOnly);
        }
        let mut bytes = 0_u64;
        for range in ranges {
            range.check()?;
            bytes = bytes.saturating_add(range.bytes.into());
        }
        let bytes_max = super::REQUEST_BYTES_MAX;
        if bytes > bytes_max.into() {
            return Err(Self::TooLong { bytes, bytes_max });
        }
        Ok(())
    }
}

/// The reason why a send queue got no cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CellsError {
    /// There are fewer slots than the queue needs.
    TooFew {
        /// The number of slots.
        slots: u32,
        /// The number of slots that the queue needs.
        needed: u32,
    },
    /// The slots belong to several arenas.
    Mixed,
    /// The slots belong to another protection domain than the queue pair.
    OtherMemory,
    /// The slots have no bytes: requests with ranges of windows returned them.
    NoBytes,
    /// The queue has cells already.
    Furnished,
}

impl CellsError {
    /// Checks that these slots can be the cells of a queue: enough slots with bytes, of one arena, in its protection domain.
    ///
    /// # Errors
    /// The first condition that does not hold.
    pub fn check<S: Slot>(
        slots: &[S],
        needed: usize,
        domain: DomainId,
        are_of_one_arena: impl Fn(&S, &S) -> bool,
    ) -> Result<(), Self> {
        if slots.len() < needed {
            let count = |slots| u32::try_from(slots).unwrap_or(u32::MAX);
            return Err(Self::TooFew {
                slots: count(slots.len()),
                needed: count(needed),
            });
        }
        let mut pairs = slots.iter().zip(slots.iter().skip(1));
        if !pairs.all(|(slot, next)| are_of_one_arena(slot, next)) {
            return Err(Self::Mixed);
        }
        if slots.iter().any(|slot| slot.domain() != domain) {
            return Err(Self::OtherMemory);
        }
        if slots.iter().any(|slot| slot.capacity_bytes() == 0) {
            return Err(Self::NoBytes);
        }
        Ok(())
    }
}

impl fmt::Display for CellsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooFew { slots, needed } => {
                write!(
                    f,
                    "{slots} slots for the cells of a send queue that needs {needed}"
                )
            }
            Self::Mixed => f.write_str("the slots for the cells of a send queue are of several arenas"),
            Self::OtherMemory => f.write_str(
                "the slots for the cells are registered in another protection domain than the queue pair's",
            ),
            Self::NoBytes => f.write_str(
                "the slots for the cells of a send queue have no bytes: they are what requests of ranges of windows gave back",
            ),
            Self::Furnished => f.write_str("the send queue has cells already"),
        }
    }
}

impl core::error::Error for CellsError {}

/// A request that was not staged, with its slots.
#[derive(Debug)]
pub struct Refused<T> {
    /// The reason.
    pub reason: PushError,
    /// The slots of the request.
    pub item: T,
}

/// The device accepted only a part of the staged requests.
///
/// The rest was unstaged: its slots were returned, and its tickets are void.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PostError {
    /// The number of requests that the device accepted before it refused one.
    pub posted: u32,
    /// The number of requests that the device did not accept.
    pub unposted: u32,
    /// The device's error.
    pub cause: ProviderError,
}

impl fmt::Display for PostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} requests posted, {} not: {}",
            self.posted, self.unposted, self.cause
        )
    }
}

impl core::error::Error for PostError {}

/// The reason why a single request was not posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "it was not staged, or not posted")]
pub enum UnpostedReason {
    /// The request could not be staged.
    Push(PushError),
    /// The device refused the request.
    Post(PostError),
}

impl From<PushError> for UnpostedReason {
    #[inline]
    fn from(reason: PushError) -> Self {
        Self::Push(reason)
    }
}

impl From<PostError> for UnpostedReason {
    #[inline]
    fn from(error: PostError) -> Self {
        Self::Post(error)
    }
}

/// A completion that names no request in flight on this queue: stale, duplicate, or of another queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rejected(pub crate::WorkId);

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a completion for {:?}, which is not in flight here", self.0)
    }
}

impl core::error::Error for Rejected {}

/// An access that exceeds a window, or is not aligned to its size. For a window that this host may not write to, a write reports
/// zero window bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfWindow {
    /// The offset of the access, in bytes from the start of the window.
    pub offset: usize,
    /// The bytes of the access.
    pub bytes: usize,
    /// The bytes of the window.
    pub window_bytes: usize,
}

impl fmt::Display for OutOfWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} bytes at offset {} do not fit, aligned, in a window of {} bytes",
            self.bytes, self.offset, self.window_bytes
        )
    }
}

impl core::error::Error for OutOfWindow {}
