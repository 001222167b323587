//! The sleepy profile: hosts that sleep, messages in every way there is, and little memory; or requests and answers.

use doorbell_sim::Random;

use crate::case::{Case, Device, HostCase, LineCase, Operation, Order, Scene, What};
use crate::generate::quick::{one_of, ordinal, panics_every, pass, pick, probe_timeouts_ms};
use crate::generate::requests;
use crate::sleepy::case::{SleepAct, SleepCase, Way};

/// How many cases are of hosts that ask and answer.
const ASKING_PER_MILLION: u32 = 350_000;

/// Draws a case of this profile.
pub(crate) fn case(random: &mut Random) -> Case {
    if random.happens(ASKING_PER_MILLION) {
        return requests::case(random);
    }
    let hosts = 2 + pick(random, 2);
    let lines: Vec<LineCase> = (0..1 + pick(random, 3)).map(|_| line(random, hosts)).collect();
    let submitters = one_of(random, &[[0, 0], [1, 0], [2, 0], [2, 2], [0, 2], [3, 0]]);
    let hosts: Vec<HostCase> = (0..hosts).map(|number| host(random, &lines, number)).collect();
    let plan = plan(random, hosts.len());
    Case {
        seed: random.draw(),
        // One that repeats, or lets what is late vanish, is told of as channels fail: that is for the quick profile.
        device: one_of(random, &[Device::Iba, Device::Rxe612, Device::Rxe7, Device::Mlx5]),
        latency_ns: 100 + random.below(20_000),
        bandwidth_mbps: 10_000 << random.below(4),
        operations: operations(random, lines.len(), submitters),
        hosts,
        lines,
        plan,
        links: None,
        classes: None,
        panics_every: panics_every(random),
        endings: None,
        call_ns: 0,
        handler_ns: 0,
        scene: Some(Scene::Sleep(SleepCase {
            is_solicited: random.happens(200_000),
            probe_after_ns: one_of(random, &[20_000_000, 200_000_000, 1_000_000_000]),
            probe_timeouts_ms: probe_timeouts_ms(random),
            lease_share_percent: one_of(random, &[5, 12, 50]),
            submissions_per_poll: one_of(random, &[1, 2, 5, 64]),
            submitters,
            submitter: [one_of(random, &[2, 4, 16]), one_of(random, &[1, 2, 4, 8])],
            // More than the lines leave unsignaled, of which nobody is told.
            half_slots: one_of(random, &[12, 32]),
        })),
    }
}

/// Seven in ten go without faults. In others a port is down for a while, or a device refuses a request now and then, whole
/// doorbells or the rest of one.
fn plan(random: &mut Random, hosts: usize) -> String {
    let host = pick(random, hosts);
    match random.below(20) {
        0..3 => format!(
            "at {}ns port h{host} down for {}ms",
            10_000_000 + random.below(100_000_000),
            1 + random.below(3000)
        ),
        3..6 => format!(
            "fail every {} post of h{host} with 12",
            ordinal(2 + random.below(30))
        ),
        _ => String::new(),
    }
}

fn line(random: &mut Random, hosts: usize) -> LineCase {
    let from = pick(random, hosts);
    LineCase {
        hosts: [from, (from + 1 + pick(random, hosts - 1)) % hosts],
        rings: None,
        listening: None,
        send_depth: one_of(random, &[2, 4, 8, 16]),
        receive_depths: [(); 2].map(|()| one_of(random, &[1, 2, 4, 8, 16])),
        repost_batch: one_of(random, &[1, 2, 4, 16]),
        unsignaled_max: one_of(random, &[0, 0, 1, 3]),
        inline_bytes_max: one_of(random, &[0, 64, 220]),
        inline_alone_bytes_max: one_of(random, &[0, 64]),
        cell_bytes: one_of(random, &[0, 64, 256]),
        rd_atomic_max: 1,
        timeout: 12 + random.below(2) as u8,
        retry_count: 3 + random.below(4) as u8,
        is_probed_late: random.happens(250_000),
    }
}

/// A third has few slots more than its receives take.
fn host(random: &mut Random, lines: &[LineCase], number: usize) -> HostCase {
    let ends = lines
        .iter()
        .flat_map(|line| line.hosts.iter().zip(line.receive_depths));
    let receives: u32 = ends
        .filter(|(host, _)| **host == number)
        .map(|(_, depth)| depth)
        .sum();
    let shared_receives = random.happens(200_000).then_some(receives.max(1));
    let slots = one_of(random, &[2 * receives + 8, 200, 400]);
    HostCase {
        subnets: 1,
        mtu_bytes: one_of(random, &[256, 1024, 4096]),
        slots: slots + 2 * shared_receives.unwrap_or(0),
        slot_bytes: one_of(random, &[256, 1024]),
        shared_receives,
        order: Order::WholeMessage,
        speeds_mbps: [100_000; 2],
        links: None,
        transfers: None,
    }
}

fn operations(random: &mut Random, lines: usize, submitters: [usize; 2]) -> Vec<Operation> {
    let may_split = random.happens(400_000);
    let may_close = random.happens(400_000);
    let may_hold = random.happens(400_000);
    let submitters = submitters.iter().sum::<usize>() as u64;
    let act = |random: &mut Random| {
        let way = match random.below(5) {
            0 => Way::Own,
            1 => Way::Batch,
            2 => Way::Deferred,
            _ if submitters == 0 => Way::Own,
            _ => Way::Submitter(random.below(submitters) as u8),
        };
        match random.below(100) {
            0..45 => {
                let count_most = one_of(random, &[1, 4, 40]);
                What::Sleep(SleepAct::Send {
                    count: 1 + random.below(count_most) as u8,
                    way,
                    bytes: 24 + random.below(400) as u16,
                    is_solicited: random.happens(500_000),
                })
            }
            45 => What::Sleep(SleepAct::Race { count: 120 }),
            46..49 if may_hold => What::Sleep(SleepAct::Hold {
                count: 1 + random.below(20) as u8,
            }),
            49..52 => What::Sleep(SleepAct::LetGo),
            52 if may_close => What::Sleep(SleepAct::Close {
                within_ns: random.below(2_000_000),
            }),
            53..57 if may_split => What::Sleep(SleepAct::Split),
            57..60 if may_split => What::Sleep(SleepAct::Join),
            60 if may_close => What::Sleep(SleepAct::DropSubmitter {
                which: random.below(8) as u8,
            }),
            61..64 => What::Sleep(SleepAct::Wait {
                spins: random.below(20) as u8,
                ns: 1 + random.below(3_000_000),
            }),
            _ => pass(random, &[2_000, 50_000, 3_000_000, 100_000_000]),
        }
    };
    let operations = (0..40 + pick(random, 120)).map(|_| Operation {
        line: pick(random, lines),
        end: pick(random, 2),
        what: act(random),
    });
    operations.collect()
}
