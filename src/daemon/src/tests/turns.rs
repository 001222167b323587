//! Parts of a router's turn that no message shows: whom it wakes, and the memory that it maps.

use std::fs::File;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt as _;

use doorbell::interprocess::{SharedWords as _, announce_sleep};

use super::world::{World, at, request, user};
use crate::endpoint::Endpoint;
use crate::layout::{CLIENT_SLEEPS, EndpointLayout};
use crate::name::NodeNumber;
use crate::router::{Router, RouterLimits};

#[test]
fn a_client_that_sleeps_is_woken_for_a_report_for_room_and_for_both_at_once() {
    for (sends, receives) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut world = World::new(1);
        let [sleeper, sender, receiver] = [0, 1, 2].map(|endpoint| world.attach(0, 1, endpoint).unwrap());
        world.settle();
        let sent = [(sleeper, 2, sends), (sender, 0, receives)];
        for (from, to, _) in sent.into_iter().filter(|(.., is_sent)| *is_sent) {
            assert!(world.send(from, at(0, to), 0));
            world.processes[from].endpoint.flush();
        }
        let flag = world.processes[sleeper].endpoint.rings().flag(CLIENT_SLEEPS);
        announce_sleep(flag.unwrap());
        let mut woken = Vec::new();
        let is_moved = world.routers[0].poll(|id| woken.push(id));
        let id = world.processes[sleeper].id;
        let right = if sends || receives { vec![id] } else { Vec::new() };
        assert_eq!(
            (woken, is_moved),
            (right, sends || receives),
            "{sends} {receives}"
        );
        let flag = world.processes[sleeper].endpoint.rings().flag(CLIENT_SLEEPS);
        announce_sleep(flag.unwrap());
        let mut woken = 0;
        assert!(!world.routers[0].poll(|_| woken += 1));
        assert_eq!(woken, 0, "there is nothing more");
        world.settle();
        assert_eq!(world.processes[receiver].received, sends.into());
        assert_eq!(world.processes[sleeper].received, receives.into());
    }
}

/// The bytes of a memfd that are in this process's page tables, over all its mappings.
fn mapped(memory: BorrowedFd<'_>) -> u64 {
    let file = File::from(memory.try_clone_to_owned().unwrap());
    let inode = file.metadata().unwrap().ino().to_string();
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let (mut is_it, mut kib) = (false, 0);
    for line in maps.lines() {
        let words: Vec<_> = line.split_whitespace().collect();
        match words[..] {
            ["Rss:", of_mapping, "kB"] if is_it => kib += of_mapping.parse::<u64>().unwrap(),
            // The range, its rights, an offset, a device, the inode, and a name.
            [range, _, _, _, of_mapping, ref name @ ..] if range.contains('-') => {
                is_it = of_mapping == inode && name.first().is_some_and(|name| name.starts_with("/memfd:"));
            }
            _ => {}
        }
    }
    kib << 10
}

/// Whether this kernel puts pages into the page table ahead of their first touch.
fn is_populating() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit());
    let mut number = || {
        numbers
            .next()
            .and_then(|number| number.parse::<u32>().ok())
            .unwrap_or(0)
    };
    (number(), number()) >= (5, 14)
}

/// Attaches clients with these layouts to a router. Returns the bytes of the cells and the arena of each that it maps, before its first turn
/// and after each of its turns.
fn mapped_by_turns<const CLIENTS: usize>(layouts: [EndpointLayout; CLIENTS]) -> Vec<[Vec<u64>; CLIENTS]> {
    let mut router = Router::new(NodeNumber(0), &RouterLimits::default());
    let clients = layouts.map(|layout| Endpoint::new(layout).unwrap());
    let all = || {
        let mut clients = clients.iter();
        [(); CLIENTS].map(|()| {
            let descriptors = clients.next().unwrap().descriptors();
            descriptors[1..]
                .iter()
                .map(|memory| mapped(*memory))
                .collect::<Vec<_>>()
        })
    };
    // By the clients themselves.
    let own = all();
    for (endpoint, (client, layout)) in (0..).zip(clients.iter().zip(layouts)) {
        let mut request = request(1, endpoint);
        request.layout = layout;
        let memory = layout.adopt(&client.descriptors()).unwrap();
        router.attach(user(1), &request, memory).unwrap();
    }
    let by_router = || {
        let mut own = own.iter().flatten();
        all().map(|of| of.into_iter().map(|bytes| bytes - own.next().unwrap()).collect())
    };
    let mut turns = vec![by_router()];
    while router.poll(|_| {}) {
        turns.push(by_router());
        assert!(turns.len() < 50, "{turns:?}");
    }
    turns
}

#[test]
fn memory_of_new_clients_is_mapped_part_by_part_and_in_turn() {
    const PART: u64 = 256 << 10;
    if !is_populating() {
        eprintln!("SKIPPED: populating of pages: this kernel is older than Linux 5.14");
        return;
    }
    // Two whole parts of cells, and one and a half of the arena, which begins with a part of its own.
    let cells = EndpointLayout::new(32, 8192).unwrap();
    let both = cells.with_arena(PART + PART / 2).unwrap();
    let parts = |turns: u64| {
        let in_cells = turns.min(2) * PART;
        vec![in_cells, (turns.saturating_sub(2) * PART).min(PART + PART / 2)]
    };
    let mut right = vec![[parts(0), parts(0)]];
    for turn in 0..5 {
        // The fifth finds nothing more.
        right.push([parts(turn + 1), parts(turn)]);
        right.push([parts(turn + 1), parts(turn + 1)]);
    }
    assert_eq!(mapped_by_turns([both, both]), right);
    let without_arena = [0, 1, 2, 2].map(|turns| [vec![turns * PART]]);
    assert_eq!(mapped_by_turns([cells]), without_arena);
}
