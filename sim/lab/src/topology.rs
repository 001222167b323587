//! The hosts and links a lab is asked for: a plain description, checked once.
//!
//! Reading it from a file, and making it real, happen elsewhere.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::time::Duration;
use std::collections::BTreeSet;

use anyhow::{Result, bail, ensure};

/// MTU of a link when none is asked for: rxe takes 80 bytes of it for its
/// headers and rounds down, so this is what a path MTU of 4096 needs.
pub(crate) const MTU_DEFAULT: u32 = 4200;

/// Most hosts in one lab.
pub(crate) const HOSTS_MAX: usize = 16;

/// Most links in one lab.
pub(crate) const LINKS_MAX: usize = 64;

/// The hosts of a lab and the links between them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Topology {
    /// Names, unique; a letter, then letters, digits and dashes, at most 15 in all.
    pub(crate) hosts: Vec<String>,
    /// Any number of links, also several between the same two hosts.
    pub(crate) links: Vec<Link>,
    /// Whether the kernel's own settings stay, by which any interface of a host answers for all of its
    /// addresses.
    pub(crate) unhardened: bool,
}

/// A point-to-point link between two hosts, with an RDMA device at each end.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    /// Unique name, for reports; the scenario's, or the two hosts' names joined.
    pub(crate) name: String,
    /// Both ends; the first gets the subnet's first address, the second the next one.
    pub(crate) ends: [String; 2],
    /// The subnet, private to this link.
    pub(crate) subnet: Subnet,
    /// MTU of the network devices, in bytes.
    pub(crate) mtu: u32,
    /// Effects of the link on packets, in each direction alike.
    pub(crate) shaping: Shaping,
}

/// An address and the length of its prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Subnet {
    /// The subnet's own address, all host bits zero.
    pub(crate) address: IpAddr,
    /// Length of the prefix.
    pub(crate) prefix: u8,
}

/// Effects of a link on packets that leave by it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Shaping {
    /// Bits per second at most.
    pub(crate) rate_bps: Option<u64>,
    /// Delay one way.
    pub(crate) delay: Duration,
    /// Share of packets lost at random, in percent.
    pub(crate) loss_percent: f64,
}

impl Topology {
    /// Every pair of hosts on a link and a subnet of its own: 10.77.N.0/24.
    pub(crate) fn mesh(hosts: &[&str]) -> Self {
        let mut links = Vec::new();
        for (i, first) in hosts.iter().enumerate() {
            for second in hosts.iter().skip(i.saturating_add(1)) {
                let third = u8::try_from(links.len().saturating_add(1)).unwrap_or(u8::MAX);
                links.push(Link {
                    name: format!("{first}-{second}"),
                    ends: [(*first).to_owned(), (*second).to_owned()],
                    subnet: Subnet {
                        address: IpAddr::V4(Ipv4Addr::new(10, 77, third, 0)),
                        prefix: 24,
                    },
                    mtu: MTU_DEFAULT,
                    shaping: Shaping::default(),
                });
            }
        }
        Self {
            hosts: hosts.iter().map(|&host| host.to_owned()).collect(),
            links,
            unhardened: false,
        }
    }

    /// Checks everything that can be wrong before anything is started.
    ///
    /// # Errors
    ///
    /// Says which host or link is at fault, and why.
    pub(crate) fn check(&self) -> Result<()> {
        ensure!(!self.hosts.is_empty(), "a lab needs at least one host");
        ensure!(
            self.hosts.len() <= HOSTS_MAX,
            "{} hosts; at most {HOSTS_MAX} fit",
            self.hosts.len()
        );
        ensure!(
            self.links.len() <= LINKS_MAX,
            "{} links; at most {LINKS_MAX} fit",
            self.links.len()
        );
        let mut names = BTreeSet::new();
        for host in &self.hosts {
            check_host_name(host)?;
            ensure!(names.insert(host.as_str()), "host `{host}` is named twice");
        }
        let mut links = BTreeSet::new();
        for (i, link) in self.links.iter().enumerate() {
            ensure!(
                links.insert(link.name.as_str()),
                "link `{}` is named twice",
                link.name
            );
            link.check(&names)?;
            for other in self.links.iter().take(i) {
                ensure!(
                    !other.subnet.overlaps(link.subnet),
                    "links `{}` and `{}` overlap: {} and {}; every link needs a subnet of its own",
                    other.name,
                    link.name,
                    other.subnet,
                    link.subnet
                );
            }
        }
        Ok(())
    }
}

impl Link {
    /// The address of one end: the subnet's first host address, or the next one.
    ///
    /// # Errors
    ///
    /// The subnet is too small.
    pub(crate) fn address(&self, end: usize) -> Result<IpAddr> {
        self.subnet.host(u32::try_from(end)?.saturating_add(1))
    }

    fn check(&self, hosts: &BTreeSet<&str>) -> Result<()> {
        let name = &self.name;
        for end in &self.ends {
            ensure!(
                hosts.contains(end.as_str()),
                "link `{name}` ends at `{end}`, which is not a host"
            );
        }
        let [first, second] = &self.ends;
        ensure!(first != second, "link `{name}` joins `{first}` to itself");
        ensure!(
            (1280..=9000).contains(&self.mtu),
            "link `{name}` has MTU {}; from 1280 to 9000 are possible",
            self.mtu
        );
        let loss = self.shaping.loss_percent;
        ensure!(
            (0.0..=100.0).contains(&loss),
            "link `{name}` loses {loss} %; from 0 to 100 are possible"
        );
        ensure!(
            self.shaping.delay <= Duration::from_secs(10),
            "link `{name}` delays by {:?}; at most 10 s are possible",
            self.shaping.delay
        );
        if let Some(rate) = self.shaping.rate_bps {
            ensure!(
                rate >= 8_000,
                "link `{name}` has a rate of {rate} bit/s; at least 8000 are needed"
            );
        }
        self.address(1)?;
        Ok(())
    }
}

impl Subnet {
    /// Reads `10.1.2.0/24` or `fd00:1::/64`.
    ///
    /// # Errors
    ///
    /// The text has another form, or host bits are set.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let Some((address, prefix)) = text.split_once('/') else {
            bail!("subnet `{text}` has no prefix length; write it as 10.1.2.0/24");
        };
        let address: IpAddr = address
            .parse()
            .map_err(|_| anyhow::anyhow!("subnet `{text}` does not begin with an address"))?;
        let bits: u8 = if address.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix.parse::<u8>() {
            Ok(prefix) if (1..=bits).contains(&prefix) => prefix,
            _ => bail!("subnet `{text}` needs a prefix length from 1 to {bits}"),
        };
        let subnet = Self { address, prefix };
        ensure!(
            subnet.masked(address) == address,
            "subnet `{text}` has bits set after its prefix"
        );
        Ok(subnet)
    }

    /// The subnet's `n`th address.
    ///
    /// # Errors
    ///
    /// It is too small to have one.
    pub(crate) fn host(self, n: u32) -> Result<IpAddr> {
        let address = match self.address {
            IpAddr::V4(base) => IpAddr::V4(Ipv4Addr::from_bits(base.to_bits().wrapping_add(n))),
            IpAddr::V6(base) => IpAddr::V6(Ipv6Addr::from_bits(base.to_bits().wrapping_add(u128::from(n)))),
        };
        ensure!(
            self.masked(address) == self.address,
            "subnet {self} has no room for two hosts"
        );
        Ok(address)
    }

    fn overlaps(self, other: Self) -> bool {
        if self.address.is_ipv4() != other.address.is_ipv4() {
            return false;
        }
        let shorter = if self.prefix <= other.prefix { self } else { other };
        shorter.masked(self.address) == shorter.masked(other.address)
    }

    fn masked(self, address: IpAddr) -> IpAddr {
        let prefix = u32::from(self.prefix);
        match address {
            IpAddr::V4(a) => {
                let mask = u32::MAX.checked_shl(32_u32.saturating_sub(prefix)).unwrap_or(0);
                IpAddr::V4(Ipv4Addr::from_bits(a.to_bits() & mask))
            }
            IpAddr::V6(a) => {
                let mask = u128::MAX.checked_shl(128_u32.saturating_sub(prefix)).unwrap_or(0);
                IpAddr::V6(Ipv6Addr::from_bits(a.to_bits() & mask))
            }
        }
    }
}

impl core::fmt::Display for Subnet {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

fn check_host_name(name: &str) -> Result<()> {
    let first = name.chars().next().is_some_and(|c| c.is_ascii_alphabetic());
    let rest = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    ensure!(
        first && rest && name.len() <= 15,
        "host name `{name}`: a letter, then letters, digits and dashes, at most 15 in all"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(topology: &Topology) -> String {
        format!("{:#}", topology.check().unwrap_err())
    }

    #[test]
    fn a_mesh_has_a_subnet_for_every_pair() {
        let mesh = Topology::mesh(&["a", "b", "c"]);
        mesh.check().unwrap();
        assert_eq!(mesh.links.len(), 3);
        assert_eq!(mesh.links[2].name, "b-c");
        assert_eq!(mesh.links[2].address(1).unwrap().to_string(), "10.77.3.2");
    }

    #[test]
    fn subnets_are_read_with_their_real_prefix() {
        assert_eq!(Subnet::parse("10.1.2.0/24").unwrap().to_string(), "10.1.2.0/24");
        assert_eq!(
            Subnet::parse("fd00:1::/64").unwrap().host(2).unwrap().to_string(),
            "fd00:1::2"
        );
        for bad in [
            "10.1.2.0",
            "10.1.2.3/24",
            "10.1.2.0/33",
            "10.1.2.0/0",
            "x/24",
            "10.1.2.0/",
        ] {
            assert!(Subnet::parse(bad).is_err(), "{bad}");
        }
        assert!(Subnet::parse("10.0.0.0/30").unwrap().host(3).is_ok());
        assert!(Subnet::parse("10.0.0.0/30").unwrap().host(4).is_err());
    }

    #[test]
    fn what_is_wrong_is_named() {
        let mut twice = Topology::mesh(&["a", "a"]);
        assert!(message(&twice).contains("`a` is named twice"));
        twice.hosts = vec!["a".to_owned(), "b c".to_owned()];
        assert!(message(&twice).contains("`b c`"));

        let mut overlap = Topology::mesh(&["a", "b", "c"]);
        overlap.links[2].subnet = Subnet::parse("10.77.0.0/16").unwrap();
        assert!(message(&overlap).contains("overlap"));

        let mut stranger = Topology::mesh(&["a", "b"]);
        stranger.links[0].ends[1] = "z".to_owned();
        assert!(message(&stranger).contains("`z`, which is not a host"));

        let mut loss = Topology::mesh(&["a", "b"]);
        loss.links[0].shaping.loss_percent = f64::NAN;
        assert!(message(&loss).contains("loses NaN"));

        assert!(message(&Topology::default()).contains("at least one host"));
    }

    #[test]
    fn the_mtu_has_bounds_on_both_sides() {
        for (mtu, good) in [(1279, false), (1280, true), (9000, true), (9001, false)] {
            let mut topology = Topology::mesh(&["a", "b"]);
            topology.links[0].mtu = mtu;
            assert_eq!(topology.check().is_ok(), good, "{mtu}");
        }
    }
}
