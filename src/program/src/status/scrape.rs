//! Requests the metrics of a node over HTTP, and parses them.

use core::net::SocketAddr;
use core::time::Duration;
use std::collections::BTreeMap;
use std::time::Instant;

use ureq::Agent;

/// Maximum length of an answer, many times that of a hub with a thousand peers.
const ANSWER_BYTES_MAX: u64 = 16 << 20;

/// Timeout for the node's answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// Names and values of labels.
pub(super) type Labels = BTreeMap<String, String>;

/// The metrics of a node at one time.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) at: Instant,
    series: BTreeMap<String, BTreeMap<Labels, f64>>,
}

impl Sample {
    /// All series with a name.
    pub(super) fn all(&self, name: &str) -> impl Iterator<Item = (&Labels, f64)> {
        let series = self.series.get(name).into_iter().flatten();
        series.map(|(labels, value)| (labels, *value))
    }

    /// One series.
    pub(super) fn get(&self, name: &str, labels: &Labels) -> Option<f64> {
        self.series.get(name)?.get(labels).copied()
    }

    /// Returns the sum of all series with a name, or `None` if there are none.
    pub(super) fn sum(&self, name: &str) -> Option<f64> {
        self.series
            .contains_key(name)
            .then(|| total(self.all(name).map(|(_, value)| value)))
    }

    /// Parses the text of an exposition.
    ///
    /// # Errors
    /// A line is invalid. The error has its number.
    pub(super) fn read(text: &str, at: Instant) -> Result<Self, String> {
        let mut series = BTreeMap::<_, BTreeMap<_, _>>::new();
        for (number, line) in (1_u32..).zip(text.lines()) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let wrong = || format!("line {number} of the answer is no metric: is a doorbell node there?");
            let (name, labels, value) = read_line(line).ok_or_else(wrong)?;
            series.entry(name.to_owned()).or_default().insert(labels, value);
        }
        Ok(Self { at, series })
    }
}

/// A sum that starts at zero: the empty sum of floats is -0, which would be displayed as such.
pub(super) fn total(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(0.0, |sum, value| sum + value)
}

/// Parses a line: a name, optional labels between braces, and a value.
fn read_line(line: &str) -> Option<(&str, Labels, f64)> {
    let name_ends =
        line.find(|character: char| !(character.is_ascii_alphanumeric() || "_:".contains(character)))?;
    let (name, rest) = line.split_at_checked(name_ends)?;
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => read_labels(rest)?,
        None => (Labels::new(), rest),
    };
    // A timestamp may follow the value.
    let value = rest.split_whitespace().next()?.parse().ok()?;
    (!name.is_empty()).then_some((name, labels, value))
}

/// Parses the labels up to the closing brace. Returns them and the text after it.
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

/// Parses a value up to its closing quotation mark. Returns it and the text after it.
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

/// Reads the metrics of a node at the first of these addresses that answers.
///
/// # Errors
/// No address answers, or the answer contains no metrics. The error has the reason of the last
/// address.
pub(super) fn scrape(addresses: &[SocketAddr]) -> Result<Sample, String> {
    let mut why = "no address".to_owned();
    for address in addresses {
        match ask(*address, PATIENCE) {
            Ok(answer) => return Sample::read(&answer, Instant::now()),
            Err(error) => why = format!("{address}: {error}"),
        }
    }
    Err(why)
}

/// Returns the metrics that an address serves.
fn ask(address: SocketAddr, patience: Duration) -> Result<String, String> {
    let config = Agent::config_builder()
        .timeout_global(Some(patience))
        // The answer has to come from the node itself: proxies in the environment are ignored.
        .proxy(None)
        .max_redirects(0)
        .http_status_as_error(false)
        .build();
    let told = |error: ureq::Error| match error {
        ureq::Error::Io(error) => error.to_string(),
        ureq::Error::Timeout(_) => format!("no whole answer within {} s", patience.as_secs_f64()),
        ureq::Error::Protocol(error) => format!("no HTTP: {error}"),
        error => error.to_string(),
    };
    let request = config.new_agent().get(format!("http://{address}/metrics"));
    let mut response = request.header("Accept", "text/plain").call().map_err(told)?;
    if response.status() != 200 {
        return Err(format!("the answer is {}", response.status()));
    }
    let body = response.body_mut().with_config().limit(ANSWER_BYTES_MAX);
    body.read_to_string().map_err(told)
}

/// Replaces control characters, which could move a terminal's cursor.
pub(super) fn uncontrolled(text: &str) -> String {
    text.replace(char::is_control, "\u{fffd}")
}

/// Replaces control characters, and shortens the text for a cell of a table.
pub(super) fn plain(text: &str) -> String {
    uncontrolled(text).chars().take(120).collect()
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;
    use std::thread;

    use super::{Duration, Instant, Labels, Sample, ask, plain, scrape};

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
        let mut metrics = doorbell_operation::Metrics::default();
        let own = doorbell_operation::Labels::new(&[("device", name)]).unwrap();
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
        }
    }

    /// Starts a server that answers the next connection with these bytes, and then ends.
    fn answering(answer: &'static [u8]) -> (core::net::SocketAddr, thread::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                request.push(byte[0]);
            }
            assert!(request.starts_with(b"GET /metrics HTTP/1.1\r\n"));
            stream.write_all(answer).unwrap();
        });
        (address, server)
    }

    #[test]
    fn answers_that_are_none_are_refused_with_why() {
        for (answer, why) in [
            (&b""[..], ""),
            (b"SSH-2.0-x\r\n\r\n", "no HTTP: "),
            (
                b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
                "the answer is 404 Not Found",
            ),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\na", ""),
            (
                b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
                "the answer is 302",
            ),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n\xff\n", ""),
        ] {
            let (address, server) = answering(answer);
            let told = scrape(&[address]).unwrap_err();
            let told = told.strip_prefix(&format!("{address}: ")).unwrap();
            assert!(told.starts_with(why), "{told}");
            server.join().unwrap();
        }
        assert_eq!(plain("a\u{1b}[2J"), "a\u{fffd}[2J");
    }

    #[test]
    fn a_server_is_asked_and_one_that_is_silent_is_left() {
        let (address, server) = answering(b"HTTP/1.0 200 OK\r\ncontent-length: 4\r\n\r\na 1\n");
        assert_eq!(scrape(&[address]).unwrap().sum("a"), Some(1.0));
        server.join().unwrap();
        assert!(scrape(&[address]).unwrap_err().contains("refused"));
        // The kernel accepts the connection for the listener, and no answer follows.
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let told = ask(silent.local_addr().unwrap(), Duration::from_millis(100)).unwrap_err();
        assert_eq!(told, "no whole answer within 0.1 s");
    }
}
