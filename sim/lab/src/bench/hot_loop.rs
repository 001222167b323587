//! Instructions per message of programs that post and poll, from profiles of callgrind's.
//!
//! A program polls in vain as often as the machine happens to make it wait, so that time, which says nothing here,
//! would be in the count. Pairs of runs of the same messages that differ in nothing but how often was polled give what
//! one poll in vain costs this program; all but those that found something are taken out.

use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};

use super::callgrind::Profile;
use super::measurement::{Bench, Findings, Profiles};
use super::record::Measured;
use crate::programs::Rival;
use crate::steps::say;

/// The scenario that makes the profiles of ours and of perftest, and messages of each run of any.
const SCENARIO: &str = "bench-instructions";
const MESSAGES: u64 = 3200;

/// Folder in which libibverbs keeps its providers.
const PROVIDERS: &str = "/libibverbs/lib";

/// At least so many polls must lie between the two runs of some pair, else nothing follows about what one costs.
const POLLS_BETWEEN_MIN: u64 = 500;

/// So few polls in vain for each message may stay in where it is not known what one costs.
const POLLS_IN_VAIN_FEW: f64 = 0.05;

/// Cases to compare: the messages for which each program asks for one completion.
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

/// Counts of the loop that posts and polls.
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

/// Two runs of the same messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pair {
    plain: Counted,
    /// On the slow link.
    slow: Counted,
    /// Polls that found something, of the first.
    needed: u64,
}

/// One message.
#[derive(Clone, Copy, Debug, PartialEq)]
struct PerMessage {
    case: &'static str,
    instructions: f64,
}

/// Source of the number of polls that a program needs.
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
    scope: Scope,
}

/// Runs the scenario and reads its profiles.
///
/// # Errors
///
/// It failed, or its profiles are not as they should be.
pub(super) fn beside_perftest(bench: &mut Bench<'_>) -> Result<Findings> {
    let profiles = bench.profiles(SCENARIO)?;
    let ours = doorbell(&profiles)?;
    let perftest = Program {
        profiles: &profiles,
        name: "perftest",
        scope: Scope::Poster,
    };
    let theirs = perftest.counted(|case| Needed::Completions {
        messages: case.theirs,
    })?;
    Ok(compared(&ours, &theirs, &profiles.kernel))
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
        Rival::OpenMpi => bail!("its program is no loop of messages"),
    };
    // First, since this is what may not build.
    let rivals = bench.profiles(scenario)?;
    let profiles = bench.profiles(SCENARIO)?;
    let ours = doorbell(&profiles)?;
    let program = Program {
        profiles: &rivals,
        name: rival.name(),
        scope: Scope::Whole,
    };
    let theirs = program.counted(|_| Needed::Printed)?;
    Ok(compared(&ours, &theirs, &profiles.kernel))
}

/// Ours, from the scenario that perftest is in.
fn doorbell(profiles: &Profiles) -> Result<Vec<PerMessage>> {
    let program = Program {
        profiles,
        name: "doorbell",
        scope: Scope::Whole,
    };
    program.counted(|case| Needed::Completions { messages: case.ours })
}

/// Ours beside theirs, where there are both.
fn compared(ours: &[PerMessage], theirs: &[PerMessage], kernel: &str) -> Findings {
    let mut findings = Findings::default();
    for ours in ours {
        let Some(theirs) = theirs.iter().find(|theirs| theirs.case == ours.case) else {
            continue;
        };
        let note = format!("kernel {kernel}; the provider's instructions are in, polls in vain are out");
        let measured = Measured {
            theirs: Some(theirs.instructions),
            note: Some(note),
            ..Measured::of(ours.instructions)
        };
        findings.add(ours.case, measured);
    }
    findings
}

impl Program<'_> {
    /// Every case that it has profiles of.
    fn counted(&self, needed: impl Fn(&Case) -> Needed) -> Result<Vec<PerMessage>> {
        let mut pairs = Vec::new();
        for case in &CASES {
            let file = |link: &str, extension: &str| {
                let name = format!("{}-{}.{link}.{extension}", self.name, case.name);
                self.profiles.folder.join(name)
            };
            if !file("plain", "callgrind").exists() {
                continue;
            }
            let counted = |link: &str| {
                let file = file(link, "callgrind");
                let profile = Profile::read(&file)?;
                Counted::of(&profile, self.scope).with_context(|| format!("in {}", file.display()))
            };
            let needed = match needed(case) {
                Needed::Completions { messages } => MESSAGES.div_ceil(messages),
                Needed::Printed => printed(&file("plain", "stdout"))?,
            };
            pairs.push((
                case.name,
                Pair {
                    plain: counted("plain")?,
                    slow: counted("slow")?,
                    needed,
                },
            ));
        }
        let each = in_vain(pairs.iter().map(|(_, pair)| pair))
            .with_context(|| format!("the instructions of {} between messages", self.name))?;
        let told = each.map_or_else(|| "an unknown number".to_owned(), |each| format!("{each:.0}"));
        say(format_args!(
            "{}: a poll in vain takes {told} of instructions",
            self.name
        ));
        pairs
            .into_iter()
            .map(|(case, pair)| {
                pair.per_message(case, each)
                    .with_context(|| format!("{}, {case}", self.name))
            })
            .collect()
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
        let (mut post, mut poll) = (None::<CallEdge>, None::<CallEdge>);
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
                    *best = Some(CallEdge {
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
struct CallEdge {
    caller: usize,
    callee: usize,
    count: u64,
}

/// Estimates the cost of one poll in vain, by least squares over all pairs; unknown if none of them differ enough.
///
/// # Errors
///
/// More polls took fewer instructions, so the pairs differ in something else.
#[expect(clippy::cast_precision_loss, reason = "counts of instructions are below 2^53")]
fn in_vain<'a>(pairs: impl Iterator<Item = &'a Pair>) -> Result<Option<f64>> {
    let (mut products, mut squares, mut most) = (0.0, 0.0, 0);
    for Pair { plain, slow, .. } in pairs {
        let polls = slow.polls as f64 - plain.polls as f64;
        products += polls * (slow.instructions as f64 - plain.instructions as f64);
        squares += polls * polls;
        most = most.max(slow.polls.abs_diff(plain.polls));
    }
    if most < POLLS_BETWEEN_MIN {
        return Ok(None);
    }
    let each = products / squares;
    ensure!(each > 0.0, "more polls took fewer instructions");
    Ok(Some(each))
}

impl Pair {
    #[expect(clippy::cast_precision_loss, reason = "counts of instructions are below 2^53")]
    fn per_message(&self, case: &'static str, in_vain: Option<f64>) -> Result<PerMessage> {
        let messages = MESSAGES as f64;
        let polls = self.plain.polls.saturating_sub(self.needed) as f64;
        ensure!(
            in_vain.is_some() || polls / messages <= POLLS_IN_VAIN_FEW,
            "{polls} polls in vain, and the slow link made too few more to tell what one costs"
        );
        let instructions = self.plain.instructions as f64 - polls * in_vain.unwrap_or(0.0);
        Ok(PerMessage {
            case,
            instructions: instructions / messages,
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

    fn pair(plain: u64, slow: u64) -> Pair {
        let counted = |polls| Counted::of(&profile(polls), Scope::Poster).unwrap();
        Pair {
            plain: counted(plain),
            slow: counted(slow),
            needed: 10,
        }
    }

    #[test]
    fn polls_in_vain_are_taken_out_however_many_there_were() {
        for polls in [10, 300, 2000] {
            let pairs = [pair(polls, 5000), pair(50, 60)];
            let each = in_vain(pairs.iter()).unwrap();
            assert_eq!(each, Some(35.0));
            for pair in &pairs {
                let found = pair.per_message("send-1", each).unwrap();
                let wanted = (1000.0 + 500.0 + 10.0 * 35.0) / MESSAGES as f64;
                assert!((found.instructions - wanted).abs() < 1e-9, "{polls}: {found:?}");
            }
        }
    }

    #[test]
    fn what_a_poll_in_vain_costs_must_be_known_where_there_were_many() {
        assert_eq!(in_vain([pair(100, 599)].iter()).unwrap(), None);
        assert!(in_vain([pair(100, 600)].iter()).unwrap().is_some());
        assert!(
            in_vain([pair(600, 100)].iter()).unwrap().is_some(),
            "whichever was slower"
        );
        assert!(
            pair(10 + 160, 170).per_message("send-1", None).is_ok(),
            "one in twenty messages"
        );
        assert!(pair(10 + 161, 171).per_message("send-1", None).is_err());
    }

    #[test]
    fn a_profile_without_a_loop_is_told() {
        assert!(Counted::of(&Profile::parse("events: Ir\n").unwrap(), Scope::Poster).is_err());
    }
}
