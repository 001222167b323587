//! Values and types of settings, parsed from text and written as text.

use core::time::Duration;

use super::error::SettingsFault;

/// The value of a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    /// A count, or a number of bytes.
    Number(u64),
    Span(Duration),
    Flag(bool),
    /// Text in a format that is specific to the setting.
    Text(String),
}

/// Type of a setting.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Count {
        least: u64,
        most: u64,
    },
    Bytes {
        least: u64,
        most: u64,
    },
    Span {
        least: Duration,
        most: Duration,
    },
    /// True or false.
    Flag,
    /// Text that the type of the field parses. The string describes its format.
    Text(&'static str),
}

/// A value as it was given.
#[derive(Clone, Copy, Debug)]
pub(super) enum RawValue<'t> {
    /// An integer in a file. `None` if it is negative or does not fit into 64 bits.
    Number(Option<u64>),
    /// A boolean in a file.
    Flag(bool),
    /// A string in a file.
    Quoted(&'t str),
    /// Text from the environment or a command line, which may be a number.
    Bare(&'t str),
    /// A value of a type that no setting has: a date, a list.
    Other,
}

impl Kind {
    pub(super) const fn count(least: u64, most: u64) -> Self {
        Self::Count { least, most }
    }

    pub(super) const fn bytes(least: u64, most: u64) -> Self {
        Self::Bytes { least, most }
    }

    pub(super) const fn span(least: Duration, most: Duration) -> Self {
        Self::Span { least, most }
    }

    /// Parses a value of this type.
    ///
    /// # Errors
    /// The value has another type, or is out of range.
    pub(super) fn read(&self, given: RawValue<'_>) -> Result<Value, SettingsFault> {
        match (*self, given) {
            (Self::Count { least, most }, RawValue::Number(number)) => bounded(number, least, most),
            (Self::Count { least, most }, RawValue::Bare(text)) => {
                let digits = is_digits(text).then_some(text).ok_or(self.wrong())?;
                bounded(digits.parse().ok(), least, most)
            }
            (Self::Bytes { least, most }, RawValue::Number(number)) => bounded(number, least, most),
            (Self::Bytes { least, most }, RawValue::Quoted(text) | RawValue::Bare(text)) => {
                bounded(read_bytes(text).ok_or(self.wrong())?, least, most)
            }
            (Self::Span { least, most }, RawValue::Quoted(text) | RawValue::Bare(text)) => {
                let span = read_span(text).ok_or(self.wrong())?;
                match span.filter(|span| (least..=most).contains(span)) {
                    Some(span) => Ok(Value::Span(span)),
                    None => Err(SettingsFault::OutOfBounds {
                        least: write_span(least),
                        most: write_span(most),
                    }),
                }
            }
            (Self::Flag, RawValue::Flag(flag)) => Ok(Value::Flag(flag)),
            (Self::Flag, RawValue::Bare("true")) => Ok(Value::Flag(true)),
            (Self::Flag, RawValue::Bare("false")) => Ok(Value::Flag(false)),
            (Self::Text(_), RawValue::Quoted(text) | RawValue::Bare(text)) => {
                Ok(Value::Text(text.to_owned()))
            }
            _ => Err(self.wrong()),
        }
    }

    const fn wrong(&self) -> SettingsFault {
        SettingsFault::WrongKind(match self {
            Self::Count { .. } => "a number",
            Self::Bytes { .. } => "a number of bytes, or one with K, M or G behind it, in quotes",
            Self::Span { .. } => "a time with its unit in quotes, as in \"50ms\": ns, us, ms, s, m or h",
            Self::Flag => "true or false",
            Self::Text(what) => what,
        })
    }
}

impl Value {
    /// The value as TOML.
    pub(super) fn to_toml(&self) -> String {
        match self {
            Self::Number(number) => number.to_string(),
            Self::Span(span) => quoted(&write_span(*span)),
            Self::Flag(flag) => flag.to_string(),
            Self::Text(text) => quoted(text),
        }
    }

    /// The value as plain text.
    pub(super) fn to_text(&self) -> String {
        match self {
            Self::Number(number) => number.to_string(),
            Self::Span(span) => write_span(*span),
            Self::Flag(flag) => flag.to_string(),
            Self::Text(text) => text.clone(),
        }
    }
}

/// A basic string of TOML.
fn quoted(text: &str) -> String {
    let mut quoted = String::from('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            control if control.is_control() => quoted.push_str(&format!("\\u{:04X}", u32::from(control))),
            character => quoted.push(character),
        }
    }
    quoted.push('"');
    quoted
}

fn bounded(number: Option<u64>, least: u64, most: u64) -> Result<Value, SettingsFault> {
    match number.filter(|number| (least..=most).contains(number)) {
        Some(number) => Ok(Value::Number(number)),
        None => Err(SettingsFault::OutOfBounds {
            least: least.to_string(),
            most: most.to_string(),
        }),
    }
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Parses digits with an optional unit. The inner `None` is a number that does not fit into 64
/// bits.
fn read_bytes(text: &str) -> Option<Option<u64>> {
    let (digits, unit) = match text.as_bytes().last()? {
        b'K' => (text.strip_suffix('K')?, 1_u64 << 10),
        b'M' => (text.strip_suffix('M')?, 1 << 20),
        b'G' => (text.strip_suffix('G')?, 1 << 30),
        _ => (text, 1),
    };
    let number = |digits: &str| digits.parse::<u64>().ok()?.checked_mul(unit);
    is_digits(digits).then(|| number(digits))
}

/// Units of time in nanoseconds, the longest first.
const UNITS: &[(&str, u64)] = &[
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

/// Parses digits and a unit. The inner `None` is a time that does not fit.
fn read_span(text: &str) -> Option<Option<Duration>> {
    let end = text.find(|character: char| !character.is_ascii_digit())?;
    let (digits, unit) = text.split_at_checked(end)?;
    let unit = unit.strip_prefix(' ').unwrap_or(unit);
    let (_, unit_ns) = UNITS.iter().find(|(name, _)| *name == unit)?;
    let nanoseconds = |digits: &str| digits.parse::<u64>().ok()?.checked_mul(*unit_ns);
    is_digits(digits).then(|| nanoseconds(digits).map(Duration::from_nanos))
}

/// Writes a duration in the longest unit of which it is a multiple.
fn write_span(span: Duration) -> String {
    let nanoseconds = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
    let whole = UNITS
        .iter()
        .find_map(|(name, unit_ns)| match nanoseconds.checked_rem(*unit_ns) {
            Some(0) => Some((name, nanoseconds.checked_div(*unit_ns)?)),
            _ => None,
        })
        .filter(|_| nanoseconds > 0);
    whole.map_or_else(|| "0s".to_owned(), |(name, count)| format!("{count}{name}"))
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::{Kind, RawValue, SettingsFault, Value, write_span};

    const SPAN: Kind = Kind::span(Duration::from_micros(1), Duration::from_secs(60));

    #[test]
    fn spans_have_a_unit_and_bounds() {
        for (text, nanoseconds, written) in [
            ("1us", 1_000, "1us"),
            ("1000ns", 1_000, "1us"),
            ("1500 ms", 1_500_000_000, "1500ms"),
            ("60s", 60_000_000_000, "1m"),
            ("1m", 60_000_000_000, "1m"),
        ] {
            let span = Duration::from_nanos(nanoseconds);
            assert_eq!(SPAN.read(RawValue::Quoted(text)), Ok(Value::Span(span)), "{text}");
            assert_eq!(write_span(span), written);
        }
        let out = SettingsFault::OutOfBounds {
            least: "1us".into(),
            most: "1m".into(),
        };
        for text in [
            "999ns",
            "61s",
            "0s",
            "99999999999999999999h",
            "18446744073709551615h",
        ] {
            assert_eq!(SPAN.read(RawValue::Bare(text)), Err(out.clone()), "{text}");
        }
        for text in [
            "", "1", "s", "1.5s", "-1s", "+1s", "1 s ", "1  s", "1S", "1sec", "ä",
        ] {
            let wrong = SPAN.read(RawValue::Bare(text));
            assert!(
                matches!(wrong, Err(SettingsFault::WrongKind(_))),
                "{text}: {wrong:?}"
            );
        }
        assert!(SPAN.read(RawValue::Number(Some(1))).is_err());
        assert_eq!(write_span(Duration::ZERO), "0s");
    }

    #[test]
    fn bytes_have_units_or_none_and_counts_have_none() {
        let bytes = Kind::bytes(1, 1 << 32);
        for (text, count) in [("1", 1), ("4K", 4096), ("2M", 2 << 20), ("4G", 4 << 30)] {
            assert_eq!(
                bytes.read(RawValue::Quoted(text)),
                Ok(Value::Number(count)),
                "{text}"
            );
        }
        assert!(bytes.read(RawValue::Number(Some(5))).is_ok());
        for text in ["0", "5G", "17179869184G"] {
            let fault = bytes.read(RawValue::Bare(text));
            assert!(matches!(fault, Err(SettingsFault::OutOfBounds { .. })), "{text}");
        }
        for text in ["", "K", "1k", "1KB", "-1", "1.5K", "1 K", "é"] {
            let fault = bytes.read(RawValue::Bare(text));
            assert!(matches!(fault, Err(SettingsFault::WrongKind(_))), "{text}");
        }
        let count = Kind::count(2, 7);
        assert_eq!(count.read(RawValue::Number(Some(2))), Ok(Value::Number(2)));
        assert_eq!(count.read(RawValue::Bare("7")), Ok(Value::Number(7)));
        for given in [
            RawValue::Number(Some(1)),
            RawValue::Number(None),
            RawValue::Bare("8"),
        ] {
            assert!(matches!(
                count.read(given),
                Err(SettingsFault::OutOfBounds { .. })
            ));
        }
        for given in [
            RawValue::Quoted("2"),
            RawValue::Bare("2K"),
            RawValue::Bare(""),
            RawValue::Other,
        ] {
            assert!(matches!(count.read(given), Err(SettingsFault::WrongKind(_))));
        }
    }

    #[test]
    fn a_flag_is_true_or_false_and_in_a_file_without_quotes() {
        for (given, flag) in [
            (RawValue::Flag(true), true),
            (RawValue::Bare("true"), true),
            (RawValue::Bare("false"), false),
        ] {
            assert_eq!(Kind::Flag.read(given), Ok(Value::Flag(flag)));
        }
        for given in [
            RawValue::Quoted("true"),
            RawValue::Bare(""),
            RawValue::Bare("yes"),
            RawValue::Bare("1"),
            RawValue::Bare("True"),
            RawValue::Number(Some(1)),
            RawValue::Other,
        ] {
            assert_eq!(
                Kind::Flag.read(given),
                Err(SettingsFault::WrongKind("true or false"))
            );
        }
        assert!(Kind::count(0, 1).read(RawValue::Flag(true)).is_err());
    }

    #[test]
    fn text_is_written_so_that_it_is_read_again() {
        let text = "a\"b\\c\nd\u{7f}\u{85}ä";
        let written = Value::Text(text.into()).to_toml();
        let table: toml::Table = format!("x = {written}").parse().unwrap();
        assert_eq!(table["x"].as_str(), Some(text));
    }
}
