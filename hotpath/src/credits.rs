//! Credits: a message is sent only if the peer has a receive posted for it.
//!
//! Every number here is a count since the connection was made, modulo 2^32: receives posted, receives announced,
//! messages sent. An announcement carries the count and not a difference. So a later announcement replaces all
//! earlier ones, and a rejected one does no harm.
//!
//! The receiving half counts the receives it posted ([`Granting`]) and publishes that count in the [`Grants`].
//! The sending half writes the count into the peer's credit word ([`Announcer`]). The peer's sending half reads
//! its word ([`WindowWord`]) when it has used up its known credits ([`Credits`]). The layout of these bytes
//! on the wire is in `docs/wire-format.md`.

use core::fmt;
use core::ops::Deref;

use doorbell_core::provider::{RemoteAddress, Window};
use doorbell_core::sync::{AtomicU32, Ordering};

use crate::ordering::{CREDITS_POSTED, CREDITS_READ};

/// The count of announced receives orders no other memory. With a stale count, a receiver may consider an
/// announcement due that was already sent.
const ANNOUNCED: Ordering = Ordering::Relaxed;

/// The credits of a sending side: its knowledge of its peer's receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credits {
    /// Messages sent.
    sent: u32,
    /// The count of receives that the peer is known to have posted, from `sent` to `sent + depth`.
    granted: u32,
    /// The maximum number of receives that the peer keeps posted.
    depth: u32,
    /// Whether a message was refused for lack of credit, and no caller has learned yet that there are credits again.
    is_wanting: bool,
}

impl Credits {
    /// Credits that count from `start`, for a peer that has posted all its receives.
    #[must_use]
    pub const fn new(start: u32, peer_receive_depth: u32) -> Self {
        Self {
            sent: start,
            granted: start.wrapping_add(peer_receive_depth),
            depth: peer_receive_depth,
            is_wanting: false,
        }
    }

    /// The number of messages that may be sent, as far as is known.
    #[must_use]
    #[inline]
    pub const fn available(&self) -> u32 {
        self.granted.wrapping_sub(self.sent)
    }

    /// The count of sent messages.
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

    /// Applies an announcement of the peer if it is plausible: at least the sent count, and at most the peer's depth
    /// beyond it. Returns whether more messages may be sent than before.
    #[inline]
    pub const fn learn(&mut self, announced: u32) -> bool {
        let ahead = announced.wrapping_sub(self.sent);
        let is_news = ahead <= self.depth && ahead > self.granted.wrapping_sub(self.sent);
        if is_news {
            self.granted = announced;
        }
        is_news
    }

    /// Notes that a message was refused for lack of credit.
    #[inline]
    pub const fn note_refused(&mut self) {
        self.is_wanting = true;
    }

    /// Whether a message was refused, and [`Credits::satisfy`] has not yet reported credits since.
    #[must_use]
    #[inline]
    pub const fn is_wanting(&self) -> bool {
        self.is_wanting
    }

    /// Returns `true` once when, after a refused message, there are credits again.
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

    /// Revokes the credits: no message may be sent any more, whatever the peer announces.
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

/// The word of a window in which a peer announces its receives, and writes its farewell.
#[derive(Clone)]
pub struct WindowWord<W> {
    window: W,
    offset: usize,
}

impl<W: Deref<Target: Window>> WindowWord<W> {
    /// The word at an offset of a window, in bytes. `None` if the window has no aligned word there.
    #[must_use]
    pub fn new(window: W, offset: usize) -> Option<Self> {
        window.load_u64(offset).ok()?;
        Some(Self { window, offset })
    }

    /// Returns the last announcement of the peer; `None` if there was none, or if the word is only partly written.
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

/// The word in which a peer writes its farewell: the word of its announcements.
#[derive(Clone)]
pub struct FarewellWord<W> {
    word: WindowWord<W>,
    /// The start that the peer got for its announcements. It identifies the farewell as this peer's.
    start: u32,
}

impl<W: Deref<Target: Window>> FarewellWord<W> {
    /// The farewell word of a peer that got this `start`.
    #[must_use]
    pub const fn new(word: WindowWord<W>, start: u32) -> Self {
        Self { word, start }
    }

    /// Returns the number of all messages that the peer sent, if it wrote a farewell: a count like its
    /// [`Credits::sent`].
    #[must_use]
    pub fn load(&self) -> Option<u32> {
        let word = self.word.window.load_u64(self.word.offset).ok()?;
        farewell_of(word.to_ne_bytes(), self.start)
    }
}

/// Distinguishes a farewell from an announcement, whose halves are complements.
const FAREWELL_MARK: u32 = 0x6661_7265;

/// The bytes of a farewell in the peer's word: the count of messages, then the exclusive or of count, mark and start.
const fn farewell_bytes(messages: u32, start: u32) -> [u8; 8] {
    let check = messages ^ FAREWELL_MARK ^ start;
    let word = (messages as u64) << u32::BITS | check as u64;
    word.to_be_bytes()
}

/// Returns the count of a farewell; `None` if the bytes are not a farewell for this start.
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

/// The bytes of an announcement in the peer's word: the count, and its complement.
#[inline]
pub(crate) fn bytes_of(count: u32) -> [u8; 8] {
    let word = u64::from(count) << u32::BITS | u64::from(!count);
    word.to_be_bytes()
}

/// Returns the count of an announcement; `None` if the bytes are not one. Halves of two announcements are not one,
/// unless both have the same count.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "each half by itself")]
fn count_of(bytes: [u8; 8]) -> Option<u32> {
    let word = u64::from_be_bytes(bytes);
    let (count, check) = ((word >> u32::BITS) as u32, word as u32);
    (check == !count).then_some(count)
}

/// The counts of receives that the two halves of a channel share. Each word has one writer; the halves may be on
/// different threads.
pub struct Grants {
    /// The count of posted receives, written by the receiving half.
    posted: AtomicU32,
    /// The count of announced receives, written by the sending half.
    announced: AtomicU32,
}

impl Grants {
    /// The counts for a peer that knows of `receive_depth` receives and counts from `start`.
    #[must_use]
    pub fn new(start: u32, receive_depth: u32) -> Self {
        let known = start.wrapping_add(receive_depth);
        Self {
            posted: AtomicU32::new(known),
            announced: AtomicU32::new(known),
        }
    }
}

/// The receiving half of the grants: counts posted receives, and decides when they need an
/// announcement.
pub struct Granting<L> {
    grants: L,
    posted: u32,
    /// With this many unannounced receives, an announcement is sent alone.
    alone_at: u32,
}

impl<L: Deref<Target = Grants>> Granting<L> {
    /// Continues the counts, for a queue of this depth.
    #[must_use]
    pub fn new(grants: L, receive_depth: u32) -> Self {
        Self {
            posted: grants.posted.load(CREDITS_READ.get()),
            grants,
            alone_at: (receive_depth / 2).max(1),
        }
    }

    /// Counts receives that the device accepted.
    #[inline]
    pub fn note_posted(&mut self, receives: u32) {
        self.posted = self.posted.wrapping_add(receives);
        self.grants.posted.store(self.posted, CREDITS_POSTED.get());
    }

    /// Returns the number of received messages, if `in_flight` receives are posted: a count like the peer's
    /// [`Credits::sent`].
    #[must_use]
    pub fn received(&self, in_flight: u32) -> u32 {
        self.posted.wrapping_sub(in_flight)
    }

    /// Whether receives need an announcement alone, if `in_flight` are posted: half of the depth
    /// is unannounced, or the peer knows of none of the posted receives.
    ///
    /// The second condition keeps a channel alive that lacks the memory for more receives.
    #[inline]
    pub fn is_due(&self, in_flight: u32) -> bool {
        let unannounced = self.posted.wrapping_sub(self.grants.announced.load(ANNOUNCED));
        unannounced >= self.alone_at || (unannounced > 0 && unannounced >= in_flight)
    }
}

/// The sending half of the grants: announces posted receives.
pub struct Announcer<L> {
    grants: L,
    announced: u32,
    /// With this many unannounced receives, the next batch of requests carries an announcement.
    beside_at: u32,
    /// The peer's credit word.
    word: RemoteAddress,
    /// The bytes of the announcement, kept here while it is staged.
    bytes: [u8; 8],
    /// The count from which the peer wants the announcements to start.
    start: u32,
    /// Whether the farewell was sent. After it, the word must not be written.
    has_left: bool,
}

/// An announcement to stage, with the borrows that it needs.
pub(crate) struct Announcement<'q> {
    /// The count that it announces.
    pub(crate) count: u32,
    pub(crate) word: RemoteAddress,
    pub(crate) bytes: &'q [u8],
    pub(crate) receipt: Receipt<'q>,
}

/// The fields to update when an announcement was posted.
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
    /// An announcer for the peer's credit word, for a queue of this depth.
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

    /// Returns an announcement to send with other requests, if at least a quarter of the depth is unannounced.
    #[inline]
    pub(crate) fn beside(&mut self) -> Option<Announcement<'_>> {
        self.at_least(self.beside_at)
    }

    /// Returns an announcement to send alone, if at least one receive is unannounced.
    #[inline]
    pub(crate) fn alone(&mut self) -> Option<Announcement<'_>> {
        self.at_least(1)
    }

    /// Returns an announcement even if the peer knows its count already, for callers that need a request.
    #[inline]
    pub(crate) fn in_any_case(&mut self) -> Option<Announcement<'_>> {
        self.at_least(0)
    }

    /// Makes the bytes a farewell after `messages` messages. Returns the word to write them to.
    pub(crate) const fn write_farewell(&mut self, messages: u32) -> RemoteAddress {
        self.bytes = farewell_bytes(messages, self.start);
        self.word
    }

    /// The bytes to write to the peer's word.
    pub(crate) const fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The peer's word.
    pub(crate) const fn word(&self) -> RemoteAddress {
        self.word
    }

    /// The last announced count.
    pub(crate) const fn announced(&self) -> u32 {
        self.announced
    }

    /// Notes that the farewell was sent: nothing is announced any more.
    pub(crate) const fn note_left(&mut self) {
        self.has_left = true;
        self.beside_at = u32::MAX;
    }

    /// Whether the farewell was sent.
    pub(crate) const fn has_left(&self) -> bool {
        self.has_left
    }

    /// Whether [`Announcer::beside`] returns an announcement.
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
