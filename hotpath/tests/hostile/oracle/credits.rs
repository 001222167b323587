//! A side that sends, and a credit word into which its peer writes what it likes.

use std::sync::Arc;

use doorbell_hotpath::{Credits, WindowWord};

use super::choices::Choices;
use super::memory::Memory;
use super::{announced, believed};

const STEPS_MAX: usize = 1024;

/// The depths that a peer has: small ones, so that all that can be is come upon.
const DEPTHS: [u32; 8] = [0, 1, 2, 3, 4, 7, 64, 300];

/// Panics where credits that meet so break a promise: who believes too much sends what no receive is for, who
/// believes too little never sends again.
pub(crate) fn check(bytes: &[u8]) {
    let mut choices = Choices::new(bytes);
    let depth = DEPTHS[choices.below(DEPTHS.len())];
    let start = u32::from_be_bytes([(); 4].map(|()| choices.byte()));
    let memory = Memory::new(8);
    let word = WindowWord::new(Arc::clone(&memory), 0).unwrap();
    let mut credits = Credits::new(start, depth);
    // As counted from zero and without end: messages sent, receives known of, and a refusal whose end was
    // not reported.
    let (mut sent, mut granted, mut is_wanting) = (0_u64, u64::from(depth), false);
    let depth = u64::from(depth);
    for _ in 0..STEPS_MAX {
        if choices.is_over() {
            break;
        }
        match choices.byte() & 0x0f {
            0..=2 if credits.available() > 0 => {
                credits.note_sent(credits.sent().wrapping_add(1));
                sent += 1;
            }
            0..=2 => {
                credits.note_refused();
                is_wanting = true;
            }
            // As many as there are.
            3 => {
                credits.note_sent(credits.granted());
                sent = granted;
            }
            4..=6 => {
                let expected = announced(memory.word(0));
                let found = word.load();
                assert_eq!(found, expected);
                let more = expected.and_then(|count| believed(count, start, sent, depth));
                let is_news = more.is_some_and(|count| count > granted);
                if let Some(count) = found {
                    assert_eq!(credits.learn(count), is_news);
                }
                granted = more.unwrap_or(granted).max(granted);
            }
            7 | 8 => {
                let found = word.load();
                if is_wanting {
                    let more = found.and_then(|count| believed(count, start, sent, depth));
                    granted = more.unwrap_or(granted).max(granted);
                }
                let is_satisfied = is_wanting && granted > sent;
                assert_eq!(credits.satisfy(found), is_satisfied);
                is_wanting &= !is_satisfied;
            }
            // A whole announcement of what may be true, and nearly.
            9..=12 => {
                let more = u64::from(choices.byte()) * (depth / 128 + 1);
                let count = u64::from(start) + sent + more;
                let count = u32::try_from(count % (1 << 32)).unwrap().wrapping_sub(16);
                memory.write(0, &count.to_be_bytes());
                memory.write(4, &(!count).to_be_bytes());
            }
            // Half of one.
            13 => {
                let half = [(); 4].map(|()| choices.byte());
                let at = choices.below(2) * 4;
                memory.write(at, &half);
            }
            _ => memory.write(choices.below(8), &[choices.byte()]),
        }
        assert_eq!(u64::from(credits.available()), granted - sent);
        assert!(
            granted <= sent + depth,
            "more than an honest peer could have posted"
        );
        let wrapped = |count: u64| (u64::from(start) + count) % (1 << 32);
        assert_eq!(u64::from(credits.sent()), wrapped(sent));
        assert_eq!(u64::from(credits.granted()), wrapped(granted));
        assert_eq!(credits.is_wanting(), is_wanting);
    }
}
