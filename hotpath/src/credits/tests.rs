//! One side that sends and one that receives, in every order in which what they do can happen.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::vec::Vec;

use doorbell_core::Rkey;
use doorbell_core::provider::RemoteAddress;
use doorbell_core::sync::AtomicU32;
use proptest::prelude::{Strategy, any, prop_assert, prop_oneof, proptest};

use super::{ANNOUNCED, Announcer, Credits, Granting, Grants, bytes_of, count_of};

/// Count at the start: it wraps round after two messages.
const START: u32 = u32::MAX - 1;

/// Parameters that are equal in all states.
#[derive(Clone, Copy, Debug)]
struct Rules {
    depth: u32,
    /// How many receives may be missing before they are posted again.
    repost_batch: u32,
}

/// Counts of both sides, relative to the messages sent.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct State {
    granted: u32,
    /// Announcement in the sender's word.
    word: u32,
    /// Announcements on their way, the oldest first.
    announcements: VecDeque<u32>,
    /// Messages on their way.
    messages: u32,
    /// Receives that no message has taken.
    receives: u32,
    posted: u32,
    announced: u32,
    /// Memory that can be posted, and memory that the application holds.
    free: u32,
    held: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Send,
    DeliverMessage,
    Release,
    Replenish,
    AnnounceBeside,
    AnnounceAlone,
    DeliverAnnouncement,
}

const STEPS: [Step; 7] = [
    Step::Send,
    Step::DeliverMessage,
    Step::Release,
    Step::Replenish,
    Step::AnnounceBeside,
    Step::AnnounceAlone,
    Step::DeliverAnnouncement,
];

impl State {
    /// Connected: all receives are posted and known.
    fn first(rules: Rules, memory: u32) -> Self {
        let depth = rules.depth;
        Self {
            granted: depth,
            word: 0,
            announcements: VecDeque::new(),
            messages: 0,
            receives: rules.depth,
            posted: depth,
            announced: depth,
            free: memory - rules.depth,
            held: 0,
        }
    }

    fn credits(&self, rules: Rules) -> Credits {
        Credits {
            sent: START,
            granted: START.wrapping_add(self.granted),
            depth: rules.depth,
            is_wanting: false,
        }
    }

    fn grants(&self) -> Arc<Grants> {
        Arc::new(Grants {
            posted: AtomicU32::new(START.wrapping_add(self.posted)),
            announced: AtomicU32::new(START.wrapping_add(self.announced)),
        })
    }

    /// Messages that may be sent once the sender has read its word.
    fn may_send(&self, rules: Rules) -> u32 {
        let mut credits = self.credits(rules);
        if credits.available() == 0 {
            credits.learn(START.wrapping_add(self.word));
        }
        credits.available()
    }

    /// Returns the state after a step; `None` if the step cannot happen.
    fn after(&self, rules: Rules, step: Step) -> Option<Self> {
        let mut next = self.clone();
        match step {
            Step::Send => {
                let mut credits = self.credits(rules);
                if credits.available() == 0 && !credits.learn(START.wrapping_add(self.word)) {
                    return None;
                }
                credits.note_sent(START.wrapping_add(1));
                next.messages += 1;
                // Counts follow from the messages sent.
                next.granted = credits.granted.wrapping_sub(credits.sent);
                let others = [&mut next.word, &mut next.posted, &mut next.announced];
                for count in others.into_iter().chain(&mut next.announcements) {
                    *count = count.wrapping_sub(1);
                }
            }
            Step::DeliverMessage => {
                next.messages = self.messages.checked_sub(1)?;
                next.receives = self.receives.checked_sub(1).expect("receiver not ready");
                next.held += 1;
            }
            Step::Release => {
                next.held = self.held.checked_sub(1)?;
                next.free += 1;
            }
            Step::Replenish => {
                let missing = rules.depth - self.receives;
                let count = missing.min(self.free);
                if missing < rules.repost_batch || count == 0 {
                    return None;
                }
                let grants = self.grants();
                Granting::new(grants.clone(), rules.depth).note_posted(count);
                next.posted = grants.posted.load(ANNOUNCED).wrapping_sub(START);
                next.receives += count;
                next.free -= count;
            }
            Step::AnnounceBeside | Step::AnnounceAlone => {
                let grants = self.grants();
                let receiving = Granting::new(grants.clone(), rules.depth);
                let mut announcer = Announcer::new(grants.clone(), rules.depth, NOWHERE);
                let announcement = match step {
                    Step::AnnounceAlone if !receiving.is_due(self.receives) => None,
                    Step::AnnounceAlone => announcer.alone(),
                    _ => announcer.beside(),
                }?;
                let bytes = announcement.bytes.try_into().unwrap();
                announcement.receipt.note_announced(announcement.count);
                let announced = grants.announced.load(ANNOUNCED);
                assert_eq!(count_of(bytes), Some(announced));
                next.announced = announced.wrapping_sub(START);
                next.announcements.push_back(next.announced);
            }
            Step::DeliverAnnouncement => next.word = next.announcements.pop_front()?,
        }
        Some(next)
    }

    /// Asserts the invariants of every reachable state.
    fn check(&self, rules: Rules) {
        assert!(
            self.messages <= self.receives,
            "more messages than receives: {rules:?} {self:?}"
        );
        assert!(self.granted <= rules.depth, "{rules:?} {self:?}");
        assert!(self.posted <= rules.depth, "{rules:?} {self:?}");
    }

    /// With nothing sent and nothing released any more, a receive that is posted is one that the
    /// sender comes to know of.
    fn check_progress(&self, rules: Rules) {
        let mut state = self.clone();
        let settling = [
            Step::DeliverMessage,
            Step::Replenish,
            Step::AnnounceAlone,
            Step::DeliverAnnouncement,
        ];
        while let Some(next) = settling.iter().find_map(|step| state.after(rules, *step)) {
            state = next;
        }
        assert!(
            state.receives == 0 || state.may_send(rules) > 0,
            "for ever silent: {rules:?} {self:?} comes to {state:?}"
        );
    }
}

const NOWHERE: RemoteAddress = RemoteAddress::new(0, Rkey(0));

/// Every state there can be: none with more messages than receives, none from which the sender
/// never learns of a receive.
#[test]
fn no_order_of_events_sends_too_much_or_stalls() {
    let mut states = 0;
    for depth in 1..=5 {
        for repost_batch in 1..=(depth / 2).max(1) {
            for memory in depth..=depth + 2 {
                let rules = Rules { depth, repost_batch };
                let first = State::first(rules, memory);
                let mut seen = BTreeSet::from([first.clone()]);
                let mut open = Vec::from([first]);
                while let Some(state) = open.pop() {
                    state.check(rules);
                    state.check_progress(rules);
                    for next in STEPS.iter().filter_map(|step| state.after(rules, *step)) {
                        if seen.insert(next.clone()) {
                            open.push(next);
                        }
                    }
                }
                states += seen.len();
            }
        }
    }
    // So many are not looked at by chance.
    assert!(states > 10_000, "{states}");
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let any_step = (0..STEPS.len()).prop_map(|index| STEPS[index]);
    proptest::collection::vec(any_step, 0..400)
}

proptest! {
    /// Eight bytes may be seen while they are written, from either end or by halves.
    #[test]
    fn a_count_that_is_half_seen_is_none_or_one_of_both(
        old in any::<u32>(),
        ahead in prop_oneof![any::<u32>(), 0..=1_u32 << 17],
        cut in 0..=8_usize,
    ) {
        let new = old.wrapping_add(ahead);
        let (before, after) = (bytes_of(old), bytes_of(new));
        for (first, last) in [(before, after), (after, before)] {
            let mut seen = first;
            seen[cut..].copy_from_slice(&last[cut..]);
            let count = count_of(seen);
            prop_assert!(count.is_none_or(|count| count == old || count == new), "{count:?}");
        }
        prop_assert!(count_of(after) == Some(new));
    }

    /// The same for depths with too many states to look at all.
    #[test]
    fn deep_queues_neither_overrun_nor_stall(
        depth in 1..=64_u32,
        batch in any::<u32>(),
        spare in 0..=64_u32,
        steps in steps(),
        bursts in proptest::collection::vec(1..32_usize, 400),
    ) {
        let rules = Rules { depth, repost_batch: 1 + batch % (depth / 2).max(1) };
        let mut state = State::first(rules, depth + spare);
        for (step, times) in steps.into_iter().zip(bursts) {
            for _ in 0..times {
                let Some(next) = state.after(rules, step) else { break };
                state = next;
                state.check(rules);
            }
        }
        state.check_progress(rules);
    }

    /// A lying peer gets at most the messages that an honest peer could have receives for.
    #[test]
    fn liars_get_no_more_than_their_depth(
        start in prop_oneof![any::<u32>(), u32::MAX - 64..=u32::MAX],
        depth in 0..=1_u32 << 16,
        words in proptest::collection::vec(
            (prop_oneof![any::<u32>(), 0..=1_u32 << 17], any::<bool>(), any::<u32>()),
            0..200,
        ),
    ) {
        let mut credits = Credits::new(start, depth);
        for (word, is_near, wanted) in words {
            let before = credits.available();
            let word = if is_near { credits.sent().wrapping_add(word) } else { word };
            let is_news = credits.learn(word);
            prop_assert!(credits.available() <= depth);
            prop_assert!(credits.available() >= before, "a lie takes nothing away");
            prop_assert!(is_news == (credits.available() > before));
            let count = wanted.min(credits.available());
            credits.note_sent(credits.sent().wrapping_add(count));
            prop_assert!(credits.available() <= depth - count);
        }
    }
}

#[test]
fn announcements_are_as_the_wire_format_has_them() {
    assert_eq!(bytes_of(0x0102_0304), [1, 2, 3, 4, 0xfe, 0xfd, 0xfc, 0xfb]);
    assert_eq!(count_of([0; 8]), None, "memory that nobody wrote to");
}

#[test]
fn thresholds_are_a_quarter_and_a_half_and_never_none() {
    for (depth, beside, alone) in [
        (1, 1, 1),
        (2, 1, 1),
        (3, 1, 1),
        (4, 1, 2),
        (8, 2, 4),
        (64, 16, 32),
    ] {
        for unannounced in 0..=depth {
            let grants = Arc::new(Grants::new(START, depth));
            let mut receiving = Granting::new(grants.clone(), depth);
            receiving.note_posted(unannounced);
            let mut announcer = Announcer::new(grants, depth, NOWHERE);
            assert_eq!(
                receiving.is_due(u32::MAX),
                unannounced >= alone,
                "{depth} {unannounced}"
            );
            assert_eq!(
                receiving.is_due(unannounced),
                unannounced > 0,
                "the peer knows of none"
            );
            assert_eq!(announcer.beside().is_some(), unannounced >= beside);
            assert_eq!(announcer.alone().is_some(), unannounced > 0);
        }
    }
}

#[test]
fn credits_are_reported_once_after_a_refusal() {
    let mut credits = Credits::new(START, 2);
    assert!(
        !credits.satisfy(Some(START.wrapping_add(3))),
        "nothing was refused"
    );
    credits.note_sent(START.wrapping_add(2));
    credits.note_refused();
    assert!(credits.is_wanting());
    assert!(!credits.satisfy(Some(START.wrapping_add(2))));
    assert!(!credits.satisfy(None));
    assert!(
        !credits.satisfy(Some(START.wrapping_add(5))),
        "more than its depth is not believed"
    );
    assert!(credits.satisfy(Some(START.wrapping_add(3))));
    assert_eq!((credits.available(), credits.is_wanting()), (1, false));
    assert!(!credits.satisfy(Some(START.wrapping_add(4))), "once");
    // A batch that used up the rest and was then dropped.
    credits.note_refused();
    assert!(credits.satisfy(Some(START.wrapping_add(3))));
}
