//! Collectives over members that do not all share a subnet.

use core::ops::Range;

use doorbell::vocabulary::collective::{Collective, CollectiveError, Data, block_bytes};
use doorbell::{Group, GroupError, MeshSendError, Running};

use crate::world::{World, ms, rank};

const RING: &[(usize, usize)] = &[(0, 1), (1, 2), (2, 3), (3, 0)];

/// All that the ends say to each other goes through both others.
const LINE: &[(usize, usize)] = &[(0, 1), (1, 2), (2, 3)];

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
    groups: Vec<Group>,
    running: Vec<Option<Running>>,
    outputs: Vec<Vec<u8>>,
    inputs: Vec<Vec<u8>>,
    failed: Vec<Option<GroupError>>,
    needs_input: bool,
}

impl Everyone {
    pub(crate) fn begin(world: &mut World, collective: Collective, elements: usize) -> Self {
        let ranks = world.hosts.len();
        let inputs: Vec<_> = (0..ranks).map(|of| brought(of, elements)).collect();
        let mut all = Self {
            groups: (0..ranks)
                .map(|at| Group::new(&world.member(at).mesh).unwrap())
                .collect(),
            running: Vec::new(),
            outputs: inputs.clone(),
            inputs,
            failed: (0..ranks).map(|_| None).collect(),
            needs_input: collective == Collective::AllToAll,
        };
        for at in 0..ranks {
            let mut data = Data {
                input: all.needs_input.then_some(all.inputs[at].as_slice()),
                output: &mut all.outputs[at],
                element_bytes: 4,
            };
            let running = all.groups[at]
                .begin(&world.member(at).mesh, collective, &mut data)
                .unwrap();
            all.running.push(Some(running));
        }
        all
    }

    /// Polls everybody; says whether all are done, or failed.
    pub(crate) fn poll(&mut self, world: &mut World) -> bool {
        for (at, member) in world.members.iter_mut().enumerate() {
            let (Some(member), Some(running)) = (member, &mut self.running[at]) else {
                continue;
            };
            let mut data = Data {
                input: self.needs_input.then_some(self.inputs[at].as_slice()),
                output: &mut self.outputs[at],
                element_bytes: 4,
            };
            match running.poll(&self.groups[at], &mut member.mesh, &mut data, add) {
                Ok(false) => {}
                Ok(true) => self.running[at] = None,
                Err(error) => {
                    self.failed[at] = Some(error);
                    self.running[at] = None;
                }
            }
        }
        let lives = |at: &usize| world.members[*at].is_some();
        (0..self.running.len())
            .filter(lives)
            .all(|at| self.running[at].is_none())
    }
}

/// What a member is to have in the end, and where; what else is there is nobody's.
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
        let whole: Vec<_> = (0..4).map(|of| brought(of, elements)).collect();
        // The groups of one mesh go on with the next.
        for collective in [
            Collective::Barrier,
            Collective::Broadcast(rank(2)),
            Collective::AllGather,
            Collective::ReduceScatter,
            Collective::AllReduce,
            Collective::AllToAll,
        ] {
            let mut all = Everyone::begin(&mut world, collective, elements);
            let done = world.run(ms(20_000), |world| all.poll(world));
            assert!(
                done && all.failed.iter().all(Option::is_none),
                "{collective:?} over {cables:?}: {:?}",
                all.failed
            );
            for (at, output) in all.outputs.iter().enumerate() {
                for (place, bytes) in expected(collective, at, &whole) {
                    let found = &output[place.clone()];
                    assert!(
                        found == bytes,
                        "{collective:?} over {cables:?}: rank {at}, {place:?}"
                    );
                }
            }
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
        let is_cause = matches!(
            error,
            GroupError::Collective(CollectiveError::Exchange(MeshSendError::Unreachable(lost))) if *lost == rank(2)
        );
        assert!(is_cause, "{error}");
    }
}
