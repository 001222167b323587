//! `doorbell devices`: the RDMA devices, their usable ports, and the reasons why other ports are not usable.
//!
//! This file finds the devices. The report is in [`report`].

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use doorbell::{NodeError, Rdma};

use crate::report::{Failure, print_outcome};

mod report;

#[cfg(test)]
pub(crate) mod tests;

use report::{Device, Library, Listing};

/// List RDMA devices and their ports, with the reason for each port that is not usable
///
/// The list shows the provider, driver, place (PCI address, NUMA node) and ports of each device. A port has its state, link
/// layer, MTU, speed and every filled entry of its GID table, with the address and network interface behind it. A port is
/// usable if connections can be made through it: it is ACTIVE, Ethernet (RoCE), and has a RoCEv2 GID that is an IP address of
/// a network interface in this network namespace.
///
/// Exit code: 0 when the devices could be listed, even if there are none; 1 when they could not, when
/// the device named does not exist, or, with --require-usable, when no port is usable.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Only the device of this name
    #[arg(short, long, value_name = "NAME")]
    device: Option<String>,

    /// Fail if none of the listed ports is usable
    #[arg(long)]
    require_usable: bool,

    /// Also list raw GIDs, sysfs paths, firmware, whether dma-bufs can be registered, and the quirks of the provider
    #[arg(short, long)]
    verbose: bool,

    /// Print one JSON document, always with everything
    #[arg(long)]
    json: bool,
}

/// How to get a device if there is none.
pub(crate) const HOW_TO_GET_ONE: &str = "\
A software device on a network interface, as root (`rdma` is in the package iproute2):
  modprobe rdma_rxe && rdma link add rxe0 type rxe netdev INTERFACE
Without touching this machine, in virtual hosts of its own:
  cargo lab demo
";

/// The directory in which the kernel lists its RDMA devices.
const KERNEL: &str = "/sys/class/infiniband";

/// Lists the devices.
///
/// # Errors
/// libibverbs is missing, the named device does not exist, or no device is usable and one is required.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let listing = listing(arguments.device.as_deref())?;
    let is_missing = arguments.require_usable && listing.ports_usable == 0;
    let error = is_missing.then(|| "no usable RDMA port".to_owned());
    let text = |listing: &Listing| listing.to_text(arguments.verbose);
    if error.is_some() && !arguments.json {
        print!("{}", text(&listing));
        return Err("no usable RDMA port".into());
    }
    print_outcome("devices", &listing, error, arguments.json, text)
}

/// Lists all devices, or one.
fn listing(only: Option<&str>) -> Result<Listing, Failure> {
    let kernel = Path::new(KERNEL);
    let rdma = Rdma::load().map_err(|error| advised(&NodeError::Library(error)))?;
    let found = rdma
        .devices()
        .map_err(|error| no_stack(&error.to_string(), &missing(kernel)))?;
    let library = Library {
        file: rdma.library_file().map(|file| file.display().to_string()),
        rdma_core: rdma
            .rdma_core_version()
            .map(|(major, minor)| format!("{major}.{minor}")),
    };
    let names: BTreeSet<&str> = found.iter().map(|device| device.name.as_str()).collect();
    let kernel_only: Vec<String> = entries(kernel)
        .into_iter()
        .filter(|name| !names.contains(name.as_str()))
        .collect();
    if let Some(wanted) = only {
        if !names.contains(wanted) && !kernel_only.iter().any(|name| name == wanted) {
            return Err(NodeError::NoSuchDevice {
                device: wanted.into(),
                known: names.into_iter().map(str::to_owned).collect(),
            }
            .into());
        }
    }
    let is_wanted = |name: &str| only.is_none_or(|wanted| wanted == name);
    let devices = found
        .iter()
        .filter(|device| is_wanted(&device.name))
        .map(Device::of)
        .collect();
    let kernel_only = kernel_only.into_iter().filter(|name| is_wanted(name)).collect();
    Ok(Listing::new(library, devices, kernel_only, &missing(kernel)))
}

/// Adds the missing parts of this machine and instructions to get a device to an error of the RDMA stack, if they are the
/// cause.
pub(crate) fn advised(error: &NodeError) -> String {
    match error {
        NodeError::Library(_) | NodeError::Provider(_) | NodeError::NothingUsable(_) => {
            no_stack(&error.to_string(), &missing(Path::new(KERNEL)))
        }
        _ => error.to_string(),
    }
}

/// Describes a kernel without RDMA: the error, the missing parts, and the remedy.
fn no_stack(error: &str, missing: &[String]) -> String {
    let missing: String = missing.iter().map(|line| format!("  {line}\n")).collect();
    format!("{error}\n{missing}{}", HOW_TO_GET_ONE.trim_end())
}

/// Lists the missing parts of the kernel that RDMA devices need.
fn missing(class: &Path) -> Vec<String> {
    let uverbs = Path::new("/dev/infiniband");
    let mut missing = Vec::new();
    if !class.exists() {
        missing.push(format!(
            "{} is not there: no RDMA driver is loaded (module ib_core)",
            class.display()
        ));
    } else if entries(class).is_empty() {
        missing.push(format!("{} is empty: no driver has a device", class.display()));
    }
    if !uverbs.exists() {
        missing.push(format!(
            "{} is not there: programs cannot reach devices (module ib_uverbs)",
            uverbs.display()
        ));
    }
    missing
}

/// The names in a folder, sorted. Empty if it cannot be read.
fn entries(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}
