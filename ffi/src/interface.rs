//! The network interfaces of this network namespace, with their addresses.
//!
//! An interface that is not in this list is in another namespace, even if a GID table names it: RDMA devices may be shared
//! between namespaces, and then every namespace sees every device.

use core::ffi::CStr;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::ptr;

use doorbell_core::IpPrefix;
use doorbell_core::provider::ProviderError;

use crate::errno;

/// One network interface of this network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Name of the interface.
    pub name: String,
    /// Index of the interface.
    pub index: u32,
    /// The addresses of the interface, each with the prefix length it really has.
    pub addresses: Vec<IpPrefix>,
}

/// The list of `getifaddrs(3)`, freed at the end.
struct Addresses(*mut libc::ifaddrs);

impl Drop for Addresses {
    fn drop(&mut self) {
        // SAFETY: the list that getifaddrs returned, freed once (getifaddrs(3)).
        unsafe { libc::freeifaddrs(self.0) };
    }
}

impl Interface {
    /// Returns all interfaces of the calling thread's network namespace, with their addresses.
    ///
    /// # Errors
    /// The system call failed.
    #[doc(alias = "getifaddrs")]
    pub fn all() -> Result<Vec<Self>, ProviderError> {
        let mut first = ptr::null_mut();
        // SAFETY: a writable pointer (getifaddrs(3)).
        let status = unsafe { libc::getifaddrs(&raw mut first) };
        errno::from_minus_one("getifaddrs", status)?;
        let list = Addresses(first);
        let mut interfaces: Vec<Self> = Vec::new();
        let mut next = list.0;
        while !next.is_null() {
            // SAFETY: an entry of the list, which lives until the end of this function.
            let entry = unsafe { &*next };
            next = entry.ifa_next;
            // SAFETY: every entry has a name, a C string that lives with the list.
            let name = unsafe { CStr::from_ptr(entry.ifa_name) };
            // SAFETY: a C string (if_nametoindex(3)).
            let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
            let Ok(name) = name.to_str() else { continue };
            if index == 0 {
                // The interface has gone since the list was made.
                continue;
            }
            let position = interfaces.iter().position(|interface| interface.index == index);
            if position.is_none() {
                interfaces.push(Self {
                    name: name.to_owned(),
                    index,
                    addresses: Vec::new(),
                });
            }
            let interface = match position {
                Some(position) => interfaces.get_mut(position),
                None => interfaces.last_mut(),
            };
            // SAFETY: both are null, or addresses of the list, as large as their family states.
            let address = unsafe { ip_of(entry.ifa_addr) };
            // SAFETY: as above.
            let mask = unsafe { ip_of(entry.ifa_netmask) };
            if let (Some(interface), Some(address), Some(mask)) = (interface, address, mask) {
                interface
                    .addresses
                    .extend(IpPrefix::new(address, prefix_bits(mask)).ok());
            }
        }
        Ok(interfaces)
    }
}

/// The IP address in a socket address.
///
/// # Safety
/// `address` is null, or points to a socket address as large as its family states.
unsafe fn ip_of(address: *const libc::sockaddr) -> Option<IpAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: not null, so it is a socket address, as the caller vouches. It may be unaligned.
    let header = unsafe { address.read_unaligned() };
    match i32::from(header.sa_family) {
        libc::AF_INET => {
            // SAFETY: of this family, so at least this large.
            let v4 = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(IpAddr::V4(Ipv4Addr::from_bits(u32::from_be(v4.sin_addr.s_addr))))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let v6 = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(IpAddr::V6(Ipv6Addr::from(v6.sin6_addr.s6_addr)))
        }
        _ => None,
    }
}

/// How many leading bits of a netmask are set.
fn prefix_bits(mask: IpAddr) -> u8 {
    let ones = match mask {
        IpAddr::V4(mask) => mask.to_bits().leading_ones(),
        IpAddr::V6(mask) => mask.to_bits().leading_ones(),
    };
    // At most 128.
    u8::try_from(ones).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::{Interface, ip_of, prefix_bits};

    #[test]
    fn netmasks_are_counted() {
        for (mask, bits) in [
            ("255.255.255.0", 24),
            ("255.255.254.0", 23),
            ("0.0.0.0", 0),
            ("255.255.255.255", 32),
            ("ffff:ffff:ffff:ffff::", 64),
            ("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", 128),
            ("fe00::", 7),
        ] {
            assert_eq!(prefix_bits(mask.parse().unwrap()), bits, "{mask}");
        }
    }

    #[test]
    fn no_address_is_none() {
        // SAFETY: null is allowed.
        assert_eq!(unsafe { ip_of(core::ptr::null()) }, None);
    }

    #[test]
    fn this_namespace_can_be_listed() {
        let interfaces = Interface::all().unwrap();
        for interface in &interfaces {
            assert_ne!(interface.index, 0);
            assert_eq!(
                interfaces
                    .iter()
                    .filter(|other| other.index == interface.index)
                    .count(),
                1
            );
        }
    }
}
