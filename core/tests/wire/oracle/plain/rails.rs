//! Rails, by the table of tags.

use core::net::IpAddr;

use doorbell_core::wire::Rails;

use super::{Cursor, only_if};

/// The fields of one rail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rail {
    /// 4 bytes or 16.
    pub(crate) address: Vec<u8>,
    pub(crate) prefix_bits: u64,
    pub(crate) speed: u64,
    pub(crate) gid: Vec<u8>,
}

/// So many entries, those left out that a newer version may list.
pub(crate) fn read(cursor: &mut Cursor<'_>, count: u64, from_newer: bool) -> Option<Vec<Rail>> {
    let mut rails = Vec::new();
    for _ in 0..count {
        match entry(cursor)? {
            Some(rail) => rails.push(rail),
            None => only_if(from_newer)?,
        }
    }
    Some(rails)
}

/// One entry; within, `None` for a kind that version 1 does not know.
fn entry(cursor: &mut Cursor<'_>) -> Option<Option<Rail>> {
    let tag = cursor.peek()?;
    let (address_bytes, is_gid_explicit) = match tag {
        0x01 => (4, false),
        0x22 => (16, false),
        0x41 => (4, true),
        0x62 => (16, true),
        _ => {
            let length = match tag / 32 {
                0 => 7,
                1 => 19,
                2 => 23,
                3 => 35,
                7 => {
                    let length = cursor.peek_second()?;
                    only_if(length >= 2)?;
                    usize::from(length)
                }
                _ => return None,
            };
            cursor.take(length)?;
            return Some(None);
        }
    };
    cursor.take(1)?;
    let prefix_bits = cursor.number(1)?;
    let speed = cursor.number(1)?;
    let address = cursor.take(address_bytes)?.to_vec();
    let mapped = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
    let derived = if address_bytes == 4 {
        only_if(prefix_bits <= 32)?;
        let is_multicast = (224..=239).contains(&address[0]);
        only_if(address != [0, 0, 0, 0] && address != [255, 255, 255, 255] && !is_multicast)?;
        [&mapped[..], &address].concat()
    } else {
        only_if(prefix_bits <= 128)?;
        let is_multicast = address[0] == 255;
        only_if(address != [0; 16] && !is_multicast && !address.starts_with(&mapped))?;
        address.clone()
    };
    let gid = if is_gid_explicit {
        let gid = cursor.take(16)?.to_vec();
        only_if(gid != [0; 16] && gid != derived)?;
        gid
    } else {
        derived
    };
    Some(Some(Rail {
        address,
        prefix_bits,
        speed,
        gid,
    }))
}

/// Panics if the list that was read is not this one.
pub(crate) fn assert_same(rails: Rails<'_>, plain: &[Rail]) {
    let found: Vec<Rail> = rails
        .iter()
        .map(|rail| Rail {
            address: match rail.address().address() {
                IpAddr::V4(address) => address.octets().to_vec(),
                IpAddr::V6(address) => address.octets().to_vec(),
            },
            prefix_bits: u64::from(rail.address().prefix_bits()),
            speed: u64::from(rail.speed().0),
            gid: rail.gid().0.to_vec(),
        })
        .collect();
    assert_eq!(found, plain);
    for (rail, plain) in rails.iter().zip(plain) {
        let mut mbps = 8 + plain.speed % 8;
        for _ in 0..plain.speed / 8 {
            mbps *= 2;
        }
        let mbps = if plain.speed == 0 { 0 } else { mbps };
        assert_eq!(rail.speed().to_mbps(), mbps);
    }
}
