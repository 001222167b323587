//! Sizes of a Worker and its channels as a function of the number of channels, for 1 to 10,000 channels.

use crate::worker::config::{ChannelConfig, WorkerConfig};

/// Requests in flight of all channels together, and the same number of receives. With many channels the minimum depth exceeds it.
const IN_ALL: u32 = 8192;

/// The minimum depth of a channel: one message in flight, and one being prepared. With this depth the completion queues of 10,000
/// channels stay below the 32,767 entries that Soft-RoCE grants.
const DEPTH_MIN: u32 = 2;

/// The maximum depth of a channel, which is the default depth.
const DEPTH_MAX: u32 = 128;

/// The maximum number of leases. More would not stay in the caches, and no poll sends as many.
const LEASES_MAX: u32 = 4096;

/// Divisor of the depth: this part of the receives is reposted in one call.
const REPOSTS_A_DEPTH: u32 = 8;

impl WorkerConfig {
    /// Returns the configuration of a Worker for `channels` channels of [`ChannelConfig::for_channels`] at the same time, with
    /// messages of up to `message_bytes` bytes.
    ///
    /// - Depth of a channel: 8,192 / channels, rounded down to a power of two, at least 2 and at most 128.
    /// - Slots for receives: channels × depth. Slots for leases: channels × depth, at most 4,096.
    /// - Completions in each queue: channels × (depth + 1). The additional one is for announcing receives.
    /// - Memory of the slots: slots × bytes of a message.
    /// - Memory of the cells: for each channel the next power of two above its depth, × [`ChannelConfig::cell_bytes`].
    ///
    /// Cells are registered when channels need them, in blocks of at least 64 KiB. Later channels use the blocks again
    /// ([`Worker::cells`](crate::Worker::cells)).
    ///
    /// | channels | depth | slots | for leases | completions | memory, 4 KiB each | cells, 256 bytes each |
    /// |---:|---:|---:|---:|---:|---:|---:|
    /// | 1 | 128 | 256 | 128 | 129 | 1 MiB | 64 KiB |
    /// | 10 | 128 | 2,560 | 1,280 | 1,290 | 10 MiB | 640 KiB |
    /// | 100 | 64 | 10,496 | 4,096 | 6,500 | 41 MiB | 3,200 KiB |
    /// | 1,000 | 8 | 12,096 | 4,096 | 9,000 | 47 MiB | 4,032 KiB |
    /// | 10,000 | 2 | 24,096 | 4,096 | 30,000 | 94 MiB | 10,048 KiB |
    ///
    /// A channel that is being closed counts until the closing has ended. So a server whose clients are replaced while it is full
    /// needs a few more channels than it has clients. Each channel has its own receive queue. With many peers that trust each
    /// other, shared receives cost the device less ([`WorkerConfig::shared_receives`], with channels × depth as their depth).
    #[must_use]
    pub fn for_channels(channels: u32, message_bytes: u32) -> Self {
        let channels = channels.max(1);
        let channel = ChannelConfig::for_channels(channels);
        let receives = channels.saturating_mul(channel.receive_depth);
        let leases = channels.saturating_mul(channel.send_depth).min(LEASES_MAX);
        let slots = receives.saturating_add(leases);
        Self {
            slots,
            lease_share_percent: percent(leases, slots),
            slot_bytes: message_bytes,
            completion_depth: channels.saturating_mul(channel.sends_in_flight().max(channel.receive_depth)),
            channels_max: channels,
            ..Self::default()
        }
    }
}

impl ChannelConfig {
    /// Returns the configuration of a channel on a Worker for `channels` channels; [`WorkerConfig::for_channels`] has the
    /// formula. The peer may have another configuration, since the receives of each side limit what the other side sends.
    #[must_use]
    pub fn for_channels(channels: u32) -> Self {
        let share = IN_ALL.checked_div(channels).unwrap_or(IN_ALL);
        let power = share.checked_ilog2().and_then(|log| 1_u32.checked_shl(log));
        let depth = power.unwrap_or(0).clamp(DEPTH_MIN, DEPTH_MAX);
        Self {
            send_depth: depth,
            receive_depth: depth,
            repost_batch: (depth / REPOSTS_A_DEPTH).max(1),
            ..Self::default()
        }
    }
}

/// Returns a part as a percentage, rounded down, so that the reserved share never exceeds the part.
fn percent(part: u32, whole: u32) -> u32 {
    let hundredths = u64::from(part).saturating_mul(100).checked_div(whole.into());
    hundredths
        .and_then(|percent| u32::try_from(percent).ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use doorbell_core::in_flight::storage_for;

    use super::*;
    use crate::worker::cells::BLOCK_BYTES;

    const BYTES: u32 = 4096;

    /// Formats a number as in the table.
    fn grouped(number: u32) -> String {
        match number {
            0..1000 => number.to_string(),
            _ => format!("{},{:03}", number / 1000, number % 1000),
        }
    }

    /// Returns the number of blocks for the cells of so many channels.
    fn blocks(channels: u32, config: &ChannelConfig) -> u32 {
        let cells = storage_for(config.sends_in_flight()).unwrap() as u32;
        assert!(cells * config.cell_bytes <= BLOCK_BYTES);
        channels.div_ceil(BLOCK_BYTES / config.cell_bytes / cells)
    }

    #[test]
    fn the_documentation_has_the_table_of_sizes() {
        for text in [include_str!("sizing.rs"), include_str!("../../docs/sizing.md")] {
            for channels in [1, 10, 100, 1000, 10_000] {
                let (worker, channel) = (
                    WorkerConfig::for_channels(channels, BYTES),
                    ChannelConfig::for_channels(channels),
                );
                let receives = channels * channel.receive_depth;
                let row = format!(
                    "| {} | {} | {} | {} | {} | {} MiB | {} KiB |",
                    grouped(channels),
                    channel.receive_depth,
                    grouped(worker.slots),
                    grouped(worker.slots - receives),
                    grouped(worker.completion_depth),
                    (u64::from(worker.slots) * u64::from(BYTES)) >> 20,
                    grouped(blocks(channels, &channel) * (BLOCK_BYTES >> 10))
                );
                assert!(text.contains(&row), "{row}");
            }
        }
    }

    #[test]
    fn as_many_channels_fit_as_were_asked_for_whatever_their_number() {
        for channels in (0..300).chain([511, 512, 513, 999, 4096, 4097, 10_000]) {
            let (worker, channel) = (
                WorkerConfig::for_channels(channels, BYTES),
                ChannelConfig::for_channels(channels),
            );
            let channels = channels.max(1);
            let kept = (worker.slots * worker.lease_share_percent).div_ceil(100);
            assert!(kept > 0 && kept + channels * channel.receive_depth <= worker.slots);
            assert!(worker.completion_depth >= channels * (channel.send_depth + 1));
            assert!(worker.completion_depth <= 32_767, "what Soft-RoCE grants");
            assert!(channel.repost_batch <= channel.receive_depth);
            assert_eq!((worker.channels_max, worker.slot_bytes), (channels, BYTES));
        }
    }
}
