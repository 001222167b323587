//! The frames, by their tables.

use super::rails::{self, Rail};
use super::{Cursor, VERSION, only_if};

/// The fields of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    Hello(Hello),
    Welcome(Welcome),
    Connect(Endpoint),
    Accept(Endpoint),
    Ready,
    Reject { reason: u64, detail: u64 },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) oldest: u64,
    pub(crate) newest: u64,
    pub(crate) instance: u64,
    /// 0 for none.
    pub(crate) listener: u64,
    pub(crate) nonce: Vec<u8>,
    pub(crate) rails: Vec<Rail>,
    /// 0 for none.
    pub(crate) key: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Welcome {
    pub(crate) version: u64,
    pub(crate) instance: u64,
    pub(crate) nonce: Vec<u8>,
    pub(crate) rails: Vec<Rail>,
    /// 0 for none.
    pub(crate) key: u64,
}

/// The fields of Connect and Accept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    pub(crate) gid: Vec<u8>,
    pub(crate) qpn: u64,
    pub(crate) psn: u64,
    pub(crate) mtu: u64,
    pub(crate) reads_in_flight: u64,
    pub(crate) reads_served: u64,
    pub(crate) traffic_class: u64,
    pub(crate) flow_label: u64,
    pub(crate) service_level: u64,
    pub(crate) own_rail: u64,
    pub(crate) peer_rail: u64,
    pub(crate) receive_depth: u64,
    pub(crate) slot_bytes: u64,
    pub(crate) credit_address: u64,
    pub(crate) credit_rkey: u64,
    pub(crate) credit_start: u64,
    /// 0 for none.
    pub(crate) session: u64,
    pub(crate) next_sequence: u64,
    pub(crate) epoch: u64,
    pub(crate) private: Vec<u8>,
}

/// The fields of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) version: u64,
    pub(crate) kind: u64,
    pub(crate) is_tagged: bool,
    /// The length of the body, with its tag.
    pub(crate) length: usize,
}

/// The header: the kind, and how long the body is.
pub(crate) fn header(bytes: &[u8]) -> Option<(u64, usize)> {
    let header = whole_header(bytes)?;
    Some((header.kind, header.length))
}

pub(crate) fn whole_header(bytes: &[u8]) -> Option<Header> {
    let mut cursor = Cursor::new(bytes);
    only_if(cursor.take(4)? == b"DBLF")?;
    let version = cursor.number(1)?;
    let kind = cursor.number(1)?;
    let flags = cursor.number(2)?;
    let length = usize::try_from(cursor.number(2)?).unwrap();
    let lengths = match (version, kind) {
        (1, 1) => 36..=2550,
        (1, 2) => 28..=2268,
        (1, 3 | 4) => 60..=124,
        (1..=4, 5) => 0..=0,
        (1, 6) => 8..=8,
        (2..=4, 2) => 32..=2272,
        (2..=4, 3 | 4) => 80..=144,
        _ => return None,
    };
    let is_tagged = match flags {
        0 => false,
        1 => {
            only_if(version >= 2)?;
            true
        }
        _ => return None,
    };
    let untagged = length.checked_sub(if is_tagged { 32 } else { 0 })?;
    only_if(lengths.contains(&untagged))?;
    Some(Header {
        version,
        kind,
        is_tagged,
        length,
    })
}

/// One whole frame, and nothing else. Its tag is left out.
pub(crate) fn read(bytes: &[u8]) -> Option<Frame> {
    let header = whole_header(bytes)?;
    only_if(bytes.len() == 10 + header.length)?;
    let end = bytes.len() - if header.is_tagged { 32 } else { 0 };
    let mut body = Cursor::new(&bytes[10..end]);
    let frame = match header.kind {
        1 => Frame::Hello(hello(&mut body)?),
        2 => Frame::Welcome(welcome(&mut body, header.version)?),
        3 => Frame::Connect(endpoint(&mut body, header.version)?),
        4 => Frame::Accept(endpoint(&mut body, header.version)?),
        5 => Frame::Ready,
        _ => {
            let reason = body.number(2)?;
            only_if(body.number(2)? == 0)?;
            let detail = body.number(4)?;
            Frame::Reject { reason, detail }
        }
    };
    let may_say_more = matches!(&frame, Frame::Hello(hello) if hello.newest > VERSION);
    only_if(body.is_empty() || may_say_more)?;
    Some(frame)
}

fn hello(body: &mut Cursor<'_>) -> Option<Hello> {
    let oldest = body.number(1)?;
    let newest = body.number(1)?;
    let rail_count = body.number(1)?;
    let reserved = body.number(1)?;
    let instance = body.number(8)?;
    let listener = body.number(8)?;
    let nonce = body.take(16)?.to_vec();
    only_if(oldest >= 1 && newest >= oldest)?;
    let from_newer = newest > VERSION;
    only_if(rail_count <= 64)?;
    only_if(reserved == 0 || from_newer)?;
    only_if(instance != 0)?;
    let rails = rails::read(body, rail_count, from_newer)?;
    let key = if newest >= 2 { body.number(4)? } else { 0 };
    Some(Hello {
        oldest,
        newest,
        instance,
        listener,
        nonce,
        rails,
        key,
    })
}

fn welcome(body: &mut Cursor<'_>, written_in: u64) -> Option<Welcome> {
    let version = body.number(1)?;
    let rail_count = body.number(1)?;
    let reserved = body.number(2)?;
    let instance = body.number(8)?;
    let nonce = body.take(16)?.to_vec();
    let key = if written_in >= 2 { body.number(4)? } else { 0 };
    only_if(version == written_in)?;
    only_if(rail_count <= 64)?;
    only_if(reserved == 0)?;
    only_if(instance != 0)?;
    let rails = rails::read(body, rail_count, false)?;
    Some(Welcome {
        version,
        instance,
        nonce,
        rails,
        key,
    })
}

fn endpoint(body: &mut Cursor<'_>, version: u64) -> Option<Endpoint> {
    let gid = body.take(16)?.to_vec();
    let qpn = body.number(4)?;
    let psn = body.number(4)?;
    let mtu = body.number(1)?;
    let reads_in_flight = body.number(1)?;
    let reads_served = body.number(1)?;
    let traffic_class = body.number(1)?;
    let flow_label = body.number(4)?;
    let service_level = body.number(1)?;
    let own_rail = body.number(1)?;
    let peer_rail = body.number(1)?;
    let private_length = body.number(1)?;
    let receive_depth = body.number(4)?;
    let slot_bytes = body.number(4)?;
    let credit_address = body.number(8)?;
    let credit_rkey = body.number(4)?;
    let credit_start = body.number(4)?;
    let [session, next_sequence, epoch] = if version >= 2 {
        [body.number(8)?, body.number(8)?, body.number(4)?]
    } else {
        [0, 0, 0]
    };
    only_if(gid != [0; 16])?;
    only_if((2..16_777_216).contains(&qpn))?;
    only_if(psn < 16_777_216)?;
    only_if((1..=5).contains(&mtu))?;
    only_if(flow_label < 1_048_576)?;
    only_if(service_level < 16)?;
    only_if(private_length <= 64)?;
    only_if(receive_depth <= 65_536)?;
    only_if(slot_bytes <= 2_147_483_648)?;
    only_if(credit_address % 8 == 0)?;
    only_if(session != 0 || (next_sequence == 0 && epoch == 0))?;
    let private = body.take(usize::try_from(private_length).unwrap())?.to_vec();
    Some(Endpoint {
        gid,
        qpn,
        psn,
        mtu,
        reads_in_flight,
        reads_served,
        traffic_class,
        flow_label,
        service_level,
        own_rail,
        peer_rail,
        receive_depth,
        slot_bytes,
        credit_address,
        credit_rkey,
        credit_start,
        session,
        next_sequence,
        epoch,
        private,
    })
}
