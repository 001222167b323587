//! A timeline as text: a line for each moment.

use core::fmt::{self, Display, Formatter};

use super::{Timeline, Tone, What};

impl Display for Timeline {
    /// The lanes with their numbers, then a line for each moment, in order of time.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let [packets, others] = self.counts();
        writeln!(
            f,
            "{packets} packets and {others} other moments; a packet stands where its last bit left"
        )?;
        for (number, lane) in (1_usize..).zip(&self.lanes) {
            writeln!(f, "  lane {number}: {lane}")?;
        }
        let unit = self.unit();
        for moment in &self.moments {
            write!(f, "{:>16}  ", unit.say(moment.at_ns))?;
            match &moment.what {
                What::Packet(shot) => {
                    let from = shot.from.saturating_add(1);
                    let to = shot
                        .to
                        .map_or_else(|| "?".to_owned(), |to| to.saturating_add(1).to_string());
                    write!(f, "{:<7} {}", format!("{from} -> {to}"), shot.label())?;
                    for trouble in shot.troubles() {
                        write!(f, ", {trouble}")?;
                    }
                    match shot.fate.at_ns() {
                        Some(at_ns) => writeln!(f, ", comes {}", unit.say(at_ns))?,
                        None => writeln!(f)?,
                    }
                }
                What::Remark {
                    lane,
                    text,
                    tone,
                    times,
                } => {
                    let lane = match (lane, tone) {
                        (Some(lane), _) => lane.saturating_add(1).to_string(),
                        (None, Tone::Fault) => "=====".to_owned(),
                        (None, _) => String::new(),
                    };
                    write!(f, "{lane:<7} {text}")?;
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
