//! Properties that hold when any bytes are read as a frame of a mesh. Tests and the fuzzer check them.

use doorbell_core::collective::CollectiveHeader;
use doorbell_core::rank::{Rank, Ranks};
use doorbell_core::route::{ANNOUNCEMENT_BYTES, Announcement, Heard, Map, RelayHeader};

use super::frame::{Join, MeshFrameKind, PairHeader};

/// Reads `bytes` as a frame. Returns whether they are a valid frame.
///
/// # Panics
/// The parser violates a property.
pub fn check(bytes: &[u8]) -> bool {
    let plain = plain::frame(bytes);
    let (header, body) = match RelayHeader::parse(bytes) {
        Ok(read) => read,
        Err(error) => {
            assert_eq!(plain, None, "{error}");
            assert!(usize::from(error.offset) <= bytes.len(), "{error}");
            return false;
        }
    };
    check_header(header, body, bytes);
    let (from, to) = (header.source(), header.destination());
    let heard = match MeshFrameKind::from_wire(header.kind()) {
        Some(kind @ MeshFrameKind::Join) => Join::parse(body).map(|join| {
            if (from, header.hops_left()) == (to, 0) {
                assert_eq!(join.to_bytes(from)[..], *bytes);
            }
            (kind, vec![join.mesh, join.started, join.ranks.into()], Vec::new())
        }),
        Some(kind @ MeshFrameKind::Announcement) => announcement(body).map(|said| (kind, said, Vec::new())),
        Some(kind @ MeshFrameKind::Data) => PairHeader::parse(body).map(|(pair, message)| {
            assert_eq!([&pair.to_bytes(*header), message].concat(), bytes);
            check_collective(message);
            (kind, said(&pair), message.to_vec())
        }),
        Some(kind @ MeshFrameKind::Grant) => PairHeader::parse_grant(body).map(|pair| {
            assert_eq!(pair.to_bytes(*header)[..], *bytes);
            (kind, said(&pair), Vec::new())
        }),
        None => None,
    };
    let heard = heard.map(|(kind, said, message)| plain::Frame {
        source: from.number().into(),
        destination: to.number().into(),
        hops_left: header.hops_left().into(),
        kind: kind as u64,
        said,
        message,
    });
    assert_eq!(heard, plain);
    heard.is_some()
}

/// Checks the header of a frame: writing it returns the same bytes, and forwarding it takes one hop away.
fn check_header(header: &RelayHeader, body: &[u8], bytes: &[u8]) {
    let again = RelayHeader::new(
        header.source(),
        header.destination(),
        header.hops_left(),
        header.kind(),
    );
    assert_eq!([&again.to_bytes(), body].concat(), bytes);
    match header.passed_on() {
        None => assert_eq!(header.hops_left(), 0),
        Some(passed) => {
            let mut expected = header.to_bytes();
            expected[3] -= 1;
            assert_eq!(passed.to_bytes(), expected);
        }
    }
}

/// Returns the fields of an announcement. Checks that a map accepts it once, and that members are neighbours only if both announce it.
fn announcement(body: &[u8]) -> Option<Vec<u64>> {
    let announcement = match Announcement::parse(body) {
        Ok(announcement) => announcement,
        Err(error) => {
            assert!(
                usize::from(error.offset) <= body.len().min(ANNOUNCEMENT_BYTES),
                "{error}"
            );
            return None;
        }
    };
    let (rank, neighbours) = (announcement.rank(), announcement.neighbours());
    let (started, sequence) = (announcement.started(), announcement.sequence());
    let without_rail = announcement.without_rail();
    let again = Announcement::new(rank, started, sequence, neighbours, without_rail);
    assert_eq!(again.to_bytes()[..], *body);
    for ranks in [1, 8, 64] {
        let Some(mut map) = Map::new(ranks) else {
            panic!("no mesh of {ranks}");
        };
        let is_member = rank.number() < ranks;
        let first = if is_member { Heard::News } else { Heard::NotAMember };
        assert_eq!(map.hear(announcement), first);
        assert_ne!(map.hear(announcement), Heard::News);
        assert!(map.neighbours(rank).is_empty());
        assert_eq!(map.routes(rank).reached(), Ranks::NONE.with(rank));
        // After all other members announced `rank` as a neighbour, its neighbours are the members that it announced.
        let all = (0..ranks).filter_map(Rank::new).filter(|other| *other != rank);
        for other in all.clone() {
            map.hear(&Announcement::new(
                other,
                1,
                1,
                Ranks::NONE.with(rank),
                Ranks::NONE,
            ));
        }
        let named = all.filter(|other| neighbours.contains(*other) && is_member);
        let named = named.fold(Ranks::NONE, Ranks::with);
        assert_eq!(map.neighbours(rank), named);
        assert_eq!(map.routes(rank).reached(), named.with(rank));
    }
    Some(vec![
        rank.number().into(),
        sequence.into(),
        started,
        neighbours.to_bits(),
        without_rail.to_bits(),
    ])
}

fn said(pair: &PairHeader) -> Vec<u64> {
    vec![
        pair.source_started,
        pair.destination_started,
        pair.sequence.into(),
        pair.grant.expected.into(),
        pair.grant.room.into(),
    ]
}

/// Checks the message of a data frame as a message of a collective.
fn check_collective(message: &[u8]) {
    let plain = plain::collective(message);
    match CollectiveHeader::parse(message) {
        Err(error) => {
            assert_eq!(plain, None, "{error}");
            assert!(usize::from(error.offset) <= message.len(), "{error}");
        }
        Ok((header, rest)) => {
            let read = (
                u64::from(header.step()),
                u64::from(header.operation()),
                u64::from(header.offset()),
                rest.to_vec(),
            );
            assert_eq!(Some(read), plain);
            assert_eq!([&header.to_bytes(), rest].concat(), message);
        }
    }
}

/// A second parser, written only from `docs/wire-format.md`: slow and obviously correct, one field after the other.
mod plain {
    /// The fields of a frame.
    #[derive(Debug, PartialEq, Eq)]
    pub(super) struct Frame {
        pub(super) source: u64,
        pub(super) destination: u64,
        pub(super) hops_left: u64,
        pub(super) kind: u64,
        /// The fields after the header, in order.
        pub(super) said: Vec<u64>,
        /// The message after the fields of a data frame.
        pub(super) message: Vec<u8>,
    }

    pub(super) fn frame(bytes: &[u8]) -> Option<Frame> {
        let mut rest = bytes.to_vec();
        let [version, source, destination, hops_left] = numbers(&mut rest, [1, 1, 1, 1])?;
        let [kind, reserved] = numbers(&mut rest, [2, 2])?;
        if version != 2 || source > 63 || destination > 63 || reserved != 0 {
            return None;
        }
        let said = match kind {
            1 => numbers(&mut rest, [8, 8, 1])?.to_vec(),
            2 => {
                let [version, rank, reserved] = numbers(&mut rest, [1, 1, 2])?;
                if version != 2 || rank > 63 || reserved != 0 {
                    return None;
                }
                let [sequence, started, neighbours, without_rail] = numbers(&mut rest, [4, 8, 8, 8])?;
                if without_rail & neighbours != without_rail {
                    return None;
                }
                vec![rank, sequence, started, neighbours, without_rail]
            }
            3 | 4 => numbers(&mut rest, [8, 8, 4, 4, 4])?.to_vec(),
            _ => return None,
        };
        if (kind != 3 && !rest.is_empty()) || (kind == 4 && said[2] != 0) {
            return None;
        }
        Some(Frame {
            source,
            destination,
            hops_left,
            kind,
            said,
            message: rest,
        })
    }

    /// Returns the step, the operation, the offset of the bytes, and the bytes of a collective's message.
    pub(super) fn collective(message: &[u8]) -> Option<(u64, u64, u64, Vec<u8>)> {
        let mut rest = message.to_vec();
        let [version, collective, step, reserved] = numbers(&mut rest, [1, 1, 1, 1])?;
        let [operation, offset, _] = numbers(&mut rest, [4, 4, 4])?;
        numbers(&mut rest, [8, 8, 8])?;
        let is_one = version == 2 && (1..=6).contains(&collective) && reserved == 0;
        is_one.then_some((step, operation, offset, rest))
    }

    /// Reads big-endian numbers of the given lengths in bytes.
    fn numbers<const N: usize>(rest: &mut Vec<u8>, bytes: [usize; N]) -> Option<[u64; N]> {
        let mut numbers = [0; N];
        for (number, bytes) in numbers.iter_mut().zip(bytes) {
            for _ in 0..bytes {
                if rest.is_empty() {
                    return None;
                }
                *number = *number * 256 + u64::from(rest.remove(0));
            }
        }
        Some(numbers)
    }
}

#[cfg(test)]
mod tests {
    use doorbell_core::collective::{Collective, CollectiveHeader, GroupId};
    use doorbell_core::rank::{Rank, Ranks};
    use doorbell_core::route::{Announcement, RelayHeader};

    use super::check;
    use crate::mesh::frame::{Grant, Join, MeshFrameKind, PairHeader};
    use crate::replay::{folder, replay};

    /// A frame of each kind, and a message of a collective.
    fn frames() -> [(&'static str, Vec<u8>); 5] {
        let (from, to) = (Rank::FIRST, Rank::new(63).unwrap());
        let header = |kind| RelayHeader::new(from, to, 16, kind as u16);
        let join = Join {
            mesh: 7,
            started: 1_700_000_000,
            ranks: 64,
        };
        let announcement = Announcement::new(to, 1_700_000_000, 3, Ranks::first(8), Ranks::first(2));
        let pair = PairHeader {
            source_started: 1_700_000_000,
            destination_started: 1_700_000_001,
            sequence: u32::MAX,
            grant: Grant {
                expected: 5,
                room: 16,
            },
        };
        let grant = PairHeader { sequence: 0, ..pair };
        let group = GroupId::default().next([u64::MAX, 1_700_000_000]);
        let collective = CollectiveHeader::new(Collective::AllReduce, (group, 9), 2, 4096, 8192);
        let data = pair.to_bytes(header(MeshFrameKind::Data)).to_vec();
        [
            ("join", join.to_bytes(from).to_vec()),
            (
                "announcement",
                [
                    &header(MeshFrameKind::Announcement).to_bytes()[..],
                    &announcement.to_bytes(),
                ]
                .concat(),
            ),
            ("data", [&data[..], b"a message"].concat()),
            ("grant", grant.to_bytes(header(MeshFrameKind::Grant)).to_vec()),
            (
                "collective",
                [&data[..], &collective.to_bytes(), b"elements"].concat(),
            ),
        ]
    }

    #[test]
    fn frames_of_a_mesh_keep_every_promise() {
        replay("mesh", |bytes| {
            check(bytes);
        });
    }

    #[test]
    fn what_is_written_is_a_frame_and_nothing_shorter_is() {
        for (name, frame) in frames() {
            assert!(check(&frame), "{name}");
            let has_message = name == "data" || name == "collective";
            let least = if has_message { 36 } else { frame.len() };
            for length in 0..frame.len() {
                assert_eq!(check(&frame[..length]), length >= least, "{name} cut to {length}");
            }
            let longer = [&frame[..], &[0]].concat();
            assert_eq!(check(&longer), has_message, "{name} and a byte");
        }
    }

    #[test]
    fn frames_changed_anywhere_keep_every_promise() {
        for (_, frame) in frames() {
            for at in 0..frame.len().min(76) {
                for bit in 0..8 {
                    let mut changed = frame.clone();
                    changed[at] ^= 1 << bit;
                    check(&changed);
                }
            }
        }
    }

    /// With `DOORBELL_WRITE_SEEDS` set, writes the seeds. Otherwise checks that the stored seeds are unchanged.
    #[test]
    fn seeds_are_what_this_version_writes() {
        for (name, frame) in frames() {
            let path = folder("mesh").join(name);
            if std::env::var_os("DOORBELL_WRITE_SEEDS").is_some() {
                std::fs::create_dir_all(folder("mesh")).unwrap();
                std::fs::write(&path, &frame).unwrap();
            }
            assert_eq!(std::fs::read(&path).unwrap_or_default(), frame, "{name}");
        }
    }
}
