//! The network interface a device is on, with its addresses: they are its GIDs, as on any RoCE port.

use core::ffi::CStr;
use core::ptr;

use crate::settings::settings;

/// A network interface that is up and has addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Interface {
    pub(crate) name: String,
    pub(crate) index: u32,
    pub(crate) is_loopback: bool,
    /// Its addresses as GIDs, IPv4 ones mapped.
    pub(crate) gids: Vec<[u8; 16]>,
}

/// The interface of this process's devices as it is now; `None` where no interface has an address.
pub(crate) fn chosen() -> Option<Interface> {
    let all = all();
    match &settings().interface {
        Some(name) => all.into_iter().find(|interface| interface.name == *name),
        None => best(all),
    }
}

fn best(all: Vec<Interface>) -> Option<Interface> {
    let position = all.iter().position(|interface| !interface.is_loopback);
    all.into_iter().nth(position.unwrap_or(0))
}

struct Addresses(*mut libc::ifaddrs);

impl Drop for Addresses {
    fn drop(&mut self) {
        // SAFETY: what getifaddrs gave, freed once (getifaddrs(3)).
        unsafe { libc::freeifaddrs(self.0) };
    }
}

fn all() -> Vec<Interface> {
    let mut list = Addresses(ptr::null_mut());
    // SAFETY: a writable pointer (getifaddrs(3)).
    if unsafe { libc::getifaddrs(&raw mut list.0) } != 0 {
        return Vec::new();
    }
    let mut interfaces: Vec<Interface> = Vec::new();
    let mut next = list.0;
    // SAFETY: null, or an entry of the list, which lives until the end of this function.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        // Both constants are small and not negative.
        let is_set = |flag: i32| entry.ifa_flags & flag.unsigned_abs() != 0;
        // SAFETY: null, or an address of the list, of the family it says.
        let Some(gid) = (unsafe { gid_of(entry.ifa_addr) }).filter(|_| is_set(libc::IFF_UP)) else {
            continue;
        };
        // SAFETY: every entry has a name, a C string that lives with the list.
        let name = unsafe { CStr::from_ptr(entry.ifa_name) };
        // SAFETY: a C string (if_nametoindex(3)).
        let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
        let name = name.to_string_lossy().into_owned();
        if let Some(known) = interfaces.iter_mut().find(|interface| interface.name == name) {
            known.gids.push(gid);
        } else {
            interfaces.push(Interface {
                name,
                index,
                is_loopback: is_set(libc::IFF_LOOPBACK),
                gids: vec![gid],
            });
        }
    }
    interfaces
}

/// The GID that stands for an IP address.
///
/// Source: InfiniBand Architecture volume 1, annex A17.4.5.2.
///
/// # Safety
/// `address` is null, or points to a socket address as large as its family says.
unsafe fn gid_of(address: *const libc::sockaddr) -> Option<[u8; 16]> {
    if address.is_null() {
        return None;
    }
    // SAFETY: a socket address, as the caller vouches; it may stand unaligned.
    let header = unsafe { address.read_unaligned() };
    match i32::from(header.sa_family) {
        libc::AF_INET => {
            // SAFETY: of this family, so at least this large.
            let v4 = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            let v4 = core::net::Ipv4Addr::from_bits(u32::from_be(v4.sin_addr.s_addr));
            Some(v4.to_ipv6_mapped().octets())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let v6 = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(v6.sin6_addr.s6_addr)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{Interface, best};

    fn interface(name: &str, is_loopback: bool) -> Interface {
        Interface {
            name: name.to_owned(),
            is_loopback,
            ..Interface::default()
        }
    }

    #[test]
    fn a_real_interface_goes_before_the_loopback() {
        let (lo, eth0, eth1) = (
            interface("lo", true),
            interface("eth0", false),
            interface("eth1", false),
        );
        assert_eq!(best(vec![lo.clone(), eth0.clone(), eth1]), Some(eth0));
        assert_eq!(best(vec![lo.clone()]), Some(lo));
        assert_eq!(best(vec![]), None);
    }
}
