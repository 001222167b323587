//! When a giver announces its WRITEs.

use doorbell::link::{TransferEnd, TransferId, TransferOptions};
use doorbell::wire::{Landed, SessionFrame};

use crate::processes::{A, B, Process, Two, config, ms, ports};
use crate::transfers::{bytes_of, end_of, filled, join, offer, offered, read, region};

/// Bytes of one piece, and of the checksum behind each packet.
const PIECE: usize = 256 << 10;
const ICRC_BYTES: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sent {
    /// A WRITE, by the key of its memory.
    Write(u32),
    Landed(Landed),
}

/// The beginnings of WRITEs and the announcements, as they left.
///
/// Source: InfiniBand Architecture volume 1, sections 9.2 (BTH) and 9.3.1 (RETH), and annex A17.
fn sent(two: &Two) -> Vec<Sent> {
    let frames = two.fabric.take_captured();
    let sent = frames.iter().filter_map(|frame| {
        let ip = match frame.bytes.get(12..14)? {
            [0x86, 0xdd] => 40,
            _ => 20,
        };
        let end = frame.bytes.len().checked_sub(ICRC_BYTES)?;
        let transport = frame.bytes.get(14 + ip + 8..end)?;
        let word = |at| Some(u32::from_be_bytes(transport.get(at..at + 4)?.try_into().ok()?));
        let payload = match transport.first()? {
            // RDMA WRITE first, of whole pieces: before the rate is known, a piece goes in parts.
            0x06 => return (word(24)? as usize >= PIECE).then_some(Sent::Write(word(20)?)),
            // SEND only, without and with an immediate word.
            0x04 => transport.get(12..)?,
            0x05 => transport.get(16..)?,
            _ => return None,
        };
        match SessionFrame::parse(payload) {
            Ok(SessionFrame::Landed(landed)) => Some(Sent::Landed(landed)),
            _ => None,
        }
    });
    sent.collect()
}

/// Gives transfers of so many pieces and such priorities at once over one rail. Returns their names and what was sent.
fn given(all: &[(usize, u8)]) -> (Vec<TransferId>, Vec<Sent>) {
    given_by(Two::with(1, "", Some(10_000)), all)
}

fn given_by(mut two: Two, all: &[(usize, u8)]) -> (Vec<TransferId>, Vec<Sent>) {
    two.connected(1);
    let ids: Vec<_> = all
        .iter()
        .map(|(pieces, priority)| {
            let from = region(two.process(A), pieces * PIECE);
            let mut options = TransferOptions::default();
            options.priority = *priority;
            offer(&mut two, A, &from, &options)
        })
        .collect();
    for _ in all {
        offered(&mut two, B);
    }
    two.fabric.capture(100_000);
    for (id, (pieces, _)) in ids.iter().zip(all) {
        let to = region(two.process(B), pieces * PIECE);
        join(&mut two, B, *id, &to);
    }
    assert!(two.run(ms(1000), |two| {
        let has_ended = |id: &TransferId| end_of(two.process(B), *id).is_some();
        ids.iter().all(has_ended)
    }));
    (ids, sent(&two))
}

#[test]
fn writes_of_one_poll_are_announced_together() {
    let (_, sent) = given(&[(9, 0)]);
    let runs = sent.iter().filter_map(|sent| match sent {
        Sent::Landed(landed) => Some((landed.first, landed.count)),
        Sent::Write(_) => None,
    });
    // The rate is unknown before the first piece is over, which goes in parts. Then two WRITEs of four pieces have room.
    assert_eq!(runs.collect::<Vec<_>>(), [(0, 1), (1, 8)], "{sent:?}");
    let writes = sent.iter().filter(|sent| matches!(sent, Sent::Write(_)));
    assert_eq!(writes.count(), 2, "{sent:?}");
}

#[test]
fn an_announcement_waits_for_no_write_of_another_transfer() {
    let (ids, sent) = given(&[(5, 1), (16, 0)]);
    let both = sent.windows(2).filter_map(|pair| match pair {
        [Sent::Write(first), Sent::Write(second)] => Some((first, second)),
        _ => None,
    });
    assert!(
        both.clone().all(|(first, second)| first == second),
        "{ids:?}: {sent:?}"
    );
}

#[test]
fn a_write_leaves_room_for_the_announcement_of_the_one_before_it() {
    let mut two = Two::apart([A, B].map(|at| ports(at, 1, 10_000)), "", Some(10_000));
    let mut config = config();
    // The announcement of the first piece is still there as two WRITEs could go.
    config.channel.send_depth = 3;
    two.processes[A] = Some(Process::on(&two.hosts[A], &config, false));
    two.begin();
    let (_, sent) = given_by(two, &[(17, 0)]);
    let is_write = |sent: &Sent| matches!(sent, Sent::Write(_));
    let both = sent.windows(2).filter(|pair| pair.iter().all(is_write));
    assert_eq!(both.count(), 0, "{sent:?}");
    assert_eq!(sent.iter().filter(|sent| is_write(sent)).count(), 5, "{sent:?}");
}

/// Bytes that are written again if such a post of the giver fails, of nine pieces that all arrive, and once.
fn repeated(failing: &str) -> u64 {
    let bytes = 9 * PIECE;
    let mut two = Two::with(1, &format!("fail {failing} of a with 5"), Some(10_000));
    two.connected(1);
    let (from, to) = (filled(two.process(A), 3, bytes), region(two.process(B), bytes));
    let id = offer(&mut two, A, &from, &TransferOptions::default());
    offered(&mut two, B);
    join(&mut two, B, id, &to);
    let has_ended = |two: &Two| [A, B].iter().all(|at| end_of(two.process(*at), id).is_some());
    assert!(two.run(ms(3000), has_ended), "{failing}");
    let [(gave, given), (took, taken)] = [A, B].map(|at| end_of(two.process(at), id).unwrap());
    assert_eq!((gave, took), (TransferEnd::Done, TransferEnd::Done), "{failing}");
    assert!(read(&to) == bytes_of(3, bytes), "{failing}");
    assert_eq!(
        (taken.landed_bytes, taken.duplicates),
        (bytes as u64, 0),
        "{failing}"
    );
    given.repeated_bytes
}

#[test]
fn a_write_in_doubt_behind_one_that_is_not_announced_loses_and_doubles_no_piece() {
    // The device takes none of the WRITE, or all of it though it reports a refusal. The giver announces neither of the two WRITEs, and the
    // taker counts none of their pieces.
    let both = 8 * PIECE as u64;
    for of in ["write post", "unclear-post"] {
        let mut all = (1..40).map(|nth| repeated(&format!("{nth}th {of}")));
        assert!(all.any(|repeated| repeated == both), "{of}");
    }
}
