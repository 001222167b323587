//! Members that leave when all is done: none goes while another needs it, and none waits for longer.

use core::net::SocketAddr;
use core::time::Duration;

use doorbell::Deadline;
use doorbell::link::LinkConfig;
use doorbell::mesh::{Collective, Group, GroupError, Leaving, MeshError};

use crate::collectives::{Everyone, lost_of};
use crate::world::{World, config, ms, rank};

const RING: &[(usize, usize)] = &[(0, 1), (1, 2), (2, 3), (3, 0)];
const LINE: &[(usize, usize)] = &[(0, 1), (1, 2), (2, 3)];
/// Messages of each to each.
const WORDS: u8 = 3;

/// Members that have messages for all others, and go once they have received as much.
struct Parting {
    world: World,
    groups: Vec<Option<Group>>,
    leaving: Vec<Option<Leaving>>,
    inbox: Vec<Vec<Vec<Vec<u8>>>>,
    failed: Vec<Option<GroupError>>,
    deadline: Deadline,
    /// Whether one that leaves was asked to link to a member, and did not.
    has_refused: bool,
}

impl Parting {
    fn new(cables: &[(usize, usize)], within: Duration) -> Self {
        Self::with(cables, "", within)
    }

    fn with(cables: &[(usize, usize)], plan: &str, within: Duration) -> Self {
        let mut world = World::made(4, cables, plan, |at| {
            let mut config = config(at, 4, 1);
            config.link.session.recover_within = LinkConfig::default().session.recover_within;
            config
        });
        world.joined();
        let deadline = Deadline::after(world.fabric.now(), within);
        let groups = (0..4).map(|at| Some(Group::new(&mut world.member(at).mesh).unwrap()));
        Self {
            groups: groups.collect(),
            leaving: (0..4).map(|_| None).collect(),
            inbox: vec![vec![Vec::new(); 4]; 4],
            failed: (0..4).map(|_| None).collect(),
            deadline,
            has_refused: false,
            world,
        }
    }

    fn says(&mut self, from: usize) {
        for number in 0..WORDS {
            for to in (0..4).filter(|to| *to != from) {
                self.world
                    .member(from)
                    .mesh
                    .send(rank(to), &[number], &[from as u8])
                    .unwrap();
            }
        }
    }

    fn has_heard(&self, at: usize) -> bool {
        (0..4).all(|from| from == at || self.inbox[at][from].len() == usize::from(WORDS))
    }

    /// Lets time pass until all are gone, or so long; says which. A member that is done is gone at once.
    fn run(&mut self, span: Duration) -> bool {
        let Self {
            world,
            groups,
            leaving,
            inbox,
            failed,
            deadline,
            has_refused,
        } = self;
        world.run(span, |world| {
            for at in 0..4 {
                let Some(member) = world.members[at].as_mut().filter(|member| !member.is_stopped) else {
                    continue;
                };
                for from in (0..4).filter(|from| *from != at) {
                    let heard = &mut inbox[at][from];
                    while heard.len() < usize::from(WORDS) {
                        let Ok(Some(message)) = member.mesh.receive(rank(from), <[u8]>::to_vec) else {
                            break;
                        };
                        heard.push(message);
                    }
                }
                let has_heard = (0..4).all(|from| from == at || inbox[at][from].len() == usize::from(WORDS));
                if let Some(group) = groups[at].take_if(|_| has_heard) {
                    leaving[at] = Some(group.leave(*deadline));
                }
                match leaving[at]
                    .as_mut()
                    .map(|leaving| leaving.poll(&member.node, &mut member.mesh))
                {
                    Some(Ok(false)) if member.mesh.is_closing() => {
                        let to = SocketAddr::from(([10, 0, 0, 1], 7000));
                        let refused = member.mesh.connect_at(rank(0), to);
                        assert!(matches!(refused, Err(MeshError::Closing)), "{refused:?}");
                        *has_refused = true;
                    }
                    None | Some(Ok(false)) => {}
                    Some(Ok(true)) => world.members[at] = None,
                    Some(Err(error)) => {
                        failed[at] = Some(error);
                        world.members[at] = None;
                    }
                }
            }
            world.members.iter().all(Option::is_none)
        })
    }

    fn checked(&self) {
        assert!(self.has_refused);
        for to in 0..4 {
            for from in (0..4).filter(|from| *from != to) {
                let said: Vec<_> = (0..WORDS).map(|number| vec![number, from as u8]).collect();
                assert_eq!(self.inbox[to][from], said, "from {from} to {to}");
            }
        }
        assert!(self.failed.iter().all(Option::is_none), "{:?}", self.failed);
    }
}

#[test]
fn who_is_needed_by_nobody_goes_and_does_not_wait() {
    for cables in [RING, LINE] {
        let mut all = Parting::new(cables, ms(10_000));
        (0..4).for_each(|at| all.says(at));
        assert!(all.run(ms(300)), "{:?}", all.leaving);
        all.checked();
        all.world.fabric.audit().unwrap();
    }
}

/// Its link would be tried again for ten seconds.
#[test]
fn a_cable_that_is_cut_and_gone_round_holds_nobody_up() {
    let mut all = Parting::with(RING, "at 100ms link h1/sim1-h2/sim1 down", ms(60_000));
    let now = all.world.fabric.now();
    assert!(!all.run(Duration::from_nanos(101_000_000 - now.to_ns())));
    // Some of it is on the cable, and stays there.
    (0..4).for_each(|at| all.says(at));
    assert!(all.run(ms(1000)), "{:?}", all.leaving);
    all.checked();
}

/// Its last words to others are said; what others have for it, and for those behind it, is under way.
#[test]
fn a_member_that_is_stopped_for_three_seconds_at_the_end_gets_all() {
    for (cables, stopped) in [(RING, 3), (LINE, 3), (LINE, 1)] {
        let mut all = Parting::new(cables, ms(10_000));
        all.says(stopped);
        assert!(!all.run(ms(100)));
        all.world.member(stopped).is_stopped = true;
        (0..4).filter(|at| *at != stopped).for_each(|at| all.says(at));
        assert!(!all.run(ms(3000)));
        let is_there = all.world.members.iter().all(Option::is_some);
        assert!(
            is_there && !all.has_heard(stopped),
            "{stopped}: {:?}",
            all.leaving
        );
        all.world.member(stopped).is_stopped = false;
        assert!(all.run(ms(1000)), "{stopped}: {:?}", all.leaving);
        all.checked();
    }
}

#[test]
fn a_member_that_never_goes_on_is_waited_for_until_the_deadline() {
    let mut all = Parting::new(LINE, ms(5000));
    all.says(3);
    assert!(!all.run(ms(100)));
    all.world.member(3).is_stopped = true;
    (0..3).for_each(|at| all.says(at));
    assert!(!all.run(ms(4800)));
    assert!(all.world.members.iter().all(Option::is_some));
    all.run(ms(300));
    assert!(all.world.members[..3].iter().all(Option::is_none));
    for failed in &all.failed[..3] {
        assert!(matches!(failed, Some(GroupError::TimedOut)), "{failed:?}");
    }
}

#[test]
fn a_member_that_is_lost_at_the_end_holds_nobody_up_until_the_deadline() {
    let mut all = Parting::new(RING, ms(60_000));
    all.says(3);
    assert!(!all.run(ms(100)));
    all.world.members[3] = None;
    (0..3).for_each(|at| all.says(at));
    let lost = LinkConfig::default().session.recover_within + config(0, 4, 1).resend_after * 2;
    assert!(all.run(lost + ms(1000)), "{:?}", all.leaving);
    for to in 0..3 {
        assert!(
            all.has_heard(to) && matches!(all.failed[to], Some(GroupError::Collective(_))),
            "{:?}",
            all.failed
        );
    }
}

/// The others may have messages to pass through it.
#[test]
fn a_member_that_is_alone_goes_after_the_time_in_which_a_message_is_sent_again_twice() {
    let mut world = World::made(2, &[(0, 1)], "", |at| config(at, 2, 1));
    world.joined();
    let deadline = Deadline::after(world.fabric.now(), ms(60_000));
    let group = Group::new(&mut world.member(0).mesh).unwrap();
    let mut leaving = group.leave(deadline);
    world.members[1] = None;
    let (mut until, mut ended) = (None, None);
    world.run_in_steps(ms(5000), ms(1), |world| {
        let now = world.fabric.now();
        let member = world.member(0);
        let outcome = leaving.poll(&member.node, &mut member.mesh);
        if until.is_none() && leaving.wake() < deadline {
            until = Some(leaving.wake());
            assert_eq!(
                until,
                Some(Deadline::after(now, config(0, 2, 1).resend_after * 2))
            );
        }
        ended = outcome.err().map(|error| (now, error));
        ended.is_some()
    });
    let (at, error) = ended.unwrap();
    assert!(matches!(error, GroupError::Collective(_)), "{error:?}");
    let until = until.unwrap().instant();
    assert!((until..=until.after(ms(1))).contains(&at), "{at:?} {until:?}");
}

#[test]
fn members_of_which_one_left_in_vain_leave_with_another_group() {
    let mut world = World::made(2, &[(0, 1)], "", |at| config(at, 2, 1));
    world.joined();
    let soon = Deadline::after(world.fabric.now(), ms(100));
    let groups = [0, 1].map(|at| Group::new(&mut world.member(at).mesh).unwrap());
    let [alone, _] = groups;
    let mut leaving = alone.leave(soon);
    let mut ended = None;
    world.run_in_steps(ms(200), ms(1), |world| {
        let member = world.member(0);
        ended = leaving.poll(&member.node, &mut member.mesh).err();
        ended.is_some()
    });
    assert!(matches!(ended, Some(GroupError::TimedOut)), "{ended:?}");
    assert!(world.fabric.now() >= soon.instant());
    let later = Deadline::after(world.fabric.now(), ms(60_000));
    let mut both = [0, 1].map(|at| Group::new(&mut world.member(at).mesh).unwrap().leave(later));
    let mut has_left = [false; 2];
    let all = world.run(ms(300), |world| {
        for (at, leaving) in both.iter_mut().enumerate() {
            if has_left[at] {
                continue;
            }
            let member = world.member(at);
            has_left[at] = leaving.poll(&member.node, &mut member.mesh).unwrap();
        }
        has_left == [true; 2]
    });
    assert!(all, "{both:?}");
}

#[test]
fn a_collective_after_a_leaving_in_vain_ends_when_a_member_is_lost() {
    let mut world = World::new(4, RING, "");
    world.joined();
    let soon = Deadline::after(world.fabric.now(), ms(100));
    let mut groups: Vec<_> = (0..4)
        .map(|at| Group::new(&mut world.member(at).mesh).unwrap())
        .collect();
    // This one does not leave.
    groups.truncate(3);
    let mut leaving: Vec<_> = groups.into_iter().map(|group| Some(group.leave(soon))).collect();
    let is_in_vain = world.run_in_steps(ms(200), ms(1), |world| {
        for (at, leaving) in leaving.iter_mut().enumerate() {
            let member = world.member(at);
            if let Some(Err(error)) = leaving.as_mut().map(|it| it.poll(&member.node, &mut member.mesh)) {
                assert!(matches!(error, GroupError::TimedOut), "{error}");
                *leaving = None;
            }
        }
        leaving.iter().all(Option::is_none)
    });
    assert!(is_in_vain, "{leaving:?}");
    let mut all = Everyone::begin(&mut world, Collective::AllGather, 4);
    world.members[3] = None;
    assert!(
        world.run(ms(20_000), |world| all.poll(world)),
        "somebody waits for ever"
    );
    for failed in &all.failed[..3] {
        assert_eq!(failed.as_ref().and_then(lost_of), Some(rank(3)), "{failed:?}");
    }
}

/// Rank 3 lacks a message of rank 4, and learns that no way leads there any more before rank 1 closes its link, too.
#[test]
fn a_member_that_sees_another_go_knows_that_all_came_even_if_one_is_out_of_reach() {
    const CABLES: &[(usize, usize)] = &[(2, 4), (2, 0), (2, 1), (1, 3)];
    let mut world = World::new(5, CABLES, "");
    world.joined();
    let deadline = Deadline::after(world.fabric.now(), ms(60_000));
    let mut leaving: Vec<_> = (0..5)
        .map(|at| Some(Group::new(&mut world.member(at).mesh).unwrap().leave(deadline)))
        .collect();
    // One message of the last member is on its way, and it sends no other.
    world.run_in_steps(ms(20), ms(1), |world| {
        let member = world.member(4);
        let last = leaving[4].as_mut().unwrap();
        assert!(!last.poll(&member.node, &mut member.mesh).unwrap());
        false
    });
    world.member(4).is_stopped = true;
    let mut turn = 0_u32;
    let have_left = world.run_in_steps(ms(5000), ms(1), |world| {
        turn += 1;
        // Rank 1 announces that rank 2 is gone some time before it goes itself.
        for at in (0..4).filter(|at| *at != 1 || turn % 20 == 0) {
            let member = world.member(at);
            let left = leaving[at]
                .as_mut()
                .map(|leaving| leaving.poll(&member.node, &mut member.mesh));
            if left.is_some_and(|left| left.unwrap_or_else(|error| panic!("rank {at}: {error}"))) {
                leaving[at] = None;
            }
        }
        [0, 1, 3].iter().all(|at| leaving[*at].is_none())
    });
    assert!(have_left, "{leaving:?}");
}
