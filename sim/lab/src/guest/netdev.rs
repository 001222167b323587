//! Moves a network device into another namespace with all it has, or leaves it as it was.
//!
//! The kernel takes a device's addresses and routes from it when it moves, switches it off, and with the addresses its GIDs
//! go; a Soft-RoCE device on it is gone. So all of that is read first ([`NetdevState`]), given back there, read again and
//! compared. If a step fails, the device goes back and gets all of that again there, which is compared as well.
//!
//! Not moved: queueing disciplines (a link's shaping), neighbours, settings under `/proc/sys/net`, and queue pairs:
//! users of the Soft-RoCE device connect again.

mod state;

use core::fmt::Write as _;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::network::{READY_PATIENCE, batch, gid_when_ready};
use crate::kernel::{NAMESPACES_SINCE, Version};
use crate::tool;
use state::{LinkFacts, NetdevState};

/// Command that fails on purpose, to show that nothing is left of the move.
const PLANTED: &str = "link set dev no-such-netdev up\n";

/// Arguments of the command.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct MoveArgs {
    /// The network device
    netdev: String,
    /// The namespace it is in
    #[arg(long, value_name = "HOST")]
    from: String,
    /// The namespace it is to be in
    #[arg(long, value_name = "HOST")]
    to: String,
    /// Fail in the middle of this step, to see the device go back
    #[arg(long, value_enum, value_name = "STEP")]
    fail_at: Option<Step>,
}

/// The steps of a move, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Step {
    /// The Soft-RoCE device is taken off
    Detach,
    /// The device changes its namespace
    Move,
    /// It gets its MTU back
    Mtu,
    /// It gets its addresses back
    Addresses,
    /// It is switched on where it was
    AdminState,
    /// It gets its routes back
    Routes,
    /// It gets its Soft-RoCE device back
    Attach,
    /// All of it is as it was
    Compare,
}

/// Inside a guest: moves the device and says what it has there.
///
/// # Errors
///
/// It is where it was and as it was, or else the error says how it is.
pub(crate) fn run(args: &MoveArgs) -> Result<()> {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    for place in [&args.from, &args.to] {
        ensure!(
            Path::new("/run/netns").join(place).exists(),
            "there is no namespace {place}"
        );
    }
    let (from, to) = (NetdevNamespace(&args.from), NetdevNamespace(&args.to));
    let before = from.read(&args.netdev)?;
    can_move(&before, &release)?;
    let moving = Moving {
        before: &before,
        fail_at: args.fail_at,
    };
    match moving.carry_out(from, to) {
        Ok(()) => {
            println!(
                "{} is in {} as it was in {}: {}",
                before.name,
                to.0,
                from.0,
                summary(&before)
            );
            Ok(())
        }
        Err((step, error)) => {
            let failed = format!(
                "{} was not moved to {}: {step:?} failed: {error:#}",
                before.name, to.0
            );
            match bring_back(&before, from, to) {
                Ok(()) => bail!("{failed}\nit is in {} as it was: {}", from.0, summary(&before)),
                Err(worse) => bail!("{failed}\nAND IT IS NOT AS IT WAS: {worse:#}"),
            }
        }
    }
}

/// Whether the kernel can have in a namespace what the device has.
fn can_move(state: &NetdevState, release: &str) -> Result<()> {
    if let Some(device) = &state.soft_roce {
        ensure!(
            Version::of_release(release)? >= NAMESPACES_SINCE,
            "{device} is a Soft-RoCE device, which Linux {release} has in its first namespace alone, and Linux {}.{} is the \
             first to have in any: {} stays where it is",
            NAMESPACES_SINCE.0,
            NAMESPACES_SINCE.1,
            state.name
        );
    }
    Ok(())
}

fn summary(state: &NetdevState) -> String {
    format!(
        "MTU {}, {}, {} addresses, {} routes, {}",
        state.mtu,
        if state.is_up { "up" } else { "down" },
        state.addresses.len(),
        state.routes.len(),
        state.soft_roce.as_deref().unwrap_or("no Soft-RoCE device")
    )
}

/// A move, with a failure planted or without.
struct Moving<'a> {
    before: &'a NetdevState,
    fail_at: Option<Step>,
}

impl Moving<'_> {
    /// All steps, or which one failed.
    fn carry_out(
        &self,
        from: NetdevNamespace<'_>,
        to: NetdevNamespace<'_>,
    ) -> Result<(), (Step, anyhow::Error)> {
        let before = self.before;
        let step = |step: Step, done: Result<()>| done.map_err(|error| (step, error));
        step(Step::Detach, self.detach(from))?;
        let script = format!("link set dev {} netns {}\n", before.name, to.0);
        step(Step::Move, self.batch(Step::Move, from, script))?;
        step(Step::Mtu, self.batch(Step::Mtu, to, before.mtu_script()))?;
        step(
            Step::Addresses,
            self.batch(Step::Addresses, to, before.addresses_script()),
        )?;
        step(
            Step::AdminState,
            self.batch(Step::AdminState, to, before.admin_script()),
        )?;
        step(Step::Routes, self.routes(to))?;
        step(Step::Attach, self.attach(to))?;
        step(Step::Compare, self.compare(to))
    }

    /// Has `ip` do as the script says; planted, it fails behind the first line.
    fn batch(&self, step: Step, place: NetdevNamespace<'_>, mut script: String) -> Result<()> {
        if self.fail_at == Some(step) {
            let behind_first = script.find('\n').map_or(0, |end| end.saturating_add(1));
            script.insert_str(behind_first, PLANTED);
        }
        batch("ip", &["-n", place.0, "-batch", "-"], &script)
    }

    fn routes(&self, to: NetdevNamespace<'_>) -> Result<()> {
        let planted = if self.fail_at == Some(Step::Routes) {
            PLANTED
        } else {
            ""
        };
        to.add_routes(self.before, planted)
    }

    fn detach(&self, from: NetdevNamespace<'_>) -> Result<()> {
        if let Some(device) = &self.before.soft_roce {
            from.rdma(&["link", "delete", device])?;
        }
        self.planted(Step::Detach)
    }

    fn attach(&self, to: NetdevNamespace<'_>) -> Result<()> {
        to.attach(self.before)?;
        self.planted(Step::Attach)
    }

    fn compare(&self, to: NetdevNamespace<'_>) -> Result<()> {
        to.compare(self.before)?;
        self.planted(Step::Compare)
    }

    fn planted(&self, step: Step) -> Result<()> {
        ensure!(self.fail_at != Some(step), "a failure was asked for");
        Ok(())
    }
}

/// Puts the device back where it was, with all it had.
fn bring_back(before: &NetdevState, from: NetdevNamespace<'_>, to: NetdevNamespace<'_>) -> Result<()> {
    if !from.has(before)? {
        ensure!(
            to.has(before)?,
            "{} is neither in {} nor in {}",
            before.name,
            from.0,
            to.0
        );
        if let Some(device) = &before.soft_roce {
            // If it was not made there, there is none to delete.
            let _ = to.rdma(&["link", "delete", device]);
        }
        let mut script = format!("link set dev {} down\n", before.name);
        writeln!(script, "link set dev {} netns {}", before.name, from.0)?;
        batch("ip", &["-n", to.0, "-batch", "-"], &script)?;
        let script = before.mtu_script() + &before.addresses_script() + &before.admin_script();
        batch("ip", &["-n", from.0, "-batch", "-"], &script)?;
        from.add_routes(before, "")?;
    }
    if before.soft_roce.is_some() && from.soft_roce(&before.name)?.is_none() {
        from.attach(before)?;
    }
    from.compare(before)
}

/// A namespace by its name.
#[derive(Clone, Copy)]
struct NetdevNamespace<'a>(&'a str);

/// A line of `rdma -json link show`.
#[derive(Deserialize)]
struct RdmaFacts {
    ifname: String,
    netdev: Option<String>,
}

impl NetdevNamespace<'_> {
    /// A device as it is.
    fn read(self, netdev: &str) -> Result<NetdevState> {
        let links: Vec<LinkFacts> = self.ip(&["address", "show"])?;
        let link = links.iter().find(|link| link.ifname == netdev);
        let link = link.with_context(|| format!("{} has no {netdev}", self.0))?;
        let old: Vec<Value> = self.ip(&["-4", "route", "show", "table", "all"])?;
        let new: Vec<Value> = self.ip(&["-6", "route", "show", "table", "all"])?;
        NetdevState::new(link, [&old, &new], self.soft_roce(netdev)?)
            .with_context(|| format!("{netdev} stays in {}", self.0))
    }

    /// Whether the very device is here, and not another of its name.
    fn has(self, state: &NetdevState) -> Result<bool> {
        let links: Vec<LinkFacts> = self.ip(&["address", "show"])?;
        let is_it = |link: &LinkFacts| link.ifname == state.name && link.address == state.mac;
        Ok(links.iter().any(is_it))
    }

    /// The Soft-RoCE device on a network device.
    fn soft_roce(self, netdev: &str) -> Result<Option<String>> {
        let text = tool::output("ip", &["netns", "exec", self.0, "rdma", "-j", "link", "show"])?;
        let links: Vec<RdmaFacts> = parsed(&text)?;
        let on_it = links
            .into_iter()
            .find(|link| link.netdev.as_deref() == Some(netdev));
        // Hardware devices do not move with their network device, and have no such file.
        let is_soft = |name: &str| {
            Path::new("/sys/class/infiniband")
                .join(name)
                .join("parent")
                .exists()
        };
        Ok(on_it.map(|link| link.ifname).filter(|name| is_soft(name)))
    }

    /// Makes the Soft-RoCE device, and waits for it where the network device is on.
    fn attach(self, state: &NetdevState) -> Result<()> {
        let Some(device) = &state.soft_roce else {
            return Ok(());
        };
        self.rdma(&["link", "add", device, "type", "rxe", "netdev", &state.name])?;
        let deadline = Instant::now()
            .checked_add(READY_PATIENCE)
            .context("no deadline")?;
        for address in state.addresses.iter().filter(|_| state.is_up) {
            // Read again: which index it has is the device's to say.
            gid_when_ready(device, address.local, deadline)?;
        }
        Ok(())
    }

    /// Adds the routes of both families, and has `ip` do something else behind those of the first.
    fn add_routes(self, state: &NetdevState, then: &str) -> Result<()> {
        let old = state.routes_script(false) + then;
        for (family, script) in [("-4", old), ("-6", state.routes_script(true))] {
            batch("ip", &["-n", self.0, family, "-batch", "-"], &script)?;
        }
        Ok(())
    }

    fn compare(self, before: &NetdevState) -> Result<()> {
        match self.read(&before.name)?.difference(before) {
            None => Ok(()),
            Some(difference) => bail!("{} in {} is not as it was: {difference}", before.name, self.0),
        }
    }

    fn rdma(self, arguments: &[&str]) -> Result<()> {
        let all = [&["netns", "exec", self.0, "rdma"], arguments].concat();
        tool::output("ip", &all).map(drop)
    }

    fn ip<T: DeserializeOwned>(self, arguments: &[&str]) -> Result<T> {
        let all = [&["-n", self.0, "-json"], arguments].concat();
        parsed(&tool::output("ip", &all)?)
    }
}

/// Parses JSON output; empty output is an empty list.
fn parsed<T: DeserializeOwned>(text: &str) -> Result<T> {
    let text = if text.trim().is_empty() { "[]" } else { text };
    serde_json::from_str(text).with_context(|| format!("not what was asked for: {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_has_soft_roce_in_one_namespace_moves_none() {
        let mut state = NetdevState {
            name: "nic0".to_owned(),
            mac: String::new(),
            mtu: 4200,
            is_up: true,
            addresses: Vec::new(),
            routes: Vec::new(),
            soft_roce: Some("rxe0".to_owned()),
        };
        can_move(&state, "7.1.0").unwrap();
        let refused = can_move(&state, "6.1.0-44-amd64").unwrap_err().to_string();
        assert_eq!(
            refused,
            "rxe0 is a Soft-RoCE device, which Linux 6.1.0-44-amd64 has in its first namespace alone, and Linux 7.1 is the \
             first to have in any: nic0 stays where it is"
        );
        // The kernel's version does not matter to a hardware device.
        state.soft_roce = None;
        can_move(&state, "6.1.0-44-amd64").unwrap();
    }

    #[test]
    fn nothing_printed_is_nothing_there() {
        assert_eq!(parsed::<Vec<Value>>("\n").unwrap(), Vec::<Value>::new());
        assert!(parsed::<Vec<Value>>("nic0 UP").is_err());
    }
}
