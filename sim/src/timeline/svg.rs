//! A timeline as a picture: time goes down, a lane is a line, a packet an arrow from one to another.

use core::fmt::{self, Formatter, Write as _};
use std::collections::BTreeMap;

use super::axis::{Axis, LINE};
use super::{Fate, Shot, Timeline, Tone, What};
use crate::packet::PacketKind;

/// Right edge of the times; the axis begins behind it.
const TIMES: f64 = 120.0;
const AXIS: f64 = 130.0;
const LEFT: f64 = 300.0;
const LANE: f64 = 330.0;
/// A packet that goes from a lane to itself goes out so far.
const LOOP: f64 = 60.0;
/// Length of the fall of a packet that goes nowhere.
const FALL: f64 = 8.0;

const BAD: &str = "#c00000";
const GREY: &str = "#777777";

/// The colours of packets, by kind.
const COLOURS: [(PacketKind, &str); 10] = [
    (PacketKind::Send, "#1f5fbf"),
    (PacketKind::Write, "#7030a0"),
    (PacketKind::Read, "#007a6c"),
    (PacketKind::Response, "#33a89a"),
    (PacketKind::Atomic, "#8a5a00"),
    (PacketKind::AtomicResult, "#c08a20"),
    (PacketKind::Ack, "#5a9a3a"),
    (PacketKind::Nak, "#d0006f"),
    (PacketKind::NotReady, "#e06000"),
    (PacketKind::Datagram, "#3a3a8a"),
];

fn colour(kind: PacketKind) -> &'static str {
    let mut colours = COLOURS.iter();
    colours
        .find(|(known, _)| *known == kind)
        .map_or(GREY, |(_, colour)| colour)
}

impl Timeline {
    /// The picture, as the text of an SVG file.
    ///
    /// Packets are coloured by kind, with a legend; dashed ones were sent again, and a cross marks where one
    /// ended that was lost. Time has its unit at every instant; it is not to scale, and where much of it is cut out the
    /// picture says how much.
    #[must_use]
    pub fn to_svg(&self) -> String {
        let mut svg = String::new();
        // Writing to a string never fails.
        let _ = Picture::of(self).draw(&mut svg);
        svg
    }

    /// Every instant something is at, with how many lines one lane writes there at most.
    fn instants(&self) -> BTreeMap<u64, u32> {
        let mut lines: BTreeMap<u64, BTreeMap<Option<usize>, u32>> = BTreeMap::new();
        for moment in &self.moments {
            let at = lines.entry(moment.at_ns).or_default();
            let lane = match &moment.what {
                What::Packet(shot) => Some(shot.from),
                What::Remark { lane, .. } => *lane,
            };
            let written = at.entry(lane).or_default();
            *written = written.saturating_add(1);
            if let What::Packet(shot) = &moment.what {
                if let Some(at_ns) = shot.fate.at_ns() {
                    lines.entry(at_ns).or_default();
                }
            }
        }
        let at_once = |lanes: BTreeMap<Option<usize>, u32>| {
            let over_all = lanes.get(&None).copied().unwrap_or_default();
            let of_lanes = lanes
                .iter()
                .filter(|(lane, _)| lane.is_some())
                .map(|(_, lines)| *lines);
            over_all.saturating_add(of_lanes.max().unwrap_or_default()).max(1)
        };
        lines
            .into_iter()
            .map(|(at_ns, lanes)| (at_ns, at_once(lanes)))
            .collect()
    }
}

/// Picture that is being drawn.
struct Picture<'t> {
    timeline: &'t Timeline,
    axis: Axis,
    /// Top of the lanes.
    top: f64,
    width: f64,
}

impl<'t> Picture<'t> {
    fn of(timeline: &'t Timeline) -> Self {
        let top = LINE * 5.0;
        let lanes = timeline.lanes.len().max(2);
        Self {
            timeline,
            axis: Axis::new(&timeline.instants(), top + LINE * 2.0),
            top,
            width: LEFT + LANE * lanes as f64,
        }
    }

    fn x(lane: usize) -> f64 {
        LEFT + LANE * (lane as f64 + 0.12)
    }

    fn draw(&self, svg: &mut String) -> fmt::Result {
        let ends = self.axis.ends() + LINE;
        let (width, height) = (self.width, ends + LINE * 2.0);
        writeln!(
            svg,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
             viewBox=\"0 0 {width:.0} {height:.0}\" font-family=\"monospace\" font-size=\"11\">\n\
             <style>text{{paint-order:stroke;stroke:white;stroke-width:3px}}</style>\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>"
        )?;
        self.legend(svg)?;
        for (lane, name) in self.timeline.lanes.iter().enumerate() {
            let x = Self::x(lane);
            text(svg, (x, self.top), "#000000", "middle", name)?;
            line(svg, (x, self.top + 5.0), (x, ends), "#bbbbbb", "")?;
        }
        self.time(svg)?;
        // How many lines stand already at an instant, by lane.
        let mut written: BTreeMap<(u64, Option<usize>), f64> = BTreeMap::new();
        // Above all lines, so that none goes through a text.
        let mut labels = String::new();
        for moment in &self.timeline.moments {
            let lane = match &moment.what {
                What::Packet(shot) => Some(shot.from),
                What::Remark { lane, .. } => *lane,
            };
            let line = written.entry((moment.at_ns, lane)).or_insert(0.0);
            let y = self.axis.y(moment.at_ns) + *line * LINE;
            *line += 1.0;
            match &moment.what {
                What::Packet(shot) => self.shot((svg, &mut labels), shot, y)?,
                What::Remark {
                    lane,
                    text,
                    tone,
                    times,
                } => {
                    let text = match times {
                        1 => text.clone(),
                        times => format!("{text}, {times} times"),
                    };
                    self.remark((svg, &mut labels), (*lane, &text, *tone), y)?;
                }
            }
        }
        svg.push_str(&labels);
        if let Some(cut) = self.timeline.cut() {
            text(svg, (8.0, ends + LINE), BAD, "start", &cut)?;
        }
        svg.write_str("</svg>\n")
    }

    fn legend(&self, svg: &mut String) -> fmt::Result {
        let [packets, others] = self.timeline.counts();
        let said = format!(
            "{packets} packets, {others} other moments. Time goes down, not to scale. Dashed: sent again. \u{2715}: lost."
        );
        text(svg, (8.0, LINE + 2.0), "#000000", "start", &said)?;
        let mut x = 8.0;
        for (kind, colour) in COLOURS {
            text(
                svg,
                (x, LINE * 2.0 + 6.0),
                colour,
                "start",
                &format!("\u{25a0} {}", kind.name()),
            )?;
            x += 7.0 * (kind.name().len() as f64 + 4.0);
        }
        Ok(())
    }

    /// The axis: every instant, and what was cut out between two.
    fn time(&self, svg: &mut String) -> fmt::Result {
        let unit = self.timeline.unit();
        for (at_ns, tick) in self.axis.ticks() {
            text(svg, (TIMES, tick.y + 4.0), GREY, "end", &unit.say(at_ns))?;
            line(svg, (TIMES + 4.0, tick.y), (AXIS, tick.y), GREY, "")?;
            if let Some(cut_ns) = tick.cut_ns {
                let y = tick.y - LINE * 1.2;
                line(svg, (AXIS, y), (self.width, y), "#dddddd", "2 6")?;
                text(
                    svg,
                    (TIMES, y + 4.0),
                    "#aaaaaa",
                    "end",
                    &format!("{} pass", unit.say(cut_ns)),
                )?;
            }
        }
        Ok(())
    }

    fn shot(&self, (svg, labels): (&mut String, &mut String), shot: &Shot, y: f64) -> fmt::Result {
        let colour = colour(shot.kind);
        let x = Self::x(shot.from);
        let arrives = shot.fate == Fate::UnderWay || matches!(shot.fate, Fate::Arrived(_));
        let (end_x, end_y) = {
            let to = shot.to.map_or(x + LANE * 0.5, Self::x);
            let to = if shot.to == Some(shot.from) { x + LOOP } else { to };
            match shot.fate.at_ns() {
                Some(at_ns) => (to, self.axis.y(at_ns)),
                // It goes half of its way.
                None => (x + (to - x) * 0.5, y + FALL),
            }
        };
        let dashes = if shot.is_again { "6 3" } else { "" };
        line(svg, (x, y), (end_x, end_y), colour, dashes)?;
        let is_left = end_x < x;
        if arrives {
            let back = if is_left { 7.0 } else { -7.0 };
            let slope = (end_y - y) / (end_x - x) * back;
            writeln!(
                svg,
                "<path d=\"M{end_x:.1} {end_y:.1}L{:.1} {:.1}L{:.1} {:.1}z\" fill=\"{colour}\"/>",
                end_x + back,
                end_y + slope - 3.0,
                end_x + back,
                end_y + slope + 3.0,
            )?;
        } else {
            text(labels, (end_x, end_y + 5.0), BAD, "middle", "\u{2715}")?;
        }
        let said = shot
            .troubles()
            .iter()
            .fold(shot.label(), |said, trouble| format!("{said} {trouble}"));
        let (from, anchor) = if is_left {
            (x - 6.0, "end")
        } else {
            (x + 6.0, "start")
        };
        let hue = if shot.troubles().is_empty() { colour } else { BAD };
        text(labels, (from, y - 2.0), hue, anchor, &said)
    }

    fn remark(
        &self,
        (svg, labels): (&mut String, &mut String),
        (lane, said, tone): (Option<usize>, &str, Tone),
        y: f64,
    ) -> fmt::Result {
        let colour = match tone {
            Tone::Good => "#207020",
            Tone::Bad | Tone::Fault => BAD,
            Tone::Note => "#000000",
        };
        let Some(lane) = lane else {
            line(svg, (AXIS, y), (self.width, y), colour, "")?;
            return text(labels, (AXIS + 4.0, y - 2.0), colour, "start", said);
        };
        let x = Self::x(lane);
        writeln!(
            svg,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" fill=\"{colour}\"/>"
        )?;
        // Beside the lane where no packet leaves that way: the first lane has its packets at its right.
        let (from, anchor) = if lane == 0 {
            (x - 7.0, "end")
        } else {
            (x + 7.0, "start")
        };
        text(labels, (from, y + 4.0), colour, anchor, said)
    }
}

fn line(
    svg: &mut String,
    (x, y): (f64, f64),
    (to_x, to_y): (f64, f64),
    colour: &str,
    dashes: &str,
) -> fmt::Result {
    write!(
        svg,
        "<line x1=\"{x:.1}\" y1=\"{y:.1}\" x2=\"{to_x:.1}\" y2=\"{to_y:.1}\" stroke=\"{colour}\""
    )?;
    if !dashes.is_empty() {
        write!(svg, " stroke-dasharray=\"{dashes}\"")?;
    }
    svg.write_str("/>\n")
}

fn text(svg: &mut String, (x, y): (f64, f64), colour: &str, anchor: &str, said: &str) -> fmt::Result {
    writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" fill=\"{colour}\" text-anchor=\"{anchor}\">{}</text>",
        Escaped(said)
    )
}

/// A text as it stands in a file of markup.
struct Escaped<'t>(&'t str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|letter| match letter {
            '&' => f.write_str("&amp;"),
            '<' => f.write_str("&lt;"),
            '>' => f.write_str("&gt;"),
            letter if letter.is_control() => f.write_char('?'),
            letter => f.write_char(letter),
        })
    }
}
