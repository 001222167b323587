//! Conversions between the values of settings and the field types of configurations.

use core::net::SocketAddr;
use core::num::NonZeroU64;
use core::time::Duration;
use std::path::PathBuf;

use doorbell::provider::{IpPrefix, Mtu};

use super::error::SettingsFault;
use super::value::Value;
use super::{LogLevel, Subnets};
use doorbell::KeyRing;
use doorbell::rails::RailFilter;
use doorbell::worker::{Notify, SharedReceivesConfig};

/// A field type of a configuration that holds a setting.
pub(super) trait SettingField: Sized {
    fn show(&self) -> Value;

    /// Returns the field with this value.
    ///
    /// # Errors
    /// The value does not fit the type.
    fn with(&self, value: &Value) -> Result<Self, SettingsFault>;

    /// # Errors
    /// The value does not fit the type. The field is unchanged.
    fn put(&mut self, value: &Value) -> Result<(), SettingsFault> {
        *self = self.with(value)?;
        Ok(())
    }
}

macro_rules! whole_numbers {
    ($($number:ty),+) => {$(
        impl SettingField for $number {
            fn show(&self) -> Value {
                Value::Number(u64::try_from(*self).unwrap_or(u64::MAX))
            }

            fn with(&self, value: &Value) -> Result<Self, SettingsFault> {
                number(value)?.try_into().map_err(|_| too_large::<$number>())
            }
        }
    )+};
}

whole_numbers!(u8, u16, u32, usize);

/// Error for a number that does not fit the type. Happens only if the bounds of the setting are wrong.
fn too_large<N>() -> SettingsFault {
    let bits = size_of::<N>().saturating_mul(8);
    SettingsFault::Wrong(format!("must be a number of {bits} bits"))
}

const fn number(value: &Value) -> Result<u64, SettingsFault> {
    match value {
        Value::Number(number) => Ok(*number),
        Value::Span(_) | Value::Flag(_) | Value::Text(_) => Err(SettingsFault::WrongKind("a number")),
    }
}

fn text(value: &Value) -> Result<&str, SettingsFault> {
    match value {
        Value::Text(text) => Ok(text),
        Value::Number(_) | Value::Span(_) | Value::Flag(_) => Err(SettingsFault::WrongKind("text")),
    }
}

fn wrong(why: impl ToString) -> SettingsFault {
    SettingsFault::Wrong(why.to_string())
}

impl SettingField for Duration {
    fn show(&self) -> Value {
        Value::Span(*self)
    }

    fn with(&self, value: &Value) -> Result<Self, SettingsFault> {
        match value {
            Value::Span(span) => Ok(*span),
            Value::Number(_) | Value::Flag(_) | Value::Text(_) => Err(SettingsFault::WrongKind("a time")),
        }
    }
}

impl SettingField for bool {
    fn show(&self) -> Value {
        Value::Flag(*self)
    }

    fn with(&self, value: &Value) -> Result<Self, SettingsFault> {
        match value {
            Value::Flag(flag) => Ok(*flag),
            Value::Number(_) | Value::Span(_) | Value::Text(_) => {
                Err(SettingsFault::WrongKind("true or false"))
            }
        }
    }
}

impl SettingField for Mtu {
    fn show(&self) -> Value {
        Value::Number(self.bytes().into())
    }

    fn with(&self, value: &Value) -> Result<Self, SettingsFault> {
        let mtu = u32::try_from(number(value)?).ok().and_then(Self::from_bytes);
        mtu.ok_or_else(|| wrong("must be one of 256, 512, 1024, 2048 and 4096"))
    }
}

/// The depth; 0 means no shared receives.
impl SettingField for Option<SharedReceivesConfig> {
    fn show(&self) -> Value {
        Value::Number(self.map_or(0, |shared| shared.depth.into()))
    }

    fn with(&self, value: &Value) -> Result<Self, SettingsFault> {
        let depth = u32::try_from(number(value)?).map_err(|_| too_large::<u32>())?;
        let mut shared = self.unwrap_or_default();
        shared.depth = depth;
        Ok((depth > 0).then_some(shared))
    }
}

/// 0 means none.
impl SettingField for Option<NonZeroU64> {
    fn show(&self) -> Value {
        Value::Number(self.map_or(0, NonZeroU64::get))
    }

    fn with(&self, value: &Value) -> Result<Self, SettingsFault> {
        Ok(NonZeroU64::new(number(value)?))
    }
}

impl SettingField for Notify {
    fn show(&self) -> Value {
        let name = match self {
            Self::Never => "never",
            Self::Every => "every",
            Self::Solicited => "solicited",
        };
        Value::Text(name.into())
    }

    fn with(&self, value: &Value) -> Result<Self, SettingsFault> {
        match text(value)? {
            "never" => Ok(Self::Never),
            "every" => Ok(Self::Every),
            "solicited" => Ok(Self::Solicited),
            _ => Err(wrong("must be \"never\", \"every\" or \"solicited\"")),
        }
    }
}

impl SettingField for LogLevel {
    fn show(&self) -> Value {
        Value::Text(self.name().into())
    }

    fn with(&self, value: &Value) -> Result<Self, SettingsFault> {
        let text = text(value)?;
        let level = Self::ALL.into_iter().find(|level| level.name() == text);
        level.ok_or_else(|| wrong("must be \"off\", \"error\", \"warn\", \"info\", \"debug\" or \"trace\""))
    }
}

impl SettingField for RailFilter {
    fn show(&self) -> Value {
        Value::Text(self.to_string())
    }

    fn with(&self, value: &Value) -> Result<Self, SettingsFault> {
        text(value)?.parse().map_err(wrong)
    }
}

impl SettingField for Subnets {
    fn show(&self) -> Value {
        let all: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        Value::Text(all.join(","))
    }

    fn with(&self, value: &Value) -> Result<Self, SettingsFault> {
        let mut subnets = Vec::new();
        let text = text(value)?;
        let parts = text.split(',').map(str::trim);
        // An empty text is an empty list, but an empty part between two commas is an error.
        for (index, part) in parts.enumerate().filter(|_| !text.is_empty()) {
            let prefix: IpPrefix = part
                .parse()
                .map_err(|error| wrong(format!("subnet {}: {error}", index.saturating_add(1))))?;
            if prefix != prefix.subnet() {
                let subnet = prefix.subnet();
                return Err(wrong(format!(
                    "{prefix} has bits set behind its prefix; its subnet is {subnet}"
                )));
            }
            subnets.push(prefix);
        }
        Ok(Self(subnets))
    }
}

impl SettingField for Option<SocketAddr> {
    fn show(&self) -> Value {
        Value::Text(self.map(|address| address.to_string()).unwrap_or_default())
    }

    fn with(&self, value: &Value) -> Result<Self, SettingsFault> {
        match text(value)? {
            "" => Ok(None),
            text => text
                .parse()
                .map(Some)
                .map_err(|_| wrong("must be an address and a port, as in \"127.0.0.1:9400\"")),
        }
    }
}

impl SettingField for Option<PathBuf> {
    fn show(&self) -> Value {
        // Settings are given as text, and this path was, too.
        let path = self.as_ref().map(|path| path.to_string_lossy().into_owned());
        Value::Text(path.unwrap_or_default())
    }

    fn with(&self, value: &Value) -> Result<Self, SettingsFault> {
        let text = text(value)?;
        if holds_key(text) {
            return Err(SettingsFault::IsSecret);
        }
        Ok((!text.is_empty()).then(|| text.into()))
    }
}

/// Whether the text is a key instead of the name of a key file. Settings are displayed, and keys must not be.
fn holds_key(text: &str) -> bool {
    let is_hexadecimal = |part: &str| part.len() >= 32 && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    let mut parts = text.split(|character: char| !character.is_ascii_alphanumeric() && character != '/');
    KeyRing::from_text(text).is_ok() || parts.any(is_hexadecimal)
}
