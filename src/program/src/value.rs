//! Parses values of the command line: sizes, durations, MTUs, and addresses of peers. No name is resolved here.

use core::net::{IpAddr, Ipv6Addr, SocketAddr};
use core::time::Duration;

use doorbell::Handle;
use doorbell::provider::Mtu;
use doorbell::wire::HandleTextError;

/// Parses a size in bytes, with K for 1024 and M for 1024^2; not 0.
pub(crate) fn parse_bytes(text: &str) -> Result<u32, String> {
    match parse_bytes_or_none(text)? {
        0 => Err("not 0".into()),
        bytes => Ok(bytes),
    }
}

/// Parses a size in bytes, as [`parse_bytes`] does, but accepts 0.
pub(crate) fn parse_bytes_or_none(text: &str) -> Result<u32, String> {
    let (digits, unit) = match text.as_bytes().last() {
        Some(b'K' | b'k') => (text.get(..text.len().saturating_sub(1)), 1 << 10),
        Some(b'M' | b'm') => (text.get(..text.len().saturating_sub(1)), 1 << 20),
        _ => (Some(text), 1_u32),
    };
    let count: u32 = digits
        .unwrap_or_default()
        .parse()
        .map_err(|_| "not a number with or without K or M after it".to_owned())?;
    count.checked_mul(unit).ok_or_else(|| "too large".into())
}

/// Parses a path MTU in bytes.
pub(crate) fn parse_mtu(text: &str) -> Result<Mtu, String> {
    let bytes: u32 = text.parse().map_err(|_| "not a number".to_owned())?;
    Mtu::from_bytes(bytes).ok_or_else(|| "not one of 256, 512, 1024, 2048, 4096".into())
}

/// Parses a duration in seconds, with or without a fraction: at least a millisecond, at most a year.
pub(crate) fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    // A year can be added to any clock without overflow.
    if !(0.001..=31_536_000.0).contains(&seconds) {
        return Err("not between 0.001 and 31536000".into());
    }
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

/// The address of a peer, as the user gave it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PeerPlace {
    /// The handle that its listener printed.
    Handle(Handle),
    /// A TCP address.
    Address(SocketAddr),
    /// A host name that is not resolved yet, and a port.
    Host { name: String, port: u16 },
}

impl PeerPlace {
    /// Parses a handle, or a name or an address with an optional port after a colon. An IPv6 address with a port needs
    /// brackets.
    ///
    /// # Errors
    /// The text is none of these.
    pub(crate) fn parse(text: &str, default_port: u16) -> Result<Self, String> {
        // A host may have the name `doorbell`, with a port after the colon. A handle has a longer text there.
        let is_port = |behind: &str| parse_port(behind).is_some_and(|port| port.to_string() == behind);
        if text
            .strip_prefix("doorbell:")
            .is_some_and(|behind| !is_port(behind))
        {
            let handle = text.parse().map_err(|error: HandleTextError| error.to_string())?;
            return Ok(Self::Handle(handle));
        }
        if let Ok(address) = text.parse() {
            return Ok(Self::Address(address));
        }
        let bare = text
            .strip_prefix('[')
            .and_then(|text| text.strip_suffix(']'))
            .map_or_else(|| text.parse(), |text| text.parse::<Ipv6Addr>().map(IpAddr::V6));
        if let Ok(address) = bare {
            return Ok(Self::Address(SocketAddr::new(address, default_port)));
        }
        let (name, port) = match text.rsplit_once(':') {
            None => (text, default_port),
            Some((name, port)) => (
                name,
                parse_port(port).ok_or("no port from 0 to 65535 after the colon")?,
            ),
        };
        if name.is_empty() {
            return Err("no name".into());
        }
        if name.contains([':', '[', ']']) {
            return Err("not an address: IPv6 with a port needs brackets, as in [fd00::1]:18700".into());
        }
        Ok(Self::Host {
            name: name.to_owned(),
            port,
        })
    }
}

/// Parses a port in digits, without a sign.
fn parse_port(text: &str) -> Option<u16> {
    text.parse()
        .ok()
        .filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::{Duration, PeerPlace, parse_bytes, parse_mtu, parse_seconds};

    #[test]
    fn sizes_have_units() {
        assert_eq!(parse_bytes("1"), Ok(1));
        assert_eq!(parse_bytes("64K"), Ok(65_536));
        assert_eq!(parse_bytes("16m"), Ok(16 << 20));
        assert_eq!(parse_bytes("4095M"), Ok(4095 << 20));
        for wrong in ["", "K", "0", "0K", "-1", "1.5K", "4096M", "1KK", "1\u{212a}"] {
            assert!(parse_bytes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn spans_have_bounds() {
        assert_eq!(parse_seconds("0.001"), Ok(Duration::from_millis(1)));
        assert_eq!(parse_seconds("31536000"), Ok(Duration::from_secs(31_536_000)));
        for wrong in ["", "0", "0.00099", "31536001", "-1", "nan", "inf", "1s"] {
            assert!(parse_seconds(wrong).is_err(), "{wrong}");
        }
        assert!(parse_mtu("1024").is_ok() && parse_mtu("1500").is_err() && parse_mtu("").is_err());
    }

    #[test]
    fn places_are_addresses_names_or_handles() {
        for (text, address) in [
            ("127.0.0.1", "127.0.0.1:7"),
            ("127.0.0.1:5", "127.0.0.1:5"),
            ("::1", "[::1]:7"),
            ("[::1]", "[::1]:7"),
            ("[::1]:5", "[::1]:5"),
        ] {
            let expected = PeerPlace::Address(address.parse().unwrap());
            assert_eq!(PeerPlace::parse(text, 7), Ok(expected), "{text}");
        }
        for (text, name, port) in [
            ("host", "host", 7),
            ("a.b:65535", "a.b", 65_535),
            ("0", "0", 7),
            ("doorbell:18700", "doorbell", 18_700),
        ] {
            let name = name.to_owned();
            assert_eq!(
                PeerPlace::parse(text, 7),
                Ok(PeerPlace::Host { name, port }),
                "{text}"
            );
        }
        for wrong in [
            "",
            ":",
            ":5",
            "host:",
            "host:65536",
            "host:p",
            "1.2.3.4:+5",
            "a:b:5",
            "fe80:::5",
            "[::1",
            "[1.2.3.4]",
            "doorbell:00",
        ] {
            assert!(PeerPlace::parse(wrong, 7).is_err(), "{wrong}");
        }
    }
}
