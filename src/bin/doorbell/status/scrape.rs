//! The metrics of a node, asked for over HTTP, and read.

use core::net::SocketAddr;
use core::time::Duration;
use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Instant;

/// The longest answer that is taken: many times what a hub of a thousand peers tells.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// How long a node may take for an answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// Names and values of labels.
pub(super) type Labels = BTreeMap<String, String>;

/// What a node told at one time.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) at: Instant,
    series: BTreeMap<String, BTreeMap<Labels, f64>>,
}

impl Sample {
    /// All series of a name.
    pub(super) fn all(&self, name: &str) -> impl Iterator<Item = (&Labels, f64)> {
        let series = self.series.get(name).into_iter().flatten();
        series.map(|(labels, value)| (labels, *value))
    }

    /// One of them.
    pub(super) fn get(&self, name: &str, labels: &Labels) -> Option<f64> {
        self.series.get(name)?.get(labels).copied()
    }

    /// What all series of a name come to together; nothing where there is none.
    pub(super) fn sum(&self, name: &str) -> Option<f64> {
        self.series
            .contains_key(name)
            .then(|| total(self.all(name).map(|(_, value)| value)))
    }

    /// Reads the text of an exposition.
    ///
    /// # Errors
    /// A line is none of it: its number.
    pub(super) fn read(text: &str, at: Instant) -> Result<Self, String> {
        let mut series = BTreeMap::<_, BTreeMap<_, _>>::new();
        for (number, line) in (1_u32..).zip(text.lines()) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let wrong = || format!("line {number} of what it tells is no metric");
            let (name, labels, value) = read_line(line).ok_or_else(wrong)?;
            series.entry(name.to_owned()).or_default().insert(labels, value);
        }
        Ok(Self { at, series })
    }
}

/// A sum from zero: that of nothing would be a negative one, and be shown as such.
pub(super) fn total(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(0.0, |sum, value| sum + value)
}

/// A name, labels between braces or none, and a value.
fn read_line(line: &str) -> Option<(&str, Labels, f64)> {
    let name_ends =
        line.find(|character: char| !(character.is_ascii_alphanumeric() || "_:".contains(character)))?;
    let (name, rest) = line.split_at_checked(name_ends)?;
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => read_labels(rest)?,
        None => (Labels::new(), rest),
    };
    // A time may stand behind the value.
    let value = rest.split_whitespace().next()?.parse().ok()?;
    (!name.is_empty()).then_some((name, labels, value))
}

/// What stands between braces, and what is behind them.
fn read_labels(text: &str) -> Option<(Labels, &str)> {
    let (mut labels, mut rest) = (Labels::new(), text);
    loop {
        if let Some(behind) = rest.strip_prefix('}') {
            return Some((labels, behind));
        }
        let (name, behind) = rest.split_once("=\"")?;
        let (value, behind) = read_value(behind)?;
        labels.insert(name.to_owned(), value);
        rest = behind.strip_prefix(',').unwrap_or(behind);
    }
}

/// A value up to its quotation mark, and what is behind that.
fn read_value(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((value, text.get(at.checked_add(1)?..)?)),
            '\\' => value.push(match characters.next()?.1 {
                'n' => '\n',
                other => other,
            }),
            other => value.push(other),
        }
    }
    None
}

/// Asks at one of these addresses for metrics.
///
/// # Errors
/// None of them answers, or what answers has no metrics: why, of the last.
pub(super) fn scrape(addresses: &[SocketAddr]) -> Result<Sample, String> {
    let mut why = "no address".to_owned();
    for address in addresses {
        match ask(*address, PATIENCE) {
            Ok(answer) => return Sample::read(&body(&answer)?, Instant::now()),
            Err(error) => why = error.to_string(),
        }
    }
    Err(why)
}

fn ask(address: SocketAddr, patience: Duration) -> io::Result<Vec<u8>> {
    let until = Instant::now().checked_add(patience);
    let left = || {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let left = left.filter(|left| !left.is_zero());
        left.ok_or_else(|| io::Error::new(io::ErrorKind::TimedOut, "it takes too long to answer"))
    };
    let mut stream = TcpStream::connect_timeout(&address, left()?)?;
    stream.set_write_timeout(Some(left()?))?;
    write!(
        stream,
        "GET /metrics HTTP/1.1\r\nHost: {address}\r\nAccept: text/plain\r\nConnection: close\r\n\r\n"
    )?;
    let (mut answer, mut buffer) = (Vec::new(), vec![0; 64 << 10]);
    loop {
        stream.set_read_timeout(Some(left()?))?;
        match stream.read(&mut buffer) {
            Ok(0) => return Ok(answer),
            Ok(count) => answer.extend_from_slice(buffer.get(..count).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        if is_whole(&answer) {
            return Ok(answer);
        }
        if answer.len() > ANSWER_BYTES_MAX {
            return Err(io::Error::other("it answers without end"));
        }
    }
}

/// Where the body of an answer begins, and how long it is, as far as its head says so.
fn bounds(answer: &[u8]) -> Option<(usize, Option<usize>)> {
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(answer.get(..end)?);
    let length = head.split("\r\n").skip(1).find_map(|line| {
        let (name, value) = line.split_once(':')?;
        let is_length = name.eq_ignore_ascii_case("content-length");
        is_length.then(|| value.trim().parse().ok()).flatten()
    });
    Some((end.checked_add(4)?, length))
}

/// Whether all of an answer came that says how long it is.
fn is_whole(answer: &[u8]) -> bool {
    bounds(answer).is_some_and(|(begin, length)| {
        length.is_some_and(|length| answer.len().saturating_sub(begin) >= length)
    })
}

/// What is told in an answer.
fn body(answer: &[u8]) -> Result<String, String> {
    let (begin, length) = bounds(answer).ok_or("what answers there does not speak HTTP")?;
    let (head, body) = answer.split_at_checked(begin).unwrap_or_default();
    let head = String::from_utf8_lossy(head);
    let status = head.split("\r\n").next().unwrap_or_default();
    let mut words = status.split(' ');
    if !words.next().is_some_and(|version| version.starts_with("HTTP/1.")) {
        return Err("what answers there does not speak HTTP".into());
    }
    if words.next() != Some("200") {
        return Err(format!("it answers {}", plain(status)));
    }
    if length.is_some_and(|length| length != body.len()) {
        return Err("its answer broke off".into());
    }
    String::from_utf8(body.to_vec()).map_err(|_| "what it tells is no text".into())
}

/// Without what would move the cursor of a terminal, and no longer than a line.
pub(super) fn plain(text: &str) -> String {
    let plain = text.chars().map(|character| {
        if character.is_control() {
            '\u{fffd}'
        } else {
            character
        }
    });
    plain.take(120).collect()
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;
    use std::thread;

    use super::{Duration, Instant, Labels, Sample, ask, body, plain, scrape};

    fn labels(all: &[(&str, &str)]) -> Labels {
        let pairs = all
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        pairs.collect()
    }

    #[test]
    fn what_our_own_metrics_say_is_read() {
        let statistics = doorbell::Statistics::default();
        statistics.doorbell(3, 192, 0);
        let name = "a\\nb\"} 1\nc";
        let mut metrics = doorbell::Metrics::default();
        let own = doorbell::Labels::new(&[("device", name)]).unwrap();
        metrics.statistics(&own, &statistics.snapshot());
        let sample = Sample::read(&metrics.to_string(), Instant::now()).unwrap();
        let of = labels(&[("device", name)]);
        assert_eq!(sample.get("doorbell_worker_requests_total", &of), Some(3.0));
        assert_eq!(sample.sum("doorbell_worker_sent_bytes_total"), Some(192.0));
        assert_eq!(sample.sum("doorbell_link_rails"), None);
    }

    #[test]
    fn what_is_no_metric_is_told_with_its_line() {
        for text in [
            "a",
            "a{",
            "a{b=\"c} 1",
            "a{b} 1",
            "{} 1",
            "a{b=\"c\\",
            "a x",
            "a{b=\"c\"}",
            "\u{1b}[2J 1",
        ] {
            let wrong = Sample::read(&format!("# HELP\n\n{text}\n"), Instant::now()).unwrap_err();
            assert!(wrong.starts_with("line 3 "), "{text}: {wrong}");
        }
        assert!(Sample::read("a 1\nb{} 2 1700000000\nc NaN\nd +Inf", Instant::now()).is_ok());
    }

    #[test]
    fn any_bytes_are_read_or_refused() {
        let words = [
            "a",
            "{",
            "}",
            "=\"",
            "\"",
            ",",
            "\\",
            "\n",
            " ",
            "1",
            "é",
            "\r\n\r\n",
            "HTTP/1.1 200",
        ];
        let mut state = 1_u64;
        for _ in 0..20_000 {
            let mut text = String::new();
            for _ in 0..10 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                text += words[(state >> 33) as usize % words.len()];
            }
            let _ = Sample::read(&text, Instant::now());
            let _ = body(text.as_bytes());
        }
    }

    #[test]
    fn answers_that_are_none_are_refused_with_why() {
        for (answer, why) in [
            ("", "what answers there does not speak HTTP"),
            ("SSH-2.0-x\r\n\r\n", "what answers there does not speak HTTP"),
            (
                "HTTP/1.1 404 Not Found\r\n\r\n",
                "it answers HTTP/1.1 404 Not Found",
            ),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\na",
                "its answer broke off",
            ),
        ] {
            assert_eq!(body(answer.as_bytes()), Err(why.into()), "{answer}");
        }
        assert_eq!(
            body(b"HTTP/1.0 200 OK\r\ncontent-length: 1\r\n\r\na"),
            Ok("a".into())
        );
        assert_eq!(plain("a\u{1b}[2J"), "a\u{fffd}[2J");
    }

    #[test]
    fn a_server_is_asked_and_one_that_is_silent_is_left() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 512];
            let count = stream.read(&mut request).unwrap();
            assert!(request[..count].starts_with(b"GET /metrics HTTP/1.1\r\n"));
            stream
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\na 1\n")
                .unwrap();
            // The next one is told nothing.
            let silent = listener.accept().unwrap();
            thread::sleep(Duration::from_millis(300));
            drop(silent);
        });
        assert_eq!(scrape(&[address]).unwrap().sum("a"), Some(1.0));
        let begin = Instant::now();
        assert!(ask(address, Duration::from_millis(100)).is_err());
        assert!(begin.elapsed() < Duration::from_secs(2));
        server.join().unwrap();
        assert!(scrape(&[address]).unwrap_err().contains("refused"));
    }
}
