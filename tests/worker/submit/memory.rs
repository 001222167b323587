//! When memory comes home.

use super::{config, home, numbers, silent, submit};
use crate::fabric::{pair, pair_with};

#[test]
fn memory_of_failures_is_taken_until_they_are() {
    let (mut a, _b) = pair();
    let to = a.id();
    a.worker().channel(to).unwrap().shut().unwrap();
    let mut submitter = a.worker().submitter(&config(5, 8)).unwrap();
    for _ in 0..3 {
        for number in 0..5 {
            submit(&mut submitter, to, number);
        }
        a.worker().poll(|_, _| ()).unwrap();
        assert!(submitter.lease().is_none());
        for number in 0..5_u32 {
            let failed = submitter.failure().unwrap();
            assert_eq!(failed.lease.unwrap().payload(), number.to_be_bytes());
        }
        assert!(submitter.failure().is_none());
        assert_eq!(home(&mut submitter), 5);
    }
}

#[test]
fn memory_comes_home_though_the_channel_signals_seldom() {
    let (mut a, mut b) = pair_with(silent(), silent());
    let to = a.id();
    let mut submitter = a.worker().submitter(&config(4, 8)).unwrap();
    for round in 0..10 {
        // All there is, by one doorbell and by one each.
        for number in 0..4 {
            submit(&mut submitter, to, 4 * round + number);
            if round % 2 == 1 {
                numbers(&mut a);
            }
        }
        numbers(&mut a);
        assert_eq!(home(&mut submitter), 4);
        assert_eq!(numbers(&mut b).len(), 4);
    }
}

#[test]
fn a_channel_without_credits_keeps_no_memory_of_what_went() {
    let (mut a, _b) = pair_with(silent(), silent());
    let to = a.id();
    let mut submitter = a.worker().submitter(&config(20, 32)).unwrap();
    // The peer has receives for sixteen.
    (0..20).for_each(|number| submit(&mut submitter, to, number));
    numbers(&mut a);
    assert_eq!(home(&mut submitter), 16);
}
