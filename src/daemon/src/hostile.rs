//! Plays a hostile process and a hostile peer daemon from arbitrary bytes: attach packets, words of rings, operations on arenas, and
//! frames. It also parses arbitrary bytes as the status of a hostile daemon. Tests and the fuzzer use it.

use std::collections::VecDeque;

use core::sync::atomic::Ordering;

use doorbell::RemoteAccess;
use doorbell::interprocess::{SharedBytes as _, SharedWords as _};

use crate::endpoint::{Endpoint, EndpointEvent};
use crate::frame::Frame;
use crate::layout::EndpointLayout;
use crate::name::{Credentials, EndpointAddress, JobKey, JobNumber, NodeNumber};
use crate::one_sided::{ArenaGrant, ArenaOperation, ArenaRange, Asked};
use crate::packet::{AttachRequest, Packet};
use crate::reason::GoneReason;
use crate::router::{ClientId, Router, RouterLimits};
use crate::status::DaemonStatus;

/// The words of both rings of 4 slots, and one more, which is out of bounds.
const WORDS: usize = 2 * (32 + 4 * 8) + 1;

/// The size of each arena, and the range of the first one that is granted to the villain.
const ARENA_BYTES: usize = 4096;
const GRANTED: core::ops::Range<usize> = 64..128;

/// Runs a router with three honest processes, and a hostile one whose actions the bytes determine. It is in the job of the first two.
///
/// # Panics
/// A guarantee is violated: an honest process is cut off, or its messages are lost, duplicated, reordered or read by another job. Or an
/// atomic addition is not executed exactly once, or a byte of an arena is written without a grant.
pub fn check(bytes: &[u8]) {
    // A valid packet is encoded again as it was.
    if let Ok(packet) = Packet::parse(bytes) {
        assert_eq!(packet.bytes(), bytes);
    }
    if let Ok((frame, payload)) = Frame::parse(bytes) {
        assert_eq!(frame.bytes(), bytes[..bytes.len() - payload.len()]);
    }
    if let Some((asked, payload)) = Asked::parse(bytes) {
        assert_eq!(asked.to_bytes(), bytes[..bytes.len() - payload.len()]);
    }
    let mut bytes: VecDeque<u8> = bytes.iter().copied().collect();
    let mut world = World::new();
    let mut next = || bytes.pop_front();
    while let Some(what) = next() {
        let mut word = || {
            let low = next().unwrap_or(0);
            let high = next().unwrap_or(0);
            // Small numbers, numbers with a kind in the upper half, and large numbers.
            match high & 3 {
                0 => u64::from(low),
                1 => 1 << 32 | u64::from(low),
                2 => u64::MAX - u64::from(low),
                _ => u64::from(high) << 56 | u64::from(low) << 32,
            }
        };
        match what & 7 {
            0 | 1 => {
                let at = usize::from(what >> 3) + 32 * (word() as usize % 5);
                let value = word();
                if let Some(word) = world.villain.rings().word(at % WORDS) {
                    word.store(value, Ordering::Relaxed);
                }
            }
            2 => {
                // A valid message, of any length and to any endpoint.
                let to = address((what >> 3).into(), word() as u32);
                let _ = world.villain.send(to, &[1; 64][..word() as usize % 65]);
                world.villain.flush();
            }
            3 if what & 8 != 0 => {
                let _ = world.villain.poll(|_| {});
            }
            3 => {
                // A valid operation at any offset of the first arena, by any grant.
                let range = ArenaRange {
                    offset: 0,
                    bytes: word() as usize % 129,
                };
                let operation = match what >> 4 {
                    0 | 1 => ArenaOperation::Write(range),
                    2 | 3 => ArenaOperation::WriteWithImmediate(range, 7),
                    4..=6 => ArenaOperation::Read(range),
                    7..=10 => ArenaOperation::FetchAndAdd(word()),
                    _ => ArenaOperation::CompareAndSwap {
                        compare: word(),
                        swap: word(),
                    },
                };
                let mut grant = world.grants[usize::from(what >> 7)];
                grant.place.generation ^= u32::from(word() == 3);
                let _ = world.villain.request(&grant, word(), &operation);
                world.villain.flush();
            }
            4 => {
                let frame: Vec<u8> = (0..what >> 2).map(|_| word() as u8).collect();
                let _ = world.router.take_frame(NodeNumber(1), &frame);
            }
            5 => drop(world.router.send_frames(|_, _, _| what & 8 != 0)),
            _ => world.step(),
        }
    }
    world.end();
}

/// Parses any bytes as a status from an untrusted daemon. Returns it for a program that shows it.
///
/// # Panics
/// The status is encoded differently than it was read, or endpoints that are left out are not counted.
pub fn check_status(bytes: &[u8]) -> Option<DaemonStatus> {
    let status = DaemonStatus::parse(bytes)?;
    assert_eq!(status.clone().write(usize::MAX).as_deref(), Some(bytes));
    let mut short = status.clone();
    if let Some(fewer) = short.write(bytes.len() / 2) {
        assert!(fewer.len() <= bytes.len() / 2, "{}", fewer.len());
        let gone = status.endpoints.len().saturating_sub(short.endpoints.len());
        assert_eq!(short.left_out, status.left_out.saturating_add(gone as u64));
        assert_eq!(DaemonStatus::parse(&fewer), Some(short));
    }
    Some(status)
}

fn address(node: u32, endpoint: u32) -> EndpointAddress {
    EndpointAddress {
        node: NodeNumber(node),
        endpoint,
    }
}

struct World {
    router: Router,
    villain: Endpoint,
    villain_id: ClientId,
    /// Two processes of the villain's job, and one of another job.
    honest: [Endpoint; 3],
    sent: u64,
    /// The next message that the second and the third process expect.
    expected: [u64; 2],
    /// Grants of the first process: to the villain, and to the second process, which uses it for additions.
    grants: [ArenaGrant; 2],
    /// Additions of the second process: requested, and completed.
    added: [u64; 2],
}

impl World {
    fn new() -> Self {
        let mut router = Router::new(NodeNumber(0), &RouterLimits::default());
        router.add_node(NodeNumber(1), 2);
        let mut attach = |job: u64, number: u32| {
            let layout = EndpointLayout::new(4, 64).and_then(|layout| layout.with_arena(ARENA_BYTES as u64));
            let layout = layout.expect("a layout");
            let mut ours = Endpoint::new(layout).expect("memory");
            ours.set_name(address(0, number), job);
            let memory = layout.adopt(&ours.descriptors());
            let request = AttachRequest {
                job: JobNumber(job),
                key: JobKey([0; 16]),
                endpoint: number,
                layout,
            };
            let who = Credentials {
                uid: 0,
                gid: 0,
                pid: None,
            };
            let id = router.attach(who, &request, memory.expect("memory in order"));
            (ours, id.expect("a place"))
        };
        let (villain, villain_id) = attach(1, 3);
        let mut honest = [attach(1, 0).0, attach(1, 1).0, attach(2, 1).0];
        let mut grant = |to, range: core::ops::Range<usize>| {
            let range = ArenaRange {
                offset: range.start,
                bytes: range.len(),
            };
            honest[0]
                .grant(address(0, to), range, RemoteAccess::ALL)
                .expect("room")
        };
        let grants = [grant(3, GRANTED), grant(1, 8..16)];
        honest[0].flush();
        router.poll(|_| {});
        Self {
            router,
            villain,
            villain_id,
            honest,
            sent: 0,
            expected: [0; 2],
            grants,
            added: [0; 2],
        }
    }

    /// Advances the honest processes: the first sends to the second, and the third to itself.
    fn step(&mut self) {
        let message = self.sent.to_le_bytes();
        let [first, second, third] = &mut self.honest;
        let is_sent = first.has_room() == Ok(true) && third.has_room() == Ok(true);
        if is_sent {
            first.send(address(0, 1), &message).expect("room");
            third.send(address(0, 1), &message).expect("room");
            self.sent += 1;
        }
        if second
            .request(&self.grants[1], 0, &ArenaOperation::FetchAndAdd(1))
            .is_ok()
        {
            self.added[0] += 1;
        }
        first.flush();
        second.flush();
        third.flush();
        self.router.poll(|_| {});
        while let Some((id, ..)) = self.router.take_cut() {
            assert_eq!(id, self.villain_id, "an honest process is cut off");
        }
        // The villain and the peer daemon may send anything, but not under the name of another endpoint.
        first.poll(|_| {}).expect("an honest daemon");
        let added = &mut self.added[1];
        for (reader, expected) in [second, third].into_iter().zip(&mut self.expected) {
            let read = reader.poll(|event| match event {
                EndpointEvent::Received { from, message }
                    if from == address(0, 0) || from == address(0, 1) =>
                {
                    assert_eq!(message, expected.to_le_bytes(), "lost, doubled or out of order");
                    *expected += 1;
                }
                EndpointEvent::Received { from, .. } => {
                    assert!(from == address(0, 3) || from.node == NodeNumber(1), "{from}");
                }
                EndpointEvent::Gone { who, reason } => {
                    assert!(
                        who.node == NodeNumber(1) || (who, reason) == (address(0, 3), GoneReason::CutOff)
                    );
                }
                EndpointEvent::Completed { value, .. } => {
                    assert_eq!(value, *added, "an addition twice, or never");
                    *added += 1;
                }
                EndpointEvent::Undelivered { .. } => panic!("a message to a process that is there"),
                event => panic!("{event:?}, and nothing was granted"),
            });
            read.expect("an honest daemon");
        }
        for (index, process) in self.honest.iter().enumerate() {
            let mut bytes = [0; ARENA_BYTES];
            assert!(process.arena().expect("an arena").copy_out(0, &mut bytes));
            if index == 0 {
                bytes[GRANTED].fill(0);
                bytes[8..16].fill(0);
            }
            assert!(bytes.iter().all(|byte| *byte == 0), "written without a grant");
        }
    }

    fn end(mut self) {
        for _ in 0..20 {
            self.step();
        }
        // Each ring has four slots.
        assert!(
            self.expected
                .iter()
                .all(|expected| expected + 8 >= self.sent && *expected > 0),
            "{:?} of {}",
            self.expected,
            self.sent
        );
        assert!(
            self.added[1] + 8 >= self.added[0] && self.added[1] > 0,
            "{:?}",
            self.added
        );
        self.router.detach(self.villain_id, GoneReason::Died);
    }
}

#[cfg(test)]
mod tests {
    use super::{check, check_status};
    use crate::replay::{folder, replay};
    use crate::status::tests::status;
    use crate::tests::world::Chance;

    #[test]
    fn every_seed_keeps_the_promises() {
        if std::env::var_os("DOORBELL_WRITE_SEEDS").is_some() {
            std::fs::create_dir_all(folder("daemon")).unwrap();
            for (name, bytes) in seeds() {
                std::fs::write(folder("daemon").join(name), bytes).unwrap();
            }
        }
        replay("daemon", check);
    }

    /// An attach packet, a frame, and what a villain does: an index that jumps, a descriptor of zeros, one that is too long, messages.
    fn seeds() -> Vec<(&'static str, Vec<u8>)> {
        let packet = crate::packet::tests::packets()[0].bytes().to_vec();
        let frame = crate::frame::Frame::hello(1, 2, 3).bytes().to_vec();
        vec![
            ("attach", packet),
            ("frame", frame),
            ("index", vec![7, 0, 0, 0, 9, 0, 7, 7]),
            ("zeros", vec![7, 0, 0, 0, 1, 0, 7, 7]),
            ("length", vec![0, 1, 0, 65, 1, 0, 0, 0, 1, 0, 7]),
            (
                "messages",
                vec![2, 1, 0, 64, 0, 7, 10, 1, 0, 11, 0, 7, 5, 13, 11, 7],
            ),
            (
                "operations",
                vec![
                    3, 64, 0, 0, 0, 0, 0, 7, 35, 8, 0, 0, 0, 56, 0, 7, 67, 64, 0, 0, 0, 0, 0, 11, 7, 115, 8,
                    0, 1, 0, 0, 0, 8, 0, 7, 7, 163, 9, 0, 1, 0, 3, 0, 7,
                ],
            ),
            ("beyond", vec![3, 65, 0, 0, 0, 0, 0, 7, 3, 8, 0, 0, 0, 0, 2, 7, 7]),
        ]
    }

    #[test]
    fn every_seed_of_a_status_is_read_as_it_is_written_or_refused() {
        let seeds = seeds_of_a_status();
        for (name, bytes, is_status) in &seeds {
            if std::env::var_os("DOORBELL_WRITE_SEEDS").is_some() {
                std::fs::create_dir_all(folder("daemon_status")).unwrap();
                std::fs::write(folder("daemon_status").join(name), bytes).unwrap();
            }
            assert_eq!(check_status(bytes).is_some(), *is_status, "{name}");
        }
        replay("daemon_status", |bytes| drop(check_status(bytes)));
        // Replaces each word by other values.
        let whole = &seeds[0].1;
        for at in (0..whole.len()).step_by(8) {
            for word in [0, 1, 2, 3, 1 << 32, u64::MAX] {
                let mut changed = whole.clone();
                changed[at..at + 8].copy_from_slice(&word.to_be_bytes());
                check_status(&changed);
            }
        }
    }

    /// A status, one that is too short for all entries, one of a daemon without entries, and invalid bytes.
    fn seeds_of_a_status() -> Vec<(&'static str, Vec<u8>, bool)> {
        let whole = status().write(usize::MAX).unwrap();
        let fewer = status().write(whole.len() - 8).unwrap();
        let mut idle = status();
        (idle.refused, idle.cut, idle.nodes) = (Vec::new(), Vec::new(), Vec::new());
        (idle.jobs, idle.endpoints) = (Vec::new(), Vec::new());
        let idle = idle.write(usize::MAX).unwrap();
        let mut endless = idle.clone();
        let last = endless.len() - 8;
        endless[last..].fill(0xff);
        let (mut other, mut cut) = (idle.clone(), whole.clone());
        other[7] += 1;
        cut.truncate(whole.len() - 3);
        vec![
            ("whole", whole, true),
            ("fewer", fewer, true),
            ("idle", idle, true),
            ("endless", endless, false),
            ("other_version", other, false),
            ("cut", cut, false),
        ]
    }

    #[test]
    fn any_bytes_keep_the_promises() {
        let mut chance = Chance::new(7);
        for _ in 0..200 {
            let length = chance.below(200);
            check(&(0..length).map(|_| chance.word() as u8).collect::<Vec<_>>());
        }
    }
}
