//! State of a network device that a move takes from it, as a value: read from `ip -json`, and given back by commands of
//! `ip`.
//!
//! State that is not understood is refused here: a device stays where it is if a part of an address or a route would be
//! lost.

use core::fmt::Write as _;
use core::net::IpAddr;

use anyhow::{Context as _, Result, bail, ensure};
use serde::Deserialize;
use serde_json::Value;

/// Seconds of an address that never expires.
const FOR_EVER_S: u32 = u32::MAX;

/// A network device as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NetdevState {
    /// Its name.
    pub(crate) name: String,
    /// Its hardware address. Moves leave it alone; it distinguishes the device from another one of the same name.
    pub(crate) mac: String,
    /// Its MTU in bytes.
    pub(crate) mtu: u32,
    /// Whether it was switched on.
    pub(crate) is_up: bool,
    /// Its addresses: those of IPv4 in their order, since the first of a subnet is the one that speaks; behind them those of
    /// IPv6, sorted.
    pub(crate) addresses: Vec<Address>,
    /// Routes over it but those that come with its addresses; those of which others need a gateway first.
    pub(crate) routes: Vec<Route>,
    /// The Soft-RoCE device on it.
    pub(crate) soft_roce: Option<String>,
}

/// An address with all it was given.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Address {
    pub(crate) local: IpAddr,
    pub(crate) prefix: u8,
    pub(crate) broadcast: Option<IpAddr>,
    pub(crate) scope: String,
    pub(crate) label: Option<String>,
    /// Whether it brings no route to its subnet.
    pub(crate) is_without_route: bool,
}

/// A route with all it was given.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Route {
    /// Sorts first those without.
    pub(crate) gateway: Option<IpAddr>,
    pub(crate) is_ipv6: bool,
    pub(crate) kind: Option<String>,
    pub(crate) destination: String,
    pub(crate) source: Option<IpAddr>,
    pub(crate) metric: Option<u32>,
    pub(crate) table: Option<String>,
    pub(crate) protocol: Option<String>,
    pub(crate) scope: Option<String>,
    pub(crate) is_on_link: bool,
}

/// A line of `ip -json address show`.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct LinkFacts {
    #[serde(default)]
    pub(crate) ifname: String,
    #[serde(default)]
    pub(crate) address: String,
    #[serde(default)]
    mtu: u32,
    #[serde(default)]
    flags: Vec<String>,
    /// The bridge or bond it is a part of.
    master: Option<String>,
    #[serde(default)]
    addr_info: Vec<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AddressFacts {
    local: IpAddr,
    prefixlen: u8,
    broadcast: Option<IpAddr>,
    scope: String,
    label: Option<String>,
    #[serde(default)]
    noprefixroute: bool,
    valid_life_time: u32,
    preferred_life_time: u32,
    /// Source of the address; older kernels give none.
    protocol: Option<String>,
    // These follow from the others, or from how the address came to be.
    #[serde(rename = "family")]
    _family: String,
    #[serde(default, rename = "secondary")]
    _secondary: bool,
    #[serde(default, rename = "nodad")]
    _nodad: bool,
    #[serde(default, rename = "tentative")]
    _tentative: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RouteFacts {
    #[serde(rename = "type")]
    kind: Option<String>,
    dst: String,
    gateway: Option<IpAddr>,
    #[serde(rename = "dev")]
    _dev: String,
    protocol: Option<String>,
    scope: Option<String>,
    prefsrc: Option<IpAddr>,
    metric: Option<u32>,
    table: Option<String>,
    #[serde(default)]
    flags: Vec<String>,
    pref: Option<String>,
}

impl NetdevState {
    /// From what `ip -json` says of the device, and of all routes of IPv4 and of IPv6.
    ///
    /// # Errors
    /// Something could not be given back.
    pub(crate) fn new(link: &LinkFacts, routes: [&[Value]; 2], soft_roce: Option<String>) -> Result<Self> {
        if let Some(master) = &link.master {
            bail!(
                "{} is a part of {master}, and would not be elsewhere",
                link.ifname
            );
        }
        let mut addresses: Vec<Address> = link.addr_info.iter().map(address).collect::<Result<_>>()?;
        let (mut old, mut new): (Vec<_>, Vec<_>) =
            addresses.drain(..).partition(|address| address.local.is_ipv4());
        new.sort_unstable();
        old.append(&mut new);
        let [ipv4, ipv6] = routes;
        let all = ipv4.iter().map(|route| (route, false));
        let all = all.chain(ipv6.iter().map(|route| (route, true)));
        let mut routes = all
            .filter(|(route, _)| is_over(route, &link.ifname))
            .filter(|(route, _)| route.get("protocol").and_then(Value::as_str) != Some("kernel"))
            .map(|(facts, is_ipv6)| route(facts, is_ipv6))
            .collect::<Result<Vec<_>>>()?;
        routes.sort_unstable();
        Ok(Self {
            name: link.ifname.clone(),
            mac: link.address.clone(),
            mtu: link.mtu,
            is_up: link.flags.iter().any(|flag| flag == "UP"),
            addresses: old,
            routes,
            soft_roce,
        })
    }

    pub(crate) fn mtu_script(&self) -> String {
        format!("link set dev {} mtu {}\n", self.name, self.mtu)
    }

    pub(crate) fn addresses_script(&self) -> String {
        let mut script = String::new();
        for address in &self.addresses {
            let Address {
                local, prefix, scope, ..
            } = address;
            let _ = write!(
                script,
                "address replace {local}/{prefix} dev {} scope {scope}",
                self.name
            );
            if let Some(broadcast) = address.broadcast {
                let _ = write!(script, " broadcast {broadcast}");
            }
            if let Some(label) = &address.label {
                let _ = write!(script, " label {label}");
            }
            // It was probed where it was, and the link is the same one.
            script.push_str(if local.is_ipv6() { " nodad" } else { "" });
            script.push_str(if address.is_without_route {
                " noprefixroute"
            } else {
                ""
            });
            script.push('\n');
        }
        script
    }

    pub(crate) fn admin_script(&self) -> String {
        let admin = if self.is_up { "up" } else { "down" };
        format!("link set dev {} {admin}\n", self.name)
    }

    /// For `ip -4`, or for `ip -6`: `default` is written alike in both.
    pub(crate) fn routes_script(&self, is_ipv6: bool) -> String {
        let mut script = String::new();
        for route in self.routes.iter().filter(|route| route.is_ipv6 == is_ipv6) {
            let kind = route.kind.as_deref().unwrap_or("unicast");
            let _ = write!(script, "route add {kind} {}", route.destination);
            if let Some(gateway) = route.gateway {
                let _ = write!(script, " via {gateway}");
            }
            let _ = write!(script, " dev {}", self.name);
            let mut word = |name: &str, value: Option<&dyn core::fmt::Display>| {
                if let Some(value) = value {
                    let _ = write!(script, " {name} {value}");
                }
            };
            word("src", route.source.as_ref().map(|source| source as _));
            word("metric", route.metric.as_ref().map(|metric| metric as _));
            word("table", route.table.as_ref().map(|table| table as _));
            word("proto", route.protocol.as_ref().map(|protocol| protocol as _));
            word("scope", route.scope.as_ref().map(|scope| scope as _));
            script.push_str(if route.is_on_link { " onlink\n" } else { "\n" });
        }
        script
    }

    /// In what it is otherwise than another one; nothing where it is the same.
    pub(crate) fn difference(&self, other: &Self) -> Option<String> {
        let mut parts = Vec::new();
        let mut compare = |what: &str, same: bool, ours: String, theirs: String| {
            if !same {
                parts.push(format!("{what}: {ours} instead of {theirs}"));
            }
        };
        compare(
            "MTU",
            self.mtu == other.mtu,
            self.mtu.to_string(),
            other.mtu.to_string(),
        );
        let (ours, theirs) = (self.admin_script(), other.admin_script());
        compare(
            "admin state",
            ours == theirs,
            ours.trim().into(),
            theirs.trim().into(),
        );
        let (ours, theirs) = (self.addresses_script(), other.addresses_script());
        compare("addresses", self.addresses == other.addresses, ours, theirs);
        let all = |of: &Self| of.routes_script(false) + &of.routes_script(true);
        compare("routes", self.routes == other.routes, all(self), all(other));
        let device = |of: &Self| of.soft_roce.clone().unwrap_or_else(|| "none".to_owned());
        let is_same = self.soft_roce == other.soft_roce && self.mac == other.mac;
        compare("Soft-RoCE device", is_same, device(self), device(other));
        (!parts.is_empty()).then(|| parts.join("; "))
    }
}

/// Whether a route leads over a device, alone or among others.
fn is_over(route: &Value, netdev: &str) -> bool {
    let leads = |hop: &Value| hop.get("dev").and_then(Value::as_str) == Some(netdev);
    let hops = route.get("nexthops").and_then(Value::as_array);
    leads(route) || hops.is_some_and(|hops| hops.iter().any(leads))
}

fn address(facts: &Value) -> Result<Address> {
    let known = AddressFacts::deserialize(facts)
        .with_context(|| format!("the address {facts} has something that could not be given back"))?;
    ensure!(
        known.valid_life_time == FOR_EVER_S,
        "the address {} was given for a time: whoever renews it would not find it elsewhere",
        known.local
    );
    ensure!(
        known.preferred_life_time == FOR_EVER_S,
        "the address {} is preferred for a time, and would be for good elsewhere",
        known.local
    );
    if let Some(protocol) = known.protocol.filter(|protocol| !protocol.starts_with("kernel_")) {
        bail!(
            "the address {} was given by {protocol}, who would not find it elsewhere",
            known.local
        );
    }
    Ok(Address {
        local: known.local,
        prefix: known.prefixlen,
        broadcast: known.broadcast,
        scope: known.scope,
        label: known.label,
        is_without_route: known.noprefixroute,
    })
}

fn route(facts: &Value, is_ipv6: bool) -> Result<Route> {
    let lost = || format!("the route {facts} has something that could not be given back");
    let known = RouteFacts::deserialize(facts).with_context(lost)?;
    let mut is_on_link = false;
    for flag in &known.flags {
        match flag.as_str() {
            "onlink" => is_on_link = true,
            // These flags describe the state of the link, not the route.
            "linkdown" | "dead" => {}
            _ => bail!(lost()),
        }
    }
    ensure!(known.pref.is_none_or(|pref| pref == "medium"), lost());
    Ok(Route {
        gateway: known.gateway,
        is_ipv6,
        kind: known.kind,
        destination: known.dst,
        source: known.prefsrc,
        metric: known.metric,
        table: known.table,
        protocol: known.protocol,
        scope: known.scope,
        is_on_link,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn link(addr_info: &[Value]) -> LinkFacts {
        LinkFacts::deserialize(json!({
            "ifindex": 5, "link_index": 6, "ifname": "nic0", "flags": ["BROADCAST", "MULTICAST", "UP", "LOWER_UP"],
            "mtu": 4200, "qdisc": "noqueue", "operstate": "UP", "address": "02:db:00:00:00:00", "addr_info": addr_info
        }))
        .unwrap()
    }

    fn ipv4(local: &str) -> Value {
        json!({
            "family": "inet", "local": local, "prefixlen": 24, "broadcast": "10.1.0.255", "scope": "global", "label": "nic0",
            "valid_life_time": u32::MAX, "preferred_life_time": u32::MAX
        })
    }

    fn ipv6(local: &str) -> Value {
        json!({
            "family": "inet6", "local": local, "prefixlen": 64, "scope": "global", "nodad": true, "noprefixroute": true,
            "valid_life_time": u32::MAX, "preferred_life_time": u32::MAX
        })
    }

    fn routes() -> [Vec<Value>; 2] {
        let old = vec![
            json!({ "dst": "default", "gateway": "10.1.0.9", "dev": "nic0", "metric": 7, "flags": [] }),
            json!({ "dst": "10.1.0.0/24", "dev": "nic0", "protocol": "kernel", "scope": "link", "prefsrc": "10.1.0.2", "flags": [] }),
            json!({ "dst": "10.9.0.0/16", "dev": "nic0", "protocol": "static", "scope": "link", "table": "100", "flags": ["linkdown"] }),
            json!({ "dst": "10.8.0.0/16", "dev": "other", "encap": "mpls", "flags": [] }),
        ];
        let new = vec![json!({
            "dst": "fd09::/64", "gateway": "fe80::9", "dev": "nic0", "metric": 1024, "flags": ["onlink"], "pref": "medium"
        })];
        [old, new]
    }

    fn state(addresses: &[Value], [old, new]: &[Vec<Value>; 2]) -> Result<NetdevState> {
        NetdevState::new(&link(addresses), [old, new], Some("rxe0".to_owned()))
    }

    #[test]
    fn what_a_device_has_is_given_back_as_it_was() {
        let addresses = [
            ipv4("10.1.0.7"),
            ipv4("10.1.0.2"),
            ipv6("fd01::8"),
            ipv6("fd01::7"),
        ];
        let state = state(&addresses, &routes()).unwrap();
        assert_eq!(
            state.mtu_script() + &state.admin_script(),
            "link set dev nic0 mtu 4200\nlink set dev nic0 up\n"
        );
        // The first address of a subnet stays the first.
        assert_eq!(
            state.addresses_script(),
            "address replace 10.1.0.7/24 dev nic0 scope global broadcast 10.1.0.255 label nic0\n\
             address replace 10.1.0.2/24 dev nic0 scope global broadcast 10.1.0.255 label nic0\n\
             address replace fd01::7/64 dev nic0 scope global nodad noprefixroute\n\
             address replace fd01::8/64 dev nic0 scope global nodad noprefixroute\n"
        );
        // Routes to gateways come first; routes of the kernel and of other programs are left out.
        assert_eq!(
            state.routes_script(false),
            "route add unicast 10.9.0.0/16 dev nic0 table 100 proto static scope link\n\
             route add unicast default via 10.1.0.9 dev nic0 metric 7\n"
        );
        assert_eq!(
            state.routes_script(true),
            "route add unicast fd09::/64 via fe80::9 dev nic0 metric 1024 onlink\n"
        );
    }

    #[test]
    fn what_would_be_lost_is_refused() {
        let why = |address: Value| format!("{:#}", state(&[address], &routes()).unwrap_err());
        let with = |mut facts: Value, field: &str, value: Value| {
            facts.as_object_mut().unwrap().insert(field.to_owned(), value);
            facts
        };
        assert!(
            why(with(ipv4("10.1.0.2"), "valid_life_time", json!(3600)))
                .contains("10.1.0.2 was given for a time")
        );
        assert!(
            why(with(ipv4("10.1.0.2"), "preferred_life_time", json!(0)))
                .contains("10.1.0.2 is preferred for a time")
        );
        assert!(why(with(ipv6("fd01::7"), "protocol", json!("ra"))).contains("fd01::7 was given by ra"));
        assert!(
            state(
                &[with(ipv6("fe80::7"), "protocol", json!("kernel_ll"))],
                &routes()
            )
            .is_ok()
        );
        let mut part = link(&[]);
        part.master = Some("bond0".to_owned());
        let error = NetdevState::new(&part, [&[], &[]], None).unwrap_err();
        assert!(error.to_string().contains("nic0 is a part of bond0"), "{error}");
        assert!(
            why(with(ipv4("10.1.0.2"), "address", json!("10.2.0.1"))).contains("unknown field `address`")
        );
        for (field, value) in [
            ("nexthops", json!([])),
            ("metrics", json!([{ "mtu": 1400 }])),
            ("flags", json!(["trap"])),
            ("pref", json!("high")),
        ] {
            let [mut old, new] = routes();
            old[0] = with(old[0].clone(), field, value);
            let error = format!("{:#}", state(&[], &[old, new]).unwrap_err());
            assert!(error.contains("could not be given back"), "{field}: {error}");
        }
        // One that leads over several devices, this one among them.
        let several =
            json!({ "dst": "10.7.0.0/16", "flags": [], "nexthops": [{ "dev": "other" }, { "dev": "nic0" }] });
        assert!(state(&[], &[vec![several], vec![]]).is_err());
    }

    #[test]
    fn every_difference_is_told() {
        let before = state(&[ipv4("10.1.0.2")], &routes()).unwrap();
        assert_eq!(before.difference(&before.clone()), None);
        type Change = fn(&mut NetdevState);
        let changes: [(&str, Change); 5] = [
            ("MTU: 1500 instead of 4200", |state| state.mtu = 1500),
            ("admin state: link set dev nic0 down", |state| state.is_up = false),
            ("addresses: ", |state| state.addresses.clear()),
            ("routes: ", |state| drop(state.routes.pop())),
            ("Soft-RoCE device: none instead of rxe0", |state| {
                state.soft_roce = None
            }),
        ];
        for (told, change) in changes {
            let mut after = before.clone();
            change(&mut after);
            let difference = after.difference(&before).unwrap();
            assert!(difference.starts_with(told), "{difference}");
        }
    }
}
