//! Collectives over members that do not all share a subnet.

use core::ops::Range;

use doorbell::mesh::{
    Collective, CollectiveError, Data, Group, GroupError, MeshSendError, Rank, Running, block_bytes,
};

use crate::world::{World, ms, rank};

const RING: &[(usize, usize)] = &[(0, 1), (1, 2), (2, 3), (3, 0)];

/// All that the ends say to each other goes through both others.
const LINE: &[(usize, usize)] = &[(0, 1), (1, 2), (2, 3)];

pub(crate) const COLLECTIVES: [Collective; 6] = [
    Collective::Barrier,
    Collective::Broadcast(Rank::new(2).unwrap()),
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::AllReduce,
    Collective::AllToAll,
];

fn add(to: &mut [u8], from: &[u8]) {
    for (to, from) in to.chunks_exact_mut(4).zip(from.chunks_exact(4)) {
        let sum = u32::from_le_bytes(to.try_into().unwrap()) + u32::from_le_bytes(from.try_into().unwrap());
        to.copy_from_slice(&sum.to_le_bytes());
    }
}

fn brought(of: usize, elements: usize) -> Vec<u8> {
    (0..elements as u32)
        .flat_map(|at| (at * 10 + of as u32).to_le_bytes())
        .collect()
}

/// A collective on all members, each with what it has.
pub(crate) struct Everyone {
    collective: Collective,
    groups: Vec<Group>,
    running: Vec<Option<Running>>,
    outputs: Vec<Vec<u8>>,
    inputs: Vec<Vec<u8>>,
    pub(crate) failed: Vec<Option<GroupError>>,
}

impl Everyone {
    pub(crate) fn begin(world: &mut World, collective: Collective, elements: usize) -> Self {
        let ranks = world.hosts.len();
        Self::bringing(
            world,
            collective,
            (0..ranks).map(|of| brought(of, elements)).collect(),
        )
    }

    /// The same, with this of each.
    pub(crate) fn bringing(world: &mut World, collective: Collective, inputs: Vec<Vec<u8>>) -> Self {
        let ranks = world.hosts.len();
        let mut all = Self {
            collective,
            groups: (0..ranks)
                .map(|at| Group::new(&mut world.member(at).mesh).unwrap())
                .collect(),
            running: Vec::new(),
            outputs: inputs.clone(),
            inputs,
            failed: (0..ranks).map(|_| None).collect(),
        };
        for at in 0..ranks {
            let running = all.begin_at(world, at);
            all.running.push(Some(running));
        }
        all
    }

    fn begin_at(&mut self, world: &mut World, at: usize) -> Running {
        let needs_input = self.collective == Collective::AllToAll;
        let mut data = Data {
            input: needs_input.then_some(self.inputs[at].as_slice()),
            output: &mut self.outputs[at],
            element_bytes: 4,
        };
        let mesh = &world.member(at).mesh;
        self.groups[at].begin(mesh, self.collective, &mut data).unwrap()
    }

    /// Has one give up what it does, and begin anew in a group of its own making.
    pub(crate) fn again(&mut self, world: &mut World, at: usize) {
        self.groups[at] = Group::new(&mut world.member(at).mesh).unwrap();
        self.outputs[at].clone_from(&self.inputs[at]);
        self.failed[at] = None;
        self.running[at] = Some(self.begin_at(world, at));
    }

    /// Polls everybody; says whether all are done, or failed.
    pub(crate) fn poll(&mut self, world: &mut World) -> bool {
        let polled = (0..self.running.len()).map(|at| self.poll_at(world, at));
        polled.filter(|is_done| !is_done).count() == 0
    }

    /// Polls one; says whether it is done, or failed, or gone.
    pub(crate) fn poll_at(&mut self, world: &mut World, at: usize) -> bool {
        let (Some(member), Some(running)) = (&mut world.members[at], &mut self.running[at]) else {
            return true;
        };
        let needs_input = self.collective == Collective::AllToAll;
        let mut data = Data {
            input: needs_input.then_some(self.inputs[at].as_slice()),
            output: &mut self.outputs[at],
            element_bytes: 4,
        };
        match running.poll(&self.groups[at], &mut member.mesh, &mut data, add) {
            Ok(false) => return false,
            Ok(true) => {}
            Err(error) => {
                let again = running.poll(&self.groups[at], &mut member.mesh, &mut data, add);
                let again = again.map_err(|again| again.to_string());
                assert_eq!(again, Err(error.to_string()), "a failed collective fails again");
                self.failed[at] = Some(error);
            }
        }
        self.running[at] = None;
        true
    }

    /// Looks whether all did it, and have what they are to have.
    pub(crate) fn checked(&self, case: &str) {
        let collective = self.collective;
        assert!(
            self.failed.iter().all(Option::is_none),
            "{collective:?} {case}: {:?}",
            self.failed
        );
        for (at, output) in self.outputs.iter().enumerate() {
            for (place, bytes) in expected(collective, at, &self.inputs) {
                let found = &output[place.clone()];
                assert!(found == bytes, "{collective:?} {case}: rank {at}, {place:?}");
            }
        }
    }
}

/// Returns the member that was lost, if the group failed for that.
pub(crate) fn lost_of(error: &GroupError) -> Option<Rank> {
    match error {
        GroupError::Collective(CollectiveError::Exchange(
            MeshSendError::Unreachable(lost) | MeshSendError::Restarted(lost),
        )) => Some(*lost),
        _ => None,
    }
}

/// Returns the bytes that a member must have in the end, and their places; other bytes are not checked.
fn expected(collective: Collective, at: usize, whole: &[Vec<u8>]) -> Vec<(Range<usize>, Vec<u8>)> {
    let bytes = whole[at].len();
    let block = |of: usize| block_bytes(of as u8..of as u8 + 1, whole.len() as u8, bytes, 4);
    let sum = || {
        whole[1..].iter().fold(whole[0].clone(), |mut sum, of| {
            add(&mut sum, of);
            sum
        })
    };
    match collective {
        Collective::Broadcast(root) => vec![(0..bytes, whole[root.index()].clone())],
        Collective::AllGather => (0..whole.len())
            .map(|of| (block(of), whole[of][block(of)].to_vec()))
            .collect(),
        Collective::ReduceScatter => vec![(block(at), sum()[block(at)].to_vec())],
        Collective::AllReduce => vec![(0..bytes, sum())],
        Collective::AllToAll => (0..whole.len())
            .map(|of| (block(of), whole[of][block(at)].to_vec()))
            .collect(),
        _ => vec![(0..bytes, whole[at].clone())],
    }
}

#[test]
fn all_get_what_they_are_to_get_in_a_ring_and_on_a_line() {
    for (cables, elements) in [(RING, 0), (RING, 4), (RING, 3000), (LINE, 4), (LINE, 3000)] {
        let mut world = World::new(4, cables, "drop every 97th packet of any->any");
        world.joined();
        // The groups of one mesh go on with the next.
        for collective in COLLECTIVES {
            let mut all = Everyone::begin(&mut world, collective, elements);
            assert!(world.run(ms(20_000), |world| all.poll(world)), "{collective:?}");
            all.checked(&format!("over {cables:?}"));
        }
        let carried = |at: usize| world.members[at].as_ref().unwrap().mesh.counts().relayed;
        let between = if cables.len() == LINE.len() { 1..3 } else { 0..4 };
        assert!(
            elements == 0 || between.map(carried).all(|relayed| relayed > 0),
            "{cables:?}"
        );
    }
}

#[test]
fn a_member_that_is_lost_ends_the_collective_on_all_that_wait_for_it() {
    let mut world = World::new(3, &[(0, 1), (1, 2)], "");
    world.joined();
    let mut all = Everyone::begin(&mut world, Collective::AllReduce, 300_000);
    let is_amid = world.run(ms(50), |world| {
        assert!(!all.poll(world), "too little to be lost in");
        world.member(2).mesh.counts().received > 20
    });
    assert!(is_amid);
    world.members[2] = None;
    let ended = world.run(ms(20_000), |world| all.poll(world));
    assert!(ended, "somebody waits for ever");
    for at in 0..2 {
        let error = all.failed[at].as_ref().unwrap();
        assert_eq!(lost_of(error), Some(rank(2)), "{error}");
    }
}
