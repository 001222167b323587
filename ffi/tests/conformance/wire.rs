//! Two devices of Soft-RoCE on the ends of a wire, on which packets are lost and come twice.
//!
//! A device that sends to itself sends no packets, so there are two devices. Each is on one of a pair of network
//! devices, and the two network devices are the ends of one wire. Outgoing packets go through `netem`. A filter
//! drops every n-th incoming packet, which its sender does not see. The counters of both show whether that
//! happened.
//!
//! No packet overtakes another here. With `reorder` in `netem`, a fetch-and-add on Linux 6.1 now and then ends by
//! SUCCESS without the value that it fetched, which no case names yet.

use core::net::{IpAddr, Ipv4Addr};
use core::time::Duration;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Instant;

use doorbell_conformance::{Disturbance, End, Struck, Trouble};
use doorbell_core::Gid;
use doorbell_core::provider::Provider as _;
use doorbell_ffi::Rdma;

use super::{succeed, trouble};

/// One end of the wire.
struct Tip {
    netdev: &'static str,
    device: &'static str,
    /// Address of a block for documentation.
    address: Ipv4Addr,
}

const TIPS: [Tip; 2] = [
    Tip {
        netdev: "wire-near",
        device: "rxe_near",
        address: Ipv4Addr::new(198, 51, 100, 1),
    },
    Tip {
        netdev: "wire-far",
        device: "rxe_far",
        address: Ipv4Addr::new(198, 51, 100, 2),
    },
];

/// How long a device may take until it can be used.
const READY_MAX: Duration = Duration::from_secs(20);

/// How long the removal of a device may take once nobody has it open.
const REMOVAL_MAX: Duration = Duration::from_secs(20);

/// A wire, which is gone when it is dropped.
pub(crate) struct Wire(());

impl Wire {
    /// A new one, whose devices have counted nothing yet.
    pub(crate) fn new(how: Disturbance) -> Result<Self, Trouble> {
        let wire = Self(());
        let [near, far] = TIPS;
        let mut script = format!("ip link add {} type veth peer name {}\n", near.netdev, far.netdev);
        for tip in TIPS {
            script += &tip.up();
        }
        for (tip, other) in [(&near, &far), (&far, &near)] {
            script += &tip.knows(other);
        }
        // Late by a little in any case, so that what is posted at once is on its way at once. Nothing overtakes: a SEND that
        // comes again behind an atomic is acknowledged by Soft-RoCE under the atomic's number, and where that comes first it
        // ends the atomic, by SUCCESS and without the value.
        let (netem, lost) = match how {
            Disturbance::LostAndRepeated => ("delay 1ms duplicate 50%", [Some(7), Some(7)]),
            Disturbance::Gap => ("delay 1ms", [None, Some(13)]),
        };
        for (tip, lost) in TIPS.iter().zip(lost) {
            script += &tip.disturbed(netem, lost);
        }
        succeed(Command::new("sh").args(["-ec", &script]))?;
        Ok(wire)
    }

    /// Both ends, once they can be used.
    pub(crate) fn ends(&self, rdma: Rdma) -> Result<[End<Rdma>; 2], Trouble> {
        let [near, far] = TIPS;
        Ok([near.end(rdma)?, far.end(rdma)?])
    }

    /// The counts.
    pub(crate) fn struck(&self) -> Result<Struck, Trouble> {
        let [near, far] = TIPS;
        Ok(Struck {
            lost: near.lost()?.saturating_add(far.lost()?),
            repeated: far.counter("duplicate_request")?,
            gaps: far.counter("out_of_seq_request")?,
        })
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        for tip in TIPS {
            let mut removal = Command::new("rdma");
            removal.args(["link", "delete", tip.device]).stderr(Stdio::null());
            let removed = removal.spawn().map_err(trouble);
            if let Err(trouble) = removed.and_then(|mut removal| ended_in_time(&mut removal)) {
                eprintln!("{}: {trouble}", tip.device);
            }
        }
        // The other end goes with it.
        let [near, _] = TIPS;
        let mut removal = Command::new("ip");
        removal.args(["link", "delete", near.netdev]);
        if let Err(trouble) = succeed(&mut removal) {
            eprintln!("{}: {trouble}", near.netdev);
        }
    }
}

impl Tip {
    /// Commands that bring it up, with its device. Its host has the address that packets come from as well as the one they
    /// go to, and takes them all the same.
    fn up(&self) -> String {
        let Self {
            netdev,
            device,
            address,
        } = self;
        format!(
            "echo 1 >/proc/sys/net/ipv4/conf/{netdev}/accept_local\n\
             echo 2 >/proc/sys/net/ipv4/conf/{netdev}/rp_filter\n\
             ip addr add {address}/24 dev {netdev}\n\
             ip link set dev {netdev} up\n\
             rdma link add {device} type rxe netdev {netdev}\n"
        )
    }

    /// Commands that set the address of the other, since a host does not answer itself.
    fn knows(&self, other: &Self) -> String {
        let (netdev, address) = (self.netdev, other.address);
        format!(
            "ip neigh replace {address} lladdr $(cat /sys/class/net/{}/address) dev {netdev} nud permanent\n",
            other.netdev
        )
    }

    /// Commands that disturb what it sends, and lose every so manieth packet of RDMA that comes.
    fn disturbed(&self, netem: &str, lost: Option<u32>) -> String {
        let netdev = self.netdev;
        let mut script = format!(
            "tc qdisc add dev {netdev} root netem {netem}\n\
             tc qdisc add dev {netdev} ingress\n"
        );
        if let Some(lost) = lost {
            script += &format!(
                "tc filter add dev {netdev} ingress protocol ip flower ip_proto udp dst_port 4791 \
                 action ok random determ drop {lost}\n"
            );
        }
        script
    }

    fn end(&self, rdma: Rdma) -> Result<End<Rdma>, Trouble> {
        let (began, gid) = (Instant::now(), Gid::from_ip(IpAddr::V4(self.address)));
        loop {
            let mut found = None;
            rdma.scan(
                &mut |port| {
                    if port.device.as_str() == self.device && port.usability().is_ok() {
                        let mut gids = port.usable_gids();
                        found = gids
                            .find(|entry| entry.gid == gid)
                            .map(|entry| (port.port, entry.index));
                    }
                },
                &mut |_, _| {},
            )?;
            if let Some((port, index)) = found {
                return Ok(End {
                    provider: rdma,
                    device: self.device.to_owned(),
                    port,
                    gid_index: u8::try_from(index).map_err(trouble)?,
                    gid,
                });
            }
            if began.elapsed() >= READY_MAX {
                return Err(Trouble(format!(
                    "{} is not ready after {READY_MAX:?}",
                    self.device
                )));
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// How many packets did not come in, by the words of `tc`: `(dropped 3, overlimits 0 requeues 0)`.
    fn lost(&self) -> Result<u64, Trouble> {
        counted(
            Command::new("tc").args(["-s", "qdisc", "show", "dev", self.netdev, "ingress"]),
            "dropped",
        )
    }

    /// A counter of its device, which sysfs does not have of one that was made in a network namespace.
    fn counter(&self, name: &str) -> Result<u64, Trouble> {
        let link = format!("{}/1", self.device);
        counted(
            Command::new("rdma").args(["statistic", "show", "link", &link]),
            name,
        )
    }
}

/// The number behind a word that a command says.
fn counted(command: &mut Command, word: &str) -> Result<u64, Trouble> {
    let output = command.output().map_err(trouble)?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
    let number = words.find(|found| *found == word).and_then(|_| words.next());
    let number = number.and_then(|digits| digits.parse().ok());
    number.ok_or_else(|| Trouble(format!("no number of {word}: {text}")))
}

/// Waits for the end of a removal that has begun, which what is open in the device may keep from ending.
pub(crate) fn ended_in_time(removal: &mut Child) -> Result<(), Trouble> {
    let began = Instant::now();
    let ended = loop {
        if let Some(ended) = removal.try_wait().map_err(trouble)? {
            break ended;
        }
        if began.elapsed() >= REMOVAL_MAX {
            removal.kill().map_err(trouble)?;
            // A process that hangs in the kernel does not die of the kill, and nobody waits for it here.
            return Err(Trouble(format!(
                "the removal has not ended within {REMOVAL_MAX:?}"
            )));
        }
        thread::sleep(Duration::from_millis(10));
    };
    if ended.success() {
        Ok(())
    } else {
        Err(Trouble(format!("the removal ended with {ended}")))
    }
}
