//! Peers that are right in all but a frame of long messages: the frame is refused, or the link ends with a reason. Nothing of another
//! link changes.

use doorbell::link::{
    Epoch, FinalReason, LinkId, Request, Sequence, SessionId, TransferId, TransferRole, Violation,
};
use doorbell::provider::{Rkey, Window as _};
use doorbell::wire::{
    Attach, AttachParameters, End, EndFrame, EndReason, Grant, Granted, Lend, LendFrame, Open, OpenFrame,
    PLACED_BYTES_MAX, Placed, PlacedFrame, RemoteWindow, Resumption, SessionFrame, SessionHeader,
};
use doorbell::{Connection, Event, Lease, Operation, PostFlags, RemoteAccess, RemoteAddress, WindowConfig};

use doorbell_core::transfer::Pieces;
use doorbell_sim::Host;

use crate::fabric::small;
use crate::placed::{LONG, later, lent, send_and_settle, two_with, with_places};
use crate::processes::{A, B, Beside, Process, Two, ms};

/// The bytes of the memory that a link lends here.
const LENT: u32 = 4 << 16;
const EPOCH: u32 = 7;
/// The fragments that a link takes ahead.
const AHEAD: u64 = 1024;

/// A peer of B's that says what a test has it say, beside A, which is honest.
struct Hostile {
    two: Two,
    process: Process,
    at: Connection,
    /// The link as B names it.
    link: LinkId,
    heard: Vec<Vec<u8>>,
    /// If it gives no memory of messages back, the messages that it keeps.
    kept: Option<Vec<Lease<Host>>>,
    /// Whether its connection has failed.
    is_cut: bool,
    /// The number of its next fragment.
    next: u64,
}

const fn epoch() -> Epoch {
    Epoch::from_wire(EPOCH)
}

impl Hostile {
    /// One whose link is connected.
    fn new() -> Self {
        let mut two = two_with(&with_places(4), 1, "");
        lent(&mut two);
        two.process_mut(B).beside = Some(Vec::new());
        let own = two.process(B).link;
        let process = Process::on(&two.hosts[A], &with_places(4), false);
        let session = SessionId::new(99).unwrap();
        let mut channel = small();
        channel.remote = RemoteAccess::ALL;
        channel.session = Some(Resumption {
            session,
            epoch: EPOCH,
            next_sequence: 0,
        });
        let handle = two.process(B).handle.unwrap();
        let Process {
            node, mut workers, ..
        } = process;
        let deadline = two.deadline(ms(1000));
        let mut connecting = node.begin_connect(&workers, &handle, &channel, deadline).unwrap();
        let mut at = None;
        let until = later(&two, 100);
        two.run(until, |_| {
            at = connecting.poll(&node, &mut workers).map(Result::unwrap);
            at.is_some()
        });
        let mut process = Process::on(&two.hosts[A], &with_places(4), false);
        (process.node, process.workers) = (node, workers);
        let mut hostile = Self {
            two,
            process,
            at: at.unwrap(),
            link: own.unwrap(),
            heard: Vec::new(),
            kept: None,
            is_cut: false,
            next: 0,
        };
        let said = AttachParameters {
            session,
            epoch: epoch(),
            rail: 0,
            begins: true,
            oldest: Sequence(0),
            expected: Sequence(0),
            window: 64,
        };
        hostile.say(&Attach::new(&said).to_bytes());
        assert!(matches!(
            SessionFrame::parse(&hostile.heard[0]),
            Ok(SessionFrame::Attach(_))
        ));
        let mut others = hostile.two.process(B).links.ids();
        hostile.link = others.find(|id| Some(*id) != own).unwrap();
        drop(others);
        hostile
    }

    /// One that was lent memory, and that memory.
    fn lent() -> (Self, RemoteWindow) {
        let mut hostile = Self::new();
        for part in 0..9_u64 {
            let header = SessionHeader::data(epoch(), Sequence(part), Sequence(0), part == 0, part == 8);
            hostile.say(&[&header.to_bytes()[..], &[1; 2048]].concat());
        }
        hostile.next = 9;
        hostile.pass(5);
        assert_eq!(hostile.told(), [Beside::Message(vec![1; 9 * 2048])]);
        let lend = hostile
            .heard
            .iter()
            .find_map(|frame| match SessionFrame::parse(frame) {
                Ok(SessionFrame::Lend(lend)) => Some(lend),
                _ => None,
            });
        let window = lend.unwrap().window;
        assert_eq!(window.length_bytes(), u64::from(LENT));
        (hostile, window)
    }

    fn pass(&mut self, ms: u64) {
        let Self {
            two,
            process,
            at,
            heard,
            kept,
            is_cut,
            ..
        } = self;
        let until = later(two, ms);
        two.run(until, |_| {
            let polled = process.workers[at.worker].poll_tending(|_, event| match event {
                Event::Received { message, .. } => {
                    heard.push(message.payload().to_vec());
                    if let Some(kept) = kept {
                        kept.push(message.keep());
                    }
                }
                Event::Failed { .. } | Event::ChannelFailed { .. } | Event::PeerClosed { .. } => {
                    *is_cut = true
                }
                _ => {}
            });
            polled.unwrap();
            false
        });
    }

    /// Sends these bytes, if its connection is there.
    fn say(&mut self, bytes: &[u8]) {
        let worker = &mut self.process.workers[self.at.worker];
        let mut lease = worker.lease().unwrap();
        lease.fill(bytes).unwrap();
        if let Some(channel) = worker.channel(self.at.channel) {
            let _ = channel.send_lease(lease);
        }
        self.pass(1);
    }

    /// The bytes of a frame for its next fragment, which is a message.
    fn placed(&self, offset: u32, bytes: u32) -> Vec<u8> {
        let header = SessionHeader::placed(epoch(), Sequence(self.next), Sequence(0), true, true);
        PlacedFrame::new(header, Placed { offset, bytes })
            .to_bytes()
            .to_vec()
    }

    /// Writes bytes into memory of B's. Says whether B's device took them.
    fn write(&mut self, window: &RemoteWindow, offset: u64, bytes: &[u8]) -> bool {
        let worker = &mut self.process.workers[self.at.worker];
        let from = worker
            .window(&WindowConfig::new(bytes.len(), RemoteAccess::NONE))
            .unwrap();
        from.copy_in(0, bytes).unwrap();
        let length = bytes.len() as u32;
        let to = RemoteAddress::within(window, offset, length.into()).unwrap();
        let Some(channel) = worker.channel(self.at.channel) else {
            return false;
        };
        if channel
            .post_ranges(Operation::Write(to), [from.range(0, length)], PostFlags::SIGNALED)
            .is_err()
        {
            return false;
        }
        self.pass(5);
        !self.is_cut
    }

    /// Reports of B about this link, once.
    fn told(&mut self) -> Vec<Beside> {
        self.two.process_mut(B).beside.replace(Vec::new()).unwrap()
    }

    /// Lends B this memory.
    fn lend(&mut self, window: RemoteWindow) {
        let lend = Lend {
            epoch: epoch(),
            window,
        };
        self.say(&LendFrame::new(&lend).to_bytes());
    }

    /// B sends it a message of so many bytes. Returns the frames of fragments: of each, whether it was written.
    fn sends(&mut self, bytes: usize) -> Vec<bool> {
        self.heard.clear();
        let link = self.link;
        self.two.process_mut(B).links.send(link, &vec![3; bytes]).unwrap();
        self.pass(20);
        let fragments = self
            .heard
            .iter()
            .filter_map(|frame| match SessionFrame::parse(frame) {
                Ok(SessionFrame::Data(..)) => Some(false),
                Ok(SessionFrame::Placed(..)) => Some(true),
                _ => None,
            });
        fragments.collect()
    }

    /// Checks that A's link is as it was, with memory that is written to both ways.
    fn others_are_well(mut self) {
        let before = [A, B].map(|at| self.two.counts(at).placed);
        for at in [A, B] {
            send_and_settle(&mut self.two, at, 100_000);
            assert!(self.two.counts(at).placed > before[at]);
        }
        let process = self.two.process(B);
        assert_eq!((process.over, process.unknown), (None, 0));
        self.two.fabric.audit().unwrap();
    }
}

const OUT_OF_PLACE: FinalReason = FinalReason::Violation(Violation::OutOfPlace);
const MALFORMED: FinalReason = FinalReason::Violation(Violation::Malformed);

#[test]
fn a_fragment_that_does_not_lie_in_memory_that_is_lent_ends_the_link() {
    for (offset, bytes, end) in [
        (LENT, 64, OUT_OF_PLACE),
        (LENT - 63, 64, OUT_OF_PLACE),
        (0, LENT + 1, OUT_OF_PLACE),
        (0, PLACED_BYTES_MAX, OUT_OF_PLACE),
        (0, PLACED_BYTES_MAX + 1, MALFORMED),
        (64, 0, MALFORMED),
        (u32::MAX - 62, 64, MALFORMED),
        (u32::MAX, u32::MAX, MALFORMED),
    ] {
        for is_early in [false, true] {
            let (mut hostile, _) = Hostile::lent();
            hostile.next += u64::from(is_early);
            let frame = hostile.placed(offset, bytes);
            hostile.say(&frame);
            assert_eq!(hostile.told(), [Beside::End(end)], "{offset} {bytes}");
            hostile.others_are_well();
        }
    }
    // At the very end there is a place.
    let (mut hostile, window) = Hostile::lent();
    assert!(hostile.write(&window, u64::from(LENT) - 64, &[5; 64]));
    let frame = hostile.placed(LENT - 64, 64);
    hostile.say(&frame);
    assert_eq!(hostile.told(), [Beside::Message(vec![5; 64])]);
    hostile.others_are_well();
}

#[test]
fn a_fragment_in_memory_that_was_never_lent_ends_the_link() {
    for is_early in [false, true] {
        let mut hostile = Hostile::new();
        hostile.next += u64::from(is_early);
        let frame = hostile.placed(0, 64);
        hostile.say(&frame);
        assert_eq!(hostile.told(), [Beside::End(OUT_OF_PLACE)]);
        hostile.others_are_well();
    }
}

#[test]
fn a_frame_that_is_none_ends_the_link() {
    type Change = fn(&mut Vec<u8>);
    let changes: [(Change, Option<FinalReason>); 8] = [
        (|frame| frame.truncate(31), Some(MALFORMED)),
        (|frame| frame.push(0), Some(MALFORMED)),
        // Version, flags, and the reserved byte.
        (|frame| frame[0] = 2, Some(MALFORMED)),
        (|frame| frame[2] |= 4, Some(MALFORMED)),
        (|frame| frame[3] = 1, Some(MALFORMED)),
        // It goes on with a message that has not begun.
        (|frame| frame[2] = 2, Some(OUT_OF_PLACE)),
        // An acknowledgement of something that was not sent.
        (
            |frame| frame[23] = 1,
            Some(FinalReason::Violation(Violation::AcknowledgedUnsent)),
        ),
        // It is of another connection.
        (|frame| frame[7] = 9, None),
    ];
    for (at, (change, end)) in changes.into_iter().enumerate() {
        let (mut hostile, _) = Hostile::lent();
        let mut frame = hostile.placed(0, 64);
        change(&mut frame);
        hostile.say(&frame);
        let told: Vec<_> = end.into_iter().map(Beside::End).collect();
        assert_eq!(hostile.told(), told, "{at}");
        hostile.others_are_well();
    }
}

#[test]
fn a_number_that_comes_twice_is_taken_once_and_one_too_far_ends_the_link() {
    let (mut hostile, window) = Hostile::lent();
    assert!(hostile.write(&window, 0, &[[1; 64], [2; 64], [3; 64]].concat()));
    // The next but one, twice, by other places; then the next, twice.
    for (number, offset) in [(10, 64), (10, 128), (9, 0), (9, 64), (10, 0)] {
        hostile.next = number;
        let frame = hostile.placed(offset, 64);
        hostile.say(&frame);
    }
    let messages = [1, 2].map(|byte| Beside::Message(vec![byte; 64]));
    assert_eq!(hostile.told(), messages);
    let counts = hostile.two.process(B).links.counts(hostile.link);
    assert_eq!(counts.duplicates, 3);
    // A place that has a fragment spoils its sender's own messages: the bytes are those that are there as the frame comes.
    hostile.next = 11;
    for _ in 0..2 {
        let frame = hostile.placed(0, 64);
        hostile.say(&frame);
        hostile.next += 1;
    }
    assert_eq!(hostile.told(), [1, 1].map(|byte| Beside::Message(vec![byte; 64])));
    hostile.next += AHEAD;
    let frame = hostile.placed(0, 64);
    hostile.say(&frame);
    assert_eq!(hostile.told(), [Beside::End(OUT_OF_PLACE)]);
    hostile.others_are_well();
}

#[test]
fn fragments_may_be_longer_than_places_and_not_make_up_more_than_a_message() {
    let (mut hostile, window) = Hostile::lent();
    assert!(hostile.write(&window, 0, &vec![6; LENT as usize]));
    let frame = hostile.placed(0, LENT);
    hostile.say(&frame);
    assert_eq!(hostile.told(), [Beside::Message(vec![6; LENT as usize])]);
    for part in 0..5_u64 {
        let number = Sequence(10 + part);
        let header = SessionHeader::placed(epoch(), number, Sequence(0), part == 0, false);
        let placed = Placed {
            offset: 0,
            bytes: LENT,
        };
        hostile.say(&PlacedFrame::new(header, placed).to_bytes());
        // Four make up the longest message.
        let end = (part == 4).then_some(Beside::End(FinalReason::Violation(Violation::TooLong)));
        assert_eq!(hostile.told(), end.into_iter().collect::<Vec<_>>(), "{part}");
    }
    hostile.others_are_well();
}

#[test]
fn memory_is_lent_for_a_while_after_the_end_and_nothing_of_it_is_taken() {
    let (mut hostile, window) = Hostile::lent();
    let farewell = SessionHeader::farewell(epoch(), Sequence(hostile.next), Sequence(0));
    hostile.say(&farewell.to_bytes());
    assert_eq!(hostile.told(), [Beside::End(FinalReason::PeerClosed)]);
    hostile.write(&window, 0, &[9; 64]);
    let frame = hostile.placed(0, 64);
    hostile.say(&frame);
    assert_eq!(hostile.told(), []);
    let before = hostile.two.fabric.registrations();
    hostile.pass(1000);
    // The memory that the link lent; it had none to send from.
    assert!(hostile.two.fabric.registrations() < before);
    hostile.write(&window, 0, &[9; 64]);
    hostile.pass(5000);
    assert!(hostile.is_cut);
    assert_eq!(hostile.told(), []);
    hostile.others_are_well();
}

#[test]
fn memory_that_no_peer_has_ends_the_link_where_it_is_lent() {
    let key = Rkey(1);
    for (windows, end) in [
        (vec![RemoteWindow::new(4096, 0, key)], MALFORMED),
        (
            vec![RemoteWindow::new(u64::MAX - 100, 1 << 20, key)],
            OUT_OF_PLACE,
        ),
        (
            [1 << 20, 2 << 20]
                .map(|bytes| RemoteWindow::new(4096, bytes, key))
                .to_vec(),
            OUT_OF_PLACE,
        ),
    ] {
        let mut hostile = Hostile::new();
        for window in windows {
            assert_eq!(hostile.told(), []);
            hostile.lend(window);
        }
        assert_eq!(hostile.told(), [Beside::End(end)]);
        hostile.others_are_well();
    }
    // Rights are for windows of an application.
    let mut hostile = Hostile::new();
    let window = RemoteWindow::new(4096, 1 << 20, key);
    let mut frame = LendFrame::new(&Lend {
        epoch: epoch(),
        window,
    })
    .to_bytes();
    // The uppermost byte of its length has the rights.
    frame[32] = 1;
    hostile.say(&frame);
    assert_eq!(hostile.told(), [Beside::End(MALFORMED)]);
    hostile.others_are_well();
}

#[test]
fn memory_that_opens_nothing_costs_its_peer_the_connection_and_no_more() {
    for bytes in [1 << 20, u64::MAX / 4] {
        let mut hostile = Hostile::new();
        hostile.lend(RemoteWindow::new(1 << 40, bytes, Rkey(0x1234)));
        hostile.pass(5);
        let registrations = hostile.two.fabric.registrations();
        hostile.sends(LONG + 1);
        assert!(hostile.is_cut, "a WRITE to it is refused");
        assert_eq!(hostile.two.fabric.registrations(), registrations);
        hostile.pass(12_000);
        assert_eq!(hostile.told(), [Beside::End(FinalReason::Unreachable)]);
        hostile.others_are_well();
    }
}

#[test]
fn memory_that_has_no_place_is_not_used() {
    let mut hostile = Hostile::new();
    let frame = Lend {
        epoch: Epoch::from_wire(EPOCH + 1),
        window: RemoteWindow::new(4096, 1 << 20, Rkey(1)),
    };
    // It is of another connection; the next one is too short.
    hostile.say(&LendFrame::new(&frame).to_bytes());
    hostile.lend(RemoteWindow::new(4096, (1 << 16) - 1, Rkey(1)));
    hostile.lend(RemoteWindow::new(8192, (1 << 16) - 1, Rkey(2)));
    hostile.pass(5);
    let sent = hostile.sends(LONG + 1);
    assert!(
        sent.len() >= 8 && sent.iter().all(|is_placed| !is_placed),
        "{sent:?}"
    );
    assert_eq!(hostile.told(), []);
    hostile.others_are_well();
}

#[test]
fn a_peer_that_takes_no_ends_of_its_transfers_ends_the_link() {
    const READ: u32 = 1 << 18;
    let mut hostile = Hostile::new();
    let memory = hostile.process.workers[hostile.at.worker]
        .window(&WindowConfig::new(READ as usize, RemoteAccess::READ))
        .unwrap();
    let granted = Granted {
        epoch: epoch(),
        number: 0,
        window: Some((memory.remote(), RemoteAccess::READ)),
    };
    hostile.say(&Grant::new(&granted).to_bytes());
    hostile.kept = Some(Vec::new());
    let (mut asked, mut answered) = (Vec::new(), Vec::new());
    let over = (0..1300).find_map(|number| {
        let (epoch, transfer) = (epoch(), TransferId(2 * number));
        let open = Open {
            epoch,
            transfer,
            pieces: Pieces::new(1, 4096).unwrap(),
            tag: 0,
            role: TransferRole::Giver,
        };
        let end = End {
            epoch,
            transfer,
            reason: EndReason::CANCELLED,
            is_answer: false,
        };
        // The memory for a lease is among what it keeps.
        let channel = hostile.process.workers[hostile.at.worker].channel(hostile.at.channel);
        let channel = channel.unwrap();
        let (open, end) = (OpenFrame::new(&open).to_bytes(), EndFrame::new(&end).to_bytes());
        for frame in [&open[..], &end] {
            let posted = channel.post_inline(Operation::Send, frame);
            assert!(posted.is_ok(), "{posted:?}");
        }
        // The last of these is under way when the link ends, since it takes longer than a frame.
        if number >= 1000 {
            let (b, link) = (hostile.two.process_mut(B), hostile.link);
            let request = b.links.request(&b.node, link, (0, 0), &Request::Read(READ));
            asked.push(request.unwrap());
        }
        hostile.pass(1);
        hostile.told().into_iter().find_map(|told| match told {
            Beside::Request(request) => {
                answered.push(request);
                None
            }
            told => Some(told),
        })
    });
    assert_eq!(over, Some(Beside::End(OUT_OF_PLACE)));
    assert!(!asked.is_empty());
    assert_eq!(answered, asked);
    hostile.others_are_well();
}
