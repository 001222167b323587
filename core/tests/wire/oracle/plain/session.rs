//! The frames of a session, by their tables.

use super::{Cursor, only_if};

/// The fields of a frame.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SessionFrame {
    pub(crate) kind: u64,
    pub(crate) flags: u64,
    pub(crate) epoch: u64,
    pub(crate) sequence: u64,
    pub(crate) acknowledgement: u64,
    /// The further fields, by the kind. Attach: the session, the window and the rail. Refusal: the reason. Grant: its
    /// number, the access and the window. Lend: the window. Placed: the offset and the bytes. Fence: the rail and the epoch. Frames of a transfer: its number, and the fields
    /// behind that, in order.
    pub(crate) more: Vec<u64>,
    /// The bytes of data, or the set of pieces.
    pub(crate) payload: Vec<u8>,
}

/// A frame, and nothing else.
pub(crate) fn read(bytes: &[u8]) -> Option<SessionFrame> {
    let mut cursor = Cursor::new(bytes);
    let version = cursor.number(1)?;
    let kind = cursor.number(1)?;
    let flags = cursor.number(1)?;
    let reserved = cursor.number(1)?;
    let epoch = cursor.number(4)?;
    let sequence = cursor.number(8)?;
    let acknowledgement = cursor.number(8)?;
    only_if(version == 1 && reserved == 0 && epoch != 0)?;
    let (mut more, mut payload) = (Vec::new(), Vec::new());
    match kind {
        1 => {
            only_if(flags < 4)?;
            while let Some(byte) = cursor.number(1) {
                payload.push(u8::try_from(byte).ok()?);
            }
            only_if(!payload.is_empty() || flags == 3)?;
        }
        2 => only_if(flags == 0 && sequence == 0)?,
        3 => {
            only_if(flags == 0 || flags == 4)?;
            more.push(cursor.number(8)?);
            more.push(cursor.number(4)?);
            more.push(cursor.number(1)?);
            only_if(cursor.number(3)? == 0)?;
            only_if(more[0] != 0 && (1..=65_536).contains(&more[1]) && more[2] < 8)?;
        }
        4 => {
            only_if(flags == 0 && sequence == 0 && acknowledgement == 0)?;
            more.push(cursor.number(1)?);
            only_if(cursor.number(7)? == 0)?;
        }
        5 => only_if(flags == 0)?,
        6 => {
            only_if(flags == 0 && acknowledgement == 0)?;
            let handle = super::handle::read(bytes.get(24..)?)?;
            only_if(handle.length == bytes.len() - 24)?;
            cursor.take(handle.length)?;
        }
        7 => {
            only_if(flags == 0 && sequence == 0 && acknowledgement == 0)?;
            more.push(cursor.number(4)?);
            let access = cursor.number(1)?;
            only_if(cursor.number(7)? == 0 && access < 8)?;
            let (address, length, key) = (cursor.number(8)?, cursor.number(8)?, cursor.number(4)?);
            let is_nothing = address == 0 && length == 0 && key == 0;
            only_if(if access == 0 {
                is_nothing
            } else {
                length > 0 && length < 1 << 56
            })?;
            more.extend([access, address, length, key]);
        }
        8 | 9 => {
            only_if(flags == 0 && sequence == 0 && acknowledgement == 0)?;
            more.push(cursor.number(1)?);
            only_if(cursor.number(3)? == 0)?;
            more.push(cursor.number(4)?);
            only_if(more[0] < 8 && more[1] != 0)?;
        }
        10..=14 => {
            only_if(flags == 0 && sequence == 0 && acknowledgement == 0)?;
            more.push(cursor.number(4)?);
            transfer(kind, &mut cursor, &mut more, &mut payload)?;
        }
        15 => {
            only_if(flags == 0 && sequence == 0 && acknowledgement == 0)?;
            let (address, length, key) = (cursor.number(8)?, cursor.number(8)?, cursor.number(4)?);
            only_if(length > 0 && length < 1 << 56)?;
            more.extend([address, length, key]);
        }
        16 => {
            only_if(flags < 4)?;
            let (offset, bytes) = (cursor.number(4)?, cursor.number(4)?);
            only_if((1..=1 << 24).contains(&bytes) && offset + bytes < 1 << 32)?;
            more.extend([offset, bytes]);
        }
        _ => return None,
    }
    only_if(cursor.is_empty())?;
    Some(SessionFrame {
        kind,
        flags,
        epoch,
        sequence,
        acknowledgement,
        more,
        payload,
    })
}

/// The fields of a frame of a transfer, behind the transfer's number.
fn transfer(kind: u64, cursor: &mut Cursor<'_>, more: &mut Vec<u64>, payload: &mut Vec<u8>) -> Option<()> {
    match kind {
        10 => {
            let (piece, bytes, tag) = (cursor.number(4)?, cursor.number(8)?, cursor.number(8)?);
            let role = cursor.number(1)?;
            only_if(cursor.number(7)? == 0 && (1..=2).contains(&role))?;
            only_if((12..=24).any(|power| piece == 1 << power) && (1..=1 << 40).contains(&bytes))?;
            more.extend([piece, bytes, tag, role]);
        }
        11 => {
            let (address, length, key) = (cursor.number(8)?, cursor.number(8)?, cursor.number(4)?);
            only_if(length > 0 && length < 1 << 56)?;
            more.extend([address, length, key]);
        }
        12 => {
            let (first, count, question) = (cursor.number(4)?, cursor.number(4)?, cursor.number(4)?);
            only_if(count <= 512 && (count > 0 || first == 0 && question > 0))?;
            more.extend([first, count, question]);
        }
        13 => {
            let (base, question) = (cursor.number(4)?, cursor.number(4)?);
            only_if(cursor.number(4)? == 0)?;
            for _ in 0..64 {
                payload.push(u8::try_from(cursor.number(1)?).ok()?);
            }
            only_if(payload[0] % 2 == 0)?;
            more.extend([base, question]);
        }
        _ => {
            let (reason, answer) = (cursor.number(1)?, cursor.number(1)?);
            only_if(cursor.number(2)? == 0 && reason != 0 && answer < 2)?;
            more.extend([reason, answer]);
        }
    }
    Some(())
}
