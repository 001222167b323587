//! The rig on the simulated fabric, and the providers that it stands for.

#[path = "../suite/hosts.rs"]
mod hosts;

use core::cell::RefCell;
use core::net::IpAddr;
use core::time::Duration;

use doorbell_conformance::{Disturbance, End, Kernel, Patience, ProviderName, Rig, Struck, Subject, Trouble};
use doorbell_sim::plan::{self, Action, Name};
use doorbell_sim::{Fabric, Frame, Host, Plan, Quirks};

/// Address of the near end.
const ADDRESS: &str = "10.0.0.1";
/// Address it gets instead.
const ANOTHER: &str = "10.0.0.3";

/// Packets that are lost, come twice, or late.
const LOST_AND_REPEATED: &str = "seed 7; drop every 7th packet of any->any; duplicate every 5th packet of any->any; \
                           reorder every 11th packet of any->any; corrupt every 13th packet of any->any";
/// One that is lost.
const GAP: &str = "drop 13th packet of a->b";
/// More packets than any case sends.
const PACKETS_MAX: usize = 1 << 16;
/// Offset of the base transport header in a frame: behind the headers of Ethernet, IPv4 and UDP.
const BASE_HEADER: usize = 14 + 20 + 8;
/// An opcode, and behind its header the syndrome that says where a packet is missing.
const ACKNOWLEDGE: u8 = 0x11;
const SEQUENCE_ERROR: u8 = 0x60;

/// Two hosts on one subnet, with an MTU like a software device's.
pub(crate) struct Simulated {
    quirks: Quirks,
    /// Plan of faults in every case.
    plan: &'static str,
    /// Fabric of the case that runs.
    fabric: RefCell<Fabric>,
}

impl Simulated {
    pub(crate) fn new(quirks: Quirks) -> Self {
        Self::with(quirks, "")
    }

    pub(crate) fn with(quirks: Quirks, plan: &'static str) -> Self {
        Self {
            quirks,
            plan,
            fabric: RefCell::default(),
        }
    }

    fn hosts(&self, plan: Plan) -> Result<[End<Host>; 2], Trouble> {
        let fabric = Fabric::builder().quirks(self.quirks).plan(plan).build();
        self.fabric.replace(fabric.clone());
        Ok(hosts::pair(&fabric))
    }

    fn perform(&self, action: impl FnOnce(plan::End) -> Option<Action>) -> Result<(), Trouble> {
        let near = Name::new("a").map(|host| plan::End {
            host,
            device: None,
            port: None,
        });
        let action = near.and_then(action).ok_or(Trouble::new("no action"))?;
        let done = self.fabric.borrow().perform(&action);
        done.map_err(|error| Trouble(error.to_string()))
    }
}

fn plan(text: &str) -> Result<Plan, Trouble> {
    text.parse()
        .map_err(|error: doorbell_sim::PlanError| Trouble(error.to_string()))
}

fn ip(text: &str) -> Result<IpAddr, Trouble> {
    text.parse().map_err(|_| Trouble::new("no address"))
}

impl Rig for Simulated {
    type P = Host;

    fn ends(&self) -> Result<[End<Host>; 2], Trouble> {
        self.hosts(plan(self.plan)?)
    }

    fn disturbed_ends(&self, how: Disturbance) -> Result<Option<[End<Host>; 2]>, Trouble> {
        let text = match how {
            Disturbance::LostAndRepeated => LOST_AND_REPEATED,
            Disturbance::Gap => GAP,
        };
        let ends = self.hosts(plan(text)?)?;
        self.fabric.borrow().capture(PACKETS_MAX);
        Ok(Some(ends))
    }

    fn struck(&self) -> Result<Option<Struck>, Trouble> {
        let fabric = self.fabric.borrow();
        let tally = fabric
            .audit()
            .map_err(|violation| Trouble(violation.to_string()))?;
        let (packets, frames) = (tally.packets, fabric.take_captured());
        let reports_gap = |frame: &&Frame| {
            let at = |offset: usize| frame.bytes.get(BASE_HEADER.saturating_add(offset));
            at(0) == Some(&ACKNOWLEDGE) && at(12) == Some(&SEQUENCE_ERROR)
        };
        Ok(Some(Struck {
            lost: packets.lost.saturating_add(packets.corrupt),
            // Copies leave no port.
            repeated: packets.sent.saturating_sub(frames.len() as u64),
            gaps: frames.iter().filter(reports_gap).count() as u64,
        }))
    }

    fn patience(&self) -> Patience {
        // Empty polls let time pass, and nothing else does.
        Patience {
            come: Duration::ZERO,
            quiet: Duration::ZERO,
            polls: 200,
            quiet_polls: 5,
        }
    }

    fn now(&self) -> Duration {
        Duration::from_nanos(self.fabric.borrow().now().to_ns())
    }

    fn set_port(&self, up: bool) -> Result<(), Trouble> {
        self.perform(|near| Some(Action::Port(near, up)))
    }

    fn break_device(&self) -> Result<(), Trouble> {
        self.perform(|near| Some(Action::Kill(near.host)))
    }

    fn mend_device(&self) -> Result<(), Trouble> {
        // The next case has hosts of its own.
        Ok(())
    }

    fn change_address(&self) -> Result<(), Trouble> {
        let [old, new] = [ip(ADDRESS)?, ip(ANOTHER)?];
        self.perform(|near| Some(Action::Gid(near, old, new)))
    }
}

/// Every packet comes twice, and some later than the one behind them.
pub(crate) const DOUBLED: (Subject, &str) = (
    Subject {
        provider: ProviderName::SimulatedDoubled,
        kernel: None,
    },
    "duplicate every 1st packet of any->any; reorder every 5th packet of any->any",
);

/// The fabric as the book has it, as Soft-RoCE of three kernels, of one before it was corrected, and as hardware.
pub(crate) const SUBJECTS: [(Subject, Quirks); 6] = [
    (
        Subject {
            provider: ProviderName::Simulated,
            kernel: None,
        },
        Quirks::IBA,
    ),
    (
        Subject {
            provider: ProviderName::SimulatedRxe,
            kernel: Some(Kernel(6, 1)),
        },
        Quirks::RXE_6_1,
    ),
    (
        Subject {
            provider: ProviderName::SimulatedRxe,
            kernel: Some(Kernel(6, 12)),
        },
        Quirks::RXE_6_12,
    ),
    (
        Subject {
            provider: ProviderName::SimulatedRxeRepeating,
            kernel: Some(Kernel(6, 12)),
        },
        // However long a case takes from a message to the end of its queue pair.
        Quirks {
            repeats_failing_ns: u64::MAX,
            ..Quirks::RXE_REPEATING
        },
    ),
    (
        Subject {
            provider: ProviderName::SimulatedRxe,
            kernel: Some(Kernel(7, 2)),
        },
        Quirks::RXE_7,
    ),
    (
        Subject {
            provider: ProviderName::SimulatedMlx5,
            kernel: None,
        },
        Quirks::MLX5,
    ),
];
