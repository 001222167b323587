//! Flow control of one link of a circuit: a side sends only as much as the other side has room for.
//!
//! A relay keeps a message until the next link takes it. The sender therefore counts the bytes that the receiver has not consumed yet, and
//! stops at the window. The receiver reports consumed bytes in portions of at least a quarter of the window.

/// Maximum number of bytes sent and not reported as consumed.
pub(crate) const WINDOW_BYTES: usize = 512 << 10;

/// Up to this count, a message of any length may be sent. A receiver reports nothing below this count, so the sender could otherwise wait
/// forever.
const PORTION_BYTES: usize = WINDOW_BYTES / 4;

/// Cost of each message in addition to its bytes.
const MESSAGE_BYTES: usize = 64;

/// Returns the cost of a message of this length.
pub(crate) const fn cost(bytes: usize) -> usize {
    bytes.saturating_add(MESSAGE_BYTES)
}

/// The counters of one side of a link.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Credit {
    /// Bytes sent from here, and not reported as consumed.
    sent: usize,
    /// Bytes received here, and not consumed.
    held: usize,
    /// Bytes consumed here, and not reported yet.
    owed: usize,
}

impl Credit {
    /// Whether a message of this length may be sent.
    pub(crate) const fn may_send(&self, bytes: usize) -> bool {
        self.sent <= PORTION_BYTES || self.sent.saturating_add(cost(bytes)) <= WINDOW_BYTES
    }

    pub(crate) const fn did_send(&mut self, bytes: usize) {
        self.sent = self.sent.saturating_add(cost(bytes));
    }

    /// Handles a report of consumed bytes. Returns `None` if the other side never had as many.
    pub(crate) fn granted(&mut self, bytes: u32) -> Option<()> {
        self.sent = self.sent.checked_sub(usize::try_from(bytes).ok()?)?;
        Some(())
    }

    /// Counts a received message. Returns `None` if the other side had no credit for it.
    pub(crate) const fn received(&mut self, bytes: usize) -> Option<()> {
        // The other side does not know about bytes that are not reported yet, so they count as held.
        let before = self.held.saturating_add(self.owed);
        if before > PORTION_BYTES && before.saturating_add(cost(bytes)) > WINDOW_BYTES {
            return None;
        }
        self.held = self.held.saturating_add(cost(bytes));
        Some(())
    }

    /// Counts a received message as consumed.
    pub(crate) const fn took(&mut self, bytes: usize) {
        self.held = self.held.saturating_sub(cost(bytes));
        self.owed = self.owed.saturating_add(cost(bytes));
    }

    /// Returns the number of bytes to be reported now.
    pub(crate) fn owes(&self) -> Option<u32> {
        let bytes = u32::try_from(self.owed).unwrap_or(u32::MAX);
        (self.owed >= PORTION_BYTES).then_some(bytes)
    }

    /// Counts a report that was sent.
    pub(crate) fn paid(&mut self, bytes: u32) {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        self.owed = self.owed.saturating_sub(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::{Credit, MESSAGE_BYTES, PORTION_BYTES, WINDOW_BYTES, cost};

    #[test]
    fn a_side_stops_at_the_window_and_goes_on_with_credit() {
        let (mut here, mut there) = (Credit::default(), Credit::default());
        let bytes = 1000 - MESSAGE_BYTES;
        let mut sent = 0;
        while here.may_send(bytes) {
            here.did_send(bytes);
            assert!(there.received(bytes).is_some());
            sent += 1;
        }
        assert_eq!(sent, WINDOW_BYTES / 1000);
        assert_eq!(there.owes(), None);
        while there.owes().is_none() {
            there.took(bytes);
        }
        let credit = there.owes().unwrap();
        there.paid(credit);
        assert_eq!(there.owes(), None);
        assert!(here.granted(credit).is_some());
        assert!(here.may_send(bytes));
        // A grant beyond the sent bytes is refused.
        assert_eq!(here.granted(u32::MAX), None);
    }

    #[test]
    fn a_message_longer_than_the_window_goes_when_no_credit_is_to_come() {
        let (mut here, mut there) = (Credit::default(), Credit::default());
        let long = 2 * WINDOW_BYTES;
        for _ in 0..3 {
            // The other side reports nothing below a portion.
            while cost(0) + here.sent <= PORTION_BYTES {
                here.did_send(0);
                assert!(there.received(0).is_some());
                there.took(0);
                if let Some(credit) = there.owes() {
                    there.paid(credit);
                    here.granted(credit).unwrap();
                    break;
                }
            }
            assert!(here.may_send(long));
            here.did_send(long);
            assert!(there.received(long).is_some());
            assert!(!here.may_send(0));
            assert_eq!(there.received(0), None);
            there.took(long);
            let credit = there.owes().unwrap();
            there.paid(credit);
            here.granted(credit).unwrap();
        }
    }

    #[test]
    fn a_side_that_goes_beyond_is_found() {
        let mut there = Credit::default();
        let mut taken = 0;
        while there.received(1000).is_some() {
            taken += cost(1000);
        }
        assert!(taken <= WINDOW_BYTES && taken > WINDOW_BYTES - cost(1000));
    }
}
