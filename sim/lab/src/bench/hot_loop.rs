//! Instructions per message of programs that post and poll, from profiles of callgrind's.
//!
//! A program polls in vain as often as the machine happens to make it wait, so that time, which says nothing here,
//! would be in the count. Two runs of the same messages that differ in nothing but how often was polled give what
//! one poll in vain costs; all but one poll for each completion are taken out.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

use super::callgrind::Profile;
use super::record::Measured;
use super::sources::{Bench, Findings, Profiles};
use crate::programs::Rival;
use crate::steps::say;

/// The scenario that makes the profiles of ours and of perftest, and messages of each run of any.
const SCENARIO: &str = "bench-instructions";
const MESSAGES: u64 = 3200;

/// Where libibverbs keeps its providers.
const PROVIDERS: &str = "/libibverbs/lib";

/// More polls than this the slow link must have made, else nothing follows from it.
const MORE_POLLS_MIN: u64 = 500;

/// What is compared: the messages for which each program asks for one completion.
const CASES: [Case; 4] = [
    Case::new("send-1", 64, 100),
    Case::new("send-32", 64, 32),
    Case::new("write-1", 64, 100),
    Case::new("write-32", 64, 32),
];

struct Case {
    name: &'static str,
    /// `--unsignaled`, and perftest's "CQ Moderation", as both have it by themselves.
    ours: u64,
    theirs: u64,
}

impl Case {
    const fn new(name: &'static str, ours: u64, theirs: u64) -> Self {
        Self { name, ours, theirs }
    }
}

/// What was counted of the loop that posts and polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counted {
    instructions: u64,
    polls: u64,
}

/// How a profile shows the loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    /// Nothing else was counted.
    Whole,
    /// It is the function that calls the provider to post.
    Poster,
}

/// One message.
#[derive(Clone, Copy, Debug, PartialEq)]
struct PerMessage {
    instructions: f64,
    /// What a poll in vain costs, and how many there were for each message, without the slow link.
    in_vain: f64,
    polls_in_vain: f64,
}

/// Where the polls that a program needs are known from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Needed {
    /// One for each completion, of which there is one for so many messages.
    Completions { messages: u64 },
    /// It prints how many found something.
    Printed,
}

/// A program in the profiles of a scenario.
#[derive(Clone, Copy, Debug)]
struct Program<'a> {
    profiles: &'a Profiles,
    name: &'a str,
    case: &'a str,
    scope: Scope,
    needed: Needed,
}

/// Runs the scenario and reads its profiles.
///
/// # Errors
///
/// It failed, or its profiles are not as they should be.
pub(super) fn beside_perftest(bench: &mut Bench<'_>) -> Result<Findings> {
    let profiles = bench.profiles(SCENARIO)?;
    let mut findings = Findings::default();
    for case in &CASES {
        let theirs = Program {
            profiles: &profiles,
            name: "perftest",
            case: case.name,
            scope: Scope::Poster,
            needed: Needed::Completions {
                messages: case.theirs,
            },
        };
        findings.add(case.name, compared(case, &profiles, theirs)?);
    }
    Ok(findings)
}

/// The same beside a rival's crate, as far as that goes.
///
/// # Errors
///
/// The crate does not build, a scenario failed, or its profiles are not as they should be.
pub(super) fn beside_rival(rival: Rival, bench: &mut Bench<'_>) -> Result<Findings> {
    let scenario = match rival {
        Rival::Sideway => "bench-sideway",
        Rival::Ibverbs => "bench-ibverbs",
    };
    // First, since this is what may not build.
    let rivals = bench.profiles(scenario)?;
    let profiles = bench.profiles(SCENARIO)?;
    let mut findings = Findings::default();
    for case in &CASES {
        let theirs = Program {
            profiles: &rivals,
            name: rival.name(),
            case: case.name,
            scope: Scope::Whole,
            needed: Needed::Printed,
        };
        if theirs.file("plain", "callgrind").exists() {
            findings.add(case.name, compared(case, &profiles, theirs)?);
        }
    }
    Ok(findings)
}

/// Ours beside theirs.
fn compared(case: &Case, profiles: &Profiles, theirs: Program<'_>) -> Result<Measured> {
    let ours = Program {
        profiles,
        name: "doorbell",
        case: case.name,
        scope: Scope::Whole,
        needed: Needed::Completions { messages: case.ours },
    };
    let (ours, whose, theirs) = (ours.per_message()?, theirs.name, theirs.per_message()?);
    let told = |whose: &str, found: &PerMessage| {
        format!(
            "{whose} polled in vain {:.2} times a message, at {:.0} instructions each",
            found.polls_in_vain, found.in_vain
        )
    };
    say(format_args!(
        "{}: {}; {}",
        case.name,
        told("doorbell", &ours),
        told(whose, &theirs)
    ));
    Ok(Measured {
        theirs: Some(theirs.instructions),
        note: Some(format!(
            "kernel {}; the provider's instructions are in, polls in vain are out",
            profiles.kernel
        )),
        ..Measured::of(ours.instructions)
    })
}

impl Program<'_> {
    fn file(&self, link: &str, extension: &str) -> PathBuf {
        let Self { name, case, .. } = self;
        self.profiles
            .folder
            .join(format!("{name}-{case}.{link}.{extension}"))
    }

    fn per_message(&self) -> Result<PerMessage> {
        let counted = |link: &str| {
            let file = self.file(link, "callgrind");
            let profile = Profile::read(&file)?;
            Counted::of(&profile, self.scope).with_context(|| format!("in {}", file.display()))
        };
        let (plain, slow) = (counted("plain")?, counted("slow")?);
        let needed = match self.needed {
            Needed::Completions { messages } => MESSAGES.div_ceil(messages),
            Needed::Printed => printed(&self.file("plain", "stdout"))?,
        };
        PerMessage::of(plain, slow, MESSAGES, needed).with_context(|| format!("{}, {}", self.name, self.case))
    }
}

/// How many polls found something, as a rival's program says at its end.
fn printed(file: &Path) -> Result<u64> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let found = text
        .lines()
        .find_map(|line| line.strip_prefix("polls that found something: "));
    let found = found.with_context(|| format!("{} does not say what was found", file.display()))?;
    found.trim().parse().context("no number of polls")
}

impl Counted {
    /// Finds the loop by its calls of the provider: of those that end in a system call, posting is the most frequent,
    /// polling of those that do not.
    fn of(profile: &Profile, scope: Scope) -> Result<Self> {
        let is_provider = |index: usize| {
            let function = profile.functions().nth(index).map(|(_, function)| function);
            function.is_some_and(|function| function.object.contains(PROVIDERS))
        };
        let (mut post, mut poll) = (None::<Entry>, None::<Entry>);
        for (caller, function) in profile.functions() {
            if is_provider(caller) {
                continue;
            }
            for call in function.calls.iter().filter(|call| is_provider(call.callee)) {
                let best = if profile.reaches(call.callee, "write") {
                    &mut post
                } else {
                    &mut poll
                };
                if best.is_none_or(|best| call.count > best.count) {
                    *best = Some(Entry {
                        caller,
                        callee: call.callee,
                        count: call.count,
                    });
                }
            }
        }
        let post = post.context("nothing was posted")?;
        let poll = poll.context("nothing was polled")?;
        let calls = |caller: Option<usize>| -> u64 {
            let all = profile
                .functions()
                .filter(|(index, _)| caller.is_none_or(|caller| caller == *index));
            let all = all.flat_map(|(_, function)| &function.calls);
            all.filter(|call| call.callee == poll.callee)
                .map(|call| call.count)
                .sum()
        };
        Ok(match scope {
            Scope::Whole => Self {
                instructions: profile.total(),
                polls: calls(None),
            },
            Scope::Poster => {
                ensure!(post.caller == poll.caller, "one function posts and another polls");
                Self {
                    instructions: profile.inclusive(post.caller),
                    polls: calls(Some(post.caller)),
                }
            }
        })
    }
}

/// The way into the provider.
#[derive(Clone, Copy)]
struct Entry {
    caller: usize,
    callee: usize,
    count: u64,
}

impl PerMessage {
    #[expect(clippy::cast_precision_loss, reason = "counts of instructions are below 2^53")]
    fn of(plain: Counted, slow: Counted, messages: u64, needed: u64) -> Result<Self> {
        let more = slow.polls.saturating_sub(plain.polls);
        ensure!(
            more >= MORE_POLLS_MIN,
            "the slow link made {} polls of {}: too few more to tell what one costs",
            slow.polls,
            plain.polls
        );
        let in_vain = (slow.instructions as f64 - plain.instructions as f64) / more as f64;
        ensure!(in_vain > 0.0, "more polls took fewer instructions");
        let polls_in_vain = plain.polls.saturating_sub(needed) as f64;
        Ok(Self {
            instructions: (plain.instructions as f64 - polls_in_vain * in_vain) / messages as f64,
            in_vain,
            polls_in_vain: polls_in_vain / messages as f64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(polls: u64) -> Profile {
        let (poll_own, loop_own) = (polls * 30, 1000 + polls * 5);
        Profile::parse(&format!(
            "positions: line\nevents: Ir\nob=(1) /bin/ib_send_bw\nfn=(1) main\n0 77\ncfn=(2) 0x10\ncalls=1 0\n\
             0 {total}\nfn=(2)\n0 {loop_own}\ncob=(2) /lib/libibverbs/librxe.so\ncfn=(3) 0x20\ncalls=10 0\n0 500\n\
             cob=(2)\ncfn=(4) 0x30\ncalls={polls} 0\n0 {poll_own}\nob=(2)\nfn=(3)\n0 400\ncob=(3) /lib/libc.so\n\
             cfn=(5) write\ncalls=10 0\n0 100\nfn=(4)\n0 {poll_own}\nob=(3)\nfn=(5)\n0 100\n",
            total = loop_own + 500 + poll_own
        ))
        .unwrap()
    }

    #[test]
    fn the_loop_is_found_without_symbols() {
        let counted = Counted::of(&profile(40), Scope::Poster).unwrap();
        assert_eq!(
            counted,
            Counted {
                instructions: 1000 + 200 + 500 + 1200,
                polls: 40
            }
        );
        let whole = Counted::of(&profile(40), Scope::Whole).unwrap();
        assert_eq!(
            whole,
            Counted {
                instructions: counted.instructions + 77,
                polls: 40
            }
        );
    }

    #[test]
    fn polls_in_vain_are_taken_out_however_many_there_were() {
        for polls in [10, 300, 2000] {
            let plain = Counted::of(&profile(polls), Scope::Poster).unwrap();
            let slow = Counted::of(&profile(5000), Scope::Poster).unwrap();
            let found = PerMessage::of(plain, slow, 10, 10).unwrap();
            assert_eq!(found.in_vain, 35.0);
            assert_eq!(
                found.instructions,
                (1000.0 + 500.0 + 10.0 * 35.0) / 10.0,
                "{polls}"
            );
            assert_eq!(found.polls_in_vain, (polls - 10) as f64 / 10.0);
        }
    }

    #[test]
    fn a_slow_link_that_was_not_slow_is_told() {
        let counted = |polls| Counted::of(&profile(polls), Scope::Poster).unwrap();
        assert!(PerMessage::of(counted(100), counted(599), 10, 10).is_err());
        assert!(PerMessage::of(counted(100), counted(600), 10, 10).is_ok());
        assert!(Counted::of(&Profile::parse("events: Ir\n").unwrap(), Scope::Poster).is_err());
    }
}
