//! `{…}` in commands, environments and file names: what may stand there, and what it becomes on a cluster.
//!
//! A name in braces made of letters, digits, `_`, `-` and dots is a substitution. `${name}` is the shell's and
//! stays; `{{name}}` gives a literal `{name}`. Every other brace is an ordinary character, so awk, JSON and
//! shell blocks can be written as they are.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail};

use crate::cluster::Host;
use crate::programs::Rival;
use crate::topology::Topology;

/// A text with its substitutions found and checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Template {
    pieces: Vec<Piece>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(String),
    Bin,
    Examples,
    Tests,
    Rival(Rival),
    /// This very program.
    Lab,
    Out,
    /// A fact of one end of a link.
    End {
        fact: Fact,
        host: String,
        link: String,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fact {
    Address,
    Device,
    GidIndex,
    Netdev,
    Prefix,
}

/// Values for substitutions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Values<'a> {
    pub(super) topology: &'a Topology,
    pub(super) hosts: &'a [Host],
    pub(super) bin: &'a Path,
    pub(super) examples: &'a Path,
    pub(super) tests: &'a Path,
    pub(super) rivals: &'a BTreeMap<Rival, PathBuf>,
    pub(super) out: &'a Path,
}

impl Template {
    /// Finds the substitutions in `text` and checks them against the topology and the file's own `vars`.
    pub(super) fn parse(text: &str, topology: &Topology, vars: &BTreeMap<String, String>) -> Result<Self> {
        let mut pieces = Vec::new();
        let mut literal = String::new();
        let mut rest = text;
        while let Some(open) = rest.find('{') {
            let (before, from_open) = rest.split_at(open);
            literal.push_str(before);
            if let Some((name, after)) = braced(from_open, "{{", "}}") {
                literal.push('{');
                literal.push_str(name);
                literal.push('}');
                rest = after;
            } else if let Some((name, after)) = braced(from_open, "{", "}").filter(|_| !before.ends_with('$'))
            {
                match name.strip_prefix("var.") {
                    Some(var) => literal.push_str(variable(var, vars)?),
                    None => {
                        pieces.push(Piece::Text(core::mem::take(&mut literal)));
                        pieces.push(Piece::parse(name, topology)?);
                    }
                }
                rest = after;
            } else {
                literal.push('{');
                rest = from_open.strip_prefix('{').unwrap_or_default();
            }
        }
        literal.push_str(rest);
        pieces.push(Piece::Text(literal));
        Ok(Self { pieces })
    }

    /// The text with every substitution filled in.
    pub(super) fn fill(&self, values: &Values<'_>) -> Result<String> {
        self.pieces.iter().map(|piece| piece.fill(values)).collect()
    }

    /// The text as far as it is known before anything has booted: devices stay in braces.
    pub(super) fn preview(&self, values: &Values<'_>) -> String {
        self.pieces
            .iter()
            .map(|piece| match (piece.fill(values), piece) {
                (_, Piece::Lab) => "{lab}".to_owned(),
                (Ok(text), _) => text,
                (Err(_), Piece::End { fact, host, link }) => format!("{{{}.{host}.{link}}}", fact.word()),
                (Err(_), Piece::Rival(rival)) => format!("{{rival.{}}}", rival.name()),
                (Err(_), _) => String::new(),
            })
            .collect()
    }

    /// Whether `{bin}` is in it, so that our programs must have been built.
    pub(super) fn needs_bin(&self) -> bool {
        self.pieces.contains(&Piece::Bin)
    }

    /// Whether `{examples}` is in it, so that our examples must have been built.
    pub(super) fn needs_examples(&self) -> bool {
        self.pieces.contains(&Piece::Examples)
    }

    /// Whether `{tests}` is in it, so that our device tests must have been built.
    pub(super) fn needs_tests(&self) -> bool {
        self.pieces.contains(&Piece::Tests)
    }

    /// The rivals' programs that are in it, which must have been built.
    pub(super) fn rivals(&self) -> impl Iterator<Item = Rival> {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Rival(rival) => Some(*rival),
            _ => None,
        })
    }

    /// Whether `word` stands in it by itself.
    pub(super) fn has_word(&self, word: &str) -> bool {
        self.pieces.iter().any(|piece| match piece {
            Piece::Text(text) => text
                .split(|c: char| !(c.is_ascii_alphanumeric() || "_-./".contains(c)))
                .any(|found| found == word),
            _ => false,
        })
    }
}

/// The name between `open` and `close` at the very start of `text`, and what follows.
fn braced<'a>(text: &'a str, open: &str, close: &str) -> Option<(&'a str, &'a str)> {
    let (name, after) = text.strip_prefix(open)?.split_once(close)?;
    let named = name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'));
    named.then_some((name, after))
}

fn variable<'a>(name: &str, vars: &'a BTreeMap<String, String>) -> Result<&'a str> {
    vars.get(name).map(String::as_str).with_context(|| {
        let known: Vec<&str> = vars.keys().map(String::as_str).collect();
        format!("`{{var.{name}}}` is not in [vars], which has: {}", list(&known))
    })
}

impl Piece {
    fn parse(name: &str, topology: &Topology) -> Result<Self> {
        let mut words = name.splitn(3, '.');
        let fact = match (words.next(), words.next(), words.next()) {
            (Some("bin"), None, _) => return Ok(Self::Bin),
            (Some("examples"), None, _) => return Ok(Self::Examples),
            (Some("tests"), None, _) => return Ok(Self::Tests),
            (Some("rival"), Some(rival), None) => {
                return Rival::named(rival).map(Self::Rival).with_context(|| {
                    format!(
                        "`{{{name}}}` names no rival; there are {}",
                        list(&Rival::ALL.map(Rival::name))
                    )
                });
            }
            (Some("lab"), None, _) => return Ok(Self::Lab),
            (Some("out"), None, _) => return Ok(Self::Out),
            (Some(word), Some(host), link) => Fact::ALL
                .into_iter()
                .find(|fact| fact.word() == word)
                .map(|fact| (fact, host, link)),
            _ => None,
        };
        let Some((fact, host, link)) = fact else {
            bail!(
                "`{{{name}}}` is no substitution; there are {{bin}}, {{examples}}, {{tests}}, {{rival.NAME}}, {{lab}}, {{out}}, \
                 {{var.NAME}} and, of one end of a link, {{addr.HOST.LINK}}, {{prefix.…}}, {{dev.…}}, {{netdev.…}} and {{gid_index.…}} \
                 (write {{{{{name}}}}} for the text itself)"
            );
        };
        if !topology.hosts.iter().any(|known| known == host) {
            let known: Vec<&str> = topology.hosts.iter().map(String::as_str).collect();
            bail!("`{{{name}}}` names host `{host}`; the hosts are {}", list(&known));
        }
        let own: Vec<&str> = topology
            .links
            .iter()
            .filter(|link| link.ends.iter().any(|end| end == host))
            .map(|link| link.name.as_str())
            .collect();
        let link = match (link, own.as_slice()) {
            (Some(link), _) if own.contains(&link) => link,
            (None, [only]) => only,
            (Some(link), _) => {
                bail!(
                    "`{{{name}}}` names link `{link}`; host `{host}` is on {}",
                    list(&own)
                );
            }
            (None, _) => bail!("`{{{name}}}` needs a link: host `{host}` is on {}", list(&own)),
        };
        Ok(Self::End {
            fact,
            host: host.to_owned(),
            link: link.to_owned(),
        })
    }

    fn fill(&self, values: &Values<'_>) -> Result<String> {
        let path = |path: &Path| {
            path.to_str().map(str::to_owned).ok_or_else(|| {
                anyhow!(
                    "the path {} is not UTF-8 and cannot stand in a command",
                    path.display()
                )
            })
        };
        match self {
            Self::Text(text) => Ok(text.clone()),
            Self::Bin => path(values.bin),
            Self::Examples => path(values.examples),
            Self::Tests => path(values.tests),
            Self::Rival(rival) => {
                let program = values.rivals.get(rival);
                path(program.with_context(|| format!("{} was not built", rival.name()))?)
            }
            Self::Lab => path(&std::env::current_exe().context("this program has no path")?),
            Self::Out => path(values.out),
            Self::End { fact, host, link } => fact.of(host, link, values),
        }
    }
}

impl Fact {
    const ALL: [Self; 5] = [
        Self::Address,
        Self::Device,
        Self::GidIndex,
        Self::Netdev,
        Self::Prefix,
    ];

    fn word(self) -> &'static str {
        match self {
            Self::Address => "addr",
            Self::Device => "dev",
            Self::GidIndex => "gid_index",
            Self::Netdev => "netdev",
            Self::Prefix => "prefix",
        }
    }

    fn of(self, host: &str, link: &str, values: &Values<'_>) -> Result<String> {
        // Addresses follow from the file alone, which keeps them in the dry run.
        if matches!(self, Self::Address | Self::Prefix) {
            let link = values.topology.links.iter().find(|known| known.name == link);
            let link = link.with_context(|| format!("no link of host `{host}` has that name"))?;
            let end = link.ends.iter().position(|end| end == host);
            let end = end.with_context(|| format!("link `{}` does not end at `{host}`", link.name))?;
            return Ok(match self {
                Self::Prefix => link.subnet.prefix.to_string(),
                _ => link.address(end)?.to_string(),
            });
        }
        let port = values
            .hosts
            .iter()
            .find(|known| known.name == host)
            .and_then(|host| host.ports.iter().find(|port| port.link == link))
            .with_context(|| format!("host `{host}` has no RDMA device on link `{link}` in this cluster"))?;
        Ok(match self {
            Self::Device => port.device.clone(),
            Self::Netdev => port.netdev.clone(),
            _ => port.gid_index.to_string(),
        })
    }
}

/// `a`, `b` and `c`, or "none".
pub(super) fn list(names: &[&str]) -> String {
    match names {
        [] => "none".to_owned(),
        [only] => format!("`{only}`"),
        [most @ .., last] => {
            let most: Vec<String> = most.iter().map(|name| format!("`{name}`")).collect();
            format!("{} and `{last}`", most.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(text: &str) -> Result<String> {
        let topology = Topology::mesh(&["a", "b", "c"]);
        let vars = BTreeMap::from([("size".to_owned(), "64".to_owned())]);
        let port = crate::cluster::Port {
            link: "a-b".to_owned(),
            peer: "a".to_owned(),
            netdev: "veth1".to_owned(),
            device: "rxe1".to_owned(),
            address: "10.77.1.2".parse().unwrap(),
            prefix: 24,
            gid_index: 1,
        };
        let hosts = [Host {
            name: "b".to_owned(),
            ports: vec![port],
        }];
        Template::parse(text, &topology, &vars)?.fill(&Values {
            topology: &topology,
            hosts: &hosts,
            bin: Path::new("/bin dir"),
            examples: Path::new("/examples"),
            tests: Path::new("/tests"),
            rivals: &BTreeMap::from([(Rival::Sideway, PathBuf::from("/rival-sideway"))]),
            out: Path::new("/out"),
        })
    }

    fn message(text: &str) -> String {
        fill(text).unwrap_err().to_string()
    }

    #[test]
    fn every_substitution_is_filled() {
        assert_eq!(
            fill("{addr.b.a-b}/{prefix.b.a-b} {dev.b.a-b} {netdev.b.a-b} {gid_index.b.a-b}").unwrap(),
            "10.77.1.2/24 rxe1 veth1 1"
        );
        assert_eq!(
            fill("{bin}/x -s {var.size} {tests}/z {examples}/w > {out}/y").unwrap(),
            "/bin dir/x -s 64 /tests/z /examples/w > /out/y"
        );
        assert_eq!(
            fill("exec {rival.sideway} -n 3").unwrap(),
            "exec /rival-sideway -n 3"
        );
    }

    #[test]
    fn the_lab_itself_is_a_program_of_its_hosts() {
        let own = std::env::current_exe().unwrap();
        assert_eq!(fill("{lab} agent").unwrap(), format!("{} agent", own.display()));
    }

    #[test]
    fn braces_of_other_languages_stay() {
        for text in [
            "${out}",
            "awk '{ print $1 }'",
            r#"{"a":{"b":1}}"#,
            "{ echo x; }",
            "{}",
            "{",
            "a{1,2}",
        ] {
            assert_eq!(fill(text).unwrap(), text);
        }
        assert_eq!(
            fill("{{out}} {{x}").unwrap_err().to_string().split(';').next(),
            Some("`{x}` is no substitution")
        );
        assert_eq!(fill("{{out}}").unwrap(), "{out}");
    }

    #[test]
    fn what_is_not_there_is_named() {
        assert!(message("{adr.b.a-b}").starts_with("`{adr.b.a-b}` is no substitution; there are {bin}"));
        assert_eq!(
            message("{rival.perftest}"),
            "`{rival.perftest}` names no rival; there are `sideway`, `ibverbs` and `openmpi`"
        );
        assert_eq!(message("{rival.ibverbs}"), "ibverbs was not built");
        assert_eq!(
            message("{addr.z.a-b}"),
            "`{addr.z.a-b}` names host `z`; the hosts are `a`, `b` and `c`"
        );
        assert_eq!(
            message("{addr.c.a-b}"),
            "`{addr.c.a-b}` names link `a-b`; host `c` is on `a-c` and `b-c`"
        );
        assert_eq!(
            message("{addr.a}"),
            "`{addr.a}` needs a link: host `a` is on `a-b` and `a-c`"
        );
        assert_eq!(
            message("{var.sise}"),
            "`{var.sise}` is not in [vars], which has: `size`"
        );
        assert_eq!(
            message("{dev.a.a-b}"),
            "host `a` has no RDMA device on link `a-b` in this cluster"
        );
    }
}
