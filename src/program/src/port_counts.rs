//! The kernel's port counters, in addition to a program's own metrics.

use doorbell_operation::{Metrics, PortCounters};

/// Adds the kernel's counters of the ports of these devices.
pub(crate) fn add_ports<'d>(metrics: &mut Metrics, devices: impl IntoIterator<Item = &'d String>) {
    for device in devices {
        for port in PortCounters::of_device(device) {
            metrics.port_counters(&port);
        }
    }
}
