//! What happened in a run, to be looked at: as lines of text, or as a picture with a column for each host.

use core::fmt::Write as _;

use crate::trace::Moment;

/// One line for each moment.
pub(crate) fn text(moments: &[Moment]) -> String {
    let mut text = String::new();
    for Moment {
        at_ns,
        host,
        text: what,
    } in moments
    {
        let _ = writeln!(text, "{:>14.3} us  h{host}  {what}", *at_ns as f64 / 1e3);
    }
    text
}

const COLUMN: usize = 420;
const LEFT: usize = 130;
const ROW: usize = 15;
const TOP: usize = 40;

/// A picture: a column for each host, a row for each moment, and the time at the left. Rows are not to scale, since most
/// of a run's time passes with nothing in it.
pub(crate) fn svg(moments: &[Moment], hosts: usize) -> String {
    let (width, height) = (LEFT + hosts * COLUMN, TOP + (moments.len() + 2) * ROW);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" font-family=\"monospace\" \
         font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for host in 0..hosts {
        let x = LEFT + host * COLUMN;
        let _ = writeln!(
            svg,
            "<text x=\"{x}\" y=\"20\" font-weight=\"bold\">h{host}</text>"
        );
        let _ = writeln!(
            svg,
            "<line x1=\"{x}\" y1=\"26\" x2=\"{x}\" y2=\"{height}\" stroke=\"#bbb\"/>"
        );
    }
    for (row, moment) in moments.iter().enumerate() {
        let (x, y) = (LEFT + moment.host * COLUMN, TOP + (row + 1) * ROW);
        let _ = writeln!(
            svg,
            "<text x=\"4\" y=\"{y}\" fill=\"#777\">{:.3} us</text><circle cx=\"{x}\" cy=\"{}\" r=\"3\" fill=\"{}\"/>\
             <text x=\"{}\" y=\"{y}\">{}</text>",
            moment.at_ns as f64 / 1e3,
            y - 4,
            colour(&moment.text),
            x + 8,
            escaped(&moment.text),
        );
    }
    svg.push_str("</svg>\n");
    svg
}

fn colour(text: &str) -> &'static str {
    match text {
        _ if text.contains("FAILED") || text.contains("failed") => "#c00",
        _ if text.contains("received") || text.contains("written") || text.contains("fetched") => "#080",
        _ if text.contains("closed") || text.contains("Close") => "#a60",
        _ => "#06c",
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::{svg, text};
    use crate::trace::Moment;

    #[test]
    fn each_moment_is_there() {
        let moments =
            [(5, 0, "a <b>"), (1500, 1, "line 0: received 7 bytes")].map(|(at_ns, host, text)| Moment {
                at_ns,
                host,
                text: text.into(),
            });
        assert_eq!(
            text(&moments),
            "         0.005 us  h0  a <b>\n         1.500 us  h1  line 0: received 7 bytes\n"
        );
        let picture = svg(&moments, 2);
        assert!(picture.contains("a &lt;b&gt;") && picture.contains(">1.500 us<"));
        assert_eq!(picture.matches("<circle").count(), 2);
        assert!(picture.ends_with("</svg>\n"));
    }
}
