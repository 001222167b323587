//! A ring between a writer and a reader, and a peer on either side that writes what it likes: into the cells,
//! by immediates, into the word that holds how far was read.

use std::collections::VecDeque;
use std::sync::Arc;

use doorbell_core::Rkey;
use doorbell_core::provider::{Operation, RemoteAddress};
use doorbell_core::wire::{Publication, RemoteWindow, RingInvitation, ring_window_bytes};
use doorbell_hotpath::{RingReadError, RingReader, RingRefusal, RingWriter, WindowWord};

use super::choices::Choices;
use super::memory::Memory;
use super::{announced, believed};

const STEPS_MAX: usize = 1024;

/// Addresses of the ring for the writer, and of the word in which the reader announces.
const RING_AT: u64 = 0x7f00_0000_0040;
const WORD_AT: u64 = 0x1000;

/// Everything that was counted, from zero and without end.
struct World {
    cells: u64,
    cell_bytes: u64,
    is_by_immediate: bool,
    ring: Arc<Memory>,
    read_word: Arc<Memory>,
    writer: RingWriter<Arc<Memory>>,
    reader: RingReader<Arc<Memory>>,
    sent: u64,
    granted: u64,
    read: u64,
    written: u64,
    announced: u64,
    is_spoiled: bool,
    /// Messages written and not read, as long as both sides are honest.
    queue: VecDeque<Vec<u8>>,
    is_honest: bool,
}

/// Panics where a ring that meets so breaks a promise; says whether nobody lied.
pub(crate) fn check(bytes: &[u8]) -> bool {
    let mut choices = Choices::new(bytes);
    let how = choices.byte();
    let cells = 2_u32 << (how & 3);
    let cell_bytes = 64 * (u32::from(how >> 2 & 1) + 1);
    let is_by_immediate = how & 8 != 0;
    let publication = if is_by_immediate {
        Publication::Immediate
    } else {
        Publication::Trailer
    };
    let window_bytes = ring_window_bytes(cells, cell_bytes).unwrap();
    let ring = Memory::new(usize::try_from(window_bytes).unwrap());
    let read_word = Memory::new(8);
    let window = RemoteWindow::new(RING_AT, window_bytes, Rkey(3));
    let invitation = RingInvitation::new(window, cells, cell_bytes, publication).unwrap();
    let word = RemoteAddress::new(WORD_AT, Rkey(4));
    let mut world = World {
        cells: cells.into(),
        cell_bytes: cell_bytes.into(),
        is_by_immediate,
        writer: RingWriter::new(invitation, WindowWord::new(Arc::clone(&read_word), 0).unwrap()),
        reader: RingReader::new(Arc::clone(&ring), &invitation, word),
        ring,
        read_word,
        sent: 0,
        granted: cells.into(),
        read: 0,
        written: 0,
        announced: 0,
        is_spoiled: false,
        queue: VecDeque::new(),
        is_honest: true,
    };
    for _ in 0..STEPS_MAX {
        if choices.is_over() {
            break;
        }
        world.step(&mut choices);
    }
    while world.is_honest && !world.queue.is_empty() {
        world.read(256);
    }
    world.is_honest
}

impl World {
    fn step(&mut self, choices: &mut Choices<'_>) {
        match choices.byte() & 0x0f {
            0..=4 => self.write(choices.below(140), choices.byte()),
            5..=8 => self.read(choices.below(140)),
            9 | 10 => self.announce(),
            what => {
                self.is_honest = false;
                self.lie(what, choices);
            }
        }
    }

    fn write(&mut self, bytes: usize, fill: u8) {
        let bytes_max = usize::try_from(self.cell_bytes - 8).unwrap();
        assert_eq!(self.writer.payload_bytes_max() as usize, bytes_max);
        if bytes <= bytes_max && self.sent == self.granted {
            let count = announced(self.read_word.word(0));
            let count = count.and_then(|count| believed(count, 0, self.sent, self.cells));
            self.granted = count.unwrap_or(self.granted).max(self.granted);
        }
        let message = match self.writer.message(bytes) {
            Ok(message) => message,
            Err(RingRefusal::TooLong { .. }) => return assert!(bytes > bytes_max),
            Err(error) => {
                assert_eq!(error, RingRefusal::Full);
                assert!(bytes <= bytes_max && self.sent == self.granted);
                // Missing is what is not read, and what is not announced since half of the cells were not.
                let unannounced = self.read.saturating_sub(self.announced);
                assert!(!self.is_honest || self.queue.len() as u64 + unannounced == self.cells);
                return;
            }
        };
        assert!(bytes <= bytes_max && self.sent < self.granted);
        let cell = self.sent % self.cells;
        let at = (cell + 1) * self.cell_bytes - 8 - bytes as u64;
        let remote = match message.operation {
            Operation::Write(remote) => {
                assert!(!self.is_by_immediate);
                remote
            }
            Operation::WriteWithImmediate(remote, immediate) => {
                assert!(self.is_by_immediate);
                assert_eq!(u64::from(immediate), self.sent % (1 << 32));
                remote
            }
            other => panic!("{other:?}"),
        };
        assert_eq!((remote.address(), remote.rkey()), (RING_AT + at, Rkey(3)));
        let round = u32::try_from(self.sent / self.cells + 1).unwrap();
        let length = u32::try_from(bytes).unwrap();
        assert_eq!(message.trailer[..4], length.to_be_bytes());
        assert_eq!(message.trailer[4..], round.to_be_bytes());
        self.writer.note_posted(&message);
        let payload = vec![fill; bytes];
        self.ring.write(
            usize::try_from(at).unwrap(),
            &[&payload[..], &message.trailer].concat(),
        );
        if let Operation::WriteWithImmediate(_, immediate) = message.operation {
            self.note_written(immediate);
        }
        self.sent += 1;
        self.queue.push_back(payload);
        assert_eq!(u64::from(self.writer.room()), self.granted - self.sent);
        assert!(self.granted <= self.sent + self.cells);
    }

    fn note_written(&mut self, immediate: u32) {
        self.is_spoiled |= u64::from(immediate) != self.written || self.written - self.read >= self.cells;
        self.written += 1;
        self.reader.note_written(immediate);
    }

    fn read(&mut self, room: usize) {
        let mut buffer = vec![0xee; room];
        let cell = self.read % self.cells;
        let trailer_at = usize::try_from((cell + 1) * self.cell_bytes - 8).unwrap();
        let trailer = self.ring.word(trailer_at);
        let number = |half: &[u8]| half.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
        let (length, round) = (number(&trailer[..4]), number(&trailer[4..]));
        let is_awaited = round == self.read / self.cells + 1;
        let expected = if self.is_by_immediate && self.written == self.read && !self.is_spoiled {
            Ok(None)
        } else if self.is_spoiled || self.is_by_immediate && !is_awaited {
            Err(RingReadError::Peer)
        } else if !is_awaited {
            Ok(None)
        } else if length > self.cell_bytes - 8 {
            self.is_spoiled = true;
            Err(RingReadError::Peer)
        } else {
            let bytes = usize::try_from(length).unwrap();
            if bytes > room {
                Err(RingReadError::Room {
                    bytes,
                    room_bytes: room,
                })
            } else {
                Ok(Some(bytes))
            }
        };
        let found = self.reader.read(&mut buffer);
        assert_eq!(found, expected);
        let Ok(Some(bytes)) = found else {
            assert!(buffer.iter().all(|byte| *byte == 0xee), "nothing was read");
            let is_room = matches!(found, Err(RingReadError::Room { .. }));
            assert!(!self.is_honest || self.queue.is_empty() || is_room, "{found:?}");
            return;
        };
        self.read += 1;
        assert_eq!(buffer[..bytes], self.ring.look(trailer_at - bytes, bytes));
        assert!(buffer[bytes..].iter().all(|byte| *byte == 0xee), "beyond its end");
        let honest = self.queue.pop_front();
        if self.is_honest {
            assert_eq!(Some(&buffer[..bytes]), honest.as_deref());
        }
    }

    fn announce(&mut self) {
        let is_due = self.read - self.announced >= self.cells / 2;
        let Some((operation, bytes)) = self.reader.announcement() else {
            return assert!(!is_due);
        };
        assert!(is_due);
        let Operation::Write(remote) = operation else {
            panic!("{operation:?}");
        };
        assert_eq!((remote.address(), remote.rkey()), (WORD_AT, Rkey(4)));
        let count = announced(bytes).expect("an announcement is whole");
        assert_eq!(u64::from(count), self.read + self.cells, "no more than was read");
        self.reader.note_announced();
        self.announced = self.read;
        self.read_word.write(0, &bytes);
    }

    /// Writes bytes that an honest peer never writes.
    fn lie(&mut self, what: u8, choices: &mut Choices<'_>) {
        match what {
            // A trailer that is awaited, and may announce a message that does not fit.
            11 => {
                let cell = (self.read + choices.below(2) as u64) % self.cells;
                let round = u32::try_from(self.read / self.cells + 1).unwrap();
                let at = usize::try_from((cell + 1) * self.cell_bytes - 8).unwrap();
                let length = [0, 0, choices.byte() & 1, choices.byte()];
                self.ring.write(at, &length);
                self.ring.write(at + 4, &round.to_be_bytes());
            }
            12 => {
                let at = choices.below(usize::try_from(self.cells * self.cell_bytes).unwrap());
                self.ring.write(at, &[choices.byte()]);
            }
            13 if self.is_by_immediate => {
                let near = u32::try_from(self.written).unwrap();
                self.note_written(near.wrapping_add(u32::from(choices.byte() & 1)));
            }
            13 | 14 => {
                let more = u64::from(choices.byte() % 64);
                let count = u32::try_from(self.sent + more).unwrap().wrapping_sub(4);
                self.read_word.write(0, &count.to_be_bytes());
                self.read_word.write(4, &(!count).to_be_bytes());
            }
            _ => self.read_word.write(choices.below(8), &[choices.byte()]),
        }
    }
}
