//! Windows that links grant, as both ends together see them, and the oracles over that.
//!
//! The bytes of a window change by requests that the peer made while it might, and by nothing else. Each request ends
//! once, as done or as unknown. Once a withdrawal has come and all requests have ended, nothing changes any more.

use std::collections::BTreeSet;

use doorbell::link::{Request, RequestEnd, RequestId, RequestRefusal, UnknownReason};
use doorbell::provider::Window as _;
use doorbell::{LocalWindow, RemoteAccess, WindowConfig};
use doorbell_sim::Host;

use crate::case::Ask;
use crate::failure::{Verdict, ensure, failure};
use crate::linked::LinkedRun;

/// Words that are written, each with numbers that only grow.
const CELLS: usize = 3;
/// The one of them that is a block: all of its words are written at once, in several stretches where a fragment is shorter.
const LONG: usize = 2;
/// The word of WRITEs that are never done again, and may be late.
const ONCE: usize = CELLS;
/// The word that is added to.
const SUM: usize = ONCE + 1;
/// The bits that additions have.
const ADDED: u64 = 0x5555_5555_5555_5555;
/// All words but those of the block; what is behind those named stays as it was.
const WORDS: usize = 8;
/// The words of the block, which is behind the others: more than the shortest fragments hold, and no whole number of these.
const LONG_WORDS: usize = 129;
const BYTES: usize = (WORDS + LONG_WORDS) * 8;

/// How many requests follow one that an operation asks.
const AGAIN: u32 = 150;

/// Additions of a window that are under way at once, at most.
const ADDS_MAX: usize = 4;

/// Windows that an end of a link grants at most.
const GRANTS_MAX: usize = 6;

/// A window.
pub(crate) struct Granted {
    /// The link, and the end of it that granted the window.
    bond: usize,
    end: usize,
    number: u32,
    access: RemoteAccess,
    /// `None` where the process is gone whose it was.
    memory: Option<LocalWindow<Host>>,
    /// Its owner has withdrawn it.
    is_withdrawn: bool,
    /// The peer was told of it, and of its end.
    is_told: bool,
    is_over: bool,
    words: [Word; SUM],
    sum: Sum,
    open: Vec<(RequestId, Asked)>,
    /// How many more are asked as others end: so that faults find some under way.
    again: u32,
    /// Something was posted that ended unknown.
    may_be_late: bool,
    /// The final content, once nothing may change it any more.
    rests: Option<Box<[u64; WORDS + LONG_WORDS]>>,
    /// The highest that was in each word of the block.
    block: Box<[u64; LONG_WORDS]>,
}

/// A word that is written.
#[derive(Default)]
struct Word {
    /// The last number.
    asked: u64,
    /// Numbers that were not posted.
    never: BTreeSet<u64>,
    /// The highest that was there.
    seen: u64,
}

/// A word that is added to. Each addition is of a bit of its own, and the bit above is never added. So the value
/// shows which additions were done, however many are in doubt. An addition that is done twice shows as a bit that is
/// not due.
#[derive(Debug, Default)]
struct Sum {
    /// The value at the last look.
    there: u64,
    /// The bits that may still be added, by requests under way or late by those that ended unknown.
    due: u64,
    /// The additions that were seen, of requests under way.
    came: Vec<Came>,
}

/// An addition that was seen, and the value before it.
#[derive(Clone, Copy, Debug)]
struct Came {
    bit: u64,
    before: u64,
    /// All bits that were added since the look before.
    with: u64,
}

/// A request that has no end yet.
#[derive(Clone, Copy, Debug)]
enum Asked {
    Write {
        word: usize,
        number: u64,
    },
    /// A READ of a word that held at least `floor` when it was asked.
    Read {
        word: usize,
        floor: u64,
    },
    Add {
        bit: u64,
    },
}

/// The offset of a word, and its bytes.
const fn place_of(word: usize) -> (usize, usize) {
    match word {
        LONG => (WORDS * 8, LONG_WORDS * 8),
        _ => (word * 8, 8),
    }
}

fn words_of(bytes: &[u8]) -> impl Iterator<Item = u64> {
    let words = bytes.chunks_exact(8);
    words.map(|bytes| u64::from_ne_bytes(bytes.try_into().unwrap_or_default()))
}

impl Granted {
    /// Whether its memory is there.
    pub(crate) const fn is_registered(&self) -> bool {
        self.memory.is_some()
    }
}

impl Sum {
    /// Returns the bit of the next addition, if one is free.
    fn next(&self) -> Option<u64> {
        let taken = self.came.iter().fold(self.due, |taken, came| taken | came.bit);
        let free = ADDED & !taken;
        (free != 0).then_some(free & free.wrapping_neg())
    }

    /// Looks at what is there.
    fn look(&mut self, there: u64, open: u64) -> Verdict {
        let with = there.wrapping_sub(self.there);
        ensure(with & !self.due == 0, "atomic", || {
            format!("{with:x} was added where {:x} was due", self.due)
        })?;
        let before = self.there;
        let mut added = with & open;
        while added != 0 {
            let bit = 1 << added.trailing_zeros();
            self.came.push(Came { bit, before, with });
            added &= !bit;
        }
        self.due &= !with;
        self.there = there;
        Ok(())
    }

    /// A request ended; what it added and was seen to.
    fn end(&mut self, bit: u64) -> Option<Came> {
        let at = self.came.iter().position(|came| came.bit == bit)?;
        Some(self.came.swap_remove(at))
    }
}

impl Granted {
    /// Takes the end of a request, with what it brought.
    fn end(&mut self, asked: Asked, end: RequestEnd, data: Option<&[u8]>) -> Verdict {
        let word = data.and_then(|data| words_of(data).next());
        match (asked, end) {
            (Asked::Write { word, number }, RequestEnd::Done) => {
                let (offset, bytes) = place_of(word);
                let words = (offset..offset + bytes).step_by(8);
                let memory = self.memory.as_ref();
                let there =
                    memory.and_then(|memory| { words }.filter_map(|at| memory.load_u64(at).ok()).min());
                let is_there = word == ONCE || there.is_none_or(|there| there >= number);
                ensure(is_there, "written", || {
                    format!("{there:?} in a word where {number} is done")
                })
            }
            (Asked::Read { word: at, floor }, RequestEnd::Done) => {
                let most = self.words[at].asked;
                let floor = if at == ONCE { 0 } else { floor };
                let data = data.filter(|data| data.len() == place_of(at).1);
                let is_right =
                    data.is_some_and(|data| words_of(data).all(|word| (floor..=most).contains(&word)));
                ensure(is_right, "torn", || {
                    format!("a READ brought {data:?}, of {floor} to {most}")
                })
            }
            (Asked::Add { bit }, RequestEnd::Done) => {
                if self.memory.is_none() {
                    return Ok(());
                }
                let came = self.sum.end(bit);
                let is_right = came
                    .zip(word)
                    .is_some_and(|(came, word)| word.wrapping_sub(came.before) & !(came.with & !bit) == 0);
                ensure(is_right, "atomic", || {
                    format!("{bit:x} is added to {word:x?}, and was seen to be so: {came:x?}")
                })
            }
            (
                Asked::Write { word, number },
                RequestEnd::Unknown {
                    was_posted: false, ..
                },
            ) => {
                self.words[word].never.insert(number);
                Ok(())
            }
            (Asked::Write { .. }, RequestEnd::Unknown { .. }) => {
                self.may_be_late = true;
                Ok(())
            }
            (Asked::Add { bit }, RequestEnd::Unknown { was_posted, .. }) => {
                self.may_be_late |= was_posted;
                let came = self.sum.end(bit);
                if !was_posted {
                    self.sum.due &= !bit;
                }
                ensure(was_posted || came.is_none(), "atomic", || {
                    format!("{came:x?}, which was not posted")
                })
            }
            (Asked::Read { .. }, RequestEnd::Unknown { .. }) => Ok(()),
        }
    }

    /// Checks that the bytes follow from the requests.
    fn check(&mut self) -> Verdict {
        let Some(memory) = &self.memory else {
            return Ok(());
        };
        // All of them at once: this is looked at after each poll.
        let mut bytes = [0; BYTES];
        memory
            .copy_out(0, &mut bytes)
            .map_err(|error| failure("window", format!("{error:?}")))?;
        let mut there = [0; WORDS + LONG_WORDS];
        for (word, value) in there.iter_mut().zip(words_of(&bytes)) {
            *word = value;
        }
        let (there_words, block) = there.split_at(WORDS);
        let number = self.number;
        let check = |index: usize, word: &Word, seen: u64, value: u64| {
            let was_asked = value <= word.asked && !word.never.contains(&value);
            ensure(was_asked, "made up", || {
                format!("{value} in word {index} of window {number}, where nobody asked for that")
            })?;
            ensure(index == ONCE || value >= seen, "undone", || {
                format!("{value} in word {index} of window {number} behind {seen}")
            })
        };
        for (index, (word, value)) in self.words.iter_mut().zip(there_words).enumerate() {
            if index != LONG {
                check(index, word, word.seen, *value)?;
                word.seen = *value;
            }
        }
        for (seen, value) in self.block.iter_mut().zip(block) {
            check(LONG, &self.words[LONG], *seen, *value)?;
            *seen = *value;
        }
        // Each READ of the block brings this at least.
        self.words[LONG].seen = block.iter().copied().min().unwrap_or(0);
        let adding = self.open.iter().fold(0, |bits, (_, asked)| match asked {
            Asked::Add { bit } => bits | bit,
            _ => bits,
        });
        self.sum.look(there[SUM], adding)?;
        let is_untouched = there[SUM + 1..WORDS] == [0; WORDS - SUM - 1] && there[LONG] == 0;
        ensure(is_untouched, "made up", || format!("{there:?}"))?;
        if self.is_over && self.open.is_empty() && !self.may_be_late {
            self.rests.get_or_insert_with(|| Box::new(there));
        }
        let rests = self.rests.as_deref();
        ensure(rests.is_none_or(|rests| *rests == there), "withdrawn", || {
            format!("window {number} was withdrawn with {rests:?}, and has {there:?}")
        })
    }
}

impl LinkedRun<'_> {
    /// An end of a line's link lets the other reach a window.
    pub(crate) fn grant(&mut self, line: usize, end: usize, is_read_only: bool) -> Verdict {
        let host = self.case.lines[line].hosts[end];
        let Some(bond) = self.current(line).filter(|at| self.bonds[*at].is_whole()) else {
            return Ok(());
        };
        let granted = self
            .windows
            .iter()
            .filter(|window| (window.bond, window.end) == (bond, end));
        let is_enough = granted.count() >= GRANTS_MAX;
        let (Some(id), Some(process)) = (self.bonds[bond].id(end), &mut self.seats[host].process) else {
            return Ok(());
        };
        if is_enough {
            return Ok(());
        }
        let worker = self.windows.len() % process.workers.len();
        let config = WindowConfig::new(BYTES, RemoteAccess::ALL);
        let memory = process.workers[worker].window(&config);
        let memory = memory.map_err(|error| failure("window", error.to_string()))?;
        let access = if is_read_only {
            RemoteAccess::READ
        } else {
            RemoteAccess::ALL
        };
        let number = process.links.grant(id, &[(worker, memory.remote())], access);
        let number = number.ok_or_else(|| failure("refused", "a window is not granted"))?;
        self.windows.push(Granted {
            bond,
            end,
            number,
            access,
            memory: Some(memory),
            is_withdrawn: false,
            is_told: false,
            is_over: false,
            words: Default::default(),
            sum: Sum::default(),
            open: Vec::new(),
            again: 0,
            may_be_late: false,
            rests: None,
            block: Box::new([0; LONG_WORDS]),
        });
        self.note(host, format_args!("line {line}: grants window {number}"));
        Ok(())
    }

    /// An end withdraws the first of its windows that it has not.
    pub(crate) fn withdraw(&mut self, line: usize, end: usize) {
        let host = self.case.lines[line].hosts[end];
        let Some(bond) = self.current(line) else {
            return;
        };
        let (Some(id), Some(process)) = (self.bonds[bond].id(end), &mut self.seats[host].process) else {
            return;
        };
        let mut windows = self.windows.iter_mut();
        let next =
            windows.find(|window| (window.bond, window.end, window.is_withdrawn) == (bond, end, false));
        if let Some(window) = next {
            window.is_withdrawn = true;
            process.links.withdraw(id, window.number);
            let number = window.number;
            self.note(host, format_args!("line {line}: withdraws window {number}"));
        }
    }

    /// An end asks something of a window that the other granted, or has withdrawn.
    pub(crate) fn ask(&mut self, line: usize, end: usize, which: u8, what: Ask) -> Verdict {
        let Some(bond) = self.current(line) else {
            return Ok(());
        };
        let windows = self.windows.iter_mut().enumerate();
        let mut its: Vec<_> = windows
            .filter(|(_, window)| (window.bond, window.end, window.is_told) == (bond, 1 - end, true))
            .collect();
        if its.is_empty() {
            return Ok(());
        }
        let (index, window) = its.swap_remove(usize::from(which) % its.len());
        window.again += AGAIN;
        self.ask_of(index, usize::from(which) % CELLS, what)
    }

    /// Asks something of this window, and of this word if the request has a choice.
    fn ask_of(&mut self, index: usize, word: usize, what: Ask) -> Verdict {
        let window = &mut self.windows[index];
        let (bond, end) = (window.bond, 1 - window.end);
        let host = self.case.lines[self.bonds[bond].line].hosts[end];
        let (Some(id), Some(process)) = (self.bonds[bond].id(end), &mut self.seats[host].process) else {
            return Ok(());
        };
        let word = if what == Ask::WriteOnce { ONCE } else { word };
        let number = window.words[word].asked + 1;
        let (offset, length) = place_of(word);
        let bytes = number.to_ne_bytes().repeat(length / 8);
        let (offset, request, asked) = match what {
            Ask::Write => (offset, Request::Write(&bytes), Asked::Write { word, number }),
            Ask::WriteOnce => (offset, Request::WriteOnce(&bytes), Asked::Write { word, number }),
            Ask::Read => {
                let floor = window.words[word].seen;
                (offset, Request::Read(length as u32), Asked::Read { word, floor })
            }
            Ask::Add => match window.sum.next() {
                Some(bit) => (SUM * 8, Request::FetchAndAdd(bit), Asked::Add { bit }),
                None => return Ok(()),
            },
        };
        // One WRITE at a time of each word: of those that are under way at once no order is told.
        let alike = window.open.iter().filter(|(_, open)| match (open, &asked) {
            (Asked::Write { word: open, .. }, Asked::Write { word, .. }) => open == word,
            (Asked::Add { .. }, Asked::Add { .. }) => true,
            _ => false,
        });
        let most = match asked {
            Asked::Write { .. } => 1,
            Asked::Add { .. } => ADDS_MAX,
            Asked::Read { .. } => usize::MAX,
        };
        if alike.count() >= most {
            return Ok(());
        }
        let may = window.access == RemoteAccess::ALL || what == Ask::Read;
        match process
            .links
            .request(&process.node, id, (window.number, offset as u64), &request)
        {
            Ok(request) => {
                ensure(may && !window.is_over, "refused", || {
                    format!(
                        "{what:?} is taken of window {}, which is over or not granted for that",
                        window.number
                    )
                })?;
                match asked {
                    Asked::Write { word, number } => window.words[word].asked = number,
                    Asked::Add { bit } => window.sum.due |= bit,
                    Asked::Read { .. } => {}
                }
                window.open.push((request, asked));
                Ok(())
            }
            // Several may have ended in one poll: the ones not heard of yet are still counted.
            Err(RequestRefusal::Full) => self.check_requests((bond, end), length),
            Err(RequestRefusal::NoWindow) if window.is_over => Ok(()),
            Err(RequestRefusal::NotGranted) if !may => Ok(()),
            Err(RequestRefusal::Closing | RequestRefusal::Over(_)) if !self.bonds[bond].is_whole() => Ok(()),
            Err(refusal) => Err(failure("refused", format!("{what:?}: {refusal}"))),
        }
    }

    /// Checks that an end of a link has as many requests without an end as it may have, of all or of those that are longer than a fragment.
    fn check_requests(&self, (bond, end): (usize, usize), bytes: usize) -> Verdict {
        let host = self.case.lines[self.bonds[bond].line].hosts[end];
        let fragment_bytes = self.case.links.map_or(0, |links| links.fragment_bytes as usize);
        let its = self
            .windows
            .iter()
            .filter(|window| (window.bond, window.end) == (bond, 1 - end));
        let open = its.flat_map(|window| &window.open);
        let long = |asked: &Asked| match asked {
            Asked::Write { word, .. } | Asked::Read { word, .. } => place_of(*word).1 > fragment_bytes,
            Asked::Add { .. } => false,
        };
        let (all, longs) = open.fold((0, 0), |(all, longs), (_, asked)| {
            (all + 1, longs + usize::from(long(asked)))
        });
        let [all_max, longs_max] = self.requests_max[host];
        ensure(
            all >= all_max || bytes > fragment_bytes && longs >= longs_max,
            "refused",
            || {
                format!(
                    "end {end} of link {} has {all} requests, {longs} of them long, and one more is refused",
                    bond + 1
                )
            },
        )
    }

    /// The window of this number that the other end of a link granted.
    fn window_of_peer(&mut self, (bond, end): (usize, usize), number: u32) -> Verdict<&mut Granted> {
        let mut windows = self.windows.iter_mut();
        let found =
            windows.find(|window| (window.bond, window.end, window.number) == (bond, 1 - end, number));
        found.ok_or_else(|| failure("made up", format!("window {number}, which nobody granted")))
    }

    /// An end is told of a window.
    pub(crate) fn hear_granted(
        &mut self,
        at: (usize, usize),
        (number, bytes, access): (u32, u64, RemoteAccess),
    ) -> Verdict {
        let window = self.window_of_peer(at, number)?;
        let is_so = (bytes, access) == (BYTES as u64, window.access) && !window.is_told;
        window.is_told = true;
        ensure(is_so, "told", || {
            format!("window {number} of {bytes} bytes, {access:?}")
        })
    }

    /// An end is told of a window's end.
    pub(crate) fn hear_withdrawn(&mut self, at: (usize, usize), number: u32) -> Verdict {
        let window = self.window_of_peer(at, number)?;
        let is_so = window.is_told && window.is_withdrawn && !window.is_over;
        window.is_over = true;
        ensure(is_so, "told", || {
            format!("window {number} is withdrawn, which it is not")
        })
    }

    /// An end is told that a request is done, or that nothing is known of it.
    pub(crate) fn hear_ended(
        &mut self,
        (bond, end): (usize, usize),
        id: RequestId,
        told: RequestEnd,
        data: Option<&[u8]>,
    ) -> Verdict {
        let is_closing = (0..2).any(|end| self.bonds[bond].is_closing(end));
        let is_untroubled = self.is_untroubled;
        let found = self.windows.iter().enumerate().find_map(|(index, window)| {
            let is_of = (window.bond, window.end) == (bond, 1 - end);
            let at = window.open.iter().position(|(open, _)| is_of && *open == id)?;
            Some((index, at))
        });
        let Some((index, at)) = found else {
            return Err(failure(
                "told",
                format!("{id:?} ended ({told:?}), and was not under way"),
            ));
        };
        let window = &mut self.windows[index];
        window.check()?;
        let (_, asked) = window.open.swap_remove(at);
        if let RequestEnd::Unknown { reason, .. } = told {
            let may_be = match reason {
                UnknownReason::Withdrawn => window.is_withdrawn,
                UnknownReason::Denied => window.memory.is_none(),
                UnknownReason::Over(_) => true,
                _ => !is_untroubled || is_closing,
            };
            ensure(may_be, "excuse", || format!("{id:?} ended unknown: {reason}"))?;
        }
        window.end(asked, told, data)?;
        let goes_on = !matches!(
            told,
            RequestEnd::Unknown {
                reason: UnknownReason::Over(_) | UnknownReason::NoRail | UnknownReason::NoRoom,
                ..
            }
        );
        if window.again == 0 || window.is_withdrawn || !goes_on {
            return Ok(());
        }
        window.again -= 1;
        match asked {
            Asked::Write { word: ONCE, .. } => self.ask_of(index, 0, Ask::WriteOnce),
            Asked::Write { word, .. } => self.ask_of(index, word, Ask::Write),
            Asked::Read { word, .. } => self.ask_of(index, word, Ask::Read),
            Asked::Add { .. } => self.ask_of(index, 0, Ask::Add),
        }
    }

    /// A process is gone: its windows, and what it had asked.
    pub(crate) fn forget_windows(&mut self, host: usize) {
        for window in &mut self.windows {
            let hosts = self.case.lines[self.bonds[window.bond].line].hosts;
            if hosts[window.end] == host {
                window.memory = None;
            }
            if hosts[1 - window.end] == host && !window.open.is_empty() {
                window.may_be_late = true;
                window.open.clear();
            }
        }
    }

    /// The oracle for what is in windows; of a link that is over, everything asked has ended.
    pub(crate) fn check_windows(&mut self) -> Verdict {
        for window in &mut self.windows {
            let asker = &self.bonds[window.bond];
            let is_over = asker.id(1 - window.end).is_none();
            ensure(!is_over || window.open.is_empty(), "told", || {
                format!("the end, where requests have none: {:?}", window.open)
            })?;
            window.check()?;
        }
        Ok(())
    }

    /// Nothing more is asked of windows.
    pub(crate) fn ask_no_more(&mut self) {
        self.windows.iter_mut().for_each(|window| window.again = 0);
    }

    /// Returns the windows with requests that have not ended: the link, the end that asked, and a key. The key is
    /// different for each window. It changes with each request that ends, as long as none is asked.
    pub(crate) fn windows_awaited(&self) -> impl Iterator<Item = (usize, usize, u64)> {
        let windows = self.windows.iter().enumerate();
        let awaited = windows.filter(|(_, window)| !window.open.is_empty());
        awaited.map(|(at, window)| {
            (
                window.bond,
                1 - window.end,
                (at as u64) << 16 | window.open.len() as u64,
            )
        })
    }

    /// Whether everything asked of windows has ended.
    pub(crate) fn are_windows_quiet(&self) -> bool {
        self.windows.iter().all(|window| window.open.is_empty())
    }

    /// Notes that late requests have come by now.
    pub(crate) fn settle_windows(&mut self) {
        for window in &mut self.windows {
            window.may_be_late = false;
        }
    }
}
