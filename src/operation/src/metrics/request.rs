//! Parses requests of scrapers, which are untrusted, and writes the headers of answers.
//!
//! Implements only the part of HTTP that a scraper needs: one GET or HEAD of `/metrics` for each connection, without a body.
//!
//! Source: RFC 9112, sections 2 to 5 and 9.6; RFC 9110, section 5.

/// Maximum length of a request. Scrapers send a few hundred bytes.
pub(crate) const REQUEST_BYTES_MAX: usize = 4096;

/// Result of parsing a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ParsedRequest {
    /// The request is incomplete.
    More,
    /// A request for the metrics, or with HEAD for the headers only.
    Metrics { is_head_only: bool },
    /// Any other request.
    Refused(Refusal),
}

/// Reason why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    BadRequest,
    NotFound,
    MethodNotAllowed,
    TooSlow,
    TooLong,
    Version,
    /// Rendering the text panicked.
    Panicked,
}

/// Parses the bytes that have arrived so far.
pub(crate) fn read(bytes: &[u8]) -> ParsedRequest {
    let Some(head) = head_of(bytes) else {
        return if bytes.len() < REQUEST_BYTES_MAX {
            ParsedRequest::More
        } else {
            ParsedRequest::Refused(Refusal::TooLong)
        };
    };
    judge(head).unwrap_or_else(ParsedRequest::Refused)
}

/// The bytes before the empty line.
fn head_of(bytes: &[u8]) -> Option<&[u8]> {
    let bytes = bytes.get(..REQUEST_BYTES_MAX).unwrap_or(bytes);
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    bytes.get(..end)
}

fn judge(head: &[u8]) -> Result<ParsedRequest, Refusal> {
    let head = core::str::from_utf8(head).map_err(|_| Refusal::BadRequest)?;
    let mut lines = head.split("\r\n");
    let line = lines.next().ok_or(Refusal::BadRequest)?;
    let words: Vec<_> = line.split(' ').collect();
    let [method, target, version] = *words.as_slice() else {
        return Err(Refusal::BadRequest);
    };
    if method.is_empty() || !method.bytes().all(|byte| byte.is_ascii_uppercase()) {
        return Err(Refusal::BadRequest);
    }
    if target.is_empty() || !target.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(Refusal::BadRequest);
    }
    if !lines.all(is_header) {
        return Err(Refusal::BadRequest);
    }
    match version {
        "HTTP/1.1" | "HTTP/1.0" => {}
        _ if version.starts_with("HTTP/") => return Err(Refusal::Version),
        _ => return Err(Refusal::BadRequest),
    }
    let path = target.split_once('?').map_or(target, |(path, _)| path);
    match (path, method) {
        ("/metrics", "GET") => Ok(ParsedRequest::Metrics { is_head_only: false }),
        ("/metrics", "HEAD") => Ok(ParsedRequest::Metrics { is_head_only: true }),
        ("/metrics", _) => Err(Refusal::MethodNotAllowed),
        _ => Err(Refusal::NotFound),
    }
}

/// Whether a line is a header: a name, a colon and a value. Continuation lines and bare line feeds are rejected, since a proxy
/// might interpret them differently.
fn is_header(line: &str) -> bool {
    let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    line.split_once(':').is_some_and(|(name, value)| {
        let is_text = value
            .bytes()
            .all(|byte| byte == b'\t' || !byte.is_ascii_control());
        !name.is_empty() && name.bytes().all(is_of_name) && is_text
    })
}

/// The header of an answer with this text.
pub(crate) fn answer(text: &str) -> String {
    head("200 OK", "text/plain; version=0.0.4; charset=utf-8", text.len())
}

impl Refusal {
    /// The complete answer.
    pub(crate) fn answer(self) -> String {
        let status = match self {
            Self::BadRequest => "400 Bad Request",
            Self::NotFound => "404 Not Found",
            Self::MethodNotAllowed => "405 Method Not Allowed\r\nAllow: GET, HEAD",
            Self::TooSlow => "408 Request Timeout",
            Self::TooLong => "431 Request Header Fields Too Large",
            Self::Panicked => "500 Internal Server Error",
            Self::Version => "505 HTTP Version Not Supported",
        };
        head(status, "text/plain", 0)
    }
}

fn head(status: &str, content_type: &str, length_bytes: usize) -> String {
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {length_bytes}\r\nConnection: close\r\n\r\n"
    )
}

#[cfg(test)]
mod tests {
    use super::{ParsedRequest, REQUEST_BYTES_MAX, Refusal, read};

    const GET: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: a:9\r\nAccept: */*\r\n\r\n";

    #[test]
    fn what_scrapers_ask() {
        for (request, is_head_only) in [
            (GET, false),
            (b"GET /metrics HTTP/1.0\r\n\r\n", false),
            (b"GET /metrics?name=x HTTP/1.1\r\nHost: a\r\n\r\n", false),
            (b"HEAD /metrics HTTP/1.1\r\nHost: a\r\n\r\n", true),
        ] {
            assert_eq!(read(request), ParsedRequest::Metrics { is_head_only });
            // A second request after it is ignored.
            assert_eq!(
                read(&[request, GET].concat()),
                ParsedRequest::Metrics { is_head_only }
            );
        }
    }

    #[test]
    fn what_has_not_ended_is_waited_for() {
        for length in 0..GET.len() {
            assert_eq!(read(&GET[..length]), ParsedRequest::More, "{length}");
        }
    }

    #[test]
    fn what_is_refused_and_why() {
        for (request, refusal) in [
            (&b"GET / HTTP/1.1\r\n\r\n"[..], Refusal::NotFound),
            (b"GET /metrics/ HTTP/1.1\r\n\r\n", Refusal::NotFound),
            (b"GET /../etc/passwd HTTP/1.1\r\n\r\n", Refusal::NotFound),
            (b"POST /metrics HTTP/1.1\r\n\r\n", Refusal::MethodNotAllowed),
            (b"GET /metrics HTTP/2.0\r\n\r\n", Refusal::Version),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Refusal::Version),
            (b"GET  /metrics HTTP/1.1\r\n\r\n", Refusal::BadRequest),
            (b"GET /metrics\r\n\r\n", Refusal::BadRequest),
            (b"get /metrics HTTP/1.1\r\n\r\n", Refusal::BadRequest),
            (b"\r\n\r\n", Refusal::BadRequest),
            (b"GET /metrics HTTP/1.1\r\nno header\r\n\r\n", Refusal::BadRequest),
            (b"GET /metrics HTTP/1.1\r\n: x\r\n\r\n", Refusal::BadRequest),
            (
                b"GET /metrics HTTP/1.1\r\nHost: a\r\n b: c\r\n\r\n",
                Refusal::BadRequest,
            ),
            (
                b"GET /metrics HTTP/1.1\r\nHost: \xff\r\n\r\n",
                Refusal::BadRequest,
            ),
            (b"\x16\x03\x01\x02\x00\r\n\r\n", Refusal::BadRequest),
            (b"GET  HTTP/1.1\r\n\r\n", Refusal::BadRequest),
            (b"GET /metrics?\n HTTP/1.1\r\n\r\n", Refusal::BadRequest),
            (
                b"GET /metrics HTTP/1.1\r\nA: b\nC: d\r\n\r\n",
                Refusal::BadRequest,
            ),
            (b"GET /metrics HTTP/1.1\r\nA: b\r\r\n\r\n", Refusal::BadRequest),
            (b"GET /metrics HTTP/1.1\r\nA(: b\r\n\r\n", Refusal::BadRequest),
        ] {
            assert_eq!(read(request), ParsedRequest::Refused(refusal), "{request:?}");
            assert!(
                refusal
                    .answer()
                    .ends_with("Content-Length: 0\r\nConnection: close\r\n\r\n")
            );
        }
    }

    #[test]
    fn the_longest_request_is_taken_and_a_longer_one_is_not() {
        let of_length = |length: usize| {
            let (begin, end) = (b"GET /metrics HTTP/1.1\r\nA: ", b"\r\n\r\n");
            let filling = vec![b'x'; length - begin.len() - end.len()];
            [&begin[..], &filling, end].concat()
        };
        let metrics = ParsedRequest::Metrics { is_head_only: false };
        assert_eq!(read(&of_length(REQUEST_BYTES_MAX)), metrics);
        let long = of_length(REQUEST_BYTES_MAX + 1);
        assert_eq!(read(&long), ParsedRequest::Refused(Refusal::TooLong));
        assert_eq!(read(&long[..REQUEST_BYTES_MAX - 1]), ParsedRequest::More);
    }

    /// Any input has a result: words of requests in any order.
    #[test]
    fn any_bytes_come_to_something() {
        let words: [&[u8]; 10] = [
            b"GET",
            b"HEAD",
            b" ",
            b"/metrics",
            b"HTTP/1.1",
            b"\r\n",
            b"\n",
            b":",
            b"\xf0",
            b"\0",
        ];
        let (mut state, mut asked) = (1_u64, 0);
        for _ in 0..20_000 {
            let mut bytes = Vec::new();
            for _ in 0..12 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                bytes.extend_from_slice(words[(state >> 33) as usize % words.len()]);
            }
            bytes.extend_from_slice(b"\r\n\r\n");
            match read(&bytes) {
                ParsedRequest::More => panic!("{bytes:?} has ended"),
                ParsedRequest::Metrics { .. } => asked += 1,
                ParsedRequest::Refused(_) => {}
            }
        }
        assert!(asked < 20, "{asked}");
    }
}
