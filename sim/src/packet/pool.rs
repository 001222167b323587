//! The packets under way. One that arrived leaves its buffer to the next, so that in steady
//! state none is allocated.

use super::Packet;

/// Names a packet that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PacketKey(u32);

impl PacketKey {
    /// Its place in the pool.
    pub(crate) const fn place(self) -> usize {
        self.0 as usize
    }
}

/// The pool.
#[derive(Default)]
pub(crate) struct Pool {
    packets: Vec<Packet>,
    free: Vec<u32>,
}

impl Pool {
    /// Takes a packet that says nothing that matters.
    pub(crate) fn take(&mut self) -> PacketKey {
        PacketKey(self.free.pop().unwrap_or_else(|| {
            self.packets.push(Packet::blank());
            // There is no memory for 2^32 packets.
            u32::try_from(self.packets.len().saturating_sub(1)).unwrap_or(u32::MAX)
        }))
    }

    /// Takes a packet that says what another says.
    pub(crate) fn take_copy(&mut self, of: PacketKey) -> PacketKey {
        let copy = self.take();
        let taken = self
            .get_mut(copy)
            .map(|packet| core::mem::replace(packet, Packet::blank()));
        if let (Some(mut packet), Some(of)) = (taken, self.get(of)) {
            packet.copy_from(of);
            if let Some(place) = self.get_mut(copy) {
                *place = packet;
            }
        }
        copy
    }

    pub(crate) fn get(&self, key: PacketKey) -> Option<&Packet> {
        self.packets.get(key.0 as usize)
    }

    pub(crate) fn get_mut(&mut self, key: PacketKey) -> Option<&mut Packet> {
        self.packets.get_mut(key.0 as usize)
    }

    /// Gives a packet back that is under way no longer.
    pub(crate) fn give_back(&mut self, key: PacketKey) {
        self.free.push(key.0);
    }

    /// How many are under way.
    pub(crate) fn under_way(&self) -> usize {
        self.packets.len().saturating_sub(self.free.len())
    }
}
