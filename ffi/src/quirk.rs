//! The table of quirks of particular providers and releases of rdma-core.
//!
//! Sysfs shows the provider of a device. The file name of the libibverbs in use shows the release of rdma-core:
//! `libibverbs.so.1.14.44.0`, as rdma-core's own build names it, is 44.0.
//!
//! This crate always posts and polls with the legacy calls (`ibv_post_send`, `ibv_poll_cq`). The field `extended` tells
//! whether the newer calls could be trusted.

use crate::sysfs::Sysfs;

/// A release of rdma-core: major, minor.
pub(crate) type Release = (u32, u32);

/// Quirks of one provider in one release of rdma-core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quirks {
    /// The provider that has these quirks.
    pub provider: ProviderKind,
    /// Whether the `ibv_wr_*` calls and extended completion queues can be trusted.
    ///
    /// False on rxe before rdma-core 64: lists of gather elements are summed wrongly, inline lists send nothing,
    /// and the completion cursor overruns. Fixed by its commits 406cd2ad0, 1e8ed0aff, b78b414e0 and 5e7aa4102.
    /// False also if the release is unknown.
    pub extended: bool,
    /// The largest retry count with which retrying ends.
    ///
    /// On rxe 7 means endless retries (drivers/infiniband/sw/rxe/rxe_comp.c, `COMPST_ERROR_RETRY`), so the death of a
    /// peer would never show: 7 is refused there. On other devices 7 means 7 (S13).
    pub retry_count_max: u8,
    /// The shortest time, in microseconds, that a retransmission or receiver-not-ready timer takes, even if it is set to
    /// less. It is 0 if the device itself keeps the time. A timer of rxe counts the kernel's ticks, so it takes at least
    /// 4 ms at 250 ticks per second.
    pub timer_min_us: u32,
    /// Whether completions of a destroyed queue pair can still be polled afterwards.
    pub stale_completions: bool,
    /// Whether on-demand paging can be trusted. If not, this crate treats the device as one without on-demand paging.
    ///
    /// False on rxe, which has it from Linux 6.15 on. There a request reaches the beginning of its page instead of its offset
    /// (drivers/infiniband/sw/rxe/rxe_odp.c, `__rxe_odp_mr_copy`). On 7.2, 100 bytes written to offset 100 arrived at offset 0.
    pub on_demand: bool,
    /// Whether the port carries longer requests than the longest message that it reports.
    ///
    /// True on rxe: before Linux commit 6f64286f6 it reports 8 MiB, although it carries 2^31 bytes.
    pub carries_more_than_reported: bool,
}

/// A provider that the table knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProviderKind {
    /// Soft-RoCE.
    Rxe,
    /// Any other provider.
    Other,
}

/// One row of the table, for a provider from a release on.
struct Row {
    provider: ProviderKind,
    /// The first release of the row. `None` means every release, including an unknown one.
    since: Option<Release>,
    quirks: Quirks,
}

/// The rows of quirks. The last row that matches applies.
const TABLE: &[Row] = &[
    Row {
        provider: ProviderKind::Other,
        since: None,
        quirks: Quirks {
            provider: ProviderKind::Other,
            extended: true,
            retry_count_max: 7,
            timer_min_us: 0,
            stale_completions: false,
            on_demand: true,
            carries_more_than_reported: false,
        },
    },
    Row {
        provider: ProviderKind::Rxe,
        since: None,
        quirks: RXE,
    },
    Row {
        provider: ProviderKind::Rxe,
        since: Some((64, 0)),
        quirks: Quirks {
            extended: true,
            ..RXE
        },
    },
];

const RXE: Quirks = Quirks {
    provider: ProviderKind::Rxe,
    extended: false,
    retry_count_max: 6,
    timer_min_us: 4000,
    stale_completions: true,
    on_demand: false,
    carries_more_than_reported: true,
};

impl ProviderKind {
    /// Finds the provider of a device from sysfs. The name is no proof, since `rdma link add` accepts any name. It counts only
    /// if sysfs does not show the device because it is in another network namespace.
    pub(crate) fn of(sysfs: &Sysfs, device: &str) -> Self {
        let is_rxe = sysfs.has_parent_interface() || !sysfs.is_shown() && device.starts_with("rxe");
        if is_rxe { Self::Rxe } else { Self::Other }
    }
}

/// Returns the quirks of a provider in a release.
pub(crate) fn quirks(provider: ProviderKind, release: Option<Release>) -> Quirks {
    TABLE
        .iter()
        .rev()
        .find(|row| {
            row.provider == provider
                && match (row.since, release) {
                    (None, _) => true,
                    (Some(_), None) => false,
                    (Some(since), Some(release)) => release >= since,
                }
        })
        // Every provider has a row for every release. Otherwise the strictest row would apply.
        .map_or(RXE, |row| row.quirks)
}

#[cfg(test)]
mod tests {
    use super::{ProviderKind, quirks};
    use crate::sysfs::Sysfs;
    use std::fs;

    #[test]
    fn the_provider_is_identified_by_sysfs_and_not_by_a_name() {
        let class = std::env::temp_dir().join(format!("doorbell-quirk-{}", std::process::id()));
        for (device, file) in [("storage", "parent"), ("rxe_but_not_really", "fw_ver")] {
            fs::create_dir_all(class.join(device)).unwrap();
            fs::write(class.join(device).join(file), "eth0\n").unwrap();
        }
        let kind = |device| ProviderKind::of(&Sysfs::new(&class, device), device);
        assert_eq!(kind("storage"), ProviderKind::Rxe);
        assert_eq!(kind("rxe_but_not_really"), ProviderKind::Other);
        assert_eq!(kind("rxe_elsewhere"), ProviderKind::Rxe);
        assert_eq!(kind("mlx5_elsewhere"), ProviderKind::Other);
        fs::remove_dir_all(&class).unwrap();
    }

    #[test]
    fn rxe_is_trusted_with_the_extended_calls_from_64_on() {
        let extended = |release| quirks(ProviderKind::Rxe, release).extended;
        assert!(!extended(Some((44, 0))));
        assert!(!extended(Some((63, 9))));
        assert!(extended(Some((64, 0))));
        assert!(extended(Some((65, 1))));
        assert!(!extended(None));
    }

    #[test]
    fn every_provider_has_a_row() {
        for provider in [ProviderKind::Rxe, ProviderKind::Other] {
            assert_eq!(quirks(provider, None).provider, provider);
        }
        assert_eq!(quirks(ProviderKind::Other, None).retry_count_max, 7);
        assert_eq!(quirks(ProviderKind::Rxe, Some((99, 0))).retry_count_max, 6);
    }
}
