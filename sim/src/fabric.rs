//! The fabric: a handle to one world, behind one lock.

use core::fmt;
use core::net::IpAddr;
use core::time::Duration;
use std::sync::{Arc, Mutex, PoisonError};

use doorbell_core::time::Instant;
use doorbell_core::{IpPrefix, Qpn};

use crate::Host;
use crate::capture::{Capture, Frame};
use crate::inside::Locked;
use crate::link::LinkConfig;
use crate::oracle::{Tally, Violation};
use crate::plan::{Action, Plan, UnknownName};
use crate::port::{ConfigError, PortConfig};
use crate::quirks::Quirks;
use crate::real_time::RealTime;
use crate::timeline::Timeline;
use crate::world::World;

/// Configuration of a fabric.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct FabricBuilder {
    seed: u64,
    link: LinkConfig,
    quirks: Quirks,
    is_driven: bool,
    call_ns: u64,
    clock: Option<fn() -> Instant>,
    plan: Plan,
    allows_unknown_names: bool,
}

impl FabricBuilder {
    /// Sets the seed of all randomness. The default is 0.
    pub const fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Sets the properties of every link. The default is [`LinkConfig::default`].
    pub const fn link(mut self, link: LinkConfig) -> Self {
        self.link = link;
        self
    }

    /// How the devices of every host are that is not made otherwise. The default is
    /// [`Quirks::IBA`].
    pub const fn quirks(mut self, quirks: Quirks) -> Self {
        self.quirks = quirks;
        self
    }

    /// Time passes only at the caller's request. Else it passes in calls.
    pub const fn driven(mut self) -> Self {
        self.is_driven = true;
        self
    }

    /// Each call of a driven fabric takes so long, and what is due by then happens in it: so what one thread does in two calls
    /// has something between. The default is no time, and where time follows a clock (`real_time`) calls take none.
    pub fn calls_take(mut self, span: Duration) -> Self {
        self.call_ns = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        self
    }

    /// Time follows this clock, and passes while nobody calls, too: a thread of the fabric's own runs due events. It is for
    /// programs that sleep at descriptors, in an event loop, and for those that look at the clock of this machine; their runs
    /// do not repeat. A clock that stands still for a while is caught up with, in order.
    pub const fn real_time(mut self, clock: fn() -> Instant) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Sets the plan of faults, and the seed, if the plan names one. The default is no faults. The plan may name hosts that are
    /// added later: [`Fabric::check_plan`] finds names that no host has.
    pub fn plan(mut self, plan: Plan) -> Self {
        self.seed = plan.seed.unwrap_or(self.seed);
        self.plan = plan;
        self
    }

    /// Prints no report of names in plans that nothing has, for plans that are drawn at random. [`Fabric::check_plan`] finds such
    /// names all the same.
    pub const fn allow_unknown_names(mut self) -> Self {
        self.allows_unknown_names = true;
        self
    }

    /// A network without hosts.
    #[must_use]
    pub fn build(self) -> Fabric {
        let is_driven = self.is_driven || self.clock.is_some();
        let began_ns = self.clock.map_or(0, |clock| clock().to_ns());
        let mut world = World::new(self.seed, self.link, is_driven, began_ns);
        world.call_ns = if self.clock.is_some() { 0 } else { self.call_ns };
        world.allows_unknown_names = self.allows_unknown_names;
        world.follow(&self.plan);
        let world = Arc::new(Mutex::new(world));
        let start = |clock| Arc::new(RealTime::start(clock, &world));
        Fabric {
            real_time: self.clock.map(start),
            world,
            quirks: self.quirks,
        }
    }
}

/// A network of simulated hosts. Clones are handles to the same one.
#[derive(Clone)]
pub struct Fabric {
    world: Arc<Mutex<World>>,
    real_time: Option<Arc<RealTime>>,
    quirks: Quirks,
}

impl Default for Fabric {
    fn default() -> Self {
        Self::builder().build()
    }
}

impl Fabric {
    /// Whether the other is a handle to the same network.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.world, &other.world)
    }

    /// A network without hosts, where time passes by itself.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A network to be made otherwise.
    pub fn builder() -> FabricBuilder {
        FabricBuilder::default()
    }

    /// Adds so many hosts in one subnet, each with one port. The nth host of the fabric is `hostN`, its device `simN`, and its
    /// address 127.0.0.N. This is the machine's loopback, so connections can be made over TCP, too.
    ///
    /// ```
    /// let [server, client] = doorbell_sim::Fabric::new().hosts()?;
    /// # assert_eq!([server.name(), client.name()], ["host1", "host2"]);
    /// # Ok::<(), doorbell_sim::ConfigError>(())
    /// ```
    ///
    /// # Errors
    /// One of the addresses is taken, or there are more hosts than addresses (65,535); some of the hosts may be there then.
    pub fn hosts<const N: usize>(&self) -> Result<[Host; N], ConfigError> {
        let mut made = Vec::with_capacity(N);
        while made.len() < N {
            let number = self.lock().hosts().saturating_add(1);
            let [high, low] = u16::try_from(number)
                .map_err(|_| ConfigError::TooManyHosts(number))?
                .to_be_bytes();
            let address = IpAddr::from([127, 0, high, low]);
            let prefix = IpPrefix::new(address, 16).map_err(|_| ConfigError::TooManyHosts(number))?;
            let port = PortConfig::new(&format!("sim{number}"), &[prefix]);
            made.push(self.host(&format!("host{number}"), vec![port])?);
        }
        made.try_into()
            .map_err(|made: Vec<_>| ConfigError::TooManyHosts(made.len()))
    }

    /// Adds a host with these ports. Two ports reach each other where each lies in the
    /// subnet of the other, and both are active.
    ///
    /// # Errors
    /// A name or the number of something is out of bounds, or an address is taken.
    pub fn host(&self, name: &str, ports: Vec<PortConfig>) -> Result<Host, ConfigError> {
        self.host_with(name, &ports, self.quirks)
    }

    /// Adds a host whose devices are like this.
    ///
    /// # Errors
    /// As of [`Fabric::host`].
    pub fn host_with(&self, name: &str, ports: &[PortConfig], quirks: Quirks) -> Result<Host, ConfigError> {
        let host = self.lock().add_host(name, ports, quirks)?;
        Ok(Host::new(self.clone(), host, name))
    }

    /// The time: nanoseconds since the fabric was made; or what its clock says.
    #[must_use]
    pub fn now(&self) -> Instant {
        Instant::from_ns(self.lock().now_ns())
    }

    /// When the next thing happens; `None` where nothing will by itself.
    #[must_use]
    pub fn next_at(&self) -> Option<Instant> {
        self.lock().next_at_ns().map(Instant::from_ns)
    }

    /// Lets the next thing happen, at its time. Says whether there was one.
    #[must_use]
    pub fn step(&self) -> bool {
        self.lock().step(u64::MAX).is_some()
    }

    /// Lets everything happen up to this time, which it then is.
    pub fn run_until(&self, until: Instant) {
        self.lock().run_until(until.to_ns());
    }

    /// Lets everything happen in this span from now on.
    pub fn run_for(&self, span: Duration) {
        let mut world = self.lock();
        let until = Instant::from_ns(world.now_ns()).after(span);
        world.run_until(until.to_ns());
    }

    /// Has more go wrong, behind what does already. The seed of the plan is left aside. [`Fabric::check_plan`] finds names that
    /// nothing has.
    pub fn follow(&self, plan: &Plan) {
        self.lock().follow(plan);
    }

    /// Checks the names in the plan and in all that was followed since: each has to be of a host, device or port that is there
    /// now. Call it once all hosts are added, because a plan may be set before them.
    ///
    /// ```
    /// use doorbell_sim::{Fabric, Plan};
    ///
    /// let plan: Plan = "at 5s kill host3".parse()?;
    /// let fabric = Fabric::builder().plan(plan).build();
    /// let [_, _] = fabric.hosts()?;
    /// let error = fabric.check_plan().unwrap_err().to_string();
    /// assert_eq!(error, "in \"at 5s kill host3\": the fabric has no host3, but host1 and host2");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The first name that nothing has, or that nothing had when its clause was due.
    pub fn check_plan(&self) -> Result<(), UnknownName> {
        self.lock().check_plan()
    }

    /// Has something happen now.
    ///
    /// # Errors
    /// The action is about a host, device or port that is not there: nothing happens.
    pub fn perform(&self, action: &Action) -> Result<(), UnknownName> {
        let mut world = self.lock();
        world.check_action(action)?;
        world.perform(action);
        Ok(())
    }

    /// How often a message found no receive of the peer posted. Each time it is tried counts.
    #[must_use]
    pub fn receivers_not_ready(&self) -> u64 {
        self.lock().tally.receivers_not_ready
    }

    /// How many receives took a message again as a queue pair failed, where devices repeat
    /// ([`Quirks::repeats_failing_ns`]): of this queue pair of a host's device, or of all it had. No other call shows which
    /// messages were repeated.
    #[must_use]
    pub fn repeated(&self, host: &str, device: &str, qpn: Option<Qpn>) -> u64 {
        self.lock().repeated(host, device, qpn)
    }

    /// How many receives are posted to a queue pair of a host's device, and took no message yet. `None` where there is no
    /// such queue pair, or it receives nothing, or has its receives from a shared receive queue.
    #[must_use]
    pub fn receives_posted(&self, host: &str, device: &str, qpn: Qpn) -> Option<usize> {
        self.lock().receives_posted(host, device, qpn)
    }

    /// How many queue pairs there are.
    #[must_use]
    pub fn queue_pairs(&self) -> usize {
        let [_, queue_pairs] = self.lock().counts();
        queue_pairs
    }

    /// How many completion queues and shared receive queues there are.
    #[must_use]
    pub fn queues(&self) -> usize {
        self.lock().queues()
    }

    /// How many registrations of memory there are: windows, and arenas, each of which there is until all its slots are gone.
    #[must_use]
    pub fn registrations(&self) -> usize {
        self.lock().registrations()
    }

    /// Returns the counts of the fabric, if they all add up.
    ///
    /// # Errors
    /// Something that must never be, and is or was.
    pub fn audit(&self) -> Result<Tally, Violation> {
        self.lock().audit()
    }

    /// Keeps the packets that leave a port from now on, up to so many.
    pub fn capture(&self, frames_max: usize) {
        self.lock().capture = Some(Capture::new(frames_max));
    }

    /// Takes what was kept, and keeps no more.
    #[must_use]
    pub fn take_captured(&self) -> Vec<Frame> {
        let capture = self.lock().capture.take();
        capture.map(Capture::into_frames).unwrap_or_default()
    }

    /// Notes what happens from now on, up to so many packets and other moments together; those beyond are counted.
    pub fn record(&self, moments_max: usize) {
        self.lock().record(moments_max);
    }

    /// Says something of a host where what happens is noted.
    pub fn remark(&self, host: &str, text: &str) {
        self.lock().remark_host(host, text);
    }

    /// Takes what was noted, and notes no more.
    #[must_use]
    pub fn take_timeline(&self) -> Timeline {
        self.lock().take_timeline()
    }

    pub(crate) fn real_time(&self) -> Option<&RealTime> {
        self.real_time.as_deref()
    }

    pub(crate) fn lock(&self) -> Locked<'_> {
        // Nothing panics while it is held; were it so, each object would still be whole.
        let mut world = self.world.lock().unwrap_or_else(PoisonError::into_inner);
        world.note_user();
        Locked::new(world, self.real_time.as_deref())
    }
}

impl fmt::Debug for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [devices, queue_pairs] = self.lock().counts();
        f.debug_struct("Fabric")
            .field("devices", &devices)
            .field("queue_pairs", &queue_pairs)
            .finish_non_exhaustive()
    }
}
