//! A writer and a reader over plain memory: every interleaving of a random walk, and every lie.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::vec;
use std::vec::Vec;

use doorbell_core::Rkey;
use doorbell_core::provider::{
    DomainId, Operation, OutOfWindow, Placement, RemoteAddress, RevokeError, Window,
};
use doorbell_core::wire::{Publication, RemoteWindow, RingInvitation, ring_window_bytes};

use super::{RingReadError, RingReader, RingRefusal, RingWriter};
use crate::WindowWord;

const CELLS: u32 = 8;
const CELL_BYTES: u32 = 64;
const WORD_AT: u64 = 4096;

/// A window at address zero.
struct Memory(Mutex<Vec<u8>>);

impl Memory {
    fn new(bytes: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new(vec![0; bytes])))
    }

    /// Writes as a peer's WRITE does.
    fn write(&self, address: u64, bytes: &[u8]) {
        let at = usize::try_from(address).unwrap();
        self.0.lock().unwrap()[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

impl Window for Memory {
    fn domain(&self) -> DomainId {
        DomainId(0)
    }
    fn is_in_flight(&self) -> bool {
        false
    }
    fn deregister(&mut self) -> Result<(), RevokeError> {
        unreachable!()
    }
    fn bytes(&self) -> usize {
        self.0.lock().unwrap().len()
    }
    fn placement(&self) -> Placement {
        Placement::unplaced(8, 8)
    }
    fn remote(&self) -> RemoteWindow {
        RemoteWindow::new(0, self.bytes() as u64, Rkey(1))
    }
    fn copy_out(&self, offset: usize, destination: &mut [u8]) -> Result<(), OutOfWindow> {
        let bytes = self.0.lock().unwrap();
        destination.copy_from_slice(&bytes[offset..offset + destination.len()]);
        Ok(())
    }
    fn copy_in(&self, _: usize, _: &[u8]) -> Result<(), OutOfWindow> {
        unreachable!("a ring is written by its peer")
    }
    fn load_u8(&self, offset: usize) -> Result<u8, OutOfWindow> {
        Ok(self.0.lock().unwrap()[offset])
    }
    fn store_u64(&self, _: usize, _: u64) -> Result<(), OutOfWindow> {
        unreachable!()
    }
    fn compare_exchange_u64(&self, _: usize, _: u64, _: u64) -> Result<u64, OutOfWindow> {
        unreachable!()
    }
    fn load_u64(&self, offset: usize) -> Result<u64, OutOfWindow> {
        let bytes = self.0.lock().unwrap();
        Ok(u64::from_ne_bytes(bytes[offset..offset + 8].try_into().unwrap()))
    }
}

/// A ring, and the memory in which its writer reads how far was read.
struct Pair {
    ring: Arc<Memory>,
    announced: Arc<Memory>,
    writer: RingWriter<Arc<Memory>>,
    reader: RingReader<Arc<Memory>>,
}

fn pair(publication: Publication) -> Pair {
    let bytes = ring_window_bytes(CELLS, CELL_BYTES).unwrap();
    let ring = Memory::new(usize::try_from(bytes).unwrap());
    let announced = Memory::new(8);
    let invitation = RingInvitation::new(ring.remote(), CELLS, CELL_BYTES, publication).unwrap();
    let word = RemoteAddress::new(WORD_AT, Rkey(2));
    Pair {
        writer: RingWriter::new(invitation, WindowWord::new(Arc::clone(&announced), 0).unwrap()),
        reader: RingReader::new(Arc::clone(&ring), &invitation, word),
        ring,
        announced,
    }
}

impl Pair {
    /// Writes a message as its device would, all at once.
    fn write(&mut self, payload: &[u8]) -> Result<(), RingRefusal> {
        let message = self.writer.message(payload.len())?;
        let bytes = [payload, &message.trailer].concat();
        match message.operation {
            Operation::Write(remote) => self.ring.write(remote.address(), &bytes),
            Operation::WriteWithImmediate(remote, immediate) => {
                self.ring.write(remote.address(), &bytes);
                self.reader.note_written(immediate);
            }
            other => panic!("{other:?}"),
        }
        self.writer.note_posted(&message);
        Ok(())
    }

    /// Posts the announcement that is due, if one is.
    fn announce(&mut self) {
        let Some((operation, bytes)) = self.reader.announcement() else {
            return;
        };
        let Operation::Write(remote) = operation else {
            panic!("{operation:?}");
        };
        self.announced.write(remote.address() - WORD_AT, &bytes);
        self.reader.note_announced();
    }
}

#[test]
fn agrees_with_a_queue() {
    for publication in [Publication::Trailer, Publication::Immediate] {
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = move |below: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % below
        };
        let mut pair = pair(publication);
        let mut model: VecDeque<Vec<u8>> = VecDeque::new();
        let (mut written, mut full) = (0_u32, 0_u32);
        for _ in 0..100_000 {
            match next(4) {
                0 | 1 => {
                    let payload = vec![written as u8; next(57) as usize];
                    let mut outcome = pair.write(&payload);
                    if outcome.is_err() {
                        full += 1;
                        pair.announce();
                        outcome = pair.write(&payload);
                    }
                    if outcome.is_ok() {
                        written += 1;
                        model.push_back(payload);
                    } else {
                        assert_eq!(outcome, Err(RingRefusal::Full));
                        // Missing is at most what was read and is not due yet.
                        assert!(model.len() > CELLS as usize / 2);
                    }
                }
                2 => {
                    let mut room = [0; 56];
                    let read = pair.reader.read(&mut room).unwrap();
                    let expected = model.pop_front();
                    assert_eq!(read.map(|bytes| room[..bytes].to_vec()), expected);
                }
                _ => pair.announce(),
            }
            assert!(model.len() <= CELLS as usize);
        }
        assert!(written > 10_000 && full > 100, "{written} {full}");
    }
}

#[test]
fn numbers_come_round() {
    let mut pair = pair(Publication::Trailer);
    let start = u32::MAX - 20;
    // As after so many messages.
    pair.writer.credits = crate::Credits::new(start, CELLS);
    pair.reader.read = start;
    pair.reader.announced = start;
    for number in 0..100_u8 {
        pair.write(&[number]).unwrap();
        let mut room = [0];
        assert_eq!(pair.reader.read(&mut room), Ok(Some(1)));
        assert_eq!(room, [number]);
        assert_eq!(pair.reader.read(&mut room), Ok(None));
        pair.announce();
    }
}

#[test]
fn a_message_fits_its_cell_or_is_refused() {
    let mut pair = pair(Publication::Trailer);
    pair.write(&[7; 56]).unwrap();
    let refused = RingRefusal::TooLong {
        bytes: 57,
        bytes_max: 56,
    };
    assert_eq!(pair.write(&[7; 57]), Err(refused));
    let short = RingReadError::Room {
        bytes: 56,
        room_bytes: 55,
    };
    assert_eq!(pair.reader.read(&mut [0; 55]), Err(short));
    assert_eq!(pair.reader.read(&mut [0; 60]), Ok(Some(56)), "it was still there");
}

#[test]
fn half_a_message_is_none() {
    let mut pair = pair(Publication::Trailer);
    let message = pair.writer.message(4).unwrap();
    let Operation::Write(remote) = message.operation else {
        panic!("{message:?}");
    };
    pair.ring.write(remote.address(), b"half");
    // The trailer, byte by byte: a packet may end at any.
    for (at, byte) in (4..).zip(message.trailer) {
        assert_eq!(pair.reader.read(&mut [0; 8]), Ok(None), "{at}");
        pair.ring.write(remote.address() + at, &[byte]);
    }
    assert_eq!(pair.reader.read(&mut [0; 8]), Ok(Some(4)));
}

#[test]
fn half_a_message_is_none_in_any_round() {
    let mut pair = pair(Publication::Trailer);
    for number in 0..600_u32 * CELLS {
        let message = pair.writer.message(9).unwrap();
        let Operation::Write(remote) = message.operation else {
            panic!("{message:?}");
        };
        for (at, byte) in (9..).zip(message.trailer) {
            assert_eq!(pair.reader.read(&mut [0; 16]), Ok(None), "message {number}, {at}");
            pair.ring.write(remote.address() + at, &[byte]);
        }
        pair.writer.note_posted(&message);
        assert_eq!(pair.reader.read(&mut [0; 16]), Ok(Some(9)), "message {number}");
        pair.announce();
    }
}

#[test]
fn a_lying_peer_spoils_its_ring_and_nothing_else() {
    let mut lying = pair(Publication::Trailer);
    let message = lying.writer.message(0).unwrap();
    let Operation::Write(remote) = message.operation else {
        panic!("{message:?}");
    };
    let mut trailer = message.trailer;
    trailer[..4].copy_from_slice(&57_u32.to_be_bytes());
    lying.ring.write(remote.address(), &trailer);
    assert_eq!(lying.reader.read(&mut [0; 64]), Err(RingReadError::Peer));
    assert_eq!(lying.reader.read(&mut [0; 64]), Err(RingReadError::Peer));

    // An immediate without a message, and one out of turn.
    let mut early = pair(Publication::Immediate);
    early.reader.note_written(0);
    assert_eq!(early.reader.read(&mut [0; 64]), Err(RingReadError::Peer));
    let mut skipping = pair(Publication::Immediate);
    skipping.write(b"one").unwrap();
    skipping.reader.note_written(2);
    assert_eq!(skipping.reader.read(&mut [0; 64]), Err(RingReadError::Peer));

    // If the peer announces more than a ring's worth beyond what was written, a writer believes nothing.
    let mut ring = pair(Publication::Trailer);
    for _ in 0..CELLS {
        ring.write(b"x").unwrap();
    }
    ring.announced.write(0, &crate::credits::bytes_of(3 * CELLS));
    assert_eq!(ring.write(b"x"), Err(RingRefusal::Full));
}
