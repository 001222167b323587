//! What the kernel counts at ports, beside what a program counts.

use doorbell_operation::{Metrics, PortCounters};

/// Adds what the kernel counts at the ports of these devices.
pub(crate) fn add_ports<'d>(metrics: &mut Metrics, devices: impl IntoIterator<Item = &'d String>) {
    for device in devices {
        for port in PortCounters::of_device(device) {
            metrics.port_counters(&port);
        }
    }
}
