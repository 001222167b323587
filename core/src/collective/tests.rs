use std::borrow::ToOwned as _;
use std::collections::VecDeque;
use std::format;
use std::string::{String, ToString as _};
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::{
    COLLECTIVE_HEADER_BYTES, Collective, CollectiveError, CollectiveHeader, CollectiveMisuse, Data, Exchange,
    GroupId, Progress, block_bytes,
};
use crate::rank::Rank;

fn rank(number: u8) -> Rank {
    Rank::new(number).unwrap()
}

fn group() -> GroupId {
    GroupId::default().next([1, 1])
}

/// Messages under way, a queue for each ordered pair of ranks.
struct Wire {
    ranks: usize,
    queues: Vec<VecDeque<Vec<u8>>>,
    depth: usize,
    message_bytes_max: usize,
}

impl Wire {
    fn new(ranks: u8, depth: usize, message_bytes_max: usize) -> Self {
        let ranks = usize::from(ranks);
        Self {
            ranks,
            queues: vec![VecDeque::new(); ranks * ranks],
            depth,
            message_bytes_max,
        }
    }

    fn queue(&mut self, from: usize, to: usize) -> &mut VecDeque<Vec<u8>> {
        &mut self.queues[from * self.ranks + to]
    }
}

struct At<'a>(&'a mut Wire, usize);

impl Exchange for At<'_> {
    type Error = ();

    fn message_bytes_max(&self) -> usize {
        self.0.message_bytes_max
    }

    fn send(&mut self, to: Rank, header: &[u8], payload: &[u8]) -> Result<bool, ()> {
        assert_ne!(to.index(), self.1, "to itself");
        assert!(header.len() + payload.len() <= self.0.message_bytes_max);
        let depth = self.0.depth;
        let queue = self.0.queue(self.1, to.index());
        let goes = queue.len() < depth;
        if goes {
            queue.push_back([header, payload].concat());
        }
        Ok(goes)
    }

    fn receive<R>(&mut self, from: Rank, look: impl FnOnce(&[u8]) -> R) -> Result<Option<R>, ()> {
        Ok(self
            .0
            .queue(from.index(), self.1)
            .pop_front()
            .map(|message| look(&message)))
    }
}

/// The byte that rank `of` brings in place `at`.
fn brought(of: usize, at: usize) -> u8 {
    (of * 31 + at * 7 + 3) as u8
}

/// Runs one collective on all ranks, polled in an order of the seed; what each has in the end.
fn run(
    collective: Collective,
    ranks: u8,
    bytes: usize,
    (depth, message): (usize, usize),
    seed: u64,
) -> Vec<Vec<u8>> {
    let mut wire = Wire::new(ranks, depth, message);
    let inputs: Vec<Vec<u8>> = (0..usize::from(ranks))
        .map(|of| (0..bytes).map(|at| brought(of, at)).collect())
        .collect();
    let needs_input = collective == Collective::AllToAll;
    let mut outputs = inputs.clone();
    fn data<'a>(needs_input: bool, input: &'a [u8], output: &'a mut [u8]) -> Data<'a> {
        Data {
            input: needs_input.then_some(input),
            output,
            element_bytes: 1,
        }
    }
    let mut under_way: Vec<_> = (0..ranks)
        .map(|at| {
            let index = usize::from(at);
            let mut data = data(needs_input, &inputs[index], &mut outputs[index]);
            Progress::begin::<()>(collective, (group(), 7), (rank(at), ranks), &mut data).unwrap()
        })
        .collect();
    let mut draw = seed | 1;
    let mut done = vec![false; ranks.into()];
    let mut polls = 0;
    while done.contains(&false) {
        draw = draw
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let at = (draw >> 33) as usize % usize::from(ranks);
        let mut data = data(needs_input, &inputs[at], &mut outputs[at]);
        let add = |to: &mut [u8], from: &[u8]| {
            to.iter_mut()
                .zip(from)
                .for_each(|(to, from)| *to = to.wrapping_add(*from));
        };
        done[at] = under_way[at]
            .poll(&mut At(&mut wire, at), &mut data, add)
            .unwrap();
        polls += 1;
        assert!(polls < 1_000_000, "hangs");
    }
    assert!(
        wire.queues.iter().all(VecDeque::is_empty),
        "something was sent that nobody took"
    );
    outputs
}

#[test]
fn what_is_sent_to_all_waits_for_nobody() {
    let (ranks, input) = (5, [9; 5]);
    let mut wire = Wire::new(ranks, 1, 64);
    let mut output = [0; 5];
    let mut data = Data {
        input: Some(&input),
        output: &mut output,
        element_bytes: 1,
    };
    let begun = Progress::begin::<()>(Collective::AllToAll, (group(), 0), (rank(0), ranks), &mut data);
    let is_done = begun.unwrap().poll(&mut At(&mut wire, 0), &mut data, |_, _| {});
    assert_eq!(is_done, Ok(false));
    assert!((1..5).all(|to| wire.queue(0, to).len() == 1));
}

fn sum(ranks: u8, at: usize) -> u8 {
    (0..usize::from(ranks)).fold(0, |sum, of| sum.wrapping_add(brought(of, at)))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn all_get_what_they_are_to_get(
        ranks in 1_u8..=17,
        bytes in 0_usize..200,
        depth in 1_usize..4,
        payload in 1_usize..40,
        seed: u64,
    ) {
        let way = (depth, COLLECTIVE_HEADER_BYTES + payload);
        let block = |of: usize| block_bytes(of as u8..of as u8 + 1, ranks, bytes, 1);

        run(Collective::Barrier, ranks, 0, way, seed);
        let root = seed as u8 % ranks;
        for got in run(Collective::Broadcast(rank(root)), ranks, bytes, way, seed) {
            prop_assert!(got.iter().enumerate().all(|(at, byte)| *byte == brought(root.into(), at)));
        }
        for got in run(Collective::AllGather, ranks, bytes, way, seed) {
            for of in 0..usize::from(ranks) {
                prop_assert!(block(of).all(|at| got[at] == brought(of, at)));
            }
        }
        for (of, got) in run(Collective::ReduceScatter, ranks, bytes, way, seed).iter().enumerate() {
            prop_assert!(block(of).all(|at| got[at] == sum(ranks, at)));
        }
        for got in run(Collective::AllReduce, ranks, bytes, way, seed) {
            prop_assert!((0..bytes).all(|at| got[at] == sum(ranks, at)));
        }
        // The block sent to a rank is as long as the block received from it if all blocks are alike.
        let bytes = bytes * usize::from(ranks);
        let block = |of: usize| block_bytes(of as u8..of as u8 + 1, ranks, bytes, 1);
        for (to, got) in run(Collective::AllToAll, ranks, bytes, way, seed).iter().enumerate() {
            for of in 0..usize::from(ranks) {
                prop_assert!(block(of).zip(block(to)).all(|(at, was)| got[at] == brought(of, was)));
            }
        }
    }

    #[test]
    fn blocks_are_whole_elements_and_all_there_is(ranks in 1_u8..=64, elements in 0_usize..1000, element in 1_usize..9) {
        let bytes = elements * element;
        let mut end = 0;
        for block in 0..ranks {
            let place = block_bytes(block..block + 1, ranks, bytes, element);
            prop_assert_eq!(place.start, end);
            prop_assert_eq!(place.len() % element, 0);
            prop_assert!(place.len().abs_diff(bytes / usize::from(ranks)) < 2 * element);
            end = place.end;
        }
        prop_assert_eq!(end, bytes);
    }

    #[test]
    fn any_bytes_are_a_message_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
        if let Ok((header, rest)) = CollectiveHeader::parse(&bytes) {
            prop_assert_eq!([&header.to_bytes(), rest].concat(), bytes);
        }
    }
}

/// One rank of two that begins a collective, and what it says when this message comes.
fn meets(message: &[u8]) -> Result<bool, CollectiveError<()>> {
    let mut wire = Wire::new(2, 4, 64);
    wire.queue(1, 0).push_back(message.to_vec());
    let mut output = [0_u8; 8];
    let mut data = Data {
        input: None,
        output: &mut output,
        element_bytes: 4,
    };
    let mut progress = Progress::begin(Collective::AllGather, (group(), 3), (rank(0), 2), &mut data)?;
    progress.poll(&mut At(&mut wire, 0), &mut data, |_, _| {})
}

#[test]
fn a_header_is_read_as_it_was_written() {
    let bytes = CollectiveHeader::new(Collective::AllGather, (group(), 3), 2, 16, 4).to_bytes();
    let (header, rest) = CollectiveHeader::parse(&bytes).unwrap();
    assert_eq!((header.group(), header.operation()), (group(), 3));
    assert_eq!((header.step(), header.offset(), rest), (2, 16, &[][..]));
}

#[test]
fn ranks_that_are_not_together_find_out() {
    let message = |operation, step, offset, bytes, payload: &[u8]| {
        let header = CollectiveHeader::new(Collective::AllGather, (group(), operation), step, offset, bytes);
        [&header.to_bytes(), payload].concat()
    };
    assert_eq!(meets(&message(3, 0, 0, 4, &[1; 4])), Ok(true));
    let is_mismatch = |message: &[u8]| matches!(meets(message), Err(CollectiveError::Mismatch { .. }));
    assert!(is_mismatch(&message(4, 0, 0, 4, &[1; 4])), "another operation");
    assert!(is_mismatch(&message(3, 1, 0, 4, &[1; 4])), "another step");
    assert!(is_mismatch(&message(3, 0, 4, 4, &[1; 4])), "another place");
    assert!(is_mismatch(&message(3, 0, 0, 8, &[1; 4])), "other data");
    assert!(
        is_mismatch(&message(3, 0, 0, 4, &[1; 8])),
        "more than there is room for"
    );
    assert!(is_mismatch(&message(3, 0, 0, 4, &[1; 3])), "a part of an element");
    assert!(
        is_mismatch(&message(3, 0, 0, 4, &[])),
        "nothing, where there is something to come"
    );
    assert!(matches!(meets(&[0; 40]), Err(CollectiveError::Wire { .. })));
    assert!(matches!(meets(&[]), Err(CollectiveError::Wire { .. })));
}

#[test]
fn a_later_group_is_greater_whoever_counts() {
    // All survive but the last, which counts from nothing.
    let before = group().next([1, 1]).next([1, 1]);
    let after = before.next([1, 2]);
    assert!(group() < before && before < after);
    assert_eq!(GroupId::default().next([1, 2]), after);
    assert!(after < after.next([1, 2]));
    // Starts are of any size.
    let last = GroupId::default().next([u64::MAX; 64]);
    assert!(GroupId::default().next([u64::MAX - 1; 64]) < last);
    let header = CollectiveHeader::new(Collective::Barrier, (last, 0), 0, 0, 0);
    assert_eq!(
        CollectiveHeader::parse(&header.to_bytes()).map(|(read, _)| read.group()),
        Ok(last)
    );
}

#[test]
fn misuse_names_the_argument() {
    use Collective::{AllReduce, AllToAll, Broadcast};
    let begin = |collective, at: (u8, u8), input: Option<&[u8]>, bytes: usize, element_bytes| {
        let mut output = vec![0_u8; bytes];
        let mut data = Data {
            input,
            output: &mut output,
            element_bytes,
        };
        let begun = Progress::begin::<&str>(collective, (group(), 0), (rank(at.0), at.1), &mut data);
        begun.map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(begin(AllReduce, (1, 2), None, 8, 4), Ok(()));
    let refused = |begun: Result<(), String>, text: &str| assert_eq!(begun, Err(text.to_owned()));
    let no_rank = "the group has ranks 0 to 1, and no rank 2";
    refused(begin(AllReduce, (2, 2), None, 8, 4), no_rank);
    refused(begin(Broadcast(rank(2)), (1, 2), None, 8, 4), no_rank);
    let too_large = "a group of 65 ranks is too large: the maximum is 64";
    refused(begin(AllReduce, (1, 65), None, 8, 4), too_large);
    let half = "an output of 7 bytes is not a whole number of elements of 4 bytes";
    refused(begin(AllReduce, (1, 2), None, 7, 4), half);
    let empty = "an output of 8 bytes is not a whole number of elements of 0 bytes";
    refused(begin(AllReduce, (1, 2), None, 8, 0), empty);
    let unneeded = "only AllToAll takes an input: set Data::input to None";
    refused(begin(AllReduce, (1, 2), Some(&[0; 8]), 8, 4), unneeded);
    let missing = "AllToAll has no input: set Data::input, with the length of the output";
    refused(begin(AllToAll, (1, 2), None, 8, 4), missing);
    let lengths = "the input has 4 bytes and the output 8: AllToAll needs equal lengths";
    refused(begin(AllToAll, (1, 2), Some(&[0; 4]), 8, 4), lengths);
    let uneven = |elements| {
        Err(format!(
            "{elements} elements give no equal blocks for 2 ranks: AllToAll needs a multiple of 2"
        ))
    };
    for (bytes, expected) in [(0, Ok(())), (4, uneven(1)), (8, Ok(())), (12, uneven(3))] {
        let begun = begin(AllToAll, (1, 2), Some(&vec![0; bytes]), bytes, 4);
        assert_eq!(begun, expected, "{bytes} bytes for two ranks");
    }
}

#[test]
fn other_data_than_at_the_beginning_is_refused() {
    let mut wire = Wire::new(2, 4, 64);
    let mut output = [0_u8; 8];
    let mut data = Data {
        input: Some(&[1; 8]),
        output: &mut output,
        element_bytes: 4,
    };
    let operation = (group(), 0);
    let mut progress =
        Progress::begin::<()>(Collective::AllToAll, operation, (rank(0), 2), &mut data).unwrap();
    let mut poll = |input: Option<&[u8]>, output: &mut [u8]| {
        let mut data = Data {
            input,
            output,
            element_bytes: 4,
        };
        progress.poll(&mut At(&mut wire, 0), &mut data, |_, _| {})
    };
    let misuse = |misuse| Err(CollectiveError::Misuse(misuse));
    let shorter = CollectiveMisuse::OtherLength { bytes: 4, begun: 8 };
    assert_eq!(poll(Some(&[1; 8]), &mut [0; 4]), misuse(shorter));
    assert_eq!(poll(Some(&[1; 4]), &mut [0; 8]), misuse(shorter));
    assert_eq!(poll(None, &mut [0; 8]), misuse(CollectiveMisuse::NoInput));
    assert_eq!(poll(Some(&[1; 8]), &mut [0; 8]), Ok(false));
}

#[test]
fn messages_that_hold_no_element_are_refused() {
    let mut wire = Wire::new(2, 4, COLLECTIVE_HEADER_BYTES + 3);
    let mut output = [0_u8; 8];
    let mut data = Data {
        input: None,
        output: &mut output,
        element_bytes: 4,
    };
    let mut progress =
        Progress::begin::<()>(Collective::AllReduce, (group(), 0), (rank(0), 2), &mut data).unwrap();
    let polled = progress.poll(&mut At(&mut wire, 0), &mut data, |_, _| {});
    let misuse = CollectiveMisuse::LongElement {
        element_bytes: 4,
        message_bytes: COLLECTIVE_HEADER_BYTES + 3,
    };
    assert_eq!(polled, Err(CollectiveError::Misuse(misuse)));
}
