//! The provider: the loaded libibverbs and the devices that it lists.

use core::ffi::CStr;
use core::fmt;
use core::ptr::NonNull;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use doorbell_core::PortReport;
use doorbell_core::port::Name;
use doorbell_core::provider::{LookFailure, OnDemand, ProviderError};

use crate::context::ContextInner;
use crate::interface::Interface;
use crate::quirk::{ProviderKind, Quirks, quirks};
use crate::sysfs::{CLASS, Sysfs};
use crate::{
    Arena, Completion, CompletionQueue, Context, DatagramQueuePair, DatagramReceiveQueue, DatagramSendQueue,
    LoadError, ProtectionDomain, QueuePair, ReceiveQueue, SendQueue, SharedReceiveQueue, Slot, Window,
    context, errno, port,
};

/// The provider for rdma-core: real devices, through libibverbs.
#[derive(Clone, Copy)]
pub struct Rdma {
    library: &'static rdma_sys::Library,
}

impl Rdma {
    /// Loads libibverbs, once per process, and prepares it for programs that fork.
    ///
    /// # Errors
    /// The library is missing or too old. The error names the package to install.
    #[doc(alias = "ibv_fork_init")]
    pub fn load() -> Result<Self, LoadError> {
        let library = rdma_sys::load()?;
        // On kernels older than 5.12, only this call keeps the provider's queues in place when the program forks (S32). It
        // fails if another user of the library in this process has already registered memory. Then that user has decided.
        // Memory of arenas and windows is excluded from children in any case (`mapping`).
        // SAFETY: may be called at any time (ibv_fork_init(3)).
        unsafe { rdma_sys::ibv_fork_init() };
        Ok(Self { library })
    }

    /// The file from which libibverbs was loaded, with links resolved.
    #[must_use]
    pub fn library_file(&self) -> Option<&Path> {
        self.library.file()
    }

    /// The release of rdma-core according to the library's file name, for example `(44, 0)`.
    #[must_use]
    pub fn rdma_core_version(&self) -> Option<(u32, u32)> {
        self.library.rdma_core_version()
    }

    /// Reports on every device, for people to read, with more facts than [`doorbell_core::provider::Provider::scan`] gives.
    ///
    /// # Errors
    /// The list of devices could not be read. The report of a device contains failures on that device.
    pub fn devices(&self) -> Result<Vec<DeviceReport>, ProviderError> {
        self.reports(Depth::All)
    }

    fn reports(&self, depth: Depth) -> Result<Vec<DeviceReport>, ProviderError> {
        let interfaces = Interface::all()?;
        let list = DeviceList::new()?;
        Ok(list
            .entries()
            .map(|entry| self.device_report(&list, &entry, &interfaces, depth))
            .collect())
    }

    fn device_report(
        &self,
        list: &DeviceList,
        entry: &ListedDevice,
        interfaces: &[Interface],
        depth: Depth,
    ) -> DeviceReport {
        let sysfs = Sysfs::new(Path::new(CLASS), &entry.name);
        let (mut ports, mut failures) = (Vec::new(), Vec::new());
        let (mut imports_dmabuf, mut on_demand) = (None, None);
        match self.open_entry(list, entry).map(Arc::new) {
            Ok(context) => {
                on_demand = Some(context.limits().on_demand);
                for number in 1..=context.ports() {
                    match port::report(&context, number, interfaces) {
                        Ok(report) => ports.push(report),
                        Err(error) => failures.push(LookFailure {
                            port: Some(number),
                            error,
                        }),
                    }
                }
                if depth == Depth::All {
                    match context::imports_dmabuf(&context) {
                        Ok(imports) => imports_dmabuf = Some(imports),
                        Err(error) => failures.push(LookFailure { port: None, error }),
                    }
                }
            }
            Err(error) => failures.push(LookFailure { port: None, error }),
        }
        DeviceReport {
            imports_dmabuf,
            on_demand,
            ports,
            failures,
            ..DeviceReport::shown(entry.name.clone(), self.quirks_of(&entry.name), &sysfs)
        }
    }

    fn quirks_of(&self, device: &str) -> Quirks {
        let sysfs = Sysfs::new(Path::new(CLASS), device);
        quirks(ProviderKind::of(&sysfs, device), self.rdma_core_version())
    }

    /// Opens an entry of this list. The borrow shows that the list is alive.
    fn open_entry(&self, _list: &DeviceList, entry: &ListedDevice) -> Result<ContextInner, ProviderError> {
        let quirks = self.quirks_of(&entry.name);
        let numa_node = Sysfs::new(Path::new(CLASS), &entry.name).numa_node();
        // SAFETY: an entry of a list that has not been freed.
        unsafe { ContextInner::open(entry.device, entry.name.clone(), quirks, numa_node) }
    }
}

impl doorbell_core::provider::Provider for Rdma {
    type Context = Context;
    type ProtectionDomain = ProtectionDomain;
    type Slot = Slot;
    type Arena = Arena;
    type Window = Window;
    type Completion = Completion;
    type CompletionQueue = CompletionQueue;
    type QueuePair = QueuePair;
    type SendQueue = SendQueue;
    type ReceiveQueue = ReceiveQueue;
    type SharedReceiveQueue = SharedReceiveQueue;
    type DatagramQueuePair = DatagramQueuePair;
    type DatagramSendQueue = DatagramSendQueue;
    type DatagramReceiveQueue = DatagramReceiveQueue;

    fn scan(
        &self,
        found: &mut dyn FnMut(&PortReport),
        failed: &mut dyn FnMut(&str, LookFailure),
    ) -> Result<(), ProviderError> {
        for device in self.reports(Depth::Ports)? {
            device.ports.iter().for_each(&mut *found);
            device
                .failures
                .iter()
                .for_each(|failure| failed(&device.name, *failure));
        }
        Ok(())
    }

    fn open(&self, device: &str) -> Result<Context, ProviderError> {
        let list = DeviceList::new()?;
        let entry = list.entries().find(|entry| entry.name.as_str() == device);
        let entry = entry.ok_or(ProviderError {
            call: "ibv_open_device",
            errno: libc::ENODEV,
        })?;
        self.open_entry(&list, &entry).map(Context::new)
    }
}

impl fmt::Debug for Rdma {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rdma")
            .field("library_file", &self.library_file())
            .field("rdma_core_version", &self.rdma_core_version())
            .finish()
    }
}

/// How much of a device a report covers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Depth {
    /// The ports, which connections need.
    Ports,
    /// Everything that a report has, for which objects are made on the device.
    All,
}

/// The report of one device.
#[derive(Clone, Debug)]
pub struct DeviceReport {
    /// Name of the device.
    pub name: Name,
    /// Quirks of the device.
    pub quirks: Quirks,
    /// The kernel driver of the underlying device. `None` for a purely virtual one.
    pub driver: Option<String>,
    /// The firmware's version.
    pub firmware: Option<String>,
    /// The folder of the underlying device in sysfs, with links resolved.
    pub device_path: Option<PathBuf>,
    /// The PCI address, for example `0000:3b:00.0`.
    pub pci_address: Option<String>,
    /// The NUMA node of the device, if the platform names one.
    pub numa_node: Option<u16>,
    /// Whether the device registers dma-bufs. `None` if it could not be asked.
    pub imports_dmabuf: Option<bool>,
    /// Operations whose memory the device can page on demand. `None` if it could not be asked.
    pub on_demand: Option<OnDemand>,
    /// The ports, in order.
    pub ports: Vec<PortReport>,
    /// The parts that could not be read, and the errors.
    pub failures: Vec<LookFailure>,
}

impl DeviceReport {
    /// Makes the report of the facts that sysfs shows. The ports have not been read yet.
    fn shown(name: Name, quirks: Quirks, sysfs: &Sysfs) -> Self {
        Self {
            name,
            quirks,
            driver: sysfs.driver(),
            firmware: sysfs.firmware(),
            device_path: sysfs.device_path(),
            pci_address: sysfs.pci_address(),
            numa_node: sysfs.numa_node(),
            imports_dmabuf: None,
            on_demand: None,
            ports: Vec::new(),
            failures: Vec::new(),
        }
    }
}

/// The list of devices of libibverbs, freed on drop.
struct DeviceList {
    first: NonNull<*mut rdma_sys::ibv_device>,
    count: usize,
}

/// One entry of a [`DeviceList`].
struct ListedDevice {
    device: NonNull<rdma_sys::ibv_device>,
    name: Name,
}

impl DeviceList {
    #[doc(alias = "ibv_get_device_list")]
    fn new() -> Result<Self, ProviderError> {
        let mut count = 0;
        // SAFETY: a writable integer (ibv_get_device_list(3)).
        let first = unsafe { rdma_sys::ibv_get_device_list(&raw mut count) };
        let first = errno::from_pointer("ibv_get_device_list", first).map_err(|error| match error.errno {
            libc::ENOSYS => ProviderError {
                call: "ibv_get_device_list (this kernel has no RDMA; is ib_uverbs loaded?)",
                ..error
            },
            _ => error,
        })?;
        Ok(Self {
            first,
            count: usize::try_from(count).unwrap_or(0),
        })
    }

    fn entries(&self) -> impl Iterator<Item = ListedDevice> {
        (0..self.count).filter_map(|index| {
            // SAFETY: below the count that was returned with the list.
            let place = unsafe { self.first.add(index) };
            // SAFETY: an entry of the live list.
            let device = NonNull::new(unsafe { place.read() })?;
            // SAFETY: a device of the live list; the name lives with it (ibv_get_device_name(3)).
            let name = NonNull::new(unsafe { rdma_sys::ibv_get_device_name(device.as_ptr()) }.cast_mut())?;
            // SAFETY: a C string, which lives with the list.
            let name = unsafe { CStr::from_ptr(name.as_ptr()) };
            // The kernel's names fit into a `Name` and consist of plain characters.
            Some(ListedDevice {
                device,
                name: Name::try_from(name.to_str().ok()?).ok()?,
            })
        })
    }
}

impl Drop for DeviceList {
    #[doc(alias = "ibv_free_device_list")]
    fn drop(&mut self) {
        // SAFETY: the list that `ibv_get_device_list` returned, freed once. Open contexts themselves keep their device
        // (ibv_get_device_list(3)).
        unsafe { rdma_sys::ibv_free_device_list(self.first.as_ptr()) };
    }
}

#[cfg(test)]
mod tests {
    use super::{DeviceReport, Name, ProviderKind, Sysfs, quirks};
    use std::fs;
    use tempfile::TempDir;

    #[test]
    fn a_report_has_what_sysfs_shows() {
        let root = TempDir::new().unwrap();
        let (class, device) = (root.path().join("class"), root.path().join("0000:3b:00.1"));
        let (shown, driver) = (class.join("mlx5_0"), root.path().join("mlx5_core"));
        for folder in [&shown, &device, &driver] {
            fs::create_dir_all(folder).unwrap();
        }
        fs::write(device.join("numa_node"), "1\n").unwrap();
        fs::write(shown.join("fw_ver"), "16.35.2000\n").unwrap();
        std::os::unix::fs::symlink(&device, shown.join("device")).unwrap();
        std::os::unix::fs::symlink(&driver, device.join("driver")).unwrap();
        let report = DeviceReport::shown(
            Name::try_from("mlx5_0").unwrap(),
            quirks(ProviderKind::Other, None),
            &Sysfs::new(&class, "mlx5_0"),
        );
        assert_eq!(report.driver.as_deref(), Some("mlx5_core"));
        assert_eq!(report.firmware.as_deref(), Some("16.35.2000"));
        assert_eq!(report.device_path, fs::canonicalize(&device).ok());
        assert_eq!(report.pci_address.as_deref(), Some("0000:3b:00.1"));
        assert_eq!(report.numa_node, Some(1));
    }
}
