//! The handle, by its table.

use super::rails::{self, Rail};
use super::{Cursor, VERSION, only_if};

/// The fields of a handle.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) newest: u64,
    pub(crate) oldest: u64,
    /// The bytes of the handle itself, without the padding of the buffer.
    pub(crate) length: usize,
    pub(crate) has_more: bool,
    pub(crate) port: u64,
    pub(crate) instance: u64,
    pub(crate) rails: Vec<Rail>,
}

/// A handle in a buffer of its size, or of up to 128 bytes.
pub(crate) fn read(buffer: &[u8]) -> Option<Handle> {
    only_if(buffer.len() <= 128)?;
    let mut header = Cursor::new(buffer);
    only_if(header.take(4)? == b"DBLH")?;
    let newest = header.number(1)?;
    let length = header.number(1)?;
    let flags = header.number(1)?;
    let rail_count = header.number(1)?;
    let port = header.number(2)?;
    let oldest = header.number(1)?;
    let reserved = header.number(1)?;
    let instance = header.number(8)?;

    only_if(oldest >= 1 && oldest <= newest)?;
    only_if(oldest <= VERSION)?;
    let from_newer = newest > VERSION;
    only_if((20..=128).contains(&length))?;
    only_if(flags < 2 || from_newer)?;
    only_if(rail_count >= 1)?;
    only_if(port != 0)?;
    only_if(reserved == 0 || from_newer)?;
    only_if(instance != 0)?;

    let length = usize::try_from(length).unwrap();
    only_if(length <= buffer.len())?;
    let (handle, padding) = buffer.split_at(length);
    only_if(padding.iter().all(|byte| *byte == 0))?;
    let mut listed = Cursor::new(&handle[20..]);
    let rails = rails::read(&mut listed, rail_count, from_newer)?;
    only_if(listed.is_empty() || from_newer)?;
    Some(Handle {
        newest,
        oldest,
        length,
        has_more: flags % 2 == 1,
        port,
        instance,
        rails,
    })
}
