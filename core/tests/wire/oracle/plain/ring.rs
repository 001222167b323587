//! The ring invitation, by its table.

use super::{Cursor, only_if};

/// The fields of an invitation.
#[derive(Debug)]
pub(crate) struct Invitation {
    pub(crate) address: u64,
    pub(crate) length: u64,
    pub(crate) rkey: u64,
    pub(crate) cells: u64,
    pub(crate) cell_bytes: u64,
    pub(crate) is_by_immediate: bool,
}

/// An invitation, and nothing else.
pub(crate) fn read(bytes: &[u8]) -> Option<Invitation> {
    only_if(bytes.len() == 32)?;
    let mut cursor = Cursor::new(bytes);
    let address = cursor.number(8)?;
    let length = cursor.number(8)?;
    let rkey = cursor.number(4)?;
    let cells = cursor.number(4)?;
    let cell_bytes = cursor.number(4)?;
    let version = cursor.number(1)?;
    let publication = cursor.number(1)?;
    let reserved = cursor.number(2)?;
    only_if((1..=20).any(|power| cells == 1 << power))?;
    only_if(cell_bytes % 64 == 0 && (64..=16_777_216).contains(&cell_bytes))?;
    only_if(version == 1)?;
    only_if(publication == 1 || publication == 2)?;
    only_if(reserved == 0)?;
    // The window holds the cells and 64 bytes, and what it holds has addresses.
    let needed = u128::from(cells) * u128::from(cell_bytes) + 64;
    only_if(length < 1 << 56)?;
    only_if(u128::from(length) >= needed)?;
    only_if(u128::from(address) + needed <= u128::from(u64::MAX))?;
    Some(Invitation {
        address,
        length,
        rkey,
        cells,
        cell_bytes,
        is_by_immediate: publication == 2,
    })
}
