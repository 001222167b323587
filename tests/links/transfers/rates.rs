//! Rates of transfers: rails are used whole, shares and priorities hold, and a message waits for few pieces.

use core::num::NonZeroU64;

use doorbell::link::{TransferEnd, TransferOptions};

use super::{bytes_of, done, ended, filled, join, offer, offered, read, region};
use crate::processes::{A, B, Two, ms};

#[test]
fn two_rails_carry_nearly_twice_as_much_as_one() {
    let took = |rails: usize| {
        let mut two = Two::with(rails, "", Some(1000));
        two.connected(rails as u8);
        let bytes = 64 << 20;
        let (from, to) = (region(two.process(A), bytes), region(two.process(B), bytes));
        let id = offer(&mut two, A, &from, &TransferOptions::default());
        offered(&mut two, B);
        let began = two.fabric.now();
        join(&mut two, B, id, &to);
        ended(&mut two, &[B], id, ms(5000));
        two.fabric.now().to_ns() - began.to_ns()
    };
    let [one, two] = [1, 2].map(took);
    assert!(one * 100 >= two * 195, "{one} {two}");
    // And one rail is used nearly whole: 64 MiB at 1 Gbit/s take 537 ms.
    assert!(one < 570_000_000, "{one}");
}

#[test]
fn a_message_waits_for_no_more_than_the_pieces_ahead() {
    let longest = |mbps: u32, with_transfer: bool| {
        let mut two = Two::with(1, "", Some(mbps));
        two.connected(1);
        let bytes = if mbps > 1000 { 128 << 20 } else { 32 << 20 };
        let (from, to) = (region(two.process(A), bytes), region(two.process(B), bytes));
        if with_transfer {
            let id = offer(&mut two, A, &from, &TransferOptions::default());
            offered(&mut two, B);
            join(&mut two, B, id, &to);
        }
        let mut longest = 0;
        for number in 1..40_u64 {
            two.run(ms(60 + number * 5), |_| false);
            let began = two.fabric.now().to_ns();
            two.process_mut(A).send().unwrap();
            assert!(two.run(ms(1000), |two| two.process(B).delivered == number));
            longest = longest.max(two.fabric.now().to_ns() - began);
        }
        longest
    };
    // Four pieces of 256 KiB at 1 Gbit/s take 8.4 ms, and eight at 10 Gbit/s 1.7 ms; headers take a little.
    for (mbps, ns_max) in [(1000, 8_800_000), (10_000, 1_800_000)] {
        let (idle, beside) = (longest(mbps, false), longest(mbps, true));
        assert!(beside > idle && beside - idle < ns_max, "{mbps}: {idle} {beside}");
        println!("{mbps} Mbit/s: {idle} ns alone, {beside} ns beside a transfer");
    }
}

#[test]
fn equals_share_a_link_and_a_higher_priority_goes_first() {
    for priority in [0, 1] {
        let mut two = Two::with(1, "", Some(1000));
        two.connected(1);
        let bytes = 16 << 20;
        let mut ids = Vec::new();
        for at in [0, priority] {
            let (from, to) = (region(two.process(A), bytes), region(two.process(B), bytes));
            let mut options = TransferOptions::default();
            options.priority = at;
            let id = offer(&mut two, A, &from, &options);
            offered(&mut two, B);
            join(&mut two, B, id, &to);
            ids.push(id);
        }
        ended(&mut two, &[B], ids[1], ms(2000));
        let process = two.process(B);
        let first = process.links.transfer_counts(process.link.unwrap(), ids[0]);
        let first = first.map_or(bytes as u64, |counts| counts.landed_bytes);
        if priority == 0 {
            assert!(first >= bytes as u64 * 9 / 10, "{first}");
        } else {
            assert!(first <= 2 << 20, "{first}");
        }
    }
}

/// A piece of 256 KiB takes longer there than a rail may be silent.
#[test]
fn a_slow_rail_is_not_taken_for_dead() {
    for rails in [1, 2] {
        let mut two = Two::with(rails, "", Some(16));
        two.connected(rails as u8);
        let bytes = 1_000_001;
        let (from, to) = (filled(two.process(A), 3, bytes), region(two.process(B), bytes));
        let id = offer(&mut two, A, &from, &TransferOptions::default());
        offered(&mut two, B);
        join(&mut two, B, id, &to);
        let ends = ended(&mut two, &[A, B], id, ms(3000));
        assert_eq!(ends, [(TransferEnd::Done, done(bytes)); 2]);
        assert!(read(&to) == bytes_of(3, bytes));
        let is_down = |event: &(_, _)| matches!(event, (_, doorbell::link::SessionEvent::RailDown { .. }));
        assert!(!two.process(A).events.iter().any(is_down) && !two.process(B).events.iter().any(is_down));
    }
}

#[test]
fn a_transfer_with_a_limit_leaves_the_rest_to_others() {
    let mut two = Two::with(2, "", Some(1000));
    two.connected(2);
    let mut ids = Vec::new();
    for limit in [NonZeroU64::new(10_000_000), None] {
        let bytes = 8_000_000;
        let (from, to) = (region(two.process(A), bytes), region(two.process(B), bytes));
        let mut options = TransferOptions::default();
        // It goes first, as far as it may.
        options.priority = u8::from(limit.is_some());
        options.bytes_per_second_max = limit;
        let id = offer(&mut two, A, &from, &options);
        offered(&mut two, B);
        join(&mut two, B, id, &to);
        ids.push((id, two.fabric.now().to_ns()));
    }
    let [unlimited, limited] = [0, 1].map(|place| {
        let (id, began) = ids[1 - place];
        ended(&mut two, &[B], id, ms(2000));
        two.fabric.now().to_ns() - began
    });
    // 8 MB at 10 MB/s, but for a first piece; and at nearly 250 MB/s.
    assert!((750_000_000..810_000_000).contains(&limited), "{limited}");
    assert!(unlimited < 40_000_000, "{unlimited}");
}

#[test]
fn transfers_of_one_priority_have_equal_shares() {
    let mut two = Two::with(1, "", Some(1000));
    two.connected(1);
    let began = two.fabric.now().to_ns();
    let ids = [8_000_000; 2].map(|bytes| {
        let (from, to) = (region(two.process(A), bytes), region(two.process(B), bytes));
        let id = offer(&mut two, A, &from, &TransferOptions::default());
        offered(&mut two, B);
        join(&mut two, B, id, &to);
        id
    });
    let [first, second] = ids.map(|id| {
        ended(&mut two, &[B], id, ms(2000));
        two.fabric.now().to_ns() - began
    });
    assert!(second - first < first / 8, "{first} {second}");
}
