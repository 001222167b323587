//! The network of one machine: what it shall be ([`Plan`], made by the lab),
//! and making it so, inside the guest.
//!
//! A link's end is either one side of a veth pair moved into a namespace, or a
//! virtio device found by its hardware address. Each gets an address, an MTU,
//! its shaping, and an RDMA device; ready means that the RDMA port is ACTIVE and
//! the RoCEv2 GID of the address is in its table.

use core::fmt::Write as _;
use core::net::IpAddr;
use core::time::Duration;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use serde::{Deserialize, Serialize};

/// How long RDMA devices may take to be ready; emulated machines are slow.
pub(super) const READY_PATIENCE: Duration = Duration::from_secs(30);

/// How much of a GID table is searched.
const GIDS_SEARCHED: u32 = 64;

/// Configuration of one machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// Name of the machine.
    pub(crate) hostname: String,
    /// Hosts that are namespaces of this machine; none where it is itself the host.
    pub(crate) namespaces: Vec<String>,
    /// The links' ends on this machine.
    pub(crate) ends: Vec<End>,
    /// Whether each interface shall answer for its own addresses alone.
    pub(crate) hardened: bool,
    /// The writable folder shared with the lab: mounted under this path.
    pub(crate) shared_dir: PathBuf,
    /// Folder with the kernel's modules on the lab's side, for `modprobe`.
    pub(crate) modules_dir: Option<PathBuf>,
}

/// One end of a link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct End {
    /// The namespace it belongs to; none where the machine is the host.
    pub(crate) namespace: Option<String>,
    /// How its network device comes to be.
    pub(crate) origin: Origin,
    /// Name the network device gets.
    pub(crate) netdev: String,
    /// Name the RDMA device gets.
    pub(crate) device: String,
    /// Its address.
    pub(crate) address: IpAddr,
    /// Length of the subnet's prefix.
    pub(crate) prefix: u8,
    /// MTU in bytes.
    pub(crate) mtu: u32,
    /// Hardware address.
    pub(crate) mac: String,
    /// Arguments of `tc` after `netem`, if there are any.
    pub(crate) netem: Option<String>,
    /// The other end of the link.
    pub(crate) peer: Peer,
}

/// The other end of a link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Peer {
    /// Its host: known by this name.
    pub(crate) host: String,
    /// Its address.
    pub(crate) address: IpAddr,
    /// Its hardware address.
    pub(crate) mac: String,
}

/// Origin of a network device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Origin {
    /// The machine has it: found by its hardware address.
    Found,
    /// Made here, as a pair with the end of this index.
    Veth(usize),
}

/// Result of carrying out a [`Plan`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Realised {
    /// For each end: index of the RoCEv2 GID of its address.
    pub(crate) gid_indices: Vec<u32>,
}

/// Makes it so.
pub(crate) fn realise(plan: &Plan) -> Result<Realised> {
    rustix::system::sethostname(plan.hostname.as_bytes()).context("cannot set the machine's name")?;
    mount_shared(&plan.shared_dir)?;
    if let Some(modules) = &plan.modules_dir {
        bind_modules(modules);
    }
    write_hosts_files(plan)?;
    batch("ip", &["-batch", "-"], &devices_script(plan)?)?;
    let places: Vec<Option<&str>> = if plan.namespaces.is_empty() {
        vec![None]
    } else {
        plan.namespaces.iter().map(|name| Some(name.as_str())).collect()
    };
    for place in places {
        let within = |tool: &str, script: &str| match place {
            Some(name) => batch(tool, &["-n", name, "-batch", "-"], script),
            None => batch(tool, &["-batch", "-"], script),
        };
        within("ip", &addresses_script(plan, place)?)?;
        let shaping = shaping_script(plan, place)?;
        if !shaping.is_empty() {
            within("tc", &shaping)?;
        }
        let devices = hardening_script(plan) + &devices_of(plan, place)?;
        if !devices.is_empty() {
            // One shell for all: entering a namespace is what takes time.
            let shell = ["sh", "-e"];
            match place {
                Some(name) => batch("ip", &["netns", "exec", name, "sh", "-e"], &devices)?,
                None => batch(shell[0], &shell[1..], &devices)?,
            }
        }
    }
    let deadline = Instant::now()
        .checked_add(READY_PATIENCE)
        .context("no deadline")?;
    let gid_indices = plan
        .ends
        .iter()
        .map(|end| gid_when_ready(&end.device, end.address, deadline))
        .collect::<Result<_>>()?;
    Ok(Realised { gid_indices })
}

/// Namespaces, and network devices in them under their names.
fn devices_script(plan: &Plan) -> Result<String> {
    let mut script = String::new();
    for name in &plan.namespaces {
        writeln!(script, "netns add {name}")?;
    }
    for (index, end) in plan.ends.iter().enumerate() {
        match end.origin {
            Origin::Found => {
                let found = find_netdev(&end.mac)?;
                writeln!(script, "link set dev {found} name {} mtu {}", end.netdev, end.mtu)?;
            }
            // Each pair once: by its first end.
            Origin::Veth(other) if other < index => {}
            Origin::Veth(other) => {
                let other = plan
                    .ends
                    .get(other)
                    .context("the plan pairs an end with nothing")?;
                let side = |end: &End| {
                    let namespace = end
                        .namespace
                        .as_deref()
                        .map(|n| format!(" netns {n}"))
                        .unwrap_or_default();
                    format!(
                        "name {}{namespace} mtu {} address {}",
                        end.netdev, end.mtu, end.mac
                    )
                };
                writeln!(script, "link add {} type veth peer {}", side(end), side(other))?;
            }
        }
    }
    Ok(script)
}

fn addresses_script(plan: &Plan, place: Option<&str>) -> Result<String> {
    let mut script = "link set dev lo up\n".to_owned();
    for end in ends_of(plan, place) {
        // Nobody else is on the link: an IPv6 address needs no probing before use.
        let nodad = if end.address.is_ipv6() { " nodad" } else { "" };
        writeln!(
            script,
            "addr add {}/{} dev {}{nodad}",
            end.address, end.prefix, end.netdev
        )?;
        writeln!(script, "link set dev {} up", end.netdev)?;
        // The kernel gives a connecting queue pair one second to learn this, and a link
        // that delays or loses packets is there to try RDMA, not ARP.
        let Peer { address, mac, .. } = &end.peer;
        writeln!(
            script,
            "neigh replace {address} lladdr {mac} dev {} nud permanent",
            end.netdev
        )?;
    }
    Ok(script)
}

fn shaping_script(plan: &Plan, place: Option<&str>) -> Result<String> {
    let mut script = String::new();
    for end in ends_of(plan, place) {
        if let Some(netem) = &end.netem {
            writeln!(script, "qdisc add dev {} root netem {netem}", end.netdev)?;
        }
    }
    Ok(script)
}

/// Settings for hosts with several interfaces: ask with, and answer for, an interface's own addresses; answer
/// and take packets where the way back goes.
///
/// Source: Linux, Documentation/networking/ip-sysctl.rst.
fn hardening_script(plan: &Plan) -> String {
    if !plan.hardened {
        return String::new();
    }
    let settings = [
        ("arp_announce", 2),
        ("arp_ignore", 1),
        ("arp_filter", 1),
        ("rp_filter", 1),
    ];
    settings
        .map(|(name, value)| format!("echo {value} >/proc/sys/net/ipv4/conf/all/{name}\n"))
        .concat()
}

fn devices_of(plan: &Plan, place: Option<&str>) -> Result<String> {
    let mut script = String::new();
    for end in ends_of(plan, place) {
        writeln!(
            script,
            "rdma link add {} type rxe netdev {}",
            end.device, end.netdev
        )?;
    }
    Ok(script)
}

fn ends_of<'a>(plan: &'a Plan, place: Option<&'a str>) -> impl Iterator<Item = &'a End> {
    plan.ends
        .iter()
        .filter(move |end| end.namespace.as_deref() == place)
}

/// Runs a tool on a script given to its standard input.
pub(super) fn batch(tool: &str, arguments: &[&str], script: &str) -> Result<()> {
    let line = || format!("`{tool} {}`", arguments.join(" "));
    let mut child = Command::new(tool)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {}", line()))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A tool that ended early says why on its standard error.
        let _ = stdin.write_all(script.as_bytes());
    }
    let output = child
        .wait_with_output()
        .with_context(|| format!("cannot run {}", line()))?;
    ensure!(
        output.status.success(),
        "{} failed ({}): {}\nits script was:\n{}",
        line(),
        output.status,
        String::from_utf8_lossy(&output.stderr).trim(),
        script.trim_end()
    );
    Ok(())
}

fn find_netdev(mac: &str) -> Result<String> {
    for entry in fs::read_dir("/sys/class/net").context("no network devices")? {
        let entry = entry?;
        let address = fs::read_to_string(entry.path().join("address")).unwrap_or_default();
        if address.trim().eq_ignore_ascii_case(mac) {
            return Ok(entry.file_name().to_string_lossy().into_owned());
        }
    }
    bail!("no network device has the hardware address {mac}")
}

fn mount_shared(dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    super::init::mount_9p("shared", dir, true)
        .with_context(|| format!("cannot mount the shared folder on {}", dir.display()))
}

/// Makes `modprobe` work; without it only what process 1 loaded is there.
fn bind_modules(modules: &Path) {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let target = Path::new("/lib/modules").join(release);
    let made = fs::create_dir_all(&target).map_err(anyhow::Error::from);
    let bound = made.and_then(|()| Ok(rustix::mount::mount_bind(modules, &target)?));
    if let Err(e) = bound {
        eprintln!("agent: no modules under {}: {e:#}", target.display());
    }
}

/// Peers by name. `ip netns exec` puts `/etc/netns/NAME/hosts` over `/etc/hosts`.
fn write_hosts_files(plan: &Plan) -> Result<()> {
    let file = |name: &str, place: Option<&str>| {
        let mut text = format!("127.0.0.1 localhost {name}\n::1 localhost\n");
        for end in ends_of(plan, place) {
            let _ = writeln!(text, "{} {}", end.peer.address, end.peer.host);
        }
        text
    };
    if plan.namespaces.is_empty() {
        return fs::write("/etc/hosts", file(&plan.hostname, None)).context("cannot write /etc/hosts");
    }
    for name in &plan.namespaces {
        let folder = Path::new("/etc/netns").join(name);
        fs::create_dir_all(&folder)?;
        fs::write(folder.join("hosts"), file(name, Some(name)))?;
    }
    Ok(())
}

/// Waits until an RDMA device can be used, and says which GID is the address's.
pub(super) fn gid_when_ready(device: &str, address: IpAddr, deadline: Instant) -> Result<u32> {
    let port = Path::new("/sys/class/infiniband").join(device).join("ports/1");
    let gid = gid_text(address);
    loop {
        let state = fs::read_to_string(port.join("state")).unwrap_or_else(|e| e.to_string());
        let index = (0..GIDS_SEARCHED).find(|index| is_gid(&port, *index, &gid));
        match index {
            Some(index) if state.contains("ACTIVE") => return Ok(index),
            _ => ensure!(
                Instant::now() < deadline,
                "RDMA device {device} is not ready after {} s: port state {}, RoCEv2 GID {gid} {}",
                READY_PATIENCE.as_secs(),
                state.trim(),
                if index.is_some() { "found" } else { "missing" }
            ),
        }
        thread::sleep(Duration::from_millis(20));
    }
}

fn is_gid(port: &Path, index: u32, gid: &str) -> bool {
    let is = |path: PathBuf, text: &str| fs::read_to_string(path).is_ok_and(|found| found.trim() == text);
    is(port.join(format!("gids/{index}")), gid)
        && is(port.join(format!("gid_attrs/types/{index}")), "RoCE v2")
}

/// A GID as sysfs prints it: eight groups of four digits.
fn gid_text(address: IpAddr) -> String {
    let address = match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    address.segments().map(|group| format!("{group:04x}")).join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(namespace: &str, n: u8, other: usize) -> End {
        End {
            namespace: Some(namespace.to_owned()),
            origin: Origin::Veth(other),
            netdev: format!("veth{n}"),
            device: format!("rxe{n}"),
            address: IpAddr::from([10, 0, 0, n]),
            prefix: 24,
            mtu: 4200,
            mac: format!("02:db:00:00:00:0{n}"),
            netem: None,
            peer: Peer {
                host: "peer".to_owned(),
                address: IpAddr::from([10, 0, 0, 9]),
                mac: "02:db:00:00:00:09".to_owned(),
            },
        }
    }

    #[test]
    fn gids_are_written_as_sysfs_does() {
        assert_eq!(
            gid_text("10.77.1.2".parse().unwrap()),
            "0000:0000:0000:0000:0000:ffff:0a4d:0102"
        );
        assert_eq!(
            gid_text("fd00:1::2".parse().unwrap()),
            "fd00:0001:0000:0000:0000:0000:0000:0002"
        );
    }

    #[test]
    fn a_pair_is_made_once_with_both_its_sides() {
        let mut plan = Plan {
            namespaces: vec!["a".to_owned(), "b".to_owned()],
            ends: vec![end("a", 1, 1), end("b", 2, 0)],
            ..Plan::default()
        };
        assert_eq!(
            devices_script(&plan).unwrap(),
            "netns add a\nnetns add b\nlink add name veth1 netns a mtu 4200 address 02:db:00:00:00:01 \
             type veth peer name veth2 netns b mtu 4200 address 02:db:00:00:00:02\n"
        );
        plan.ends[1].netem = Some("delay 5000us".to_owned());
        assert_eq!(
            addresses_script(&plan, Some("a")).unwrap(),
            "link set dev lo up\naddr add 10.0.0.1/24 dev veth1\nlink set dev veth1 up\n\
             neigh replace 10.0.0.9 lladdr 02:db:00:00:00:09 dev veth1 nud permanent\n"
        );
        assert_eq!(shaping_script(&plan, Some("a")).unwrap(), "");
        assert_eq!(
            shaping_script(&plan, Some("b")).unwrap(),
            "qdisc add dev veth2 root netem delay 5000us\n"
        );
        assert_eq!(
            devices_of(&plan, Some("b")).unwrap(),
            "rdma link add rxe2 type rxe netdev veth2\n"
        );
        assert_eq!(hardening_script(&plan), "");
        plan.hardened = true;
        assert_eq!(
            hardening_script(&plan),
            "echo 2 >/proc/sys/net/ipv4/conf/all/arp_announce\necho 1 >/proc/sys/net/ipv4/conf/all/arp_ignore\n\
             echo 1 >/proc/sys/net/ipv4/conf/all/arp_filter\necho 1 >/proc/sys/net/ipv4/conf/all/rp_filter\n"
        );
    }

    #[test]
    fn a_failing_tool_is_shown_with_its_script() {
        let message = format!("{:#}", batch("sh", &["-e"], "echo why >&2; exit 7").unwrap_err());
        assert!(
            message.contains("why") && message.contains("exit 7") && message.contains('7'),
            "{message}"
        );
    }
}
