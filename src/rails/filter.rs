//! Rules that select the rails of a host by device, port, network interface and subnet.

use core::fmt;
use core::net::IpAddr;
use core::str::FromStr;

use doorbell_core::IpPrefix;

mod pattern;

#[cfg(test)]
mod tests;

use pattern::Pattern;

/// Rules that select which rails are used. The default has no rules and uses all rails.
///
/// The text form is a list of rules, separated by commas. Each rule names rails. A leading `^` excludes the rails of this rule:
///
/// | rule | names |
/// |---|---|
/// | `mlx5_0` | the rails of an RDMA device; `*` matches any text and `?` any character, and the pattern has to match the whole name |
/// | `mlx5_0:2` | the rails of a port of it |
/// | `netdev=ens*` | rails on a network interface |
/// | `10.1.0.0/16`, `fd00::/64` | rails with an address in a subnet |
/// | `10.1.2.3` | the rail with this address |
///
/// The order of the rules does not matter. A rail that any `^` rule names is not used. If there are rules without `^`, only those of the
/// remaining rails are used that at least one of these rules names. Otherwise all remaining rails are used.
///
/// ```
/// use doorbell::RailFilter;
///
/// let filter: RailFilter = "mlx5_*, ^mlx5_3, ^netdev=mgmt0".parse()?;
/// assert_eq!(filter.to_string(), "mlx5_*,^mlx5_3,^netdev=mgmt0");
/// # Ok::<(), doorbell::rails::RailFilterError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RailFilter {
    rules: Vec<Rule>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    is_deny: bool,
    names: Names,
}

/// Rails that a rule names.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Names {
    Device { pattern: Pattern, port: Option<u8> },
    Netdev(Pattern),
    Subnet(IpPrefix),
}

/// Subject of the rules: a rail, or a port that has no rail.
#[derive(Clone, Copy, Debug)]
pub struct FilterSubject<'a> {
    /// The RDMA device.
    pub device: &'a str,
    /// The port's number.
    pub port: u8,
    /// The network interface, if there is one.
    pub netdev: Option<&'a str>,
    /// The address, if there is one.
    pub address: Option<IpAddr>,
}

/// Verdict of the rules on a rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "there are two kinds of rules")]
pub enum FilterVerdict {
    /// The rail is used.
    Used,
    /// The `^` rule of this number, counted from 1, excludes the rail.
    Denied(u16),
    /// There are rules without `^`, and none of them names the rail.
    NotNamed,
}

impl RailFilter {
    /// Returns the verdict of the rules on a rail.
    #[must_use]
    pub fn verdict(&self, subject: &FilterSubject<'_>) -> FilterVerdict {
        let mut numbered = (1..=u16::MAX).zip(&self.rules);
        if let Some((number, _)) = numbered.find(|(_, rule)| rule.is_deny && rule.names.has(subject)) {
            return FilterVerdict::Denied(number);
        }
        let mut allowing = self.rules.iter().filter(|rule| !rule.is_deny).peekable();
        if allowing.peek().is_none() || allowing.any(|rule| rule.names.has(subject)) {
            FilterVerdict::Used
        } else {
            FilterVerdict::NotNamed
        }
    }

    /// Returns the rules that name none of these subjects, each with its number and its text. Such a rule may have a mistyped name, or a
    /// placeholder that was never filled in.
    pub fn idle<'a>(&self, subjects: &'a [FilterSubject<'a>]) -> impl Iterator<Item = (u16, String)> {
        (1..=u16::MAX)
            .zip(&self.rules)
            .filter(|(_, rule)| !subjects.iter().any(|subject| rule.names.has(subject)))
            .map(|(number, rule)| (number, rule.to_string()))
    }

    /// Whether there are no rules: all rails are used.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Whether there is a rule without `^` for an interface or a subnet. For a port without a rail these are unknown, so such a rule might
    /// name the port if it had a rail.
    pub(crate) fn asks_beyond_devices(&self) -> bool {
        let mut allowing = self.rules.iter().filter(|rule| !rule.is_deny);
        allowing.any(|rule| !matches!(rule.names, Names::Device { .. }))
    }
}

impl Names {
    fn has(&self, subject: &FilterSubject<'_>) -> bool {
        match self {
            Self::Device { pattern, port } => {
                pattern.is_like(subject.device) && port.is_none_or(|port| port == subject.port)
            }
            Self::Netdev(pattern) => subject.netdev.is_some_and(|netdev| pattern.is_like(netdev)),
            Self::Subnet(subnet) => subject.address.is_some_and(|address| subnet.contains(address)),
        }
    }
}

/// An invalid rule of a filter, and its fault.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RailFilterError {
    /// The rule's number, from 1.
    pub rule: usize,
    /// Offset of the rule in the text, in bytes.
    pub offset: usize,
    /// The rule's text.
    pub text: String,
    /// The fault.
    pub fault: RuleFault,
}

/// Fault of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RuleFault {
    /// The rule is empty.
    Empty,
    /// The rule names nothing.
    NoName,
    /// The name has a character that names cannot have.
    Character(char),
    /// The text after the colon is no port, a number from 1 to 255.
    Port,
    /// The text before `=` is not `netdev`.
    Key,
    /// The rule has the form of an address, and is not a valid one.
    Address,
    /// The prefix length is not valid for this address.
    PrefixLength,
    /// The address has bits set after its prefix. The field is the subnet of the address.
    HostBits(IpPrefix),
    /// There are more than 65,535 rules.
    TooMany,
}

impl fmt::Display for RuleFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("there is nothing between the commas"),
            Self::NoName => f.write_str("it names nothing"),
            Self::Character(character) => write!(f, "no name has the character {character:?}"),
            Self::Port => f.write_str("behind the `:` stands no port from 1 to 255"),
            Self::Key => {
                f.write_str("only `netdev=` may stand in front; names are whole names without a `=`")
            }
            Self::Address => f.write_str("it is no IP address"),
            Self::PrefixLength => f.write_str("behind the `/` stands no prefix length of this address"),
            Self::HostBits(subnet) => write!(f, "it has bits set behind its prefix; its subnet is {subnet}"),
            Self::TooMany => f.write_str("there are too many rules"),
        }
    }
}

/// Maximum number of characters of a rule that the error shows.
const SHOWN_MAX: usize = 80;

impl fmt::Display for RailFilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The text comes from a file or the environment, so control characters are escaped before they reach a terminal.
        let shown: String = self.text.escape_debug().take(SHOWN_MAX).collect();
        write!(
            f,
            "rule {} of the rail filter, `{shown}` at byte {}: {}",
            self.rule, self.offset, self.fault
        )
    }
}

impl core::error::Error for RailFilterError {}

impl FromStr for RailFilter {
    type Err = RailFilterError;

    /// Parses rules separated by commas; white space around them is ignored. An empty text has no rules.
    fn from_str(text: &str) -> Result<Self, RailFilterError> {
        let mut rules = Vec::new();
        if text.trim().is_empty() {
            return Ok(Self { rules });
        }
        let mut start = 0_usize;
        for (index, part) in text.split(',').enumerate() {
            let blanks = part.len().saturating_sub(part.trim_start().len());
            let fault = |fault| RailFilterError {
                rule: index.saturating_add(1),
                offset: start.saturating_add(blanks),
                text: part.trim().to_owned(),
                fault,
            };
            if u16::try_from(index).is_ok_and(|index| index < u16::MAX) {
                rules.push(Rule::parse(part.trim()).map_err(fault)?);
            } else {
                return Err(fault(RuleFault::TooMany));
            }
            start = start.saturating_add(part.len()).saturating_add(1);
        }
        Ok(Self { rules })
    }
}

impl Rule {
    fn parse(text: &str) -> Result<Self, RuleFault> {
        if text.is_empty() {
            return Err(RuleFault::Empty);
        }
        let (is_deny, named) = match text.strip_prefix('^') {
            Some(named) => (true, named.trim_start()),
            None => (false, text),
        };
        let names = Names::parse(named)?;
        Ok(Self { is_deny, names })
    }
}

impl Names {
    fn parse(text: &str) -> Result<Self, RuleFault> {
        if let Some((key, pattern)) = text.split_once('=') {
            return match key {
                "netdev" => Pattern::parse(pattern).map(Self::Netdev),
                _ => Err(RuleFault::Key),
            };
        }
        if let Ok(address) = text.parse::<IpAddr>() {
            let prefix_bits = if address.is_ipv4() { 32 } else { 128 };
            let whole = IpPrefix::new(address, prefix_bits).map_err(|_| RuleFault::PrefixLength)?;
            return Ok(Self::Subnet(whole));
        }
        if let Some((address, _)) = text.split_once('/') {
            address.parse::<IpAddr>().map_err(|_| RuleFault::Address)?;
            let prefix: IpPrefix = text.parse().map_err(|_| RuleFault::PrefixLength)?;
            return if prefix == prefix.subnet() {
                Ok(Self::Subnet(prefix))
            } else {
                Err(RuleFault::HostBits(prefix.subnet()))
            };
        }
        let (name, port) = match text.split_once(':') {
            // A rule with two colons is meant as an IPv6 address, and is not a valid one.
            Some((_, rest)) if rest.contains(':') => return Err(RuleFault::Address),
            Some((name, port)) => (name, Some(parse_port(port)?)),
            None => (text, None),
        };
        let pattern = Pattern::parse(name)?;
        Ok(Self::Device { pattern, port })
    }
}

fn parse_port(text: &str) -> Result<u8, RuleFault> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
    let port = text.parse().ok().filter(|port| is_plain && *port != 0);
    port.ok_or(RuleFault::Port)
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_deny {
            f.write_str("^")?;
        }
        match &self.names {
            Names::Device {
                pattern,
                port: Some(port),
            } => write!(f, "{pattern}:{port}"),
            Names::Device { pattern, port: None } => write!(f, "{pattern}"),
            Names::Netdev(pattern) => write!(f, "netdev={pattern}"),
            Names::Subnet(subnet) => write!(f, "{subnet}"),
        }
    }
}

impl fmt::Display for RailFilter {
    /// Writes the text form, which can be parsed again.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, rule) in self.rules.iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            write!(f, "{rule}")?;
        }
        Ok(())
    }
}
