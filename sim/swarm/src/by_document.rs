//! Bytes as `docs/wire-format.md` has them, written and read without anything of `core`.
//!
//! A mistake that the writer and the reader of the product share stays unseen between two of its processes. A peer that
//! speaks by this file sees it.

use core::net::Ipv4Addr;

/// The magic of a frame, "DBLF".
const MAGIC: [u8; 4] = *b"DBLF";

/// Bytes in front of the body of each frame.
const HEADER_BYTES: usize = 10;

/// No frame is longer.
const FRAME_BYTES_MAX: usize = 2560;

/// The kinds of frames.
pub(crate) const HELLO: u8 = 1;
pub(crate) const WELCOME: u8 = 2;
pub(crate) const CONNECT: u8 = 3;
pub(crate) const ACCEPT: u8 = 4;
pub(crate) const READY: u8 = 5;
pub(crate) const REJECT: u8 = 6;

/// The reasons of a Reject that the runs know by name.
pub(crate) const DEADLINE: u16 = 6;
pub(crate) const BUSY: u16 = 7;

/// A frame as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Heard {
    pub(crate) version: u8,
    pub(crate) kind: u8,
    pub(crate) body: Vec<u8>,
}

/// The content of Hello, the initiator's first frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Greeting {
    pub(crate) versions: [u8; 2],
    pub(crate) instance: u64,
    pub(crate) listener: u64,
    pub(crate) nonce: [u8; 16],
    pub(crate) address: Ipv4Addr,
    pub(crate) prefix_bits: u8,
    pub(crate) speed_mbps: u32,
}

/// The body of Connect and of Accept, without a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    pub(crate) gid: [u8; 16],
    pub(crate) qpn: u32,
    pub(crate) psn: u32,
    pub(crate) mtu: u8,
    pub(crate) reads_wanted: u8,
    pub(crate) reads_served: u8,
    pub(crate) own_rail: u8,
    pub(crate) peer_rail: u8,
    pub(crate) receive_depth: u32,
    pub(crate) slot_bytes: u32,
    pub(crate) credit_address: u64,
    pub(crate) credit_rkey: u32,
    pub(crate) credit_start: u32,
}

/// A frame of this kind, with its header.
pub(crate) fn frame(version: u8, kind: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend([version, kind, 0, 0]);
    bytes.extend((body.len() as u16).to_be_bytes());
    bytes.extend(body);
    bytes
}

impl Greeting {
    pub(crate) fn hello(&self) -> Vec<u8> {
        let [oldest, newest] = self.versions;
        let mut body = vec![oldest, newest, 1, 0];
        body.extend(self.instance.to_be_bytes());
        body.extend(self.listener.to_be_bytes());
        body.extend(self.nonce);
        body.extend([0x01, self.prefix_bits, speed_class(self.speed_mbps)]);
        body.extend(self.address.octets());
        if newest >= 2 {
            body.extend(0_u32.to_be_bytes());
        }
        frame(1, HELLO, &body)
    }

    /// The version that two sides speak of which one says this and the other speaks 1 and 2.
    pub(crate) fn version(&self) -> u8 {
        self.versions[1].min(2)
    }
}

/// `(8 + m) << e` Mb/s, rounded down.
pub(crate) fn speed_class(mbps: u32) -> u8 {
    if mbps < 8 {
        return 0;
    }
    let exponent = mbps.ilog2() - 3;
    let mantissa = (mbps >> exponent) & 7;
    (exponent << 3 | mantissa) as u8
}

/// The GID that follows from an address of IPv4.
pub(crate) fn gid(address: Ipv4Addr) -> [u8; 16] {
    address.to_ipv6_mapped().octets()
}

impl Offer {
    pub(crate) fn body(&self, version: u8) -> Vec<u8> {
        let mut body = self.gid.to_vec();
        body.extend(self.qpn.to_be_bytes());
        body.extend(self.psn.to_be_bytes());
        body.extend([self.mtu, self.reads_wanted, self.reads_served, 0]);
        body.extend(0_u32.to_be_bytes());
        body.extend([0, self.own_rail, self.peer_rail, 0]);
        body.extend(self.receive_depth.to_be_bytes());
        body.extend(self.slot_bytes.to_be_bytes());
        body.extend(self.credit_address.to_be_bytes());
        body.extend(self.credit_rkey.to_be_bytes());
        body.extend(self.credit_start.to_be_bytes());
        if version >= 2 {
            // No session.
            body.extend([0; 20]);
        }
        body
    }

    /// Reads a body that names no session. Its length has to fit the private data that it announces, which are
    /// skipped.
    pub(crate) fn read(version: u8, body: &[u8]) -> Option<Self> {
        let (fixed, rest) = body.split_at_checked(60)?;
        let session: &[u8] = if version >= 2 { &[0; 20] } else { &[] };
        if rest.get(..session.len()) != Some(session) {
            return None;
        }
        let private = rest.len() - session.len();
        if private != usize::from(fixed[35]) {
            return None;
        }
        let word = |at: usize| u32::from_be_bytes([fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]]);
        Some(Self {
            gid: *fixed.first_chunk()?,
            qpn: word(16),
            psn: word(20),
            mtu: fixed[24],
            reads_wanted: fixed[25],
            reads_served: fixed[26],
            own_rail: fixed[33],
            peer_rail: fixed[34],
            receive_depth: word(36),
            slot_bytes: word(40),
            credit_address: u64::from(word(44)) << 32 | u64::from(word(48)),
            credit_rkey: word(52),
            credit_start: word(56),
        })
    }
}

/// Reads a Welcome: the version, the listener's instance, and the IPv4 addresses of its rails.
pub(crate) fn welcome(heard: &Heard) -> Option<(u8, u64, Vec<Ipv4Addr>)> {
    let body = &heard.body;
    let (version, count) = (*body.first()?, *body.get(1)?);
    let instance = u64::from_be_bytes(*body.get(4..)?.first_chunk()?);
    let mut rails = body.get(if version >= 2 { 32 } else { 28 }..)?;
    let mut addresses = Vec::new();
    for _ in 0..count {
        let entry;
        (entry, rails) = rails.split_at_checked(match rails.first()? >> 5 {
            0 => 7,
            1 => 19,
            2 => 23,
            _ => 35,
        })?;
        if entry[0] == 0x01 {
            addresses.push(Ipv4Addr::from(*entry.get(3..)?.first_chunk::<4>()?));
        }
    }
    rails.is_empty().then_some((version, instance, addresses))
}

/// The reason and the detail of a Reject.
pub(crate) fn reject(heard: &Heard) -> Option<(u16, u32)> {
    let [a, b, 0, 0, c, d, e, f] = heard.body[..] else {
        return None;
    };
    Some((u16::from_be_bytes([a, b]), u32::from_be_bytes([c, d, e, f])))
}

/// Takes the first frame out of what came, once all of it is there.
///
/// # Errors
/// The bytes are no frame of the document.
pub(crate) fn take(bytes: &mut Vec<u8>) -> Result<Option<Heard>, String> {
    let Some(header) = bytes.first_chunk::<HEADER_BYTES>() else {
        return Ok(None);
    };
    let [a, b, c, d, version, kind, flags @ .., high, low] = *header;
    let end = HEADER_BYTES + usize::from(u16::from_be_bytes([high, low]));
    let is_known = (HELLO..=REJECT).contains(&kind);
    if [a, b, c, d] != MAGIC || flags != [0, 0] || end > FRAME_BYTES_MAX || !is_known {
        return Err(format!("no frame of the document begins with {header:02x?}"));
    }
    if bytes.len() < end {
        return Ok(None);
    }
    let body = bytes[HEADER_BYTES..end].to_vec();
    bytes.drain(..end);
    Ok(Some(Heard { version, kind, body }))
}

/// An announcement of receives: a count, and its complement.
pub(crate) fn announcement(count: u32) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&count.to_be_bytes());
    bytes[4..].copy_from_slice(&(!count).to_be_bytes());
    bytes
}

/// The count that a credit word tells, where its halves agree.
pub(crate) fn announced(word: [u8; 8]) -> Option<u32> {
    let [a, b, c, d, e, f, g, h] = word;
    let (count, check) = (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h]));
    (check == !count).then_some(count)
}

/// The word of a farewell, "fare".
pub(crate) const FARE: u32 = u32::from_be_bytes(*b"fare");

/// A farewell: the count of messages behind the start that its sender told, and a check that has the start that its receiver told.
pub(crate) fn farewell(own_start: u32, messages: u32, peer_start: u32) -> [u8; 8] {
    let count = own_start.wrapping_add(messages);
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&count.to_be_bytes());
    bytes[4..].copy_from_slice(&(count ^ 0x6661_7265 ^ peer_start).to_be_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::{BUSY, Greeting, REJECT, frame, reject, speed_class, take};

    #[test]
    fn bytes_are_as_the_examples_of_the_document() {
        // The handle that the document shows has this rail.
        assert_eq!(speed_class(10_000), 0x51);
        let greeting = Greeting {
            versions: [1, 2],
            instance: 1,
            listener: 2,
            nonce: [7; 16],
            address: [10, 1, 2, 3].into(),
            prefix_bits: 24,
            speed_mbps: 10_000,
        };
        let hello = greeting.hello();
        assert_eq!(hello.len(), 10 + 36 + 7 + 4);
        assert_eq!(hello[46..53], [0x01, 0x18, 0x51, 0x0a, 0x01, 0x02, 0x03]);
    }

    #[test]
    fn frames_are_taken_once_they_are_whole() {
        let said = frame(1, REJECT, &[0, 7, 0, 0, 0, 0, 1, 0]);
        let mut bytes = said[..said.len() - 1].to_vec();
        assert_eq!(take(&mut bytes), Ok(None));
        bytes.push(said[said.len() - 1]);
        let heard = take(&mut bytes).unwrap().unwrap();
        assert_eq!(reject(&heard), Some((BUSY, 256)));
        assert!(bytes.is_empty() && take(&mut vec![0; 10]).is_err());
    }
}
