//! The neighbour tables of both address families, by netlink.
//!
//! Source: `rtnetlink(7)`; Linux include/uapi/linux/neighbour.h.

use doorbell::provider::Interface;
use rustix::io::Result;

use super::netlink::{Netlink, address_of, attribute, u16_at, u32_at};
use crate::topology::{NeighbourFacts, NeighbourState};

const RTM_NEWNEIGH: u16 = 28;
const RTM_GETNEIGH: u16 = 30;
const NDA_DST: u16 = 1;

/// Length of the header of a neighbour message.
const NEIGHBOUR_BYTES: usize = 12;

/// States of an entry. Entries that need no hardware address are skipped.
const INCOMPLETE: u16 = 0x01;
const FAILED: u16 = 0x20;
const NO_ARP: u16 = 0x40;

/// Known neighbours on the links of these interfaces, of both families.
pub(super) fn all(interfaces: &[Interface]) -> Result<Vec<NeighbourFacts>> {
    let mut found = Vec::new();
    Netlink::open()?.dump(RTM_GETNEIGH, &[0; NEIGHBOUR_BYTES], |kind, body| {
        found.extend(neighbour(kind, body, interfaces));
    })?;
    Ok(found)
}

/// Parses one entry. `None` if it needs no hardware address, or if its interface is not listed.
fn neighbour(kind: u16, body: &[u8], interfaces: &[Interface]) -> Option<NeighbourFacts> {
    if kind != RTM_NEWNEIGH {
        return None;
    }
    let index = u32_at(body, 4)?;
    let state = match u16_at(body, 8)? {
        0 => return None,
        state if state & NO_ARP != 0 => return None,
        state if state & INCOMPLETE != 0 => NeighbourState::Incomplete,
        state if state & FAILED != 0 => NeighbourState::Failed,
        _ => NeighbourState::Known,
    };
    let interface = interfaces.iter().find(|interface| interface.index == index)?;
    Some(NeighbourFacts {
        netdev: interface.name.clone(),
        address: address_of(attribute(body.get(NEIGHBOUR_BYTES..)?, NDA_DST)?)?,
        state,
    })
}

#[cfg(test)]
mod tests {
    use super::{NeighbourFacts, NeighbourState, all, neighbour};
    use crate::survey::netlink::{message, read_part};
    use doorbell::provider::Interface;
    use rustix::io::{Errno, Result};

    /// Parses a part as if it came from the kernel.
    fn read(part: &[u8], found: &mut Vec<NeighbourFacts>) -> Result<bool> {
        read_part(part, |kind, body| found.extend(neighbour(kind, body, &here())))
    }

    fn entry(index: u32, state: u16, address: &[u8]) -> Vec<u8> {
        let mut body = vec![2, 0, 0, 0];
        body.extend(index.to_ne_bytes());
        body.extend(state.to_ne_bytes());
        body.extend([0, 1]);
        // The hardware address comes first, since the order is not guaranteed.
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
        assert!(!read(&part, &mut found).unwrap());
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
        assert!(read(&message(3, &[0; 4]), &mut found).unwrap());
    }

    #[test]
    fn refusals_and_rubbish_are_errors_and_never_more() {
        let mut found = Vec::new();
        let refused = message(2, &(-13_i32).to_ne_bytes());
        assert_eq!(read(&refused, &mut found), Err(Errno::ACCESS));
        assert_eq!(read(&[0; 16], &mut found), Err(Errno::BADMSG));
        let good = entry(3, 0x20, &[10, 0, 0, 2]);
        for cut in 1..good.len() {
            assert_eq!(read(&good[..cut], &mut found), Err(Errno::BADMSG));
        }
        for place in 16..good.len() {
            let mut bent = good.clone();
            bent[place] ^= 0xff;
            read(&bent, &mut found).unwrap();
        }
    }

    #[test]
    fn this_host_can_be_asked() {
        all(&here()).unwrap();
    }
}
