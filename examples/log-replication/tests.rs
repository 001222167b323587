//! The example over the simulated fabric, a leader and its followers in one process; and that what they check can
//! fail.

use std::time::Instant;

use clap::{CommandFactory as _, Parser as _};

use super::entry::{Applied, Damage, crc32c, write};
use super::log::Log;
use super::{All, Arguments, Followed, Led, PROGRAM, Role, all};

fn run(arguments: &[&str]) -> All<Led, Followed> {
    let program = [PROGRAM, "simulated"].iter().chain(arguments);
    let Role::Simulated(simulated) = Arguments::try_parse_from(program).unwrap().role else {
        panic!("another role");
    };
    all(&simulated).unwrap()
}

/// No follower is given up that a busy machine holds up.
const PATIENT: [&str; 2] = ["--acknowledge-ms", "20000"];

#[test]
fn every_follower_has_every_entry() {
    // The window is gone round many times, and entries lie across its end.
    let small = ["--window-kib", "64", "--batch-kib", "8", "--entry-bytes", "100"];
    let all = ["--entries", "3000", "--followers", "3"];
    let found = run(&[&small[..], &all, &PATIENT].concat());
    assert_eq!(found.failures, [""; 0]);
    assert_eq!(found.listener.committed, 3000);
    assert_eq!(found.listener.commit_latency.unwrap().count, 3000);
    // In groups: sent to three, and yet fewer batches than entries.
    assert!(
        found
            .listener
            .batches
            .iter()
            .map(|bucket| bucket.batches)
            .sum::<u64>()
            < 3000
    );
    for followed in &found.connected {
        assert_eq!((followed.applied, followed.bytes), (3000, 348_000));
    }
}

#[test]
fn a_majority_goes_on_without_one() {
    let found = run(&[&["--entries", "3000", "--leave-after", "1000"][..], &PATIENT].concat());
    assert_eq!(found.failures, [""; 0]);
    assert_eq!(found.listener.committed, 3000);
    let lost = found.listener.followers.iter().filter(|row| row.lost.is_some());
    assert_eq!(lost.count(), 1);
    let mut applied: Vec<_> = found.connected.iter().map(|followed| followed.applied).collect();
    applied.sort_unstable();
    assert!((1000..3000).contains(&applied[0]), "{applied:?}");
    assert_eq!(applied[1], 3000);
}

#[test]
fn without_a_majority_it_says_so_and_ends() {
    let two_leave = ["--entries", "3000", "--leave-after", "1000", "--leavers", "2"];
    let found = run(&[&two_leave[..], &PATIENT].concat());
    let [failure] = found.failures.as_slice() else {
        panic!("{:?}", found.failures);
    };
    assert!(failure.starts_with("no majority: 1 of 3 are left"), "{failure}");
    // A majority had every committed entry.
    let most = found.connected.iter().map(|followed| followed.applied).max();
    assert!(found.listener.committed >= 1000);
    assert!(Some(found.listener.committed) <= most);
    assert!(found.listener.committed < 3000);
}

#[test]
fn the_log_keeps_what_somebody_needs_and_nothing_else() {
    let now = Instant::now();
    let mut log = Log::new(1000).unwrap();
    // Entries of 116 bytes, of which the eighth ends behind 928, and the ninth round the end.
    let mut read = Applied::default();
    for round in 0..50 {
        let needed = read.bytes;
        while log.has_room(100, needed) {
            log.append(100, now).unwrap();
        }
        assert_eq!(log.end() - needed, 928);
        // No more than fits into a batch, and no half entries.
        let until = log.whole_until(needed, 500);
        assert_eq!(until - needed, 464);
        assert_eq!(log.entries_between(needed, until), 4);
        let (first, second) = log.bytes(needed, until);
        assert_eq!(read.apply(&[first, second].concat()), Ok(()), "round {round}");
        log.commit(until, until, now);
        assert_eq!(log.committed_entries, read.entries);
    }
    assert_eq!(log.whole_until(read.bytes, 115), read.bytes);
    // A committed entry that a slow follower needs is kept.
    let behind = read.bytes;
    while log.has_room(100, behind) {
        log.append(100, now).unwrap();
    }
    log.commit(log.end(), behind, now);
    assert!(!log.has_room(100, behind));
    let (first, second) = log.bytes(behind, log.whole_until(behind, 1000));
    assert_eq!(read.apply(&[first, second].concat()), Ok(()));
    assert_eq!(read, *log.appended());
}

#[test]
fn damage_is_told() {
    assert_eq!(crc32c(0, b"123456789"), 0xe306_9283);
    let mut log = Vec::new();
    for sequence in 0..3 {
        write(sequence, 20, &mut log);
    }
    let mut whole = Applied::default();
    assert_eq!(whole.apply(&log), Ok(()));
    assert_eq!((whole.entries, whole.bytes), (3, log.len() as u64));
    for at in 0..log.len() {
        let mut damaged = log.clone();
        damaged[at] ^= 0x10;
        assert!(Applied::default().apply(&damaged).is_err(), "byte {at}");
    }
    let lacking = [&log[..36], &log[72..]].concat();
    let damage = Damage::Sequence {
        expected: 1,
        found: 2,
    };
    assert_eq!(Applied::default().apply(&lacking), Err(damage));
    let all = [whole.entries, u64::from(whole.digest)];
    assert_eq!(whole.lacks(all), None);
    assert_eq!(whole.lacks([4, all[1]]).unwrap(), "3 entries of 4 came");
    assert!(whole.lacks([3, all[1] ^ 1]).is_some());
    let cut = Damage::Cut { sequence: 2 };
    assert_eq!(Applied::default().apply(&log[..107]), Err(cut));
}

#[test]
fn the_commands_of_scenarios_are_understood() {
    let (faults, commands) =
        super::around::scenarios::faults("{examples}/log-replication", &Arguments::command());
    assert!(faults.is_empty() && commands > 0, "{faults:#?}");
}
