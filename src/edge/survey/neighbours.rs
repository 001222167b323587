//! The neighbour tables of both address families, by netlink.
//!
//! Source: `rtnetlink(7)`, `netlink(7)`; Linux include/uapi/linux/neighbour.h.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::time::Duration;

use doorbell_ffi::Interface;
use rustix::io::{Errno, Result};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with};

use crate::topology::{NeighbourFacts, NeighbourState};

const RTM_NEWNEIGH: u16 = 28;
const RTM_GETNEIGH: u16 = 30;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_DUMP: u16 = 0x300;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NDA_DST: u16 = 1;

/// The lengths of a message's header and of what a neighbour's message begins with.
const HEADER_BYTES: usize = 16;
const NEIGHBOUR_BYTES: usize = 12;

/// States of an entry. One that needs no hardware address is none of ours.
const INCOMPLETE: u16 = 0x01;
const FAILED: u16 = 0x20;
const NO_ARP: u16 = 0x40;

/// How long the kernel is waited for, which answers at once, and how many parts its answer may have.
const PATIENCE: Duration = Duration::from_secs(2);
const PARTS_MAX: usize = 4096;

/// More than the kernel puts into one part.
const PART_BYTES: usize = 64 << 10;

/// What is known of the hosts on the links of these interfaces.
pub(super) fn all(interfaces: &[Interface]) -> Result<Vec<NeighbourFacts>> {
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        None,
    )?;
    set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
    send(&socket, &request(), SendFlags::empty())?;
    let mut found = Vec::new();
    let mut part = vec![0_u8; PART_BYTES];
    for _ in 0..PARTS_MAX {
        let (bytes, _) = recv(&socket, part.as_mut_slice(), RecvFlags::empty())?;
        let is_last = read_part(part.get(..bytes).unwrap_or_default(), interfaces, &mut found)?;
        if is_last {
            return Ok(found);
        }
    }
    Err(Errno::MSGSIZE)
}

/// Asks for all there is, of whichever family.
fn request() -> Vec<u8> {
    let mut request = Vec::new();
    let bytes = u32::try_from(HEADER_BYTES.saturating_add(NEIGHBOUR_BYTES)).unwrap_or(0);
    request.extend(bytes.to_ne_bytes());
    request.extend(RTM_GETNEIGH.to_ne_bytes());
    request.extend((NLM_F_REQUEST | NLM_F_DUMP).to_ne_bytes());
    // No number and no sender: nothing else is asked on this socket.
    request.extend([0; 8]);
    request.extend([0; NEIGHBOUR_BYTES]);
    request
}

/// Reads one part of the answer; says whether it was the last.
fn read_part(mut part: &[u8], interfaces: &[Interface], found: &mut Vec<NeighbourFacts>) -> Result<bool> {
    while !part.is_empty() {
        let bytes = u32_at(part, 0).and_then(|bytes| usize::try_from(bytes).ok());
        let bytes = bytes
            .filter(|bytes| *bytes >= HEADER_BYTES)
            .ok_or(Errno::BADMSG)?;
        let message = part.get(..bytes).ok_or(Errno::BADMSG)?;
        match u16_at(message, 4) {
            Some(NLMSG_DONE) => return Ok(true),
            Some(NLMSG_ERROR) => {
                let errno = message.get(HEADER_BYTES..).and_then(|body| body.first_chunk());
                let errno = i32::from_ne_bytes(*errno.ok_or(Errno::BADMSG)?);
                return Err(Errno::from_raw_os_error(errno.wrapping_neg()));
            }
            Some(RTM_NEWNEIGH) => {
                found.extend(
                    message
                        .get(HEADER_BYTES..)
                        .and_then(|body| neighbour(body, interfaces)),
                );
            }
            _ => {}
        }
        part = part.get(aligned(bytes)..).unwrap_or_default();
    }
    Ok(false)
}

/// One entry; `None` for those that are no matter of hardware addresses, or of interfaces gone since.
fn neighbour(body: &[u8], interfaces: &[Interface]) -> Option<NeighbourFacts> {
    let index = u32_at(body, 4)?;
    let state = match u16_at(body, 8)? {
        0 => return None,
        state if state & NO_ARP != 0 => return None,
        state if state & INCOMPLETE != 0 => NeighbourState::Incomplete,
        state if state & FAILED != 0 => NeighbourState::Failed,
        _ => NeighbourState::Known,
    };
    let interface = interfaces.iter().find(|interface| interface.index == index)?;
    let mut attributes = body.get(NEIGHBOUR_BYTES..)?;
    loop {
        let bytes = usize::from(u16_at(attributes, 0)?);
        let value = attributes.get(4..bytes)?;
        if u16_at(attributes, 2)? == NDA_DST {
            let address = match (<[u8; 4]>::try_from(value), <[u8; 16]>::try_from(value)) {
                (Ok(v4), _) => IpAddr::V4(Ipv4Addr::from(v4)),
                (_, Ok(v6)) => IpAddr::V6(Ipv6Addr::from(v6)),
                _ => return None,
            };
            return Some(NeighbourFacts {
                netdev: interface.name.clone(),
                address,
                state,
            });
        }
        attributes = attributes.get(aligned(bytes)..)?;
    }
}

/// Where what follows begins.
const fn aligned(bytes: usize) -> usize {
    bytes.saturating_add(3) & !3
}

fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(offset..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(offset..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::{Errno, NeighbourState, aligned, all, read_part};
    use doorbell_ffi::Interface;

    fn message(kind: u16, body: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(u32::try_from(16 + body.len()).unwrap().to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend([0; 10]);
        bytes.extend(body);
        bytes.resize(aligned(bytes.len()), 0);
        bytes
    }

    fn entry(index: u32, state: u16, address: &[u8]) -> Vec<u8> {
        let mut body = vec![2, 0, 0, 0];
        body.extend(index.to_ne_bytes());
        body.extend(state.to_ne_bytes());
        body.extend([0, 1]);
        // A hardware address first, as no order is promised.
        body.extend([10_u16.to_ne_bytes(), 2_u16.to_ne_bytes()].concat());
        body.extend([2, 0, 0, 0, 0, 1, 0, 0]);
        body.extend(u16::try_from(4 + address.len()).unwrap().to_ne_bytes());
        body.extend(1_u16.to_ne_bytes());
        body.extend(address);
        message(28, &body)
    }

    fn here() -> [Interface; 1] {
        [Interface {
            name: "eth0".into(),
            index: 3,
            addresses: vec![],
        }]
    }

    #[test]
    fn entries_are_read_and_what_is_none_is_passed_over() {
        let mut part = Vec::new();
        part.extend(entry(3, 0x20, &[10, 0, 0, 2]));
        part.extend(entry(3, 0x01, &[10, 0, 0, 3]));
        part.extend(entry(3, 0x04, &[0xfd; 16]));
        part.extend(entry(3, 0x40, &[224, 0, 0, 1]));
        part.extend(entry(9, 0x02, &[10, 0, 0, 4]));
        part.extend(entry(3, 0x02, &[1, 2, 3]));
        part.extend(message(99, &[]));
        let mut found = Vec::new();
        assert!(!read_part(&part, &here(), &mut found).unwrap());
        let seen: Vec<_> = found
            .iter()
            .map(|entry| (entry.netdev.as_str(), entry.address.to_string(), entry.state))
            .collect();
        let v6 = "fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd".to_owned();
        assert_eq!(
            seen,
            [
                ("eth0", "10.0.0.2".to_owned(), NeighbourState::Failed),
                ("eth0", "10.0.0.3".to_owned(), NeighbourState::Incomplete),
                ("eth0", v6, NeighbourState::Known),
            ]
        );
        assert!(read_part(&message(3, &[0; 4]), &here(), &mut found).unwrap());
    }

    #[test]
    fn refusals_and_rubbish_are_errors_and_never_more() {
        let mut found = Vec::new();
        let refused = message(2, &(-13_i32).to_ne_bytes());
        assert_eq!(read_part(&refused, &here(), &mut found), Err(Errno::ACCESS));
        assert_eq!(read_part(&[0; 16], &here(), &mut found), Err(Errno::BADMSG));
        let good = entry(3, 0x20, &[10, 0, 0, 2]);
        for cut in 1..good.len() {
            assert_eq!(read_part(&good[..cut], &here(), &mut found), Err(Errno::BADMSG));
        }
        for place in 16..good.len() {
            let mut bent = good.clone();
            bent[place] ^= 0xff;
            read_part(&bent, &here(), &mut found).unwrap();
        }
    }

    #[test]
    fn this_host_can_be_asked() {
        all(&here()).unwrap();
    }
}
