//! Credits: a message is sent only if the peer has a receive posted for it.
//!
//! Every number here is a count since the connection was made, modulo 2^32: receives posted, receives announced,
//! messages sent. An announcement carries the whole count and not a difference. So a later announcement replaces
//! all before it, and a rejected one costs nothing.
//!
//! The receiving half counts the receives it posted ([`Granting`]) and publishes that count in the [`Grants`].
//! The sending half writes the count into the peer's credit word ([`Announcer`]). The peer's sending half reads
//! its word ([`WindowWord`]) when it has used up the credits it knew of ([`Credits`]). The layout of these bytes
//! on the wire is in `docs/wire-format.md`.

use core::fmt;
use core::ops::Deref;

use doorbell_core::provider::{RemoteAddress, Window};
use doorbell_core::sync::{AtomicU32, Ordering};

use crate::ordering::{CREDITS_POSTED, CREDITS_READ};

/// The count of announced receives orders no other memory. A stale count only makes a receiver find an
/// announcement due that is no longer due.
const ANNOUNCED: Ordering = Ordering::Relaxed;

/// Knowledge that a sending side has of its peer's receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credits {
    /// Messages sent.
    sent: u32,
    /// Receives the peer is known to have posted: from `sent` to `sent + depth`.
    granted: u32,
    /// Receives the peer keeps posted at most.
    depth: u32,
    /// Whether a message was refused for want of a credit, and no caller has learned yet that there are credits
    /// again.
    is_wanting: bool,
}

impl Credits {
    /// Counts from `start`, where a peer has posted all its receives.
    #[must_use]
    pub const fn new(start: u32, peer_receive_depth: u32) -> Self {
        Self {
            sent: start,
            granted: start.wrapping_add(peer_receive_depth),
            depth: peer_receive_depth,
            is_wanting: false,
        }
    }

    /// How many messages may be sent, as far as is known.
    #[must_use]
    #[inline]
    pub const fn available(&self) -> u32 {
        self.granted.wrapping_sub(self.sent)
    }

    /// The count that the next message brings [`Credits::note_sent`] from.
    #[must_use]
    #[inline]
    pub const fn sent(&self) -> u32 {
        self.sent
    }

    /// The count up to which messages may be sent.
    #[must_use]
    #[inline]
    pub const fn granted(&self) -> u32 {
        self.granted
    }

    /// Takes an announcement of the peer, if an honest peer can have made it: no less than was sent, and no more
    /// than the peer's depth beyond. Says whether more may be sent than before.
    #[inline]
    pub const fn learn(&mut self, announced: u32) -> bool {
        let ahead = announced.wrapping_sub(self.sent);
        let is_news = ahead <= self.depth && ahead > self.granted.wrapping_sub(self.sent);
        if is_news {
            self.granted = announced;
        }
        is_news
    }

    /// Notes that a message was refused for want of a credit.
    #[inline]
    pub const fn note_refused(&mut self) {
        self.is_wanting = true;
    }

    /// Whether one was, and [`Credits::satisfy`] has not yet said that there are credits.
    #[must_use]
    #[inline]
    pub const fn is_wanting(&self) -> bool {
        self.is_wanting
    }

    /// Says once, after a message was refused, that there are credits again.
    #[inline]
    pub const fn satisfy(&mut self, announced: Option<u32>) -> bool {
        if !self.is_wanting {
            return false;
        }
        if let Some(announced) = announced {
            self.learn(announced);
        }
        let is_satisfied = self.available() > 0;
        self.is_wanting = !is_satisfied;
        is_satisfied
    }

    /// Takes the credits back: no message is to be sent any more, whatever the peer announces.
    pub(crate) const fn revoke(&mut self) {
        self.granted = self.sent;
        self.depth = 0;
        self.is_wanting = false;
    }

    /// Notes that messages were sent up to this count, at most [`Credits::granted`].
    #[inline]
    pub const fn note_sent(&mut self, sent: u32) {
        self.sent = sent;
    }
}

/// The word of a window in which a peer announces its receives, and says farewell.
#[derive(Clone)]
pub struct WindowWord<W> {
    window: W,
    offset: usize,
}

impl<W: Deref<Target: Window>> WindowWord<W> {
    /// The word at an offset of a window, in bytes. `None` where there is none.
    #[must_use]
    pub fn new(window: W, offset: usize) -> Option<Self> {
        window.load_u64(offset).ok()?;
        Some(Self { window, offset })
    }

    /// Returns the last announcement of the peer; `None` if there was none, or if the word is only partly written
    /// yet.
    #[must_use]
    #[inline]
    pub fn load(&self) -> Option<u32> {
        count_of(self.window.load_u64(self.offset).ok()?.to_ne_bytes())
    }

    /// Returns the count that a new peer must start from. With this start, the bytes that an earlier peer left in
    /// the word are neither an announcement nor a farewell of the new peer.
    #[must_use]
    pub fn next_start(&self) -> u32 {
        let Ok(word) = self.window.load_u64(self.offset) else {
            return 0;
        };
        let bytes = word.to_ne_bytes();
        let start = count_of(bytes).unwrap_or_default();
        match farewell_of(bytes, start) {
            Some(_) => start.wrapping_add(1),
            None => start,
        }
    }
}

/// The word of a window in which a peer says farewell: the one in which it announced receives.
#[derive(Clone)]
pub struct FarewellWord<W> {
    word: WindowWord<W>,
    /// The start that the peer was given for its announcements. It marks the farewell as this peer's.
    start: u32,
}

impl<W: Deref<Target: Window>> FarewellWord<W> {
    /// Over the word of a peer that was given this `start`.
    #[must_use]
    pub const fn new(word: WindowWord<W>, start: u32) -> Self {
        Self { word, start }
    }

    /// Returns how many messages the peer sent in all, if it said farewell: a count, as its [`Credits::sent`].
    #[must_use]
    pub fn load(&self) -> Option<u32> {
        let word = self.word.window.load_u64(self.word.offset).ok()?;
        farewell_of(word.to_ne_bytes(), self.start)
    }
}

/// Distinguishes a farewell from an announcement, whose halves are complements.
const FAREWELL_MARK: u32 = 0x6661_7265;

/// Bytes of a farewell in the peer's word: the count of messages, then that count with a mark and the start mixed
/// in.
const fn farewell_bytes(messages: u32, start: u32) -> [u8; 8] {
    let check = messages ^ FAREWELL_MARK ^ start;
    let word = (messages as u64) << u32::BITS | check as u64;
    word.to_be_bytes()
}

/// Returns the count of a farewell; `None` if the bytes are no farewell for this start.
#[expect(clippy::cast_possible_truncation, reason = "each half by itself")]
const fn farewell_of(bytes: [u8; 8], start: u32) -> Option<u32> {
    let word = u64::from_be_bytes(bytes);
    let (count, check) = ((word >> u32::BITS) as u32, word as u32);
    if check == count ^ FAREWELL_MARK ^ start {
        Some(count)
    } else {
        None
    }
}

/// An announcement as it goes into the peer's word: the count, and its complement.
#[inline]
pub(crate) fn bytes_of(count: u32) -> [u8; 8] {
    let word = u64::from(count) << u32::BITS | u64::from(!count);
    word.to_be_bytes()
}

/// Returns the count of an announcement; `None` if the bytes are none. Half of one with half of another is none,
/// unless both have the same count.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "each half by itself")]
fn count_of(bytes: [u8; 8]) -> Option<u32> {
    let word = u64::from_be_bytes(bytes);
    let (count, check) = ((word >> u32::BITS) as u32, word as u32);
    (check == !count).then_some(count)
}

/// Counts of receives that the two halves of a channel share. Each word has one writer; the halves may be on
/// different threads.
pub struct Grants {
    /// Receives posted; written by the half that receives.
    posted: AtomicU32,
    /// Receives announced; written by the half that sends.
    announced: AtomicU32,
}

impl Grants {
    /// Counts for a peer that knows of `receive_depth` receives and counts from `start`.
    #[must_use]
    pub fn new(start: u32, receive_depth: u32) -> Self {
        let known = start.wrapping_add(receive_depth);
        Self {
            posted: AtomicU32::new(known),
            announced: AtomicU32::new(known),
        }
    }
}

/// The half of the grants that receives: counts what is posted, and says when that is to be
/// announced.
pub struct Granting<L> {
    grants: L,
    posted: u32,
    /// With so many unannounced, they are announced though nothing else goes out.
    alone_at: u32,
}

impl<L: Deref<Target = Grants>> Granting<L> {
    /// Counts on, for a queue of this depth.
    #[must_use]
    pub fn new(grants: L, receive_depth: u32) -> Self {
        Self {
            posted: grants.posted.load(CREDITS_READ.get()),
            grants,
            alone_at: (receive_depth / 2).max(1),
        }
    }

    /// Counts receives the device has.
    #[inline]
    pub fn note_posted(&mut self, receives: u32) {
        self.posted = self.posted.wrapping_add(receives);
        self.grants.posted.store(self.posted, CREDITS_POSTED.get());
    }

    /// Returns how many messages came, if `in_flight` receives are posted: a count, as the peer's
    /// [`Credits::sent`].
    #[must_use]
    pub fn received(&self, in_flight: u32) -> u32 {
        self.posted.wrapping_sub(in_flight)
    }

    /// Whether receives are to be announced by themselves, where `in_flight` are posted: half
    /// of the depth is unannounced, or the peer knows of none that is left.
    ///
    /// The latter is what keeps a channel alive whose receives cannot be posted for want of memory.
    #[inline]
    pub fn is_due(&self, in_flight: u32) -> bool {
        let unannounced = self.posted.wrapping_sub(self.grants.announced.load(ANNOUNCED));
        unannounced >= self.alone_at || (unannounced > 0 && unannounced >= in_flight)
    }
}

/// The half of the grants that sends: announces what was posted.
pub struct Announcer<L> {
    grants: L,
    announced: u32,
    /// With so many unannounced, they are announced with whatever goes out.
    beside_at: u32,
    /// The peer's credit word.
    word: RemoteAddress,
    /// Bytes of the announcement; they stay here while it is staged.
    bytes: [u8; 8],
    /// The count from which the peer asked to begin.
    start: u32,
    /// Whether farewell was said, after which nothing may be written there.
    has_left: bool,
}

/// Announcement that is staged, with the borrows that it needs.
pub(crate) struct Announcement<'q> {
    /// The count that it announces.
    pub(crate) count: u32,
    pub(crate) word: RemoteAddress,
    pub(crate) bytes: &'q [u8],
    pub(crate) receipt: Receipt<'q>,
}

/// Notes that an announcement was posted.
pub(crate) struct Receipt<'q> {
    announced: &'q mut u32,
    published: &'q AtomicU32,
}

impl Receipt<'_> {
    #[inline(always)]
    pub(crate) fn reborrow(&mut self) -> Receipt<'_> {
        Receipt {
            announced: &mut *self.announced,
            published: self.published,
        }
    }

    #[inline]
    pub(crate) fn note_announced(self, count: u32) {
        *self.announced = count;
        self.published.store(count, ANNOUNCED);
    }
}

impl<L: Deref<Target = Grants>> Announcer<L> {
    /// Announces into the peer's credit word, for a queue of this depth.
    #[must_use]
    pub fn new(grants: L, receive_depth: u32, word: RemoteAddress) -> Self {
        let announced = grants.announced.load(ANNOUNCED);
        Self {
            announced,
            start: announced.wrapping_sub(receive_depth),
            has_left: false,
            grants,
            beside_at: (receive_depth / 4).max(1),
            word,
            bytes: [0; 8],
        }
    }

    /// Returns an announcement that is worth sending with another request: a quarter of the depth or more is
    /// unannounced.
    #[inline]
    pub(crate) fn beside(&mut self) -> Option<Announcement<'_>> {
        self.at_least(self.beside_at)
    }

    /// Returns an announcement to send by itself: one receive or more is unknown to the peer.
    #[inline]
    pub(crate) fn alone(&mut self) -> Option<Announcement<'_>> {
        self.at_least(1)
    }

    /// Returns an announcement even if the peer knows its count already. Callers need the request that carries
    /// it.
    #[inline]
    pub(crate) fn in_any_case(&mut self) -> Option<Announcement<'_>> {
        self.at_least(0)
    }

    /// Makes the bytes the farewell behind so many messages; says where they go.
    pub(crate) const fn write_farewell(&mut self, messages: u32) -> RemoteAddress {
        self.bytes = farewell_bytes(messages, self.start);
        self.word
    }

    /// The bytes that go to the peer's word.
    pub(crate) const fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The peer's word.
    pub(crate) const fn word(&self) -> RemoteAddress {
        self.word
    }

    /// The count that was announced last.
    pub(crate) const fn announced(&self) -> u32 {
        self.announced
    }

    /// Notes that farewell was said: nothing is announced any more.
    pub(crate) const fn note_left(&mut self) {
        self.has_left = true;
        self.beside_at = u32::MAX;
    }

    /// Whether farewell was said.
    pub(crate) const fn has_left(&self) -> bool {
        self.has_left
    }

    /// Whether [`Announcer::beside`] has something.
    #[inline]
    pub(crate) fn is_due_beside(&self) -> bool {
        let count = self.grants.posted.load(CREDITS_READ.get());
        count.wrapping_sub(self.announced) >= self.beside_at
    }

    #[inline]
    fn at_least(&mut self, receives: u32) -> Option<Announcement<'_>> {
        let count = self.grants.posted.load(CREDITS_READ.get());
        if count.wrapping_sub(self.announced) < receives {
            return None;
        }
        self.bytes = bytes_of(count);
        Some(Announcement {
            count,
            word: self.word,
            bytes: &self.bytes,
            receipt: Receipt {
                announced: &mut self.announced,
                published: &self.grants.announced,
            },
        })
    }
}

impl<W> fmt::Debug for WindowWord<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WindowWord(at {})", self.offset)
    }
}

impl<W> fmt::Debug for FarewellWord<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FarewellWord(at {}, from {})", self.word.offset, self.start)
    }
}

impl fmt::Debug for Grants {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grants")
            .field("posted", &self.posted.load(ANNOUNCED))
            .field("announced", &self.announced.load(ANNOUNCED))
            .finish()
    }
}

impl<L> fmt::Debug for Granting<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Granting({} posted)", self.posted)
    }
}

impl<L> fmt::Debug for Announcer<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Announcer({} announced)", self.announced)
    }
}

#[cfg(test)]
mod tests;
