//! The messages that make a link a circuit. They are for the two ends of one link, and relays do not forward them.
//! Integers are big-endian.
//!
//! | offset | bytes | field | |
//! |---|---|---|---|
//! | 0 | 1 | kind | 64 and above |
//! | 1 | 1 | version | 1 |
//! | 2 | 1 | addresses | the number of addresses |
//! | 3 | 1 | relays | in a request, the maximum number of relays from the receiver on, including it; else 0 |
//! | 4 | 4 | number | in Credit, a number of bytes; in End, the reason; else 0 |
//! | 8 | 8 | reserved | 0 |
//! | 16 | | body | addresses of 16 bytes each, IPv4 as IPv4-mapped IPv6; in a request, the destination's handle follows |

use core::fmt;
use core::net::{IpAddr, Ipv6Addr};

use doorbell::Handle;

use crate::abi::HANDLE_BYTES;
use crate::frame::{HEADER_BYTES, Header, put};

/// Lowest kind of this module.
pub(crate) const KINDS_FROM: u8 = 64;

/// Length of an address in bytes.
const ADDRESS_BYTES: usize = 16;

/// Maximum number of relays on a route. A chain of four hosts needs two.
pub(crate) const RELAYS_MAX: u8 = 2;

/// Maximum number of addresses of a route: the far end of each hop.
const HOPS_MAX: usize = RELAYS_MAX as usize + 1;

/// Maximum length of a message in bytes.
const BYTES_MAX: usize = HEADER_BYTES + HOPS_MAX * ADDRESS_BYTES + HANDLE_BYTES;

const REQUEST: u8 = 64;
const CONNECTED: u8 = 65;
const FROM: u8 = 66;
const CREDIT: u8 = 67;
const END: u8 = 68;

/// The hops of a circuit. Each is given by the address of its far end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    addresses: [IpAddr; HOPS_MAX],
    count: u8,
}

impl Route {
    pub(crate) const NONE: Self = Self {
        addresses: [IpAddr::V6(Ipv6Addr::UNSPECIFIED); HOPS_MAX],
        count: 0,
    };

    /// Appends a hop, if there is room.
    pub(crate) fn push(&mut self, address: IpAddr) {
        if let Some(place) = self.addresses.get_mut(usize::from(self.count)) {
            *place = address.to_canonical();
            self.count = self.count.saturating_add(1);
        }
    }

    /// Returns this route, continued by another.
    pub(crate) fn then(mut self, rest: &Self) -> Self {
        rest.iter().for_each(|address| self.push(address));
        self
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = IpAddr> {
        self.addresses.iter().take(usize::from(self.count)).copied()
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, address) in self.iter().enumerate() {
            let gap = if place == 0 { "" } else { ", " };
            write!(f, "{gap}{address}")?;
        }
        Ok(())
    }
}

/// The reason why a circuit has ended, or was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End(pub(crate) u32);

impl End {
    /// No rail leads from the relay to the destination, nor to another relay that reaches the destination.
    pub(crate) const NO_ROUTE: Self = Self(1);
    pub(crate) const FULL: Self = Self(2);
    pub(crate) const NO_ANSWER: Self = Self(3);
    pub(crate) const CLOSED: Self = Self(4);
    pub(crate) const PROCESS_ENDED: Self = Self(5);
    pub(crate) const LOST: Self = Self(6);
    pub(crate) const WRONG: Self = Self(7);
    pub(crate) const RELAY_ENDS: Self = Self(8);

    /// Whether trying again soon is useless.
    pub(crate) const fn is_definite(self) -> bool {
        matches!(self, Self::NO_ROUTE | Self::WRONG)
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Self::NO_ROUTE => "no rail leads from the relay to the destination",
            Self::FULL => "the relay has reached its limit of circuits",
            Self::NO_ANSWER => "the destination did not answer the relay in time",
            Self::CLOSED => "the far side closed it",
            Self::PROCESS_ENDED => "the process at the far side has ended",
            Self::LOST => "the far side could not be reached in time",
            Self::WRONG => "a side sent what is no message of a circuit",
            Self::RELAY_ENDS => "the relay ends",
            Self(other) => return write!(f, "reason {other}"),
        })
    }
}

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CircuitFrame {
    /// To a relay, the first message: connects this link to the process with this handle. The route is the one up to the
    /// sender.
    Request {
        relays: u8,
        route: Route,
        handle: Handle,
    },
    /// From a relay: the link is connected to the destination. The route is the one from the relay on.
    Connected { route: Route },
    /// To the destination, the first message: a process is connected to this link. The route is the one from that
    /// process.
    From { route: Route },
    /// Reports consumed bytes. The receiver of this message may send as many more.
    Credit { bytes: u32 },
    /// The circuit has ended, and so does this link.
    End { end: End },
}

impl CircuitFrame {
    /// Whether a message belongs to this module, valid or not.
    pub(crate) fn is_one(message: &[u8]) -> bool {
        message.first().is_some_and(|kind| *kind >= KINDS_FROM)
    }

    /// Parses a message. Returns `None` if it is not valid.
    pub(crate) fn parse(message: &[u8]) -> Option<Self> {
        let (header, body) = Header::parse(message)?;
        let Header {
            kind,
            count,
            bits: relays,
            words: [number, 0],
        } = header
        else {
            return None;
        };
        let count = usize::from(count);
        if count > HOPS_MAX {
            return None;
        }
        let (addresses, rest) = body.split_at_checked(count.saturating_mul(ADDRESS_BYTES))?;
        let mut route = Route::NONE;
        for address in addresses.chunks_exact(ADDRESS_BYTES) {
            let address: [u8; ADDRESS_BYTES] = address.try_into().ok()?;
            route.push(Ipv6Addr::from(address).into());
        }
        Some(match (kind, relays, number, count, rest) {
            (REQUEST, 1..=RELAYS_MAX, 0, 0..=2, handle) => Self::Request {
                relays,
                route,
                handle: Handle::from_bytes(handle).ok()?,
            },
            (CONNECTED, 0, 0, 1.., []) => Self::Connected { route },
            (FROM, 0, 0, 1.., []) => Self::From { route },
            (CREDIT, 0, 1.., 0, []) => Self::Credit { bytes: number },
            (END, 0, 1.., 0, []) => Self::End { end: End(number) },
            _ => return None,
        })
    }

    /// Writes the message to the start of a buffer of at least [`BYTES_MAX`] bytes. Returns the length.
    pub(crate) fn write(&self, buffer: &mut [u8]) -> usize {
        let (kind, relays, number, route, handle) = match self {
            Self::Request {
                relays,
                route,
                handle,
            } => (REQUEST, *relays, 0, *route, Some(handle)),
            Self::Connected { route } => (CONNECTED, 0, 0, *route, None),
            Self::From { route } => (FROM, 0, 0, *route, None),
            Self::Credit { bytes } => (CREDIT, 0, *bytes, Route::NONE, None),
            Self::End { end } => (END, 0, end.0, Route::NONE, None),
        };
        let header = Header {
            kind,
            count: route.count,
            bits: relays,
            words: [number, 0],
        };
        let mut length = header.write(buffer);
        for address in route.iter() {
            let address = match address {
                IpAddr::V4(address) => address.to_ipv6_mapped(),
                IpAddr::V6(address) => address,
            };
            length = put(buffer, length, &address.octets());
        }
        put(buffer, length, handle.map_or(&[], Handle::as_bytes))
    }

    /// Returns the encoded message.
    pub(crate) fn to_vec(self) -> Vec<u8> {
        let mut buffer = vec![0; BYTES_MAX];
        let length = self.write(&mut buffer);
        buffer.truncate(length);
        buffer
    }
}

#[cfg(test)]
pub(super) mod tests {
    use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
    use core::num::NonZeroU16;

    use doorbell::Handle;
    use doorbell::provider::{Gid, IpPrefix};
    use doorbell::rails::{AdvertisedRail, SpeedClass};
    use doorbell::wire::InstanceId;

    use super::{CircuitFrame, End, Route};
    use crate::frame::HEADER_BYTES;

    pub(in crate::relay) fn handle() -> Handle {
        let mut handle = Handle::builder(NonZeroU16::MAX, InstanceId::new(9).unwrap());
        let address = IpPrefix::new(Ipv4Addr::new(10, 0, 3, 1).into(), 24).unwrap();
        let gid = Gid::from_ip(address.address());
        let _ = handle.push(&AdvertisedRail::new(address, gid, SpeedClass(7)).unwrap());
        handle.finish().unwrap()
    }

    fn route(hops: u8) -> Route {
        let mut route = Route::NONE;
        for hop in 0..hops {
            route.push(match hop {
                1 => Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 7).into(),
                hop => IpAddr::from([10, 77, hop, 1]),
            });
        }
        route
    }

    fn samples() -> Vec<CircuitFrame> {
        let request = |relays, hops| CircuitFrame::Request {
            relays,
            route: route(hops),
            handle: handle(),
        };
        vec![
            request(1, 0),
            request(2, 2),
            CircuitFrame::Connected { route: route(3) },
            CircuitFrame::From { route: route(1) },
            CircuitFrame::Credit { bytes: u32::MAX },
            CircuitFrame::End { end: End::LOST },
        ]
    }

    #[test]
    fn what_is_written_is_read() {
        for frame in samples() {
            let buffer = frame.to_vec();
            assert!(CircuitFrame::is_one(&buffer));
            assert_eq!(CircuitFrame::parse(&buffer), Some(frame));
        }
    }

    #[test]
    fn a_message_cut_short_or_longer_is_none() {
        for frame in samples() {
            let mut buffer = frame.to_vec();
            for length in 0..buffer.len() {
                assert_eq!(
                    CircuitFrame::parse(&buffer[..length]),
                    None,
                    "{frame:?} of {length}"
                );
            }
            // Zeros after a handle are allowed.
            buffer.push(1);
            assert_eq!(CircuitFrame::parse(&buffer), None, "{frame:?}");
        }
    }

    #[test]
    fn any_changed_byte_of_a_header_makes_none_or_another() {
        for frame in samples() {
            let buffer = frame.to_vec();
            for place in 0..HEADER_BYTES {
                for bit in 0..8 {
                    let mut changed = buffer.clone();
                    changed[place] ^= 1 << bit;
                    assert_ne!(CircuitFrame::parse(&changed), Some(frame), "byte {place}");
                }
            }
        }
    }

    #[test]
    fn relays_addresses_and_numbers_have_limits() {
        let mut buffer = samples()[0].to_vec();
        for (relays, is_some) in [(0, false), (1, true), (2, true), (3, false), (255, false)] {
            buffer[3] = relays;
            assert_eq!(CircuitFrame::parse(&buffer).is_some(), is_some, "{relays} relays");
        }
        buffer = samples()[2].to_vec();
        for (count, is_some) in [(0, false), (1, true), (3, true), (4, false), (255, false)] {
            buffer[2] = count;
            buffer.resize(HEADER_BYTES + usize::from(count) * 16, 0);
            assert_eq!(
                CircuitFrame::parse(&buffer).is_some(),
                is_some,
                "{count} addresses"
            );
        }
        for frame in [
            CircuitFrame::Credit { bytes: 0 },
            CircuitFrame::End { end: End(0) },
        ] {
            let buffer = frame.to_vec();
            assert_eq!(CircuitFrame::parse(&buffer), None);
        }
    }

    #[test]
    fn the_bytes_are_as_the_table_says() {
        let buffer = CircuitFrame::From { route: route(1) }.to_vec();
        let header = [66, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let address = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77, 0, 1];
        assert_eq!(buffer, [header, address].concat());
        assert_eq!(route(3).to_string(), "10.77.0.1, fd00::7, 10.77.2.1");
        assert_eq!(
            route(1).then(&route(3)).to_string(),
            "10.77.0.1, 10.77.0.1, fd00::7"
        );
    }
}
