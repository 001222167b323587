//! The kernel's view of one mapping: pages, residence, lock and nodes.
//!
//! The view is read from proc, whose files list all mappings of the process, so call it only at set-up. Reading takes
//! some microseconds for each mapping before the wanted one, and for each MiB of small pages in them.

use std::fs::File;
use std::io::{BufRead, BufReader};

use doorbell_core::provider::Seen;

/// Facts that the kernel shows of a mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct View {
    pub(crate) seen: Seen,
    /// The nodes of its pages, with the number of bytes on each. Empty if the kernel does not show them.
    pub(crate) nodes: Vec<(u16, usize)>,
}

/// Returns the view of the mapping of exactly these bytes, or `None` if proc does not show one.
pub(crate) fn look(start: usize, bytes: usize) -> Option<View> {
    let smaps = File::open("/proc/self/smaps").ok()?;
    let mut seen = pages(BufReader::new(smaps), start, bytes)?;
    let nodes = File::open("/proc/self/numa_maps")
        .ok()
        .and_then(|file| nodes(BufReader::new(file), start))
        .unwrap_or_default();
    if let [(node, _)] = nodes[..] {
        seen.node = Some(node);
    }
    Some(View { seen, nodes })
}

/// Reads the pages of a mapping from `smaps`. Source: `proc_pid_smaps(5)`.
fn pages(smaps: impl BufRead, start: usize, bytes: usize) -> Option<Seen> {
    let end = start.checked_add(bytes)?;
    let mut seen: Option<Seen> = None;
    for line in smaps.split(b'\n') {
        let line = line.ok()?;
        let line = String::from_utf8_lossy(&line);
        let mut words = line.split_ascii_whitespace();
        let Some(first) = words.next() else { continue };
        if let Some(range) = range(first) {
            if seen.is_some() {
                break;
            }
            if range == (start, end) {
                seen = Some(Seen {
                    page_bytes: 0,
                    huge_bytes: 0,
                    resident_bytes: 0,
                    locked: false,
                    node: None,
                });
            }
            continue;
        }
        let Some(seen) = &mut seen else { continue };
        if first == "VmFlags:" {
            // Pages of hugetlbfs (`ht`) are never swapped, so they count as locked.
            seen.locked = words.any(|flag| flag == "lo" || flag == "ht");
            continue;
        }
        let Some(value) = words.next().and_then(kilobytes) else {
            continue;
        };
        match first {
            "KernelPageSize:" => seen.page_bytes = value,
            "Rss:" => seen.resident_bytes = seen.resident_bytes.saturating_add(value),
            "AnonHugePages:" => seen.huge_bytes = seen.huge_bytes.saturating_add(value),
            // No other count includes pages of hugetlbfs.
            "Private_Hugetlb:" | "Shared_Hugetlb:" => {
                seen.huge_bytes = seen.huge_bytes.saturating_add(value);
                seen.resident_bytes = seen.resident_bytes.saturating_add(value);
            }
            _ => {}
        }
    }
    seen.filter(|seen| seen.page_bytes != 0)
}

/// Whether all of a range is private memory without a file, according to `/proc/self/maps`. Other kinds of memory do not
/// report every change: a file can be truncated, and shared memory detached, without an event.
pub(crate) fn is_private_anonymous(start: usize, bytes: usize) -> bool {
    let Some(end) = start.checked_add(bytes) else {
        return false;
    };
    File::open("/proc/self/maps").is_ok_and(|maps| is_covered(BufReader::new(maps), start, end))
}

/// Whether the private mappings without a file in `maps` cover everything from `start` to `end`. Source: `proc_pid_maps(5)`.
fn is_covered(maps: impl BufRead, start: usize, end: usize) -> bool {
    let mut covered = start;
    for line in maps.split(b'\n') {
        let Ok(line) = line else { return false };
        let line = String::from_utf8_lossy(&line);
        let mut words = line.split_ascii_whitespace();
        let Some((first, last)) = words.next().and_then(range) else {
            return false;
        };
        if last <= covered {
            continue;
        }
        let is_private = words.next().is_some_and(|rights| rights.ends_with('p'));
        let is_anonymous = words.nth(2) == Some("0");
        if first > covered || !is_private || !is_anonymous {
            return false;
        }
        covered = last;
        if covered >= end {
            return true;
        }
    }
    false
}

/// Reads the nodes of a mapping from `numa_maps`. Source: `numa(7)`.
fn nodes(numa_maps: impl BufRead, start: usize) -> Option<Vec<(u16, usize)>> {
    for line in numa_maps.split(b'\n') {
        let line = line.ok()?;
        let line = String::from_utf8_lossy(&line);
        let mut words = line.split_ascii_whitespace();
        if words.next().and_then(hexadecimal) != Some(start) {
            continue;
        }
        let (mut nodes, mut page_bytes) = (Vec::new(), None);
        for (name, value) in words.filter_map(|word| word.split_once('=')) {
            if name == "kernelpagesize_kB" {
                page_bytes = kilobytes(value);
            } else if let Some(node) = name.strip_prefix('N').and_then(|node| node.parse().ok()) {
                nodes.push((node, value.parse::<usize>().ok()?));
            }
        }
        let page_bytes = page_bytes?;
        return nodes
            .into_iter()
            .map(|(node, pages)| Some((node, pages.checked_mul(page_bytes)?)))
            .collect();
    }
    None
}

/// Parses a range such as `7f0000000000-7f0000200000`.
fn range(word: &str) -> Option<(usize, usize)> {
    let (start, end) = word.split_once('-')?;
    Some((hexadecimal(start)?, hexadecimal(end)?))
}

fn hexadecimal(text: &str) -> Option<usize> {
    usize::from_str_radix(text, 16).ok()
}

fn kilobytes(text: &str) -> Option<usize> {
    text.parse::<usize>().ok()?.checked_mul(1024)
}

/// Returns how many bytes the process has locked, according to `/proc/self/status`.
pub(crate) fn locked_bytes() -> Option<u64> {
    status_bytes("VmLck:")
}

/// Returns how many bytes are pinned for the process, according to `/proc/self/status`.
pub(crate) fn pinned_bytes() -> Option<u64> {
    status_bytes("VmPin:")
}

fn status_bytes(name: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    let count: u64 = line.split_ascii_whitespace().next()?.parse().ok()?;
    count.checked_mul(1024)
}

/// Returns how many huge pages of this size are free and not reserved.
pub(crate) fn free_huge_pages(page_bytes: usize) -> Option<usize> {
    let folder = format!("/sys/kernel/mm/hugepages/hugepages-{}kB", page_bytes / 1024);
    let count = |name: &str| number(&format!("{folder}/{name}"));
    count("free_hugepages")?.checked_sub(count("resv_hugepages")?)
}

/// Returns the size of a transparent huge page, or `None` if the kernel has none.
pub(crate) fn transparent_huge_page_bytes() -> Option<usize> {
    number("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size").filter(|bytes| bytes.is_power_of_two())
}

fn number(path: &str) -> Option<usize> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{is_covered, is_private_anonymous, nodes, pages};
    use doorbell_core::provider::Seen;

    const SMAPS: &[u8] = b"\
7f0000000000-7f0000001000 ---p 00000000 00:00 0 \n\
Size:                  4 kB\n\
KernelPageSize:        4 kB\n\
Rss:                   0 kB\n\
VmFlags: mr mw me sd \n\
7f0000001000-7f0000601000 rw-p 00000000 00:00 0                          [anon: \xff]\n\
Size:               6144 kB\n\
KernelPageSize:        4 kB\n\
MMUPageSize:           4 kB\n\
Rss:                6144 kB\n\
Pss:                6144 kB\n\
AnonHugePages:      4096 kB\n\
Shared_Hugetlb:        0 kB\n\
Private_Hugetlb:       0 kB\n\
Locked:             6144 kB\n\
VmFlags: rd wr mr mw me lo dc ac sd hg \n\
7f0000800000-7f0000a00000 rw-p 00000000 00:0f 1234 /anon_hugepage (deleted)\n\
KernelPageSize:     2048 kB\n\
Rss:                   0 kB\n\
AnonHugePages:         0 kB\n\
Private_Hugetlb:    2048 kB\n\
VmFlags: rd wr mr mw me de ht sd \n";

    #[test]
    fn a_mapping_is_read_and_its_neighbours_are_not() {
        assert_eq!(
            pages(SMAPS, 0x7f00_0000_1000, 6 << 20),
            Some(Seen {
                page_bytes: 4096,
                huge_bytes: 4 << 20,
                resident_bytes: 6 << 20,
                locked: true,
                node: None,
            })
        );
        assert_eq!(
            pages(SMAPS, 0x7f00_0080_0000, 2 << 20),
            Some(Seen {
                page_bytes: 2 << 20,
                huge_bytes: 2 << 20,
                resident_bytes: 2 << 20,
                locked: true,
                node: None,
            })
        );
        assert!(!pages(SMAPS, 0x7f00_0000_0000, 4096).unwrap().locked);
    }

    #[test]
    fn a_part_of_a_mapping_is_not_shown() {
        assert_eq!(pages(SMAPS, 0x7f00_0000_1000, 4096), None);
        assert_eq!(pages(SMAPS, 0x7f00_0000_2000, 4096), None);
        assert_eq!(pages(SMAPS, usize::MAX, 4096), None);
        assert_eq!(pages(&b"no such thing\n"[..], 0, 4096), None);
    }

    #[test]
    fn only_private_memory_without_a_file_is_covered() {
        const MAPS: &[u8] = b"\
7f0000000000-7f0000001000 r-xp 00000000 08:01 77                         /usr/lib/a library\n\
7f0000001000-7f0000003000 rw-p 00000000 00:00 0 \n\
7f0000003000-7f0000004000 rw-p 00000000 00:00 0                          [heap]\n\
7f0000004000-7f0000005000 rw-s 00000000 00:01 9                          /dev/zero (deleted)\n\
7f0000006000-7f0000007000 rw-p 00000000 00:00 0 \n";
        let is =
            |start: usize, end: usize| is_covered(MAPS, 0x7f00_0000_0000 + start, 0x7f00_0000_0000 + end);
        assert!(is(0x1000, 0x4000) && is(0x1001, 0x3fff) && is(0x6000, 0x7000));
        assert!(!is(0xfff, 0x2000), "a file");
        assert!(!is(0x3000, 0x4001), "shared");
        assert!(!is(0x5000, 0x7000) && !is(0x6000, 0x7001), "not mapped");
        assert!(!is_covered(&b"no such thing\n"[..], 0, 1));
        let heap: Box<[u8]> = Box::new([1; 64]);
        assert!(is_private_anonymous(heap.as_ptr().addr(), heap.len()));
        assert!(!is_private_anonymous(
            is_private_anonymous as fn(usize, usize) -> bool as usize,
            1
        ));
        assert!(!is_private_anonymous(usize::MAX, 2));
    }

    #[test]
    fn nodes_are_counted_in_pages_of_the_mapping() {
        let text = b"7f0000000000 default\n\
                     7f0000001000 prefer:1 anon=1536 dirty=1536 N0=512 N1=1024 kernelpagesize_kB=4\n\
                     7f0000800000 prefer:1 file=/anon_hugepage\\040(deleted) huge anon=1 dirty=1 N1=1 kernelpagesize_kB=2048\n";
        let at = |start| nodes(&text[..], start);
        assert_eq!(at(0x7f00_0000_1000), Some(vec![(0, 2 << 20), (1, 4 << 20)]));
        assert_eq!(at(0x7f00_0080_0000), Some(vec![(1, 2 << 20)]));
        assert_eq!(at(0x7f00_0000_0000), None);
        assert_eq!(at(0x1000), None);
    }
}
