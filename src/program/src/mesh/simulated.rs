//! All members of a mesh in this process, on hosts of a simulated fabric. Each is polled in turn.

use core::net::SocketAddr;
use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

use doorbell::mesh::{Group, Mesh, MeshConfig, Rank, Ranks};
use doorbell::{Node, Worker};
use doorbell_operation::Settings;
use doorbell_sim::{Fabric, Host};
use hdrhistogram::Histogram;

use super::content::{self, Content};
use super::{Arguments, CollectiveName, Report, report, worker_config};
use crate::report::Failure;
use crate::simulated;

/// The port of all members. Each member is on a separate host.
const PORT: u16 = 7500;

/// The longest step of simulated time between two polls.
const TURN: Duration = Duration::from_millis(1);

/// The members, and the fabric between them.
pub(crate) struct World {
    fabric: Fabric,
    pub(crate) members: Vec<Member>,
    timeout: Duration,
}

/// A member on its own host.
pub(crate) struct Member {
    node: Arc<Node<Host, Host>>,
    pub(crate) workers: Vec<Worker<Host>>,
    pub(crate) mesh: Mesh<Host, Host>,
}

/// A collective in progress: the groups of all members, and their data.
pub(crate) struct Work {
    which: CollectiveName,
    groups: Vec<Group>,
    contents: Vec<Content>,
    round: u32,
}

impl World {
    /// Creates members in one subnet. They are not linked yet.
    ///
    /// # Errors
    /// There is not enough memory.
    pub(crate) fn new(ranks: u8, settings: &Settings) -> Result<Self, Failure> {
        let trust = simulated::trust()?;
        let fabric = Fabric::builder().driven().build();
        let mut members: Vec<Member> = Vec::new();
        let mut handles = Vec::new();
        for number in 0..ranks {
            let rank = Rank::new(number).ok_or("there is no such rank")?;
            let node = Arc::new(simulated::host(&fabric, number.saturating_add(1), 1, &trust)?);
            let workers = node.workers(&worker_config(settings, ranks))?;
            let mut config = MeshConfig::new(rank, ranks, u64::from(number).saturating_add(1));
            settings.values().configure(&mut config);
            let mut mesh = Mesh::new(&node, &workers, &config)?;
            let any = SocketAddr::from(([0, 0, 0, 0], PORT));
            let handle = mesh.listen_polled(&node, &workers, any)?;
            for (lower, handle) in (0..number).filter_map(Rank::new).zip(&handles) {
                mesh.connect(&node, &workers, lower, handle)?;
            }
            handles.push(handle);
            members.push(Member { node, workers, mesh });
        }
        Ok(Self {
            fabric,
            members,
            timeout: settings.values().timeout,
        })
    }

    /// Polls each member once, and advances the time.
    fn turn(&mut self) -> Result<(), Failure> {
        let now = self.fabric.now();
        let mut next = now.after(TURN);
        for Member { node, workers, mesh } in &mut self.members {
            mesh.poll(node, workers, |_| {})?;
            if let Some(wake) = mesh.wake(now) {
                next = next.min(wake.instant());
            }
        }
        simulated::advance(&self.fabric, next);
        Ok(())
    }

    /// Polls until `is_done`.
    ///
    /// # Errors
    /// The timeout has passed, by the clock of the fabric.
    fn until(
        &mut self,
        what: &str,
        mut is_done: impl FnMut(&mut Self) -> Result<bool, Failure>,
    ) -> Result<(), Failure> {
        let deadline = self.fabric.now().after(self.timeout);
        while !is_done(self)? {
            if self.fabric.now() > deadline {
                let seconds = self.timeout.as_secs_f64();
                return Err(format!("{what} took longer than {seconds} s of simulated time").into());
            }
            self.turn()?;
        }
        Ok(())
    }

    /// Waits until all members have reached each other, and creates a group of them.
    ///
    /// # Errors
    /// Some members were not reached in time.
    pub(crate) fn join(&mut self, which: CollectiveName, message_bytes: u32) -> Result<Work, Failure> {
        self.until("joining the mesh", |world| {
            let mut meshes = world.members.iter().map(|member| &member.mesh);
            Ok(meshes.all(|mesh| mesh.reached() == Ranks::first(mesh.ranks())))
        })?;
        let (mut groups, mut contents) = (Vec::new(), Vec::new());
        for Member { mesh, .. } in &mut self.members {
            groups.push(Group::new(mesh)?);
            contents.push(Content::new(which, mesh.rank(), mesh.ranks(), message_bytes)?);
        }
        Ok(Work {
            which,
            groups,
            contents,
            round: 0,
        })
    }

    /// Runs the collective once on all members, and checks every received byte. Returns the time that it took this
    /// process.
    ///
    /// # Errors
    /// The timeout has passed, or a byte is wrong.
    pub(crate) fn round(&mut self, work: &mut Work) -> Result<Duration, Failure> {
        let Work {
            which,
            groups,
            contents,
            round,
        } = work;
        let begin = Instant::now();
        let mut running = Vec::new();
        for ((member, group), content) in self
            .members
            .iter()
            .zip(groups.iter_mut())
            .zip(contents.iter_mut())
        {
            content.fill(*round);
            running.push(Some(group.begin(
                &member.mesh,
                which.collective(),
                &mut content.data(),
            )?));
        }
        self.until("a round", |world| {
            let members = world
                .members
                .iter_mut()
                .zip(groups.iter())
                .zip(contents.iter_mut());
            for (((member, group), content), slot) in members.zip(&mut running) {
                let Some(collective) = slot else { continue };
                if collective.poll(group, &mut member.mesh, &mut content.data(), content::add)? {
                    *slot = None;
                }
            }
            Ok(running.iter().all(Option::is_none))
        })?;
        let took = begin.elapsed();
        for content in contents.iter_mut() {
            content.check(*round)?;
        }
        *round = round.wrapping_add(1);
        Ok(took)
    }
}

/// Runs the requested rounds. Returns the report of the first member.
///
/// # Errors
/// The members did not reach each other, or a byte is wrong.
pub(super) fn run(arguments: &Arguments, settings: &Settings) -> Result<Report, Failure> {
    let mut world = World::new(arguments.ranks, settings)?;
    let mut work = world.join(arguments.collective, arguments.size)?;
    let longest_ns = u64::try_from(settings.values().timeout.as_nanos())?;
    let mut times = Histogram::<u64>::new_with_bounds(1, longest_ns.max(2), 3)?;
    let untimed = arguments.rounds.div_ceil(10);
    for round in 0..untimed.saturating_add(arguments.rounds) {
        let took = world.round(&mut work)?;
        if round >= untimed {
            times.saturating_record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
        }
    }
    let member = world.members.first().ok_or("there are no members")?;
    let content = work.contents.first().ok_or("there are no members")?;
    Ok(report(arguments, &member.mesh, content, &times))
}

#[cfg(test)]
mod tests {
    use super::{CollectiveName, World};
    use crate::mesh::simulated_settings;

    #[test]
    fn every_collective_is_done_by_members_of_one_process() {
        for which in [
            CollectiveName::Barrier,
            CollectiveName::Broadcast,
            CollectiveName::AllToAll,
            CollectiveName::AllReduce,
        ] {
            let mut world = World::new(3, &simulated_settings().unwrap()).unwrap();
            let mut work = world.join(which, 64).unwrap();
            for _ in 0..3 {
                world.round(&mut work).unwrap();
            }
            let reached = world.members[2].mesh.reached();
            assert_eq!(reached.iter().count(), 3, "{which:?}");
        }
    }
}
