//! The provider itself: libibverbs as it was found, and the devices it knows.

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
    context, errno, interface, port,
};

/// The provider on rdma-core: real devices, by libibverbs.
#[derive(Clone, Copy)]
pub struct Rdma {
    library: &'static rdma_sys::Library,
}

impl Rdma {
    /// Opens libibverbs, once per process, and prepares it for programs that fork.
    ///
    /// # Errors
    /// It is not there, or too old; the error says what to install.
    #[doc(alias = "ibv_fork_init")]
    pub fn load() -> Result<Self, LoadError> {
        let library = rdma_sys::load()?;
        // On kernels older than 5.12 this is what keeps a provider's own queues in place when the
        // program forks (S32). It fails where memory was registered before, by another user of
        // the library in this process: then that user has settled the matter. Memory of arenas
        // and windows is kept from children in any case (`mapping`).
        // SAFETY: may be called at any time (ibv_fork_init(3)).
        unsafe { rdma_sys::ibv_fork_init() };
        Ok(Self { library })
    }

    /// The file that libibverbs was loaded from, links resolved.
    #[must_use]
    pub fn library_file(&self) -> Option<&Path> {
        self.library.file()
    }

    /// The release of rdma-core, by the library's file name: `(44, 0)`.
    #[must_use]
    pub fn rdma_core_version(&self) -> Option<(u32, u32)> {
        self.library.rdma_core_version()
    }

    /// Looks at every device: more than [`doorbell_core::provider::Provider::scan`] says, for
    /// people to read.
    ///
    /// # Errors
    /// The list of devices could not be read. A failure on one device stands in its report.
    pub fn devices(&self) -> Result<Vec<DeviceReport>, ProviderError> {
        self.reports(Depth::All)
    }

    fn reports(&self, depth: Depth) -> Result<Vec<DeviceReport>, ProviderError> {
        let interfaces = interface::all()?;
        let list = DeviceList::new()?;
        Ok(list
            .entries()
            .map(|entry| self.device_report(&list, &entry, &interfaces, depth))
            .collect())
    }

    /// The network interfaces of the calling thread's network namespace, with their addresses.
    ///
    /// # Errors
    /// The system would not say.
    #[doc(alias = "getifaddrs")]
    pub fn interfaces(&self) -> Result<Vec<Interface>, ProviderError> {
        interface::all()
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

    /// Opens an entry; it must be of this list, which its borrow shows to be alive.
    fn open_entry(&self, _list: &DeviceList, entry: &ListedDevice) -> Result<ContextInner, ProviderError> {
        let quirks = self.quirks_of(&entry.name);
        let numa_node = Sysfs::new(Path::new(CLASS), &entry.name).numa_node();
        // SAFETY: an entry of a list that is not freed yet.
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

/// How much of a device is looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Depth {
    /// The ports: what connections need.
    Ports,
    /// All that a report has, for which objects are made on the device.
    All,
}

/// One device, as found.
#[derive(Clone, Debug)]
pub struct DeviceReport {
    /// Its name.
    pub name: Name,
    /// Its quirks.
    pub quirks: Quirks,
    /// The kernel driver of the device underneath; none for a purely virtual one.
    pub driver: Option<String>,
    /// The firmware's version.
    pub firmware: Option<String>,
    /// The folder of the device underneath in sysfs, links resolved.
    pub device_path: Option<PathBuf>,
    /// Its PCI address, as `0000:3b:00.0`.
    pub pci_address: Option<String>,
    /// The NUMA node it is on, where the platform says one.
    pub numa_node: Option<u16>,
    /// Whether it registers dma-bufs; `None` if it could not be asked.
    pub imports_dmabuf: Option<bool>,
    /// Operations whose memory it can page on demand; `None` if it could not be asked.
    pub on_demand: Option<OnDemand>,
    /// Its ports, in order.
    pub ports: Vec<PortReport>,
    /// Parts that could not be read, and why.
    pub failures: Vec<LookFailure>,
}

impl DeviceReport {
    /// Returns the facts that sysfs shows of a device whose ports are not read yet.
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

/// The devices that libibverbs lists, as long as the list lives.
struct DeviceList {
    first: NonNull<*mut rdma_sys::ibv_device>,
    count: usize,
}

/// One of them.
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
            // SAFETY: below the count that came with the list.
            let place = unsafe { self.first.add(index) };
            // SAFETY: an entry of the live list.
            let device = NonNull::new(unsafe { place.read() })?;
            // SAFETY: a device of the live list; the name lives with it (ibv_get_device_name(3)).
            let name = NonNull::new(unsafe { rdma_sys::ibv_get_device_name(device.as_ptr()) }.cast_mut())?;
            // SAFETY: a C string, as just said.
            let name = unsafe { CStr::from_ptr(name.as_ptr()) };
            // The kernel's names are shorter than `Name` holds, and of plain characters.
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
        // SAFETY: what `ibv_get_device_list` gave, freed once; open contexts hold their device by
        // themselves (ibv_get_device_list(3)).
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
