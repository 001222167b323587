//! The hostile profile: one host lies by script, or speaks by the document.

use doorbell_sim::Random;

use crate::case::{Case, Device, HostCase, LineCase, Operation, Order, Scene, What};
use crate::generate::quick::{one_of, pick};
use crate::hostile::case::{HostileAct, HostileCase};

/// Draws a case of this profile.
pub(crate) fn case(random: &mut Random) -> Case {
    let line = LineCase {
        hosts: [1, 0],
        rings: None,
        listening: None,
        send_depth: one_of(random, &[2, 4, 16]),
        receive_depths: [one_of(random, &[1, 2, 8]), one_of(random, &[1, 2, 5, 8])],
        repost_batch: one_of(random, &[1, 2]),
        unsignaled_max: 0,
        inline_bytes_max: one_of(random, &[0, 64, 220]),
        inline_alone_bytes_max: one_of(random, &[0, 64]),
        cell_bytes: 0,
        rd_atomic_max: one_of(random, &[1, 4]),
        timeout: 12,
        retry_count: 6,
        is_probed_late: false,
    };
    let mut second = line.clone();
    second.hosts = [2, 0];
    Case {
        seed: random.draw(),
        device: one_of(random, &[Device::Iba, Device::Rxe612, Device::Rxe7, Device::Mlx5]),
        latency_ns: 100 + random.below(20_000),
        bandwidth_mbps: 10_000 << random.below(4),
        hosts: (0..4).map(|_| host(random)).collect(),
        operations: operations(random),
        lines: vec![line, second],
        plan: String::new(),
        links: None,
        classes: None,
        panics_every: 0,
        endings: None,
        call_ns: 0,
        handler_ns: 0,
        scene: Some(Scene::Hostile(HostileCase {
            receives: one_of(random, &[1, 2, 3, 8]),
            start: one_of(random, &[0, 5, u32::MAX, u32::MAX - 3, 0x6661_7265]),
            stage_ns: one_of(random, &[600_000_000, 1_500_000_000]),
        })),
    }
}

fn host(random: &mut Random) -> HostCase {
    HostCase {
        subnets: 1,
        mtu_bytes: one_of(random, &[256, 1024]),
        slots: 200,
        slot_bytes: one_of(random, &[64, 256]),
        shared_receives: None,
        order: Order::WholeMessage,
        speeds_mbps: [100_000; 2],
        links: None,
        transfers: None,
    }
}

fn operations(random: &mut Random) -> Vec<Operation> {
    let act = |random: &mut Random| {
        let byte = random.below(256) as u8;
        match random.below(100) {
            0..20 => HostileAct::Honest {
                count: random.below(4) as u8,
            },
            20..45 => HostileAct::Lie { number: byte },
            45..60 => HostileAct::Noise {
                says: random.below(3) as u8,
                number: byte,
            },
            60..68 => HostileAct::Other,
            68..76 => HostileAct::OtherSends { count: byte % 20 },
            76..84 => HostileAct::OtherIsSent { count: byte % 20 },
            84..89 => HostileAct::OtherPosts,
            89..93 => HostileAct::OtherLies { how: byte },
            93..97 => HostileAct::OtherLeaves { how: byte },
            _ => HostileAct::OtherIsLeft,
        }
    };
    let operations = (0..20 + pick(random, 60)).map(|_| Operation {
        line: pick(random, 2),
        end: 0,
        what: What::Hostile(act(random)),
    });
    operations.collect()
}
