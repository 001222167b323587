//! Ranges of settings. A value out of range is rejected before any call of a device.

use doorbell_core::provider::{GATHER_MAX, SettingError};
use doorbell_core::wire::RECEIVE_DEPTH_MAX;
use doorbell_core::work_id::{CHANNELS_MAX, SLOTS_MAX};

use super::class::CLASSES_MAX;
use super::config::{ChannelConfig, SubmitterConfig, WorkerConfig};

/// The maximum of settings that libibverbs takes as an `int`.
const INT_MAX: u32 = i32::MAX as u32;
/// The maximum of a submitter's slots and of its ring's entries. The failure ring has as many entries as there are slots.
const SUBMITTED_MAX: u32 = 1 << 24;
const GATHER: u64 = GATHER_MAX as u64;
/// The maximum of a cell, of which a channel registers one for each request in flight.
const CELL_BYTES_MAX: u32 = 1 << 20;
const CLASS_LAST: u64 = CLASSES_MAX as u64 - 1;

impl WorkerConfig {
    /// Checks the range of each setting, as [`Node::worker`](crate::Node::worker) does before it calls the device.
    ///
    /// # Errors
    /// The first setting that is out of its range.
    pub fn check(&self) -> Result<(), SettingError> {
        SettingError::check("slots", self.slots, 1..=u32::MAX - 1)?;
        SettingError::check("lease_share_percent", self.lease_share_percent, 0_u32..=100)?;
        SettingError::check("slot_bytes", self.slot_bytes, 1_u32..=1 << 31)?;
        SettingError::check("completion_depth", self.completion_depth, 1..=INT_MAX)?;
        SettingError::check("channels_max", self.channels_max, 1..=CHANNELS_MAX)?;
        SettingError::check("channels_per_address", self.channels_per_address, 1..=u32::MAX)?;
        SettingError::check("submissions_per_poll", self.submissions_per_poll, 1..=u32::MAX)?;
        self.shared_receives.map_or(Ok(()), |shared| {
            SettingError::check("shared_receives.depth", shared.depth, 1..=SLOTS_MAX)?;
            SettingError::check("shared_receives.limit", shared.limit, 0..=shared.depth)
        })
    }
}

impl ChannelConfig {
    /// Checks the range of each setting, as connecting and listening do first.
    ///
    /// # Errors
    /// The first setting that is out of its range.
    pub fn check(&self) -> Result<(), SettingError> {
        SettingError::check("send_depth", self.send_depth, 1..=SLOTS_MAX - 1)?;
        SettingError::check("receive_depth", self.receive_depth, 1..=RECEIVE_DEPTH_MAX)?;
        SettingError::check("gather_max", self.gather_max, 1..=GATHER)?;
        SettingError::check("cell_bytes", self.cell_bytes, 0..=CELL_BYTES_MAX)?;
        SettingError::check("timeout", self.timeout, 1_u32..=31)?;
        SettingError::check("retry_count", self.retry_count, 0_u32..=7)?;
        SettingError::check("rnr_retry", self.rnr_retry, 0_u32..=7)?;
        SettingError::check("min_rnr_timer", self.min_rnr_timer, 0_u32..=31)?;
        SettingError::check("class", self.class, 0..=CLASS_LAST)?;
        SettingError::check("flow_label", self.flow_label, 0_u32..=(1 << 20) - 1)?;
        SettingError::check("service_level", self.service_level, 0_u32..=15)?;
        SettingError::check("hop_limit", self.hop_limit, 1_u32..=255)
    }
}

impl SubmitterConfig {
    /// Checks the range of each setting, as [`Worker::submitter`](crate::Worker::submitter) does before it calls the device.
    ///
    /// # Errors
    /// The first setting that is out of its range.
    pub fn check(&self) -> Result<(), SettingError> {
        SettingError::check("slots", self.slots, 1..=SUBMITTED_MAX)?;
        SettingError::check("slot_bytes", self.slot_bytes, 1_u32..=1 << 31)?;
        SettingError::check("depth", self.depth, 1..=SUBMITTED_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::config::SharedReceivesConfig;

    #[test]
    fn defaults_and_those_for_many_are_in_their_ranges() {
        for channels in [1, 10, 1_000, 10_000] {
            assert!(WorkerConfig::for_channels(channels, 4096).check().is_ok());
            assert!(ChannelConfig::for_channels(channels).check().is_ok());
        }
        assert!(WorkerConfig::default().check().is_ok());
        assert!(ChannelConfig::default().check().is_ok());
        assert!(SubmitterConfig::default().check().is_ok());
    }

    #[test]
    fn a_setting_out_of_its_range_is_named_with_its_value_and_its_limits() {
        let channel = ChannelConfig {
            retry_count: 8,
            ..ChannelConfig::default()
        };
        let error = channel.check().unwrap_err();
        assert_eq!(error.to_string(), "retry_count is 8: set it from 0 to 7");
        for (depth, limit, said) in [
            (0, 0, "shared_receives.depth is 0: set it from 1 to 65536"),
            (4, 5, "shared_receives.limit is 5: set it from 0 to 4"),
        ] {
            let shared = SharedReceivesConfig {
                depth,
                limit,
                ..SharedReceivesConfig::default()
            };
            let worker = WorkerConfig {
                shared_receives: Some(shared),
                ..WorkerConfig::default()
            };
            assert_eq!(worker.check().unwrap_err().to_string(), said);
        }
        let channel = ChannelConfig {
            cell_bytes: (1 << 20) + 1,
            ..ChannelConfig::default()
        };
        let error = channel.check().unwrap_err();
        assert_eq!(
            error.to_string(),
            "cell_bytes is 1048577: set it from 0 to 1048576"
        );
    }
}
