//! A topology made real: machines booted, hosts and links made in them, and
//! commands run there, behind the seam of [`Cluster`].

use core::time::Duration;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};

use crate::boot::{self, BootFiles};
use crate::cache::Cache;
use crate::cluster::{Cluster, CommandSpec, Host, Port, Process, ProcessEvent, Shape};
use crate::guest::network::{End, Origin, Peer, Plan};
use crate::kernel::{self, Kernel, NAMESPACES_SINCE};
use crate::leash::{self, LeashedFolder};
use crate::machine::qemu::{self, Accelerator, Hardware, Nic};
use crate::machine::{BOOT_PATIENCE, Machine, clock};
use crate::steps::{say, step_saying};
use crate::tool;
use crate::topology::{Shaping, Topology};

/// Memory of a machine that holds all hosts, and of one that is a single host.
const MEMORY_MIB: (u32, u32) = (2048, 1024);

/// Packets a shaped link may hold: netem's own default of 1000 loses packets
/// on a link that is merely long.
const NETEM_LIMIT: u32 = 100_000;

/// Configuration of a lab.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// Which kernel.
    pub(crate) kernel: kernel::Choice,
    /// Which shape; by what the kernel can, if not given.
    pub(crate) shape: Option<Shape>,
    /// How processors run; tried out, if not given.
    pub(crate) accelerator: Option<Accelerator>,
    /// The folder shared with all hosts; consoles are kept in it.
    pub(crate) shared: PathBuf,
}

/// Hosts in virtual machines. Dropping it ends the machines.
#[derive(Debug)]
pub(crate) struct GuestCluster {
    hosts: Vec<Host>,
    machines: Vec<Machine>,
    kernel: String,
    shape: Shape,
    shared: PathBuf,
    /// After the machines: they use what is in it.
    run: LeashedFolder,
}

impl GuestCluster {
    /// Boots the machines for a topology and makes its network; says each step.
    ///
    /// # Errors
    ///
    /// The topology is wrong, something is not installed, or a machine does
    /// not come up; nothing is left running.
    pub(crate) fn boot(topology: &Topology, options: &Options) -> Result<Self> {
        topology.check()?;
        if tool::find(qemu::PROGRAM).is_none() {
            bail!("{} is not installed: run `cargo lab setup`", qemu::PROGRAM);
        }
        let cache = Cache::open()?;
        let kernel = kernel::locate(&options.kernel, &cache)?;
        let shape = shape_for(&kernel, options.shape)?;
        let run = run_folder()?;
        let shared = fs::canonicalize(&options.shared)
            .with_context(|| format!("no shared folder {}", options.shared.display()))?;
        let boot = boot::prepare(&kernel, &cache, run.path())?;
        let accelerator = match options.accelerator {
            Some(accelerator) => accelerator,
            None => qemu::accelerator(&cache, &boot, run.path())?,
        };
        let (hosts, plans) = plan(topology, shape, &shared, &kernel)?;
        let title = format!(
            "booting {} ({}; {shape}; {accelerator})",
            kernel.release,
            topology.hosts.join(", ")
        );
        let mut lab = Self {
            hosts,
            machines: Vec::new(),
            kernel: String::new(),
            shape,
            shared,
            run,
        };
        // Under KVM a kernel gets the rate of its counter.
        let emulated = accelerator == Accelerator::Tcg;
        let mut tsc_khz = if emulated { clock::known_khz(&cache) } else { None };
        let known = tsc_khz.is_some();
        for attempt in 0..2 {
            let bring_up =
                |lab: &mut Self| step_saying(&title, || lab.bring_up(&plans, &boot, accelerator, tsc_khz));
            let rate = match bring_up(&mut lab) {
                Err(_) if emulated && lab.panicked() => {
                    say("the kernel died while it booted, as emulated ones do now and then: booting again");
                    lab.machines.clear();
                    bring_up(&mut lab)?
                }
                result => result?,
            };
            if emulated && !(known && clock::is_true(rate)) {
                tsc_khz = lab.counter_khz()?;
                if let Some(khz) = tsc_khz {
                    clock::remember_khz(&cache, khz)?;
                }
            }
            if clock::is_true(rate) {
                return Ok(lab);
            }
            if attempt == 0 {
                say(format_args!(
                    "the guest's clock runs {rate:.2} times as fast as it should: booting again, with its rate corrected"
                ));
            }
            lab.machines.clear();
        }
        bail!("the guest's clock does not run true here: nothing measured in it would be worth anything")
    }

    /// Whether a kernel has panicked, for which see [`have_said`].
    fn panicked(&self) -> bool {
        have_said(&self.consoles(), "Kernel panic")
    }

    /// The folder of what the machines' kernels have said.
    fn consoles(&self) -> PathBuf {
        self.shared.join("consoles")
    }

    /// Boots the machines and makes their network; gives the rate of the clock that is most off.
    fn bring_up(
        &mut self,
        plans: &[Plan],
        boot: &BootFiles,
        accelerator: Accelerator,
        tsc_khz: Option<u32>,
    ) -> Result<(f64, String)> {
        let booted = self.boot_machines(plans, boot, accelerator, tsc_khz)?;
        let started = Instant::now();
        self.configure(plans)?;
        let configured = started.elapsed();
        let mut worst = 1.0_f64;
        for machine in &self.machines {
            let rate = machine.clock_rate()?;
            if !clock::is_true(rate) || (rate - 1.0).abs() > (worst - 1.0).abs() {
                worst = rate;
            }
        }
        let said = format!(
            "agent up after {:.1} s, network ready {:.1} s later",
            booted.as_secs_f64(),
            configured.as_secs_f64()
        );
        Ok((worst, said))
    }

    /// The rate of the time-stamp counter, from what the first machine's kernel
    /// took it for and how its clock then ran.
    fn counter_khz(&self) -> Result<Option<u32>> {
        let machine = self.machines.first().context("no machine")?;
        let rate = machine.exact_clock_rate()?;
        let argv = vec!["dmesg".to_owned()];
        let mut dmesg = machine.spawn(
            None,
            &CommandSpec {
                argv,
                ..CommandSpec::default()
            },
        )?;
        let deadline = Instant::now()
            .checked_add(Duration::from_secs(30))
            .context("no deadline")?;
        let mut log = Vec::new();
        while let Some(event) = dmesg.next_event(deadline)? {
            match event {
                ProcessEvent::Stdout(bytes) => log.extend(bytes),
                ProcessEvent::Stderr(_) => {}
                ProcessEvent::Exited(_) => break,
            }
        }
        let taken = clock::khz_in_log(&String::from_utf8_lossy(&log));
        Ok(taken.and_then(|khz| clock::corrected_khz(khz, rate)))
    }

    fn boot_machines(
        &mut self,
        plans: &[Plan],
        boot: &BootFiles,
        accelerator: Accelerator,
        tsc_khz: Option<u32>,
    ) -> Result<Duration> {
        let started = Instant::now();
        let consoles = self.consoles();
        fs::create_dir_all(&consoles).with_context(|| format!("cannot make {}", consoles.display()))?;
        let single = plans.len() == 1;
        let mut booting = Vec::new();
        for plan in plans {
            let name = &plan.hostname;
            let agent = self.run.path().join(format!("{name}.agent"));
            if agent.exists() {
                // The socket of an earlier attempt.
                fs::remove_file(&agent)?;
            }
            let listener = UnixListener::bind(&agent)
                .with_context(|| format!("cannot listen on {}", agent.display()))?;
            let console = consoles.join(format!("{name}.log"));
            fs::write(&console, "").with_context(|| format!("cannot write {}", console.display()))?;
            let command = qemu::command(&Hardware {
                boot,
                accelerator,
                tsc_khz,
                cpus: cpus_each(plans.len()),
                memory_mib: if single { MEMORY_MIB.0 } else { MEMORY_MIB.1 },
                nics: &nics_of(plan, self.run.path()),
                shared: &self.shared,
                agent: &agent,
                console: &console,
            });
            // QEMU's own complaints belong with the guest's.
            let log = consoles.join(format!("{name}.qemu.log"));
            booting.push((
                name,
                leash::spawn_logging(&command, &log)?,
                listener,
                console,
                log,
            ));
        }
        for (name, qemu, listener, console, log) in booting {
            let machine = Machine::adopt(name, qemu, &listener, &console, BOOT_PATIENCE).map_err(|e| {
                let said = fs::read_to_string(&log).unwrap_or_default();
                if said.trim().is_empty() {
                    e
                } else {
                    e.context(format!("QEMU says: {}", said.trim()))
                }
            })?;
            self.machines.push(machine);
            if let Some(machine) = self.machines.last_mut() {
                machine.start_clock()?;
            }
        }
        self.kernel = self.machines.first().context("no machine")?.kernel().to_owned();
        Ok(started.elapsed())
    }

    fn configure(&mut self, plans: &[Plan]) -> Result<()> {
        for (machine, plan) in self.machines.iter().zip(plans) {
            machine.ask_to_configure(plan.clone())?;
        }
        for (machine, Plan { ends, .. }) in self.machines.iter().zip(plans) {
            let realised = machine.configured()?;
            ensure!(
                realised.gid_indices.len() == ends.len(),
                "the agent left a link's end out"
            );
            for (end, gid_index) in ends.iter().zip(realised.gid_indices) {
                let port = self.hosts.iter_mut().flat_map(|host| &mut host.ports);
                if let Some(port) = port.into_iter().find(|port| port.device == end.device) {
                    port.gid_index = gid_index;
                }
            }
        }
        Ok(())
    }

    /// The folder with the sockets of this run: gone when the lab is.
    pub(crate) fn run_dir(&self) -> &Path {
        self.run.path()
    }
}

/// Whether a kernel whose console is in this folder has said these words.
///
/// They are looked for where it died. A kernel changes its own code, mostly while it boots, and leaves a trap there meanwhile.
/// QEMU's emulation of several processors does not always follow, and a processor then meets a trap that no code handles any more.
pub(crate) fn have_said(consoles: &Path, words: &str) -> bool {
    let consoles = fs::read_dir(consoles).into_iter().flatten().flatten();
    consoles
        .filter_map(|file| fs::read(file.path()).ok())
        .any(|console| String::from_utf8_lossy(&console).contains(words))
}

impl Cluster for GuestCluster {
    fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    fn kernel_release(&self) -> &str {
        &self.kernel
    }

    fn shape(&self) -> Shape {
        self.shape
    }

    fn shared_dir(&self) -> &Path {
        &self.shared
    }

    fn spawn(&self, host: &str, spec: &CommandSpec) -> Result<Box<dyn Process>> {
        let index = self.hosts.iter().position(|known| known.name == host);
        let index = index.with_context(|| format!("there is no host `{host}`"))?;
        let mut spec = spec.clone();
        spec.cwd.get_or_insert_with(|| self.shared.clone());
        let (machine, namespace) = match self.shape {
            Shape::Machines => (self.machines.get(index), None),
            Shape::Namespaces | Shape::Local => (self.machines.first(), Some(host)),
        };
        machine.context("no machine")?.spawn(namespace, &spec)
    }
}

/// Returns the number of virtual processors of each machine. A single machine has two at least, for both ends
/// of a link poll. Each of several machines gets its share of the real processors, since emulated ones that
/// outnumber them mostly wait for each other.
fn cpus_each(machines: usize) -> usize {
    let real = std::thread::available_parallelism().map_or(1, core::num::NonZero::get);
    let least = if machines == 1 { 2 } else { 1 };
    real.checked_div(machines).unwrap_or(1).clamp(least, 4)
}

/// The shape a kernel allows, or the one asked for.
fn shape_for(kernel: &Kernel, asked: Option<Shape>) -> Result<Shape> {
    let able = kernel.version >= NAMESPACES_SINCE;
    match asked {
        Some(Shape::Namespaces) if !able => bail!(
            "kernel {} cannot have hosts as namespaces: rxe joined network namespaces in {}.{}",
            kernel.release,
            NAMESPACES_SINCE.0,
            NAMESPACES_SINCE.1
        ),
        Some(Shape::Local) => bail!("a lab of guests is not made of local processes"),
        Some(shape) => Ok(shape),
        None if able => Ok(Shape::Namespaces),
        None => Ok(Shape::Machines),
    }
}

/// Plans each machine, and the facts of each host but for GID indices.
fn plan(topology: &Topology, shape: Shape, shared: &Path, kernel: &Kernel) -> Result<(Vec<Host>, Vec<Plan>)> {
    let mut hosts: Vec<Host> = topology
        .hosts
        .iter()
        .map(|name| Host {
            name: name.clone(),
            ports: Vec::new(),
        })
        .collect();
    let plan = |hostname: &str| Plan {
        hostname: hostname.to_owned(),
        shared_dir: shared.to_owned(),
        modules_dir: Some(kernel.modules.clone()),
        hardened: !topology.unhardened,
        ..Plan::default()
    };
    let mut plans: Vec<Plan> = match shape {
        Shape::Machines => topology.hosts.iter().map(|name| plan(name)).collect(),
        Shape::Namespaces | Shape::Local => vec![Plan {
            namespaces: topology.hosts.clone(),
            ..plan("lab")
        }],
    };
    for (index, link) in topology.links.iter().enumerate() {
        for (side, name) in link.ends.iter().enumerate() {
            let other = 1_usize.saturating_sub(side);
            let at = topology
                .hosts
                .iter()
                .position(|host| host == name)
                .context("a link without its host")?;
            let peer = link.ends.get(other).context("a link has two ends")?.clone();
            let (namespace, plan, origin) = match shape {
                Shape::Machines => (None, plans.get_mut(at), Origin::Found),
                Shape::Namespaces | Shape::Local => {
                    let pair = index.saturating_mul(2).saturating_add(other);
                    (Some(name.clone()), plans.first_mut(), Origin::Veth(pair))
                }
            };
            let end = End {
                namespace,
                origin,
                netdev: format!("link{index}-{side}"),
                device: format!("rxe_{name}_{index}"),
                address: link.address(side)?,
                prefix: link.subnet.prefix,
                mtu: link.mtu,
                mac: mac(index, side),
                netem: netem(&link.shaping),
                peer: Peer {
                    host: peer.clone(),
                    address: link.address(other)?,
                    mac: mac(index, other),
                },
            };
            hosts
                .get_mut(at)
                .context("a link without its host")?
                .ports
                .push(Port {
                    link: link.name.clone(),
                    peer,
                    netdev: end.netdev.clone(),
                    device: end.device.clone(),
                    address: end.address,
                    prefix: end.prefix,
                    gid_index: 0,
                });
            plan.context("a host without its machine")?.ends.push(end);
        }
    }
    Ok((hosts, plans))
}

/// The hardware address of a link's end.
fn mac(link: usize, side: usize) -> String {
    format!("02:db:00:00:{link:02x}:{side:02x}")
}

/// The devices of a machine: one for every end, its socket beside its peer's.
fn nics_of(plan: &Plan, run: &Path) -> Vec<Nic> {
    let found = plan.ends.iter().filter(|end| end.origin == Origin::Found);
    found
        .map(|end| {
            let (name, other) = end
                .netdev
                .rsplit_once('-')
                .map_or((end.netdev.as_str(), "1"), |(link, side)| {
                    (link, if side == "0" { "1" } else { "0" })
                });
            Nic {
                mac: end.mac.clone(),
                local: run.join(format!("{}.net", end.netdev)),
                remote: run.join(format!("{name}-{other}.net")),
            }
        })
        .collect()
}

/// Returns the arguments of `tc`; `None` for a link that leaves packets as they are.
fn netem(shaping: &Shaping) -> Option<String> {
    if *shaping == Shaping::default() {
        return None;
    }
    let mut text = format!("limit {NETEM_LIMIT}");
    if !shaping.delay.is_zero() {
        text.push_str(&format!(" delay {}us", shaping.delay.as_micros()));
    }
    if shaping.loss_percent > 0.0 {
        text.push_str(&format!(" loss {}%", shaping.loss_percent));
    }
    if let Some(rate) = shaping.rate_bps {
        text.push_str(&format!(" rate {rate}bit"));
    }
    Some(text)
}

/// Returns the folder of this user's running labs.
pub(crate) fn runtime_dir() -> Result<PathBuf> {
    let uid = rustix::process::getuid().as_raw();
    let folder = match std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from) {
        Some(dir) if dir.is_dir() => dir.join("doorbell-lab"),
        _ => std::env::temp_dir().join(format!("doorbell-lab-{uid}")),
    };
    match fs::DirBuilder::new().mode(0o700).create(&folder) {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(e).with_context(|| format!("cannot make {}", folder.display()));
        }
        _ => {}
    }
    let metadata = fs::symlink_metadata(&folder)?;
    ensure!(
        metadata.is_dir() && metadata.uid() == uid && metadata.mode().trailing_zeros() >= 6,
        "{} is not a folder that is yours alone",
        folder.display()
    );
    Ok(folder)
}

fn run_folder() -> Result<LeashedFolder> {
    let folder = runtime_dir()?;
    // Remove the folders of labs that were killed outright, also under this process's number.
    let own = std::process::id().to_string();
    for entry in fs::read_dir(&folder)?.flatten() {
        let name = entry.file_name();
        if name == own.as_str() || !Path::new("/proc").join(&name).exists() {
            match fs::remove_dir_all(entry.path()) {
                // Another lab that starts now removes it, too.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                removed => removed.with_context(|| format!("cannot remove {}", entry.path().display()))?,
            }
        }
    }
    let path = folder.join(own);
    fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
    // A socket's path has about a hundred bytes.
    ensure!(
        path.as_os_str().len() < 70,
        "{} is too long for sockets; set XDG_RUNTIME_DIR",
        path.display()
    );
    Ok(LeashedFolder::new(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::Version;

    fn kernel(release: &str) -> Kernel {
        Kernel {
            release: release.to_owned(),
            version: Version::of_release(release).unwrap(),
            image: PathBuf::new(),
            modules: PathBuf::from("/m"),
            origin: String::new(),
        }
    }

    #[test]
    fn the_kernel_decides_the_shape_unless_told() {
        let (old, new) = (kernel("6.12.1"), kernel("7.1.0"));
        assert_eq!(shape_for(&old, None).unwrap(), Shape::Machines);
        assert_eq!(shape_for(&new, None).unwrap(), Shape::Namespaces);
        assert_eq!(shape_for(&new, Some(Shape::Machines)).unwrap(), Shape::Machines);
        let message = shape_for(&old, Some(Shape::Namespaces)).unwrap_err().to_string();
        assert!(message.contains("6.12.1") && message.contains("7.1"), "{message}");
    }

    #[test]
    fn namespaces_share_one_plan_and_pair_their_ends() {
        let mesh = Topology::mesh(&["a", "b", "c"]);
        let (hosts, plans) = plan(&mesh, Shape::Namespaces, Path::new("/s"), &kernel("7.2")).unwrap();
        assert_eq!(plans.len(), 1);
        assert_eq!(plans[0].namespaces, ["a", "b", "c"]);
        assert_eq!(plans[0].ends.len(), 6);
        for (index, end) in plans[0].ends.iter().enumerate() {
            let Origin::Veth(other) = end.origin else {
                unreachable!("all are pairs")
            };
            assert_eq!(plans[0].ends[other].origin, Origin::Veth(index));
            assert_eq!(plans[0].ends[other].address, end.peer.address);
        }
        assert_eq!(
            hosts[1].ports.iter().map(|p| p.peer.as_str()).collect::<Vec<_>>(),
            ["a", "c"]
        );
        let mut devices: Vec<_> = hosts.iter().flat_map(|h| &h.ports).map(|p| &p.device).collect();
        devices.sort();
        devices.dedup();
        assert_eq!(devices.len(), 6, "names are unique across hosts");
    }

    #[test]
    fn machines_have_a_plan_each_and_sockets_that_meet() {
        let mesh = Topology::mesh(&["a", "b"]);
        let (_, plans) = plan(&mesh, Shape::Machines, Path::new("/s"), &kernel("6.1")).unwrap();
        assert_eq!(plans.len(), 2);
        let nics: Vec<_> = plans
            .iter()
            .map(|p| nics_of(p, Path::new("/r")).remove(0))
            .collect();
        assert_eq!(nics[0].local, nics[1].remote);
        assert_eq!(nics[1].local, nics[0].remote);
        assert_ne!(nics[0].mac, nics[1].mac);
    }

    #[test]
    fn shaping_is_told_as_tc_reads_it() {
        assert_eq!(netem(&Shaping::default()), None);
        let all = Shaping {
            rate_bps: Some(1_000_000),
            delay: Duration::from_millis(5),
            loss_percent: 0.5,
        };
        assert_eq!(
            netem(&all).unwrap(),
            "limit 100000 delay 5000us loss 0.5% rate 1000000bit"
        );
    }
}
