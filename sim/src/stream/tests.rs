//! Two ends that hand each other segments, some of which are lost.

use super::{BUFFER_BYTES, CONNECT_RETRY_NS, Kind, RETRIES_MAX, StreamKey, StreamState};
use crate::Random;
use crate::errno::ETIMEDOUT;
use crate::slab::Slab;
use crate::world::HostId;
use doorbell_core::handshake::IoError;

const LATENCY_NS: u64 = 5_000;

struct Ends {
    slab: Slab<StreamState>,
    keys: [StreamKey; 2],
    now_ns: u64,
}

impl Ends {
    /// One that connects, and one that answers.
    fn new() -> Self {
        let [a, b] = ["10.0.0.1:1", "10.0.0.2:2"].map(|text| text.parse().unwrap());
        let mut slab = Slab::default();
        let one = slab.insert(StreamState::connecting(HostId(0), a, b, 0));
        let other = slab.insert(StreamState::answering(HostId(1), b, a, Some(one), 0));
        Self {
            slab,
            keys: [one, other],
            now_ns: 0,
        }
    }

    fn end(&mut self, index: usize) -> &mut StreamState {
        self.slab.get_mut(self.keys[index]).unwrap()
    }

    /// Carries what is to be carried, and lets the next timer run out where nothing is.
    fn turn(&mut self, mut is_lost: impl FnMut(&Kind) -> bool) {
        let mut is_idle = true;
        for from in [0, 1] {
            let (key, now_ns) = (self.keys[from], self.now_ns);
            while let Some(segment) = self.end(from).poll_transmit(key, now_ns) {
                is_idle = false;
                if !is_lost(&segment.kind) {
                    let at_ns = now_ns + LATENCY_NS;
                    self.end(1 - from).on_segment(segment.from, segment.kind, at_ns);
                }
            }
        }
        self.now_ns += LATENCY_NS;
        if is_idle {
            let timers: Vec<_> = [0, 1]
                .into_iter()
                .filter_map(|index| Some((self.end(index).retry_at_ns()?, index)))
                .collect();
            if let Some((at_ns, index)) = timers.into_iter().min() {
                self.now_ns = self.now_ns.max(at_ns);
                let now_ns = self.now_ns;
                self.end(index).on_timer(now_ns);
            }
        }
    }
}

#[test]
fn every_byte_comes_once_and_in_order_whatever_is_lost() {
    for seed in 0..20 {
        let mut random = Random::new(seed);
        let mut ends = Ends::new();
        let sent: Vec<u8> = (0..300_000_u32).map(|byte| (byte % 251) as u8).collect();
        let (mut written, mut read, mut buffer) = (0, Vec::new(), vec![0; 5000]);
        for _ in 0..100_000 {
            match ends.end(0).write(&sent[written..]) {
                Ok(count) => written += count,
                Err(error) => assert_eq!(error, IoError::WouldBlock),
            }
            if written == sent.len() {
                ends.end(0).let_go();
            }
            ends.turn(|_| random.happens(20_000));
            match ends.end(1).read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => read.extend_from_slice(&buffer[..count]),
                Err(error) => assert_eq!(error, IoError::WouldBlock),
            }
        }
        assert!(
            read == sent,
            "seed {seed}: {} of {} bytes",
            read.len(),
            sent.len()
        );
    }
}

#[test]
fn an_end_keeps_no_more_than_its_buffer() {
    let mut ends = Ends::new();
    while !ends.end(0).is_open() {
        ends.turn(|_| false);
    }
    assert_eq!(ends.end(0).write(&vec![1; 2 * BUFFER_BYTES]), Ok(BUFFER_BYTES));
    assert_eq!(ends.end(0).write(&[1]), Err(IoError::WouldBlock));
    assert!(!ends.end(0).is_writable());
    ends.turn(|_| false);
    ends.turn(|_| false);
    assert!(ends.end(0).is_writable());
    assert_eq!(ends.end(0).write(&[2; 10]), Ok(10));
    ends.turn(|_| false);
    let mut all = vec![0; 2 * BUFFER_BYTES];
    assert_eq!(
        ends.end(1).read(&mut all),
        Ok(BUFFER_BYTES),
        "there was no room for more"
    );
    while !ends.end(1).is_readable() {
        ends.turn(|_| false);
    }
    assert_eq!(ends.end(1).read(&mut all), Ok(10));
}

#[test]
fn a_peer_that_never_answers_is_given_up() {
    let mut ends = Ends::new();
    for _ in 0..1000 {
        ends.turn(|_| true);
    }
    let span_ns = CONNECT_RETRY_NS * ((1 << (RETRIES_MAX + 1)) - 1);
    assert!(ends.now_ns >= span_ns);
    assert_eq!(ends.end(0).read(&mut [0]), Err(IoError::Failed(ETIMEDOUT)));
    assert!(ends.end(1).is_over(), "nobody ever had it");
}

#[test]
fn a_reset_of_an_unknown_stream_comes_after_what_came() {
    let mut ends = Ends::new();
    while !(ends.end(0).is_open() && ends.end(1).is_open()) {
        ends.turn(|_| false);
    }
    ends.end(0).write(b"last").unwrap();
    ends.turn(|_| false);
    ends.end(1).on_segment(None, Kind::Reset, 0);
    let mut buffer = [0; 8];
    assert_eq!(ends.end(1).read(&mut buffer), Ok(4));
    assert_eq!(ends.end(1).read(&mut buffer), Err(IoError::Closed));
    assert_eq!(ends.end(1).write(b"x"), Err(IoError::Closed));
}
