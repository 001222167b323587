//! Reads the output of callgrind: instructions by function, and calls between functions with their counts and
//! costs.
//!
//! Source: the Valgrind user manual, "Callgrind Format Specification".

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};

/// A profile of one run.
#[derive(Debug, Default)]
pub(super) struct Profile {
    functions: Vec<Function>,
}

/// One function of one object file.
#[derive(Debug, Default)]
pub(super) struct Function {
    /// The path of the program or library.
    pub(super) object: String,
    /// Its symbol, or its address where the object has none.
    pub(super) name: String,
    /// Instructions of its own.
    pub(super) own: u64,
    pub(super) calls: Vec<Call>,
}

/// All calls of one function by another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) callee: usize,
    pub(super) count: u64,
    /// Instructions of the callee and all it calls.
    pub(super) cost: u64,
}

impl Profile {
    /// Reads a file of callgrind's.
    ///
    /// # Errors
    ///
    /// It cannot be read, or is no such file.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("{} is no profile of callgrind's", path.display()))
    }

    /// [`Self::read`] for a text at hand.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let mut reader = Reader::default();
        for (number, line) in (1_usize..).zip(text.lines()) {
            reader
                .line(line)
                .with_context(|| format!("line {number}: `{line}`"))?;
        }
        ensure!(reader.has_events, "it counts no instructions (Ir)");
        Ok(reader.profile)
    }

    pub(super) fn functions(&self) -> impl Iterator<Item = (usize, &Function)> {
        self.functions.iter().enumerate()
    }

    /// All instructions that were counted.
    pub(super) fn total(&self) -> u64 {
        self.functions.iter().map(|function| function.own).sum()
    }

    /// All that were counted but those of objects whose path has `part` in it, with all they call.
    pub(super) fn total_without(&self, part: &str) -> u64 {
        let is_out = |index: usize| {
            let function = self.functions.get(index);
            function.is_some_and(|function| function.object.contains(part))
        };
        let callers = self.functions().filter(|(index, _)| !is_out(*index));
        let calls = callers.flat_map(|(_, function)| &function.calls);
        let out: u64 = calls
            .filter(|call| is_out(call.callee))
            .map(|call| call.cost)
            .sum();
        self.total().saturating_sub(out)
    }

    /// Instructions of a function and of all it calls. It must not call itself, not even by others.
    pub(super) fn inclusive(&self, function: usize) -> u64 {
        self.functions.get(function).map_or(0, |function| {
            let called: u64 = function.calls.iter().map(|call| call.cost).sum();
            function.own.saturating_add(called)
        })
    }

    /// Whether a function, or one it calls, or one that one calls, is called so.
    pub(super) fn reaches(&self, function: usize, name: &str) -> bool {
        let mut seen = BTreeSet::new();
        let mut left = vec![function];
        while let Some(next) = left.pop() {
            let Some(function) = self.functions.get(next).filter(|_| seen.insert(next)) else {
                continue;
            };
            if function.name == name {
                return true;
            }
            left.extend(function.calls.iter().map(|call| call.callee));
        }
        false
    }
}

/// State of a profile that is being read.
#[derive(Default)]
struct Reader {
    profile: Profile,
    /// Functions by object and name, both as the file numbers them.
    known: BTreeMap<(String, String), usize>,
    objects: BTreeMap<String, String>,
    names: BTreeMap<String, String>,
    object: String,
    called_object: Option<String>,
    called_name: Option<String>,
    current: Option<usize>,
    /// A call whose cost is on the next line.
    pending: Option<(usize, u64)>,
    /// Columns before the costs.
    positions: usize,
    has_events: bool,
}

impl Reader {
    fn line(&mut self, line: &str) -> Result<()> {
        let line = line.trim_end();
        if line.is_empty() || line.starts_with('#') {
            return Ok(());
        }
        if line.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '*')) {
            return self.cost(line);
        }
        if let Some(words) = line.strip_prefix("positions:") {
            self.positions = words.split_whitespace().count();
        } else if let Some(words) = line.strip_prefix("events:") {
            // Others may follow it; none may stand before.
            self.has_events = words.split_whitespace().next() == Some("Ir");
        } else if let Some((key, value)) = line.split_once('=') {
            self.assignment(key, value)?;
        }
        // Every other line describes the run.
        Ok(())
    }

    fn assignment(&mut self, key: &str, value: &str) -> Result<()> {
        match key {
            "ob" => self.object = compressed(&mut self.objects, value)?,
            "cob" => self.called_object = Some(compressed(&mut self.objects, value)?),
            "fn" => {
                let name = compressed(&mut self.names, value)?;
                let object = self.object.clone();
                self.current = Some(self.function(object, name));
            }
            "cfn" => self.called_name = Some(compressed(&mut self.names, value)?),
            "calls" => {
                let count = value.split(' ').next().unwrap_or_default();
                let count = count.parse().context("no count of calls")?;
                let object = self.called_object.take().unwrap_or_else(|| self.object.clone());
                let name = self.called_name.take().context("a call of nothing")?;
                let callee = self.function(object, name);
                self.pending = Some((callee, count));
            }
            // Source files and jumps.
            _ => {}
        }
        Ok(())
    }

    fn cost(&mut self, line: &str) -> Result<()> {
        let cost = match line.split_whitespace().nth(self.positions) {
            Some(word) => word.parse::<u64>().context("no number of instructions")?,
            None => 0,
        };
        let current = self
            .current
            .and_then(|index| self.profile.functions.get_mut(index));
        let Some(current) = current else {
            bail!("instructions of no function");
        };
        match self.pending.take() {
            None => current.own = current.own.saturating_add(cost),
            Some((callee, count)) => match current.calls.iter_mut().find(|call| call.callee == callee) {
                Some(call) => {
                    call.count = call.count.saturating_add(count);
                    call.cost = call.cost.saturating_add(cost);
                }
                None => current.calls.push(Call { callee, count, cost }),
            },
        }
        Ok(())
    }

    fn function(&mut self, object: String, name: String) -> usize {
        let functions = &mut self.profile.functions;
        *self
            .known
            .entry((object, name))
            .or_insert_with_key(|(object, name)| {
                functions.push(Function {
                    object: object.clone(),
                    name: name.clone(),
                    ..Function::default()
                });
                functions.len().saturating_sub(1)
            })
    }
}

/// The name that `(3) name` gives and `(3)` repeats; a name without a number is itself.
fn compressed(names: &mut BTreeMap<String, String>, value: &str) -> Result<String> {
    let Some(rest) = value.strip_prefix('(') else {
        return Ok(value.to_owned());
    };
    let (number, name) = rest.split_once(')').context("a number without its end")?;
    let name = name.trim_start();
    if name.is_empty() {
        let known = names
            .get(number)
            .context("a number that stands for nothing yet")?;
        return Ok(known.clone());
    }
    names.insert(number.to_owned(), name.to_owned());
    Ok(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `main` calls `post` three times in two places, and that a function without a symbol in a library.
    const SMALL: &str = "\
# callgrind format
version: 1
positions: line
events: Ir

ob=(1) /bin/program
fl=(1) main.c
fn=(1) main
16 20
cfn=(2) post
calls=1 50
16 400
+1 2
cfn=(2)
calls=2 50
* 800

fn=(2)
51 30
cob=(2) /lib/provider.so
cfi=(2) ???
cfn=(3) 0x0000000000003cc0
calls=3 0
52 1170

ob=(2)
fl=(2)
fn=(3)
0 1170
";

    fn named<'a>(profile: &'a Profile, name: &str) -> (usize, &'a Function) {
        profile
            .functions()
            .find(|(_, function)| function.name == name)
            .unwrap()
    }

    #[test]
    fn costs_and_calls_are_read() {
        let profile = Profile::parse(SMALL).unwrap();
        let (main, function) = named(&profile, "main");
        assert_eq!((function.own, function.object.as_str()), (22, "/bin/program"));
        let (post, function) = named(&profile, "post");
        assert_eq!(function.own, 30);
        let (inner, function) = named(&profile, "0x0000000000003cc0");
        assert_eq!(
            (function.own, function.object.as_str()),
            (1170, "/lib/provider.so")
        );
        let calls = |index: usize| profile.functions.get(index).unwrap().calls.clone();
        assert_eq!(
            calls(main),
            [Call {
                callee: post,
                count: 3,
                cost: 1200
            }]
        );
        assert_eq!(
            calls(post),
            [Call {
                callee: inner,
                count: 3,
                cost: 1170
            }]
        );
        assert_eq!(profile.total(), 1222);
        assert_eq!((profile.inclusive(main), profile.inclusive(post)), (1222, 1200));
        assert!(profile.reaches(main, "0x0000000000003cc0") && !profile.reaches(inner, "main"));
        assert_eq!(
            (profile.total_without("provider"), profile.total_without("libc")),
            (52, 1222)
        );
    }

    #[test]
    fn what_is_no_profile_is_refused() {
        for wrong in [
            "",
            "events: Ir\n5 3\n",
            "events: Ir\nfn=(1)\n",
            "events: Ir\nfn=(1) f\ncalls=x\n",
        ] {
            assert!(Profile::parse(wrong).is_err(), "{wrong:?}");
        }
        let other = SMALL.replace("events: Ir", "events: Dr Ir");
        assert!(Profile::parse(&other).is_err(), "another event first");
    }
}
