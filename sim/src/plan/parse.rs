//! Plans from text.

use core::fmt;
use core::str::FromStr;

use super::text::{ANY_KIND, UNITS};
use super::{Action, Call, CallRule, Clause, Effect, End, Name, PacketRule, Plan, Step, Which};
use crate::packet::PacketKind;

/// Why a text is no plan.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlanError {
    /// The clause that is none.
    pub clause: String,
    /// Expected syntax.
    pub expected: &'static str,
    /// Text that was found; empty at the end of the clause.
    pub found: String,
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            clause,
            expected,
            found,
        } = self;
        match found.as_str() {
            "" => write!(f, "in \"{clause}\": {expected} is missing at the end"),
            found => write!(f, "in \"{clause}\": {expected} is expected, not \"{found}\""),
        }
    }
}

impl core::error::Error for PlanError {}

impl FromStr for Plan {
    type Err = PlanError;

    fn from_str(text: &str) -> Result<Self, PlanError> {
        let mut plan = Self::default();
        for line in text.lines() {
            let said = line.split('#').next().unwrap_or_default();
            for clause in said.split(';').map(str::trim).filter(|clause| !clause.is_empty()) {
                Words::new(clause).clause(&mut plan)?;
            }
        }
        Ok(plan)
    }
}

/// An action as in a plan, without its time: `kill host2`, or `link a-b down`.
impl FromStr for Action {
    type Err = PlanError;

    fn from_str(text: &str) -> Result<Self, PlanError> {
        let mut words = Words::new(text);
        let action = words.action()?;
        words.end()?;
        Ok(action)
    }
}

/// The words of a clause, taken one after the other.
struct Words<'t> {
    clause: &'t str,
    rest: core::str::SplitWhitespace<'t>,
}

impl<'t> Words<'t> {
    fn new(clause: &'t str) -> Self {
        Self {
            clause,
            rest: clause.split_whitespace(),
        }
    }

    fn error(&self, expected: &'static str, found: &str) -> PlanError {
        PlanError {
            clause: self.clause.to_owned(),
            expected,
            found: found.to_owned(),
        }
    }

    /// The next word as something.
    fn take<T>(
        &mut self,
        expected: &'static str,
        parse: impl FnOnce(&'t str) -> Option<T>,
    ) -> Result<T, PlanError> {
        let word = self.rest.next().unwrap_or_default();
        parse(word).ok_or_else(|| self.error(expected, word))
    }

    /// The next word is this one.
    fn word(&mut self, expected: &'static str) -> Result<(), PlanError> {
        self.take(expected, |word| (word == expected).then_some(()))
    }

    fn end(&mut self) -> Result<(), PlanError> {
        match self.rest.next() {
            None => Ok(()),
            Some(word) => Err(self.error("the end of the clause", word)),
        }
    }

    fn clause(&mut self, plan: &mut Plan) -> Result<(), PlanError> {
        let first = self.take("a clause", Some)?;
        match first {
            "seed" => plan.seed = Some(self.take("a number", |word| word.parse().ok())?),
            "at" => {
                let step = self.step()?;
                plan.clauses.push(Clause::At(step));
            }
            "fail" => {
                let rule = self.calls()?;
                plan.clauses.push(Clause::Calls(rule));
            }
            "drop" | "duplicate" | "reorder" | "corrupt" | "delay" => {
                let rule = self.packets(first)?;
                plan.clauses.push(Clause::Packets(rule));
            }
            _ => {
                return Err(self.error(
                    "seed, at, fail, drop, duplicate, reorder, corrupt or delay",
                    first,
                ));
            }
        }
        self.end()
    }

    fn step(&mut self) -> Result<Step, PlanError> {
        let at_ns = self.take("a time", span)?;
        let action = self.action()?;
        let lasts_ns = match self.rest.clone().next() {
            None => None,
            Some(_) => {
                self.word("for")?;
                Some(self.take("a span", span)?)
            }
        };
        Ok(Step {
            at_ns,
            action,
            lasts_ns,
        })
    }

    fn action(&mut self) -> Result<Action, PlanError> {
        let first = self.take("an action", Some)?;
        Ok(match first {
            "link" => {
                let (a, b) = self.take("two ends with a - between", |word| ends(word, "-"))?;
                Action::Link(a, b, self.up()?)
            }
            "port" => Action::Port(self.take("a port", end)?, self.up()?),
            "gid" => {
                let port = self.take("a port", end)?;
                let old = self.take("an address", |word| word.parse().ok())?;
                self.word("becomes")?;
                Action::Gid(port, old, self.take("an address", |word| word.parse().ok())?)
            }
            "kill" => Action::Kill(self.host()?),
            "restart" => Action::Restart(self.host()?),
            "pause" => Action::Pause(self.host()?, true),
            "resume" => Action::Pause(self.host()?, false),
            "overrun" => Action::Overrun(self.host()?),
            "slow" => {
                let host = self.host()?;
                self.word("by")?;
                Action::Slow(host, self.take("a span", span)?)
            }
            "clock" => {
                let host = self.host()?;
                self.word("ahead")?;
                Action::Clock(host, self.take("a span", span)?)
            }
            "calm" => Action::Calm,
            _ => {
                return Err(self.error(
                    "link, port, gid, kill, restart, pause, resume, slow, overrun, clock or calm",
                    first,
                ));
            }
        })
    }

    fn packets(&mut self, effect: &str) -> Result<PacketRule, PlanError> {
        let which = self.which()?;
        let kind = self.take("a kind of packets", kind)?;
        self.word("of")?;
        let (from, to) = self.take("two ends with a -> between", |word| ends(word, "->"))?;
        let effect = match effect {
            "drop" => Effect::Drop,
            "duplicate" => Effect::Duplicate,
            "reorder" => Effect::Reorder,
            "corrupt" => Effect::Corrupt,
            _ => {
                self.word("by")?;
                Effect::Delay(self.take("a span", span)?)
            }
        };
        Ok(PacketRule {
            effect,
            which,
            kind,
            from,
            to,
        })
    }

    fn calls(&mut self) -> Result<CallRule, PlanError> {
        let which = self.which()?;
        let call = self.take(
            "post, unclear-post, receive-post, shut, registration, deregistration, or of which kind",
            called,
        )?;
        if matches!(call, Call::Post(Some(_))) {
            self.word("post")?;
        }
        self.word("of")?;
        let host = self.host()?;
        self.word("with")?;
        let errno = self.take("an error number", |word| word.parse().ok())?;
        Ok(CallRule {
            which,
            call,
            host,
            errno,
        })
    }

    fn which(&mut self) -> Result<Which, PlanError> {
        const EXPECTED: &str = "which, as 2nd, every 2nd or 1%";
        let first = self.take(EXPECTED, Some)?;
        if first == "every" {
            return Ok(Which::Every(self.take("how manieth, as 2nd", ordinal)?));
        }
        let nth = ordinal(first).map(Which::Nth);
        nth.or_else(|| chance(first).map(Which::Chance))
            .ok_or_else(|| self.error(EXPECTED, first))
    }

    fn host(&mut self) -> Result<Name, PlanError> {
        self.take("a host", Name::new)
    }

    fn up(&mut self) -> Result<bool, PlanError> {
        self.take("up or down", |word| match word {
            "up" => Some(true),
            "down" => Some(false),
            _ => None,
        })
    }
}

fn span(word: &str) -> Option<u64> {
    let digits = word.find(|letter: char| !letter.is_ascii_digit())?;
    let (count, unit) = word.split_at_checked(digits)?;
    let (_, ns) = UNITS.iter().find(|(name, _)| *name == unit)?;
    count.parse::<u64>().ok()?.checked_mul(*ns)
}

fn ordinal(word: &str) -> Option<u64> {
    let digits = word.find(|letter: char| !letter.is_ascii_digit())?;
    let (count, ending) = word.split_at_checked(digits)?;
    let count = count.parse().ok().filter(|count| *count > 0)?;
    matches!(ending, "st" | "nd" | "rd" | "th").then_some(count)
}

/// A part in a million, from percent with up to four places.
fn chance(word: &str) -> Option<u32> {
    let percent = word.strip_suffix('%')?;
    let (whole, rest) = percent.split_once('.').unwrap_or((percent, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(rest) || rest.len() > 4 {
        return None;
    }
    let whole: u32 = whole.parse().ok().filter(|whole| *whole <= 100)?;
    let rest: u32 = format!("{rest:0<4}").parse().ok()?;
    let per_million = whole.checked_mul(10_000)?.checked_add(rest)?;
    (per_million <= crate::random::MILLION).then_some(per_million)
}

fn kind(word: &str) -> Option<Option<PacketKind>> {
    if word == ANY_KIND {
        return Some(None);
    }
    let (kind, _) = PacketKind::NAMES.iter().find(|(_, name)| *name == word)?;
    Some(Some(*kind))
}

/// A kind of calls; of posts, the kind of requests.
fn called(word: &str) -> Option<Call> {
    match word {
        "post" => return Some(Call::Post(None)),
        "unclear-post" => return Some(Call::UnclearPost),
        "receive-post" => return Some(Call::ReceivePost),
        "shut" => return Some(Call::Shut),
        "registration" => return Some(Call::Registration),
        "deregistration" => return Some(Call::Deregistration),
        _ => {}
    }
    let kind = kind(word)??;
    let is_posted = matches!(
        kind,
        PacketKind::Send | PacketKind::Write | PacketKind::Read | PacketKind::Atomic
    );
    is_posted.then_some(Call::Post(Some(kind)))
}

fn end(word: &str) -> Option<End> {
    let (rest, port) = match word.split_once(':') {
        Some((rest, port)) => (rest, Some(port.parse().ok()?)),
        None => (word, None),
    };
    let (host, device) = match rest.split_once('/') {
        Some((host, device)) => (host, Some(Name::new(device)?)),
        None => (rest, None),
    };
    Some(End {
        host: Name::new(host)?,
        device,
        port,
    })
}

fn ends(word: &str, between: &str) -> Option<(End, End)> {
    let (a, b) = word.split_once(between)?;
    Some((end(a)?, end(b)?))
}
