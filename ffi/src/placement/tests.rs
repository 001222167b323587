//! Tests on the machine as it is. A feature that it lacks is skipped aloud; a request that it must refuse is
//! tested.

use std::process::Command;

use doorbell_core::provider::{
    MemoryError, NumaNode, Pages, Placement, PlacementConfig, ProviderError, Shortfall, Step, Wish,
};

use super::{Mapping, page_bytes, place, verify};
use crate::{kernel_view, page_faults};

/// Nothing is wished for.
fn nothing() -> PlacementConfig {
    Placement::unplaced(0, 0).asked
}

/// Writes a byte of every page, as an application would.
fn write_all(mapping: &Mapping) {
    for offset in (0..mapping.bytes()).step_by(page_bytes()) {
        // SAFETY: within the mapping.
        let place = unsafe { mapping.base().add(offset) };
        // SAFETY: mapped writable, and ours alone.
        unsafe { place.write_volatile(1) };
    }
}

#[test]
fn memory_is_in_place_before_it_is_used() {
    let mut whole = nothing();
    whole.pages = Pages::TransparentHuge;
    for config in [nothing(), whole, PlacementConfig::DEFAULT] {
        let (mapping, report) = place(5 << 20, &config, None).unwrap();
        // The memory that the loop itself needs is in place from here on.
        let (warm, _) = place(1 << 20, &nothing(), None).unwrap();
        write_all(&warm);
        let before = page_faults::minor();
        write_all(&mapping);
        assert_eq!(page_faults::minor() - before, 0, "{report}");
        match report.seen {
            Some(seen) => assert_eq!(seen.resident_bytes, report.mapped_bytes, "{report}"),
            None => eprintln!("SKIPPED: what the kernel shows: no /proc/self/smaps"),
        }
    }
}

#[test]
fn neighbours_are_distinguished() {
    let mappings: Vec<_> = (0..8)
        .map(|_| place(64 << 10, &nothing(), None).unwrap())
        .collect();
    if kernel_view::look(0, 0).is_none() && std::fs::metadata("/proc/self/smaps").is_err() {
        eprintln!("SKIPPED: neighbours_are_distinguished: no /proc/self/smaps");
        return;
    }
    for (mapping, report) in &mappings {
        assert_eq!(
            report.seen.map(|seen| seen.resident_bytes),
            Some(64 << 10),
            "{report}"
        );
        let start = mapping.base().addr().get();
        assert!(kernel_view::look(start, mapping.bytes()).is_some());
    }
    let (first, _) = &mappings[0];
    let (start, bytes) = (first.outer.addr().get(), first.outer_bytes);
    drop(mappings);
    assert_eq!(kernel_view::look(start, bytes), None);
}

#[test]
fn more_huge_pages_than_there_are_is_an_error_that_names_the_knob() {
    // 8 TiB.
    const BYTES: usize = 1 << 43;
    let mut config = nothing();
    config.pages = Pages::Huge2M;
    config.pages_required = true;
    let error = place(BYTES, &config, None).err().unwrap();
    match error {
        MemoryError::Unmet(
            Wish::Pages(Pages::Huge2M),
            Shortfall::HugePages {
                page_bytes,
                needed,
                free,
                errno,
            },
        ) => {
            assert_eq!((page_bytes, needed, errno), (2 << 20, 1 << 22, libc::ENOMEM));
            assert!(free.is_none_or(|free| free < needed));
            assert!(error.to_string().contains("/proc/sys/vm/nr_hugepages"), "{error}");
        }
        MemoryError::Unmet(Wish::Pages(Pages::Huge2M), Shortfall::Refused(refused)) => {
            eprintln!("SKIPPED: huge pages of 2 MiB: this kernel has none: {refused}");
        }
        other => panic!("{other}"),
    }
}

#[test]
fn reserved_pages_are_taken_where_there_are_some() {
    let mut config = nothing();
    config.pages = Pages::Huge2M;
    config.lock = true;
    let free = kernel_view::free_huge_pages(2 << 20).unwrap_or(0);
    let (mapping, report) = place(100, &config, None).unwrap();
    if free == 0 {
        let Step::Short(Shortfall::HugePages { needed: 1, .. } | Shortfall::Refused(_)) = report.pages else {
            panic!("{report}")
        };
        assert_eq!(report.mapped_bytes, page_bytes(), "{report}");
        config.pages_required = true;
        assert!(place(100, &config, None).is_err());
        eprintln!("SKIPPED: taking a huge page: none is reserved on this machine");
        return;
    }
    let seen = report.seen.unwrap();
    assert_eq!((report.pages, report.lock), (Step::Done, Step::Done), "{report}");
    assert_eq!(
        (report.mapped_bytes, seen.page_bytes, seen.huge_bytes),
        (2 << 20, 2 << 20, 2 << 20)
    );
    assert!(seen.locked);
    let before = page_faults::minor();
    write_all(&mapping);
    assert_eq!(page_faults::minor() - before, 0, "{report}");
}

#[test]
fn transparent_pages_are_those_the_kernel_shows() {
    let mut config = nothing();
    config.pages = Pages::TransparentHuge;
    let Some(huge) = kernel_view::transparent_huge_page_bytes() else {
        let (_, report) = place(8 << 20, &config, None).unwrap();
        assert_eq!(report.pages, Step::Short(Shortfall::NotProvided));
        eprintln!("SKIPPED: transparent huge pages: this kernel has none");
        return;
    };
    let (_, small) = place(huge - 1, &config, None).unwrap();
    assert_eq!(small.pages, Step::Short(Shortfall::TooSmall { page_bytes: huge }));
    let (mapping, report) = place(huge + 1, &config, None).unwrap();
    assert_eq!(mapping.base().addr().get() % huge, 0);
    assert_eq!(report.mapped_bytes, 2 * huge);
    let seen = report.seen.map(|seen| seen.huge_bytes);
    match (report.pages, seen) {
        (Step::Done, Some(bytes)) => assert_eq!(bytes, 2 * huge),
        (Step::Short(Shortfall::Partly { bytes }), Some(shown)) => assert_eq!(bytes, shown),
        (Step::Short(Shortfall::NotShown | Shortfall::Refused(_)), _) => {}
        other => panic!("{other:?}"),
    }
    // Required, memory of any size gets them, or there is an error: never less in silence.
    config.pages_required = true;
    match place(1, &config, None) {
        Ok((_, report)) => assert_eq!(report.seen.map(|seen| seen.huge_bytes), Some(huge), "{report}"),
        Err(MemoryError::Unmet(Wish::Pages(Pages::TransparentHuge), why)) => {
            eprintln!("SKIPPED: transparent huge pages: {why}");
        }
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn a_node_that_is_not_there_is_reported_or_refused() {
    let mut config = nothing();
    config.node = NumaNode::Number(u16::MAX);
    let refused = Shortfall::Refused(ProviderError {
        call: "mbind",
        errno: libc::EINVAL,
    });
    let (_, report) = place(4096, &config, None).unwrap();
    assert_eq!(report.node, Step::Short(refused));
    config.node_required = true;
    assert_eq!(
        place(4096, &config, None).err(),
        Some(MemoryError::Unmet(Wish::Node(Some(u16::MAX)), refused))
    );
    config.node = NumaNode::OfDevice;
    assert_eq!(
        place(4096, &config, None).err(),
        Some(MemoryError::Unmet(Wish::Node(None), Shortfall::NodeUnknown))
    );
}

#[test]
fn memory_lies_on_the_node_that_is_asked_for() {
    let Ok(online) = std::fs::read_to_string("/sys/devices/system/node/has_memory") else {
        eprintln!("SKIPPED: memory_lies_on_the_node_that_is_asked_for: this kernel knows no nodes");
        return;
    };
    // `0`, `0-1`, `0,2`: the ends of the ranges are enough.
    for node in online
        .trim()
        .split([',', '-'])
        .map(|number| number.parse::<u16>().unwrap())
    {
        for (asked, device) in [(NumaNode::Number(node), None), (NumaNode::OfDevice, Some(node))] {
            let mut config = nothing();
            config.node = asked;
            let (_, report) = place(3 << 20, &config, device).unwrap();
            assert_eq!(report.node_asked, Some(node));
            match report.node {
                Step::Done => assert_eq!(report.seen.and_then(|seen| seen.node), Some(node), "{report}"),
                // A container may forbid the call, or hide what came of it.
                Step::Short(Shortfall::Refused(ProviderError {
                    errno: libc::EPERM | libc::ENOSYS,
                    ..
                })) => {
                    eprintln!("SKIPPED: node {node}: {report}");
                }
                Step::Short(Shortfall::NotShown) => eprintln!("SKIPPED: node {node}: {report}"),
                _ => panic!("{report}"),
            }
        }
    }
}

#[test]
fn memory_that_came_to_lie_elsewhere_is_moved() {
    let online = std::fs::read_to_string("/sys/devices/system/node/has_memory").unwrap_or_default();
    let mut nodes = online.trim().split([',', '-']).map(str::parse::<u16>);
    let (Some(Ok(here)), Some(Ok(elsewhere))) = (nodes.next(), nodes.next()) else {
        eprintln!("SKIPPED: memory_that_came_to_lie_elsewhere_is_moved: this machine has one node");
        return;
    };
    let mut config = nothing();
    config.node = NumaNode::Number(elsewhere);
    let (mapping, mut report) = place(3 << 20, &config, None).unwrap();
    assert_eq!(report.node, Step::Done, "{report}");
    // It lies where it was put first, and is asked for where the kernel did not put it.
    report.node_asked = Some(here);
    verify(&mapping, &mut report);
    assert_eq!(report.node, Step::Done, "{report}");
    assert_eq!(report.seen.and_then(|seen| seen.node), Some(here), "{report}");
}

/// Set in the child of the test below.
const CHILD: &str = "DOORBELL_TEST_LOCK_CHILD";

#[test]
fn beyond_the_limit_the_lock_says_limit_and_need() {
    const LIMIT: u64 = 64 << 10;
    if std::env::var_os(CHILD).is_none() {
        let output = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "placement::tests::beyond_the_limit_the_lock_says_limit_and_need",
                "--nocapture",
            ])
            .env(CHILD, "1")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success(),
            "{text}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        assert!(text.contains("1 passed"), "{text}");
        return;
    }
    forget_capabilities();
    let limit = libc::rlimit {
        rlim_cur: LIMIT,
        rlim_max: LIMIT,
    };
    // SAFETY: a structure to read (setrlimit(2)).
    let status = unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) };
    assert_eq!(status, 0);

    let mut config = nothing();
    config.lock = true;
    let (_held, report) = place(32 << 10, &config, None).unwrap();
    assert_eq!(report.lock, Step::Done, "{report}");
    assert!(report.seen.is_none_or(|seen| seen.locked), "{report}");
    let (_, report) = place(1 << 20, &config, None).unwrap();
    let expected = Shortfall::LockLimit {
        needed_bytes: 1 << 20,
        locked_bytes: 32 << 10,
        limit_bytes: LIMIT,
        errno: libc::ENOMEM,
    };
    assert_eq!(report.lock, Step::Short(expected));
    assert!(report.seen.is_none_or(|seen| !seen.locked), "{report}");
    config.lock_required = true;
    let error = place(1 << 20, &config, None).err().unwrap();
    assert_eq!(error, MemoryError::Unmet(Wish::Lock, expected));
    let text = error.to_string();
    assert!(
        text.contains("1 MiB more locked memory exceeds RLIMIT_MEMLOCK: 32 KiB of 64 KiB in use"),
        "{text}"
    );
}

/// Makes this thread an ordinary user's: root may lock beyond the limit.
fn forget_capabilities() {
    // The header of `_LINUX_CAPABILITY_VERSION_3`, this thread, and no capability (capset(2)).
    let header = [0x2008_0522_u32, 0];
    let none = [0_u32; 6];
    // SAFETY: two structures of this version's sizes.
    let status = unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), none.as_ptr()) };
    assert_eq!(status, 0);
}
