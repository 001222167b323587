//! A scan of every port of every device, and the rails that result: the usable ones, and the others with reasons.

use doorbell_core::PortReport;
use doorbell_core::port::Unusable;
use doorbell_core::provider::{LookFailure, Provider, ProviderError};
use doorbell_core::rail::LocalRail;

use crate::rails::filter::RailFilter;
use crate::rails::{rails_of, sort_by_preference};

/// The ports at the time of the scan.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    pub(crate) ports: Vec<PortReport>,
    /// Devices and ports that could not be queried.
    failures: Vec<(String, LookFailure)>,
}

impl Scan {
    /// Queries every port of every device.
    ///
    /// # Errors
    /// The devices could not be listed.
    pub(crate) fn of(provider: &impl Provider) -> Result<Self, ProviderError> {
        let mut scan = Self::default();
        let Self { ports, failures } = &mut scan;
        provider.scan(
            &mut |report| ports.push(report.clone()),
            &mut |device, failure| {
                failures.push((device.into(), failure));
            },
        )?;
        Ok(scan)
    }

    /// Returns the names of all devices, including those that could not be queried.
    pub(crate) fn devices(&self) -> Vec<String> {
        let mut names: Vec<String> = self
            .ports
            .iter()
            .map(|report| report.device.to_string())
            .chain(self.failures.iter().map(|(device, _)| device.clone()))
            .collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Returns every rail, in order of preference.
    pub(crate) fn rails(&self, filter: &RailFilter) -> Vec<LocalRail> {
        let of_ports = self.ports.iter().flat_map(|report| rails_of(report, filter));
        let mut rails: Vec<_> = of_ports.collect();
        sort_by_preference(&mut rails);
        rails
    }

    /// Describes the ports that are not used, or not with all of their addresses, although no rule excludes them. Empty if no rail is usable.
    pub(crate) fn passed_over(&self, filter: &RailFilter) -> Vec<String> {
        let rails = self.rails(filter);
        if rails.iter().all(|rail| rail.source.is_err()) {
            return Vec::new();
        }
        let of_ports = self.ports.iter().filter_map(|report| {
            let is_of = |rail: &&LocalRail| rail.device == report.device && rail.port == report.port;
            let sources = rails.iter().filter(is_of).map(|rail| rail.source);
            let is_used = sources.clone().any(|source| source.is_ok());
            let mut reasons = sources.filter_map(Result::err);
            let reason = reasons.find(|reason| match reason {
                Unusable::LeftOut { .. } => false,
                // Addresses beyond a limit are listed even if the port has other, usable ones.
                Unusable::BeyondGidsMax(_) | Unusable::BeyondRailsMax => true,
                _ => !is_used,
            })?;
            Some(format!("{} port {}: {reason}", report.device, report.port))
        });
        of_ports.chain(self.failed()).collect()
    }

    /// Describes the devices and ports that could not be queried.
    fn failed(&self) -> impl Iterator<Item = String> {
        self.failures.iter().map(described)
    }

    /// Describes the failures of these devices and their ports.
    pub(crate) fn failed_of(&self, devices: &[&str]) -> Vec<String> {
        let of_them = self
            .failures
            .iter()
            .filter(|(device, _)| devices.contains(&device.as_str()));
        of_them.map(described).collect()
    }

    /// Describes why no device can be used, with the reason for each port.
    pub(crate) fn why_nothing(&self, filter: &RailFilter) -> String {
        if self.ports.is_empty() && self.failures.is_empty() {
            return "there is none; `modprobe rdma_rxe` and `rdma link add rxe0 type rxe netdev ETH` make a \
                    software one"
                .into();
        }
        let unusable = self.ports.iter().flat_map(|report| {
            let reason = |rail: LocalRail| rail.source.err();
            let mut reasons: Vec<Unusable> = rails_of(report, filter).filter_map(reason).collect();
            reasons.dedup();
            let described = move |reason| format!("{} port {}: {reason}", report.device, report.port);
            reasons.into_iter().map(described)
        });
        unusable.chain(self.failed()).collect::<Vec<_>>().join("; ")
    }
}

/// Describes a failure: `mlx5_0 port 2: ibv_query_port failed: …`, or without a port, `mlx5_0: …`.
fn described((device, failure): &(String, LookFailure)) -> String {
    match failure.port {
        Some(_) => format!("{device} {failure}"),
        None => format!("{device}: {failure}"),
    }
}

#[cfg(test)]
mod tests {
    use super::{LookFailure, RailFilter, Scan};
    use crate::rails::Rails;
    use doorbell_core::port::{Name, PORT_GIDS_MAX};
    use doorbell_core::provider::ProviderError;
    use doorbell_core::{Gid, GidEntry, GidKind, IpPrefix, Mtu, PortReport, PortState};

    fn port() -> PortReport {
        PortReport {
            device: Name::try_from("mlx5_0").unwrap(),
            port: 1,
            state: PortState::ACTIVE,
            is_ethernet: true,
            active_mtu: Some(Mtu::B4096),
            mtu_max: Some(Mtu::B4096),
            speed_mbps: 100_000,
            numa_node: None,
            gids: Default::default(),
            gids_left_out: 0,
        }
    }

    fn entry(index: u8) -> GidEntry {
        GidEntry {
            index: index.into(),
            gid: Gid::from_ip([10, 0, 0, index].into()),
            kind: GidKind::RoceV2Ipv4,
            interface: Some(Name::try_from("eth0").unwrap()),
            address: Some(IpPrefix::new([10, 0, 0, index].into(), 24).unwrap()),
        }
    }

    /// A port that is used, with more addresses than the limit.
    #[test]
    fn addresses_that_are_too_many_are_listed() {
        let mut port = port();
        let described = |port: &PortReport| {
            let scan = Scan {
                ports: vec![port.clone()],
                failures: Vec::new(),
            };
            scan.passed_over(&RailFilter::default())
        };
        let most = u8::try_from(PORT_GIDS_MAX).unwrap();
        port.take_gids((0..most).map(entry));
        assert!(described(&port).is_empty());
        port.take_gids((0..most + 2).map(entry));
        let why = "2 more of its GIDs could be used: those behind the first 64 are not";
        assert_eq!(described(&port), [format!("mlx5_0 port 1: {why}")]);
    }

    #[test]
    fn a_device_that_cannot_be_looked_at_is_not_passed_over() {
        let denied = LookFailure {
            port: None,
            error: ProviderError {
                call: "ibv_open_device",
                errno: 13,
            },
        };
        let scan = Scan {
            ports: Vec::new(),
            failures: vec![("mlx5_0".into(), denied)],
        };
        assert_eq!(
            scan.why_nothing(&RailFilter::default()),
            "mlx5_0: ibv_open_device failed: permission denied (errno 13)"
        );
        assert_eq!(scan.devices(), ["mlx5_0"]);
        assert!(
            Scan::default()
                .why_nothing(&RailFilter::default())
                .contains("modprobe rdma_rxe")
        );
    }

    #[test]
    fn a_broken_port_is_listed_by_its_number_and_the_other_one_is_used() {
        let mut port = port();
        port.take_gids([entry(1)].into_iter());
        let broken = LookFailure {
            port: Some(2),
            error: ProviderError {
                call: "ibv_query_port",
                errno: 19,
            },
        };
        let scan = Scan {
            ports: vec![port],
            failures: vec![("mlx5_0".into(), broken), ("mlx5_1".into(), broken)],
        };
        let filter = RailFilter::default();
        let why = "port 2: ibv_query_port failed: no such device (errno 19)";
        let described = ["mlx5_0", "mlx5_1"].map(|device| format!("{device} {why}"));
        assert_eq!(scan.passed_over(&filter), described);
        let rails = Rails::of_scan(&scan, &["mlx5_0"], &filter);
        assert_eq!(rails.advertised().len(), 1);
        // A peer that only the broken port could reach.
        let unreached = rails.route(&[]).unwrap_err();
        assert_eq!(unreached.failed, described[..1]);
        assert!(
            unreached.to_string().ends_with(&format!("; {}", described[0])),
            "{unreached}"
        );
    }
}
