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
    /// number, the access and the window. Fence: the rail and the epoch.
    pub(crate) more: Vec<u64>,
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
