//! Record of the handle with this process's present addresses that was announced to the peer.

use doorbell_core::session::{Epoch, SESSION_RAILS_MAX};
use doorbell_core::wire::Handle;

/// The handle that was announced last, and for each rail the connection that announced it. A connection announces a handle at most once.
#[derive(Debug)]
pub(super) struct SentMoves {
    handle: Option<Handle>,
    on: [Epoch; SESSION_RAILS_MAX as usize],
}

impl Default for SentMoves {
    fn default() -> Self {
        Self {
            handle: None,
            on: [Epoch::NONE; SESSION_RAILS_MAX as usize],
        }
    }
}

impl SentMoves {
    /// Whether a rail's connection has announced this handle.
    pub(super) fn was_sent(&self, handle: &Handle, rail: u8, epoch: Epoch) -> bool {
        self.handle.as_ref() == Some(handle) && self.on.get(usize::from(rail)) == Some(&epoch)
    }

    /// Notes that a rail's connection has announced this handle.
    pub(super) fn note_sent(&mut self, handle: &Handle, rail: u8, epoch: Epoch) {
        if self.handle.as_ref() != Some(handle) {
            *self = Self {
                handle: Some(*handle),
                ..Self::default()
            };
        }
        if let Some(on) = self.on.get_mut(usize::from(rail)) {
            *on = epoch;
        }
    }
}

#[cfg(test)]
mod tests {
    use core::net::IpAddr;
    use core::num::NonZeroU16;

    use super::SentMoves;
    use doorbell_core::session::Epoch;
    use doorbell_core::wire::{AdvertisedRail, Handle, InstanceId, SpeedClass};
    use doorbell_core::{Gid, IpPrefix};

    /// Handle of a process whose address ends in this byte.
    fn handle(last: u8) -> Handle {
        let address = IpAddr::from([10, 0, 0, last]);
        let prefix = IpPrefix::new(address, 24).unwrap();
        let rail = AdvertisedRail::new(prefix, Gid::from_ip(address), SpeedClass(7)).unwrap();
        let mut builder = Handle::builder(NonZeroU16::new(7000).unwrap(), InstanceId::new(1).unwrap());
        let _ = builder.push(&rail);
        builder.finish().unwrap()
    }

    #[test]
    fn each_connection_is_notified_once_though_the_rails_take_turns() {
        let (first, second) = (handle(2), handle(99));
        let mut sent = SentMoves::default();
        let (one, two) = (Epoch::from_wire(1), Epoch::from_wire(2));
        for (rail, epoch) in [(0, one), (1, two)] {
            assert!(!sent.was_sent(&first, rail, epoch));
            sent.note_sent(&first, rail, epoch);
        }
        assert!(sent.was_sent(&first, 0, one) && sent.was_sent(&first, 1, two));
        // The rail's next connection announces the handle again, and every connection announces another handle.
        assert!(!sent.was_sent(&first, 0, Epoch::from_wire(3)));
        assert!(!sent.was_sent(&second, 0, one));
        sent.note_sent(&second, 0, one);
        assert!(sent.was_sent(&second, 0, one) && !sent.was_sent(&second, 1, two));
    }
}
