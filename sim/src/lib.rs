//! A simulated RDMA fabric: the provider traits of `doorbell-core`, without a device.
//!
//! A [`Fabric`] holds hosts, and each [`Host`] is a provider with devices and ports of its
//! own. Code above the traits runs on it unchanged, on any machine, the same each time.
//!
//! # The world
//! One world stands behind one lock: hosts, devices, ports, queues, memory, the packets under
//! way, and the future events. It has a time of its own, in nanoseconds; events are ordered by time, and at the same time by when they
//! were planned. All randomness comes from one seed. There is no clock in it, no thread, and no order that a run could not repeat (but
//! for [real time](FabricBuilder::real_time)): one thread that makes the same calls sees the same things. Calls from several threads are
//! taken one at a time.
//!
//! # Time
//! Usually time passes by itself, in calls. Each call runs every event that is under way: after a doorbell was rung,
//! messages are delivered and completions lie in their queues. Events of a later time, as of a peer that is silent or
//! a receiver that is not ready, wait until a caller looks and finds nothing. An empty poll lets time pass, by a few
//! timers at most, and by a microsecond if there are none. A fabric that is [driven](FabricBuilder::driven) moves only
//! by [`Fabric::step`] and its like, and while a caller blocks: sleeping at completion queues, or waiting for the
//! network, lets time pass. A fabric in [real time](FabricBuilder::real_time) follows a clock, and a thread advances
//! it while all callers sleep. Completion queues have descriptors for event loops: a program that sleeps at them needs
//! real time.
//!
//! # Streams
//! A host is a network, too ([`Network`](doorbell_core::network::Network)): connections are made over
//! streams of bytes that take the same links.
//!
//! # Packets
//! Requests go as `RoCEv2` packets over links with latency and bandwidth, cut to the path MTU.
//! A queue pair is a `Requester` and a `Responder`, which know neither time nor links nor each
//! other: packets and times are given to them and taken from them. The world carries packets
//! from one to the other, and does for them what they ask for. Packets do all that verbs promise of a reliable
//! connection, as devices do it: windows of packet numbers, acknowledgements, going back after a loss, waits for
//! receivers, retries, and repeated answers. A datagram that cannot be sent leaves its sender in SQE, with its
//! receives. Differences of devices from the architecture (one brings it to ERR then, say) are [`Quirks`].
//!
//! # Oracles
//! The fabric counts requests, receives, packets and memory. [`Fabric::audit`] returns an error if the counts do not agree.
//!
//! # Looking at a run
//! [`Fabric::capture`] keeps packets as frames, which [`pcap`] makes a file of that Wireshark reads.
//! [`Fabric::record`] notes what happens to every queue pair; its [`Timeline`] is text, or a picture. The example
//! `timeline` writes all three.
//!
//! # An example
//! ```
//! use core::time::Duration;
//! use doorbell_core::IpPrefix;
//! use doorbell_sim::{Fabric, Plan, PortConfig};
//!
//! let plan: Plan = "seed 42; at 3ms link a-b down for 1s; drop 2nd ack of a->b".parse()?;
//! let fabric = Fabric::builder().plan(plan).driven().build();
//! let prefix = IpPrefix::new("10.0.0.1".parse()?, 24)?;
//! let host = fabric.host("a", vec![PortConfig::new("sim0", &[prefix])])?;
//! fabric.host("b", vec![PortConfig::new("sim0", &[IpPrefix::new("10.0.0.2".parse()?, 24)?])])?;
//! fabric.check_plan()?;
//! // The host is a provider: open it, connect, post. Then let time pass.
//! fabric.run_for(Duration::from_millis(5));
//! fabric.audit()?;
//! # assert_eq!((host.name(), fabric.now().to_ns()), ("a", 5_000_000));
//! # Ok::<(), Box<dyn core::error::Error>>(())
//! ```
//!
//! # Limits
//! Streams and devices' events have no descriptors: an event loop watches completion queues, and connects over TCP of
//! this machine's loopback. There are reliable connections and datagrams, without memory windows. Vendors' error words
//! are zero.

mod capture;
mod cells;
mod completion;
mod datagram;
mod descriptor;
mod errno;
mod event;
mod fabric;
mod gather;
mod host;
mod id;
mod inside;
mod link;
mod memory;
mod network;
mod numbers;
mod oracle;
mod packet;
pub mod plan;
mod port;
mod queue_pair;
mod quirks;
mod random;
mod real_time;
mod receive;
mod requester;
mod responder;
mod send;
mod shared_receive;
mod slab;
mod stream;
mod time;
mod timeline;
mod window;
mod world;

pub use capture::{Frame, pcap};
pub use cells::LoneCell;
pub use completion::{Claim, Completion, CompletionQueue, LentCompletion, Waker};
pub use datagram::{
    DatagramBatch, DatagramQueuePair, DatagramReceiveBatch, DatagramReceiveQueue, DatagramSendQueue,
};
pub use descriptor::Descriptor;
pub use fabric::{Fabric, FabricBuilder};
pub use host::{Context, Host, ProtectionDomain};
pub use inside::is_inside;
pub use link::LinkConfig;
pub use memory::{Arena, Attacher, Slot};
pub use network::{Acceptor, Stream};
pub use oracle::{Packets, Tally, Violation, Work};
pub use packet::PacketKind;
pub use plan::{Plan, PlanError, UnknownName};
pub use port::{ConfigError, Link, PortConfig};
pub use queue_pair::QueuePair;
pub use quirks::Quirks;
pub use random::Random;
pub use receive::{ReceiveBatch, ReceiveQueue};
pub use send::{SendBatch, SendQueue};
pub use shared_receive::{SharedClaim, SharedReceiveBatch, SharedReceiveQueue};
pub use timeline::Timeline;
pub use window::Window;
