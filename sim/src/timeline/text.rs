//! A timeline as text: a sequence diagram with a column for each host and a line for each moment.

use core::fmt::{self, Display, Formatter};

use super::{Fate, Shot, Timeline, Tone, What};

/// How far columns of hosts stand apart.
const COLUMN: usize = 12;

/// Lines until the names of hosts stand again.
const NAMES_EVERY: usize = 50;

/// Columns of the diagram: the hosts, and their lanes.
struct Columns<'t> {
    hosts: Vec<&'t str>,
    /// Each lane's column, and its name within its host.
    lanes: Vec<(usize, &'t str)>,
}

impl<'t> Columns<'t> {
    fn of(timeline: &'t Timeline) -> Self {
        let split = |lane: &'t String| lane.split_once('/').unwrap_or((lane, ""));
        let mut hosts: Vec<&str> = timeline.lanes.iter().map(|lane| split(lane).0).collect();
        // As people count: h2 before h10.
        hosts.sort_by_key(|host| (host.len(), *host));
        hosts.dedup();
        let lane = |(host, within)| {
            let column = hosts.iter().position(|each| *each == host);
            (column.unwrap_or_default(), within)
        };
        let lanes = timeline.lanes.iter().map(split).map(lane).collect();
        Self { hosts, lanes }
    }

    fn lane(&self, number: usize) -> (usize, &'t str) {
        self.lanes.get(number).copied().unwrap_or_default()
    }

    /// The line of each host, with this in it from one column to another.
    fn draw(&self, mark: impl Fn(usize) -> Option<char>) -> String {
        let width = self.hosts.len().saturating_mul(COLUMN);
        let line = |at: usize| match at.checked_rem(COLUMN) {
            Some(0) => '|',
            _ => ' ',
        };
        (0..width)
            .map(|at| mark(at).unwrap_or_else(|| line(at)))
            .collect()
    }

    /// One sign in a column.
    fn sign(&self, column: usize, sign: char) -> String {
        self.draw(|at| (at == column.saturating_mul(COLUMN)).then_some(sign))
    }

    /// The arrow of a packet: with a head where it came, and broken where it did not.
    fn arrow(&self, shot: &Shot) -> String {
        let (from, _) = self.lane(shot.from);
        let to = shot.to.map(|to| self.lane(to).0);
        let Some(to) = to.filter(|to| *to != from) else {
            return self.sign(from, if shot.to.is_some() { '@' } else { 'x' });
        };
        let (from, to) = (from.saturating_mul(COLUMN), to.saturating_mul(COLUMN));
        let (low, high) = (from.min(to), from.max(to));
        let head_at = match to > from {
            true => to.saturating_sub(1),
            false => to.saturating_add(1),
        };
        let (ends, head) = match shot.fate {
            Fate::Arrived(_) => (head_at, if to > from { '>' } else { '<' }),
            Fate::Corrupt(_) | Fate::Unheard(_) | Fate::Refused(_) => (head_at, 'x'),
            Fate::Lost | Fate::Stranded => (low.midpoint(high), 'x'),
            Fate::UnderWay => (low.midpoint(high), '~'),
        };
        self.draw(|at| match at {
            _ if at == from => Some('o'),
            _ if at == ends => Some(head),
            _ if from.min(ends) < at && at < from.max(ends) => Some('-'),
            _ => None,
        })
    }
}

impl Display for Timeline {
    /// The names of hosts above their columns, then a line for each moment, in order of time.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let [packets, others] = self.counts();
        writeln!(
            f,
            "{packets} packets and {others} other moments; a packet stands where its last bit left, and is lost where its arrow ends in x"
        )?;
        let columns = Columns::of(self);
        let unit = self.unit();
        for (number, moment) in self.moments.iter().enumerate() {
            if number.checked_rem(NAMES_EVERY) == Some(0) {
                let names: String = columns
                    .hosts
                    .iter()
                    .map(|host| format!("{host:<COLUMN$}"))
                    .collect();
                writeln!(f, "{:>16}  {}", "", names.trim_end())?;
            }
            write!(f, "{:>16}  ", unit.say(moment.at_ns))?;
            match &moment.what {
                What::Packet(shot) => {
                    write!(f, "{}{}", columns.arrow(shot), shot.label())?;
                    for trouble in shot.troubles() {
                        write!(f, ", {trouble}")?;
                    }
                    if let Some(at_ns) = shot.fate.at_ns() {
                        write!(f, ", comes {}", unit.say(at_ns))?;
                    }
                    let (_, from) = columns.lane(shot.from);
                    let to = shot.to.map_or("nobody", |to| columns.lane(to).1);
                    writeln!(f, " ({from} to {to})")?;
                }
                What::Remark {
                    lane,
                    text,
                    tone,
                    times,
                } => {
                    match (lane, tone) {
                        (Some(lane), _) => write!(f, "{}{text}", columns.sign(columns.lane(*lane).0, '*'))?,
                        (None, Tone::Note) => write!(f, "{}{text}", columns.draw(|_| None))?,
                        (None, _) => write!(f, "{} {text}", columns.draw(|_| Some('=')))?,
                    }
                    let within = lane.map_or("", |lane| columns.lane(lane).1);
                    if !within.is_empty() {
                        write!(f, " ({within})")?;
                    }
                    match times {
                        1 => writeln!(f)?,
                        times => writeln!(f, ", {times} times")?,
                    }
                }
            }
        }
        match self.cut() {
            Some(cut) => writeln!(f, "{cut}"),
            None => Ok(()),
        }
    }
}
