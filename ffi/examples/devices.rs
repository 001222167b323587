//! Lists the RDMA devices of this machine, and says of each port whether it can be used.

use std::process::ExitCode;

use doorbell_core::provider::ProviderError;
use doorbell_ffi::{DeviceReport, Rdma};

fn main() -> ExitCode {
    let rdma = match Rdma::load() {
        Ok(rdma) => rdma,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    match list(rdma) {
        Ok(0) => {
            eprintln!("there is no RDMA device");
            ExitCode::FAILURE
        }
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn list(rdma: Rdma) -> Result<usize, ProviderError> {
    println!("{rdma:?}");
    let devices = rdma.devices()?;
    devices.iter().for_each(describe);
    Ok(devices.len())
}

fn describe(device: &DeviceReport) {
    println!(
        "{} (PCI {:?}, NUMA node {:?})",
        device.name, device.pci_address, device.numa_node
    );
    for failure in &device.failures {
        println!("  {failure}");
    }
    for port in &device.ports {
        let usable = match port.usability() {
            Ok(()) => "usable".to_owned(),
            Err(reason) => format!("not usable: {reason}"),
        };
        println!(
            "  port {}: {}, {} Mb/s, {usable}",
            port.port, port.state, port.speed_mbps
        );
        for gid in &port.gids {
            let address = gid.address.map(|address| address.to_string());
            println!(
                "    {} {} {} {}",
                gid.index,
                gid.kind,
                gid.gid,
                address.unwrap_or_else(|| "without an address here".to_owned())
            );
        }
    }
}
