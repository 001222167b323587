//! The list of channels with pending work for the sending thread. The receiving thread reports a channel whose receives need
//! an announcement. Any thread reports a channel to which it submitted a request. The sending thread itself reports a
//! channel that refused a caller.
//!
//! A channel is on the list at most once, even if it is reported several times. The thread that takes it sees all that
//! was done before the report, such as receives counted in the [`Grants`](crate::Grants).

use core::fmt;

use doorbell_core::free_list::FreeList;
use doorbell_core::sync::AtomicU32;

use crate::notify_flag::NotifyFlag;

/// The list. Its storage comes from the caller: a word and a flag for each channel.
pub struct DueList<Links, Flags> {
    list: FreeList<Links>,
    flags: Flags,
}

impl<Links: AsRef<[AtomicU32]>, Flags: AsRef<[NotifyFlag]>> DueList<Links, Flags> {
    /// An empty list for as many channels as there are links and flags.
    pub fn new(links: Links, flags: Flags) -> Self {
        Self {
            list: FreeList::new(links),
            flags,
        }
    }

    /// Reports a channel. A channel beyond the storage is ignored.
    #[inline]
    pub fn notify(&self, channel: u32) {
        let flag = self.flags.as_ref().get(channel as usize);
        if flag.is_some_and(NotifyFlag::notify) {
            self.list.put(channel);
        }
    }

    /// Whether the list looks empty. A recent report may become visible later.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Takes all reported channels, each once. From then on a channel may be reported again.
    #[inline]
    pub fn take(&self, mut each: impl FnMut(u32)) {
        if self.is_empty() {
            return;
        }
        self.list.take_all(|channel| {
            if let Some(flag) = self.flags.as_ref().get(channel as usize) {
                flag.take();
            }
            each(channel);
        });
    }
}

impl<Links, Flags> fmt::Debug for DueList<Links, Flags> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DueList").finish_non_exhaustive()
    }
}

#[cfg(all(test, not(doorbell_loom)))]
mod tests {
    use super::DueList;
    use crate::NotifyFlag;
    use doorbell_core::sync::AtomicU32;
    use std::boxed::Box;
    use std::vec::Vec;

    fn list(channels: u32) -> DueList<Box<[AtomicU32]>, Box<[NotifyFlag]>> {
        DueList::new(
            (0..channels).map(|_| AtomicU32::new(0)).collect(),
            (0..channels).map(|_| NotifyFlag::new()).collect(),
        )
    }

    fn taken(list: &DueList<Box<[AtomicU32]>, Box<[NotifyFlag]>>) -> Vec<u32> {
        let mut taken = Vec::new();
        list.take(|channel| taken.push(channel));
        taken.sort_unstable();
        taken
    }

    #[test]
    fn a_channel_is_taken_once_however_often_it_was_notified() {
        let list = list(3);
        for channel in [2, 0, 2, 0, 2, 3] {
            list.notify(channel);
        }
        assert_eq!(taken(&list), [0, 2]);
        assert_eq!(taken(&list), []);
        list.notify(2);
        assert_eq!(taken(&list), [2]);
    }

    #[test]
    fn while_it_is_taken_it_may_be_notified_again() {
        let list = list(1);
        list.notify(0);
        list.take(|channel| list.notify(channel));
        assert_eq!(taken(&list), [0]);
    }
}
