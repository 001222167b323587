//! Checks the request parser with arbitrary bytes. Tests and the fuzzer use it.

use super::request::{ParsedRequest, REQUEST_BYTES_MAX, Refusal, answer, read};

/// Parses `bytes` as a request.
///
/// # Panics
/// The parser violates a guarantee.
pub fn check(bytes: &[u8]) {
    checked(bytes);
}

/// Checks the parsing of `bytes`. Returns the parsed request.
fn checked(bytes: &[u8]) -> ParsedRequest {
    let asked = read(bytes);
    assert_eq!(asked, plain::read(bytes));
    // Bytes arrive in pieces: the request is incomplete until its end, and later bytes do not change the result.
    let end = plain::end(bytes).map_or(REQUEST_BYTES_MAX, |end| end + 4);
    let spread = (0..16).map(|sixteenth| bytes.len() * sixteenth / 16);
    for length in spread
        .chain([end - 1, end, end + 1])
        .filter(|length| *length <= bytes.len())
    {
        let expected = if length < end { ParsedRequest::More } else { asked };
        assert_eq!(read(&bytes[..length]), expected, "of {length} bytes");
    }
    match asked {
        ParsedRequest::More => assert!(bytes.len() < REQUEST_BYTES_MAX),
        ParsedRequest::Metrics { .. } => {
            assert!(bytes.starts_with(b"GET /metrics") || bytes.starts_with(b"HEAD /metrics"));
            check_answer(&answer("a 1\n"), "200", 4);
        }
        ParsedRequest::Refused(refusal) => check_answer(&refusal.answer(), status(refusal), 0),
    }
    asked
}

/// Checks that an answer has its status, its length, `Connection: close`, one empty line, and only printable characters.
fn check_answer(head: &str, status: &str, length_bytes: usize) {
    let lines: Vec<_> = head.split("\r\n").collect();
    assert!(lines[0].starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
    for line in [&format!("Content-Length: {length_bytes}"), "Connection: close"] {
        assert_eq!(lines.iter().filter(|found| *found == &line).count(), 1, "{head}");
    }
    // The empty line at the end of the header.
    assert_eq!(lines[lines.len() - 2..], ["", ""], "{head}");
    assert_eq!(lines.iter().filter(|line| line.is_empty()).count(), 2, "{head}");
    assert!(
        head.replace("\r\n", "")
            .chars()
            .all(|letter| (' '..='~').contains(&letter))
    );
}

const fn status(refusal: Refusal) -> &'static str {
    match refusal {
        Refusal::BadRequest => "400",
        Refusal::NotFound => "404",
        Refusal::MethodNotAllowed => "405",
        Refusal::TooSlow => "408",
        Refusal::TooLong => "431",
        Refusal::Version => "505",
        Refusal::Panicked => "500",
    }
}

/// A second parser: slow and obvious, one character at a time.
mod plain {
    use super::{ParsedRequest, Refusal};

    pub(super) fn read(bytes: &[u8]) -> ParsedRequest {
        let Some(end) = end(bytes) else {
            let is_long = bytes.len() >= 4096;
            return if is_long {
                ParsedRequest::Refused(Refusal::TooLong)
            } else {
                ParsedRequest::More
            };
        };
        let head = core::str::from_utf8(&bytes[..end]).ok();
        let Some((method, target, version)) = head.and_then(request) else {
            return ParsedRequest::Refused(Refusal::BadRequest);
        };
        let path: String = target.chars().take_while(|letter| *letter != '?').collect();
        ParsedRequest::Refused(if version != "HTTP/1.0" && version != "HTTP/1.1" {
            Refusal::Version
        } else if path != "/metrics" {
            Refusal::NotFound
        } else if method == "GET" || method == "HEAD" {
            let is_head_only = method == "HEAD";
            return ParsedRequest::Metrics { is_head_only };
        } else {
            Refusal::MethodNotAllowed
        })
    }

    /// Offset of the empty line.
    pub(super) fn end(bytes: &[u8]) -> Option<usize> {
        let last = bytes.len().min(4096).checked_sub(4)?;
        (0..=last).find(|at| bytes[*at..].starts_with(b"\r\n\r\n"))
    }

    /// Method, target and version, if all headers are valid.
    fn request(head: &str) -> Option<(String, String, String)> {
        let mut rest: Vec<char> = head.chars().collect();
        let method = word(&mut rest, |letter| letter.is_ascii_uppercase())?;
        (rest.remove(0) == ' ').then_some(())?;
        let target = word(&mut rest, |letter| ('!'..='~').contains(&letter))?;
        (rest.remove(0) == ' ').then_some(())?;
        let line_end = rest.windows(2).position(|letters| *letters == ['\r', '\n']);
        let version: String = rest.drain(..line_end.unwrap_or(rest.len())).collect();
        (version.starts_with("HTTP/") && !version.contains(' ')).then_some(())?;
        while !rest.is_empty() {
            let line_end: String = rest.drain(..rest.len().min(2)).collect();
            (line_end == "\r\n").then_some(())?;
            word(&mut rest, |letter| {
                letter.is_ascii_graphic() && !"\"(),/:;<=>?@[\\]{}".contains(letter)
            })?;
            (rest.remove(0) == ':').then_some(())?;
            let is_of_value = |letter: &char| *letter == '\t' || !letter.is_ascii_control();
            let value = rest.iter().take_while(|letter| is_of_value(letter)).count();
            rest.drain(..value);
        }
        Some((method, target, version))
    }

    /// Takes the characters of a word. The word has at least one character, and something follows it.
    fn word(rest: &mut Vec<char>, is_of_word: impl Fn(char) -> bool) -> Option<String> {
        let end = rest.iter().position(|letter| !is_of_word(*letter))?;
        (end > 0).then(|| rest.drain(..end).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::{ParsedRequest, Refusal, checked};
    use crate::replay::{folder, replay};

    #[test]
    fn requests_keep_every_promise() {
        replay("metrics_request", super::check);
        for (name, asked) in [
            ("get", ParsedRequest::Metrics { is_head_only: false }),
            ("head", ParsedRequest::Metrics { is_head_only: true }),
            ("post", ParsedRequest::Refused(Refusal::MethodNotAllowed)),
            ("elsewhere", ParsedRequest::Refused(Refusal::NotFound)),
            ("newer", ParsedRequest::Refused(Refusal::Version)),
            ("continued", ParsedRequest::Refused(Refusal::BadRequest)),
            ("longest", ParsedRequest::Metrics { is_head_only: false }),
            ("too_long", ParsedRequest::Refused(Refusal::TooLong)),
            ("unfinished", ParsedRequest::More),
        ] {
            let bytes = std::fs::read(folder("metrics_request").join(name)).unwrap();
            assert_eq!(checked(&bytes), asked, "{name}");
        }
    }

    /// A valid request is cut at each place, and each of its characters is replaced.
    #[test]
    fn changed_requests_keep_every_promise() {
        let request = b"HEAD /metrics?a=b HTTP/1.0\r\nHost: a:9\r\nAccept:\t*/*\r\n\r\nGET";
        for at in 0..request.len() {
            checked(&request[..at]);
            for instead in *b"\r\n\t :?/A\x7f\xc3" {
                let mut changed = request.to_vec();
                changed[at] = instead;
                checked(&changed);
            }
        }
    }
}
