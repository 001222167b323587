//! The example over the simulated fabric, a publisher and its subscribers in one process; and that what they check
//! can fail.

use clap::{CommandFactory as _, Parser as _};

use super::cell::{Book, Quote, Reading};
use super::{All, Arguments, PROGRAM, Published, Role, Subscribed, all};

fn run(arguments: &[&str]) -> All<Published, Subscribed> {
    let program = [PROGRAM, "simulated"].iter().chain(arguments);
    let Role::Simulated(simulated) = Arguments::try_parse_from(program).unwrap().role else {
        panic!("another role");
    };
    all(&simulated).unwrap()
}

#[test]
fn every_subscriber_has_the_last_quotes() {
    let found = run(&[
        "--subscribers",
        "3",
        "--updates",
        "20000",
        "--rate",
        "0",
        "--away-us",
        "3000",
    ]);
    assert_eq!(found.failures, [""; 0]);
    assert_eq!(found.listener.published, 20_000);
    assert_eq!(found.connected.len(), 3);
    for (row, seen) in found.listener.subscribers.iter().zip(&found.connected) {
        assert_eq!(row.written + row.conflated_here, 20_000);
        assert_eq!(seen.delivered + seen.conflated, 20_000);
        assert!(seen.delivered <= row.written);
        // All are in one process, and so have one clock.
        assert_eq!(seen.latency.unwrap().count, seen.delivered);
    }
    // One that is away sees less, and waits for nothing.
    assert!(found.connected[0].conflated > 0);
}

#[test]
fn what_waited_for_room_is_sent_in_the_end() {
    let found = run(&[
        "--subscribers",
        "2",
        "--updates",
        "2000",
        "--rate",
        "0",
        "--in-flight",
        "1",
    ]);
    assert_eq!(found.failures, [""; 0]);
    for row in &found.listener.subscribers {
        assert!(row.conflated_here > 0);
        assert_eq!(row.last_missing, Some(0));
    }
}

#[test]
fn the_end_is_told_of_as_many_instruments_as_there_may_be() {
    let found = run(&["--instruments", "4096", "--updates", "5000", "--rate", "0"]);
    assert_eq!(found.failures, [""; 0]);
    assert_eq!(found.listener.subscribers[0].last_missing, Some(0));
}

#[test]
fn a_cell_of_two_quotes_is_torn() {
    let (old, new) = (Quote::of(3, 7, 1000).to_cell(), Quote::of(3, 8, 2000).to_cell());
    assert_eq!(Quote::read(&[0; 64]), Reading::Empty);
    assert_eq!(Quote::read(&new), Reading::Whole(Quote::of(3, 8, 2000)));
    // Whichever words land first.
    for landed in 1..255_u8 {
        let mut cell = old;
        for word in (0..8).filter(|word| landed & (1 << word) != 0) {
            cell[word * 8..][..8].copy_from_slice(&new[word * 8..][..8]);
        }
        if cell != old && cell != new {
            // The word of the instrument is the same in both.
            assert_eq!(Quote::read(&cell), Reading::Torn, "{landed:08b}");
        }
    }
}

#[test]
fn what_is_lost_is_told() {
    let mut book = Book::new(2);
    let whole = |instrument, sequence| Reading::Whole(Quote::of(instrument, sequence, 1));
    assert!(book.note(0, whole(0, 1)).is_some());
    assert!(book.note(0, whole(0, 4)).is_some());
    assert!(book.note(0, whole(0, 4)).is_none());
    assert!(book.note(1, whole(1, 2)).is_some());
    assert_eq!((book.delivered, book.conflated), (3, 3));
    assert_eq!(book.finish(&[4, 2]), 6);
    assert_eq!(book.failures(6), [""; 0]);
    // The last one of an instrument is not there.
    let published = book.finish(&[4, 3]);
    assert_eq!(
        book.failures(published),
        ["1 instruments without their last quote"]
    );
    // One that went back, one of another instrument, one that nobody made.
    let mut book = Book::new(2);
    book.note(0, whole(0, 4));
    book.note(0, whole(0, 3));
    book.note(1, whole(0, 5));
    let mut quote = Quote::of(1, 1, 1);
    quote.bid += 1;
    book.note(1, Reading::Whole(quote));
    assert_eq!((book.went_back, book.not_genuine), (1, 2));
    let published = book.finish(&[4, 0]);
    assert_eq!(book.failures(published).len(), 2);
}

#[test]
fn the_commands_of_scenarios_are_understood() {
    let (faults, commands) =
        super::around::scenarios::faults("{examples}/market-data", &Arguments::command());
    assert!(faults.is_empty() && commands > 0, "{faults:#?}");
}
