//! Hosts as a picture: a box for each host with its rails, and below the boxes the subnets, as bars to which the
//! rails are connected.

use core::fmt::{self, Write as _};

use doorbell::rails::LocalRail;
use doorbell_operation::Map;

use super::report::speed;

/// The margin of the picture, and between boxes.
const MARGIN: usize = 24;
/// The width of one rail, enough for an IPv6 address.
const RAIL_WIDTH: usize = 190;
const LINE: usize = 16;
/// The distance from the boxes to the first subnet, and between subnets.
const STEP: usize = 44;

const COLOURS: [&str; 6] = ["#1f5fbf", "#007a6c", "#7030a0", "#8a5a00", "#c00000", "#33617a"];
const GREY: &str = "#777777";

/// The picture, as the text of an SVG file.
pub(super) fn draw(map: &Map<'_>) -> String {
    let mut svg = String::new();
    // Writing to a String does not fail.
    let _ = Picture::of(map).draw(&mut svg);
    svg
}

struct Picture {
    hosts: Vec<Host>,
    subnets: Vec<Subnet>,
    /// The routes between hosts, one line each.
    ways: Vec<String>,
    width: usize,
    boxes_height: usize,
}

struct Host {
    name: String,
    about: String,
    x: usize,
    width: usize,
    rails: Vec<Rail>,
    /// Unused ports, with the reason.
    unused: Vec<(String, String)>,
}

struct Rail {
    lines: [String; 3],
    /// The x coordinate of its line, which leads down to its subnet.
    x: usize,
    /// The index of its subnet.
    subnet: usize,
}

struct Subnet {
    name: String,
    from: usize,
    to: usize,
}

impl Picture {
    fn of(map: &Map<'_>) -> Self {
        let mut picture = Self {
            hosts: Vec::new(),
            subnets: Vec::new(),
            ways: Vec::new(),
            width: MARGIN,
            boxes_height: 0,
        };
        for index in 0..map.hosts() {
            let Some(topology) = map.topology(index) else {
                continue;
            };
            let rails = topology.rails();
            let (used, unused): (Vec<_>, Vec<_>) = rails.iter().partition(|rail| rail.source.is_ok());
            let width = RAIL_WIDTH.saturating_mul(used.len().max(2));
            let x = picture.width;
            let mut host = Host {
                name: topology.host.clone(),
                about: format!("Linux {}", topology.kernel),
                x,
                width,
                rails: Vec::new(),
                unused: unused.into_iter().filter_map(of_unused).collect(),
            };
            for (place, rail) in used.into_iter().enumerate() {
                let left = x.saturating_add(RAIL_WIDTH.saturating_mul(place));
                let netdev = topology
                    .interface_of(rail)
                    .map(|interface| interface.name.as_str());
                host.rails
                    .extend(picture.rail(rail, netdev, left.saturating_add(RAIL_WIDTH / 2)));
            }
            // Lines for the name, the kernel, three lines for the rails, and one for each unused port.
            let lines = 6_usize.saturating_add(host.unused.len());
            picture.boxes_height = picture.boxes_height.max(lines.saturating_mul(LINE));
            picture.width = x.saturating_add(width).saturating_add(MARGIN);
            picture.hosts.push(host);
        }
        for from in 0..map.hosts() {
            let ways = from.saturating_add(1)..map.hosts();
            picture.ways.extend(ways.filter_map(|to| way(map, from, to)));
        }
        // At least two boxes wide, since the text below needs the space.
        picture.width = picture.width.max(RAIL_WIDTH.saturating_mul(4));
        picture
    }

    /// Adds a rail, connected to its subnet.
    fn rail(&mut self, rail: &LocalRail, netdev: Option<&str>, x: usize) -> Option<Rail> {
        let source = rail.source.ok()?;
        let name = source.address.subnet().to_string();
        let known = self.subnets.iter().position(|subnet| subnet.name == name);
        let subnet = known.unwrap_or(self.subnets.len());
        match known.and_then(|known| self.subnets.get_mut(known)) {
            Some(subnet) => (subnet.from, subnet.to) = (subnet.from.min(x), subnet.to.max(x)),
            None => self.subnets.push(Subnet { name, from: x, to: x }),
        }
        let lines = [
            format!("{}:{} {}", rail.device, rail.port, netdev.unwrap_or_default()),
            source.address.to_string(),
            format!("{}, MTU {}", speed(rail.speed_mbps.into()), source.mtu.bytes()),
        ];
        Some(Rail { lines, x, subnet })
    }

    /// Returns the y coordinate of a subnet's bar.
    fn bar(&self, subnet: usize) -> usize {
        let steps = subnet.saturating_add(1).saturating_mul(STEP);
        MARGIN.saturating_add(self.boxes_height).saturating_add(steps)
    }

    fn draw(&self, svg: &mut String) -> fmt::Result {
        let ways_top = self.bar(self.subnets.len());
        let height = ways_top
            .saturating_add(self.ways.len().saturating_mul(LINE))
            .saturating_add(MARGIN);
        let width = self.width;
        writeln!(
            svg,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"12\">"
        )?;
        writeln!(
            svg,
            "<rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>"
        )?;
        for (index, subnet) in self.subnets.iter().enumerate() {
            let y = self.bar(index);
            let (from, to) = (subnet.from.saturating_sub(30), subnet.to.saturating_add(30));
            let colour = colour(index);
            writeln!(
                svg,
                "<line x1=\"{from}\" y1=\"{y}\" x2=\"{to}\" y2=\"{y}\" stroke=\"{colour}\" stroke-width=\"5\"/>"
            )?;
            text(svg, from, y.saturating_add(LINE), colour, "start", &subnet.name)?;
        }
        for host in &self.hosts {
            self.host(svg, host)?;
        }
        for (index, way) in self.ways.iter().enumerate() {
            let y = ways_top.saturating_add(index.saturating_mul(LINE));
            text(svg, MARGIN, y, "#000000", "start", way)?;
        }
        writeln!(svg, "</svg>")
    }

    fn host(&self, svg: &mut String, host: &Host) -> fmt::Result {
        let (x, width, height) = (host.x, host.width, self.boxes_height);
        writeln!(
            svg,
            "<rect x=\"{x}\" y=\"{MARGIN}\" width=\"{width}\" height=\"{height}\" rx=\"6\" fill=\"#f4f6fa\" \
             stroke=\"#333333\"/>"
        )?;
        let left = x.saturating_add(10);
        let at = |line: usize| MARGIN.saturating_add(LINE.saturating_mul(line));
        writeln!(svg, "<g font-weight=\"bold\" font-size=\"14\">")?;
        text(svg, left, at(1), "#000000", "start", &host.name)?;
        writeln!(svg, "</g>")?;
        text(svg, left, at(2), GREY, "start", &host.about)?;
        for (index, (name, reason)) in host.unused.iter().enumerate() {
            let y = at(index.saturating_add(3));
            writeln!(svg, "<g><title>{}</title>", Escaped(reason))?;
            // The title has the whole text, if the line is too short.
            let fitting = format!("{name}: {reason}");
            let room = width / 7;
            let shown: String = fitting.chars().take(room).collect();
            let dots = if fitting.chars().count() > room { "..." } else { "" };
            text(svg, left, y, GREY, "start", &format!("{shown}{dots}"))?;
            writeln!(svg, "</g>")?;
        }
        let bottom = MARGIN.saturating_add(height);
        for rail in &host.rails {
            let (x, y, colour) = (rail.x, self.bar(rail.subnet), colour(rail.subnet));
            writeln!(
                svg,
                "<line x1=\"{x}\" y1=\"{bottom}\" x2=\"{x}\" y2=\"{y}\" stroke=\"{colour}\" stroke-width=\"2\"/>\n\
                 <circle cx=\"{x}\" cy=\"{y}\" r=\"5\" fill=\"{colour}\"/>"
            )?;
            for (line, words) in rail.lines.iter().enumerate() {
                let up = LINE.saturating_mul(rail.lines.len().saturating_sub(line));
                let y = bottom.saturating_add(6).saturating_sub(up);
                text(svg, x, y, colour, "middle", words)?;
            }
        }
        Ok(())
    }
}

/// An unused port, with the reason.
fn of_unused(rail: &LocalRail) -> Option<(String, String)> {
    let reason = rail.source.err()?;
    Some((format!("{}:{}", rail.device, rail.port), reason.to_string()))
}

/// Describes the route between two hosts.
fn way(map: &Map<'_>, from: usize, to: usize) -> Option<String> {
    let name = |host: usize| Some(map.topology(host)?.host.as_str());
    let head = format!("{} to {}: ", name(from)?, name(to)?);
    let pairs: Vec<String> = map
        .reach(from, to)?
        .pairs
        .iter()
        .filter_map(|paired| {
            let (local, peer) = (
                map.rails(from).nth(paired.pair.local)?,
                map.rails(to).nth(paired.pair.peer)?,
            );
            Some(format!(
                "{}:{} -- {}:{} ({}, {})",
                local.device,
                local.port,
                peer.device,
                peer.port,
                speed(paired.speed.to_mbps()),
                paired.lane
            ))
        })
        .collect();
    let how = match (pairs.is_empty(), map.route(from, to)) {
        (false, _) => pairs.join("; "),
        (true, Some(route)) => {
            let past: Vec<&str> = route.into_iter().filter_map(name).collect();
            format!("no pair; over {}", past.join(" - "))
        }
        (true, None) => "no way".to_owned(),
    };
    Some(head + &how)
}

fn colour(index: usize) -> &'static str {
    COLOURS.iter().cycle().nth(index).copied().unwrap_or(GREY)
}

fn text(svg: &mut String, x: usize, y: usize, colour: &str, anchor: &str, words: &str) -> fmt::Result {
    writeln!(
        svg,
        "<text x=\"{x}\" y=\"{y}\" fill=\"{colour}\" text-anchor=\"{anchor}\">{}</text>",
        Escaped(words)
    )
}

/// A text that cannot end its XML element: names come from files of other hosts.
struct Escaped<'t>(&'t str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            match character {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                // XML cannot represent these characters.
                '\u{fffe}' | '\u{ffff}' => f.write_char('\u{fffd}')?,
                character if character.is_control() => f.write_char('\u{fffd}')?,
                character => f.write_char(character)?,
            }
        }
        Ok(())
    }
}
