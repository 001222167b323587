//! The handle of the listening side: given directly, read from a file, or requested at an address.

use core::net::SocketAddr;
use core::time::Duration;
use std::thread;
use std::time::Instant;

use doorbell::connect::ConnectError;
use doorbell::provider::{Network, Provider};
use doorbell::{Handle, Node};

use super::interrupt::Interrupt;
use super::{PORT, interrupt};
use crate::address::resolve;
use crate::handle_file;
use crate::perf::dial::{ECONNREFUSED, tcp_errno};
use crate::report::Failure;
use crate::value::PeerPlace;

/// Interval at which a missing file or listener is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The listening side, as the user named it.
#[derive(Clone, Debug)]
pub(super) enum Peer {
    Handle(Handle),
    File(String),
    Addresses {
        name: String,
        addresses: Vec<SocketAddr>,
    },
}

impl Peer {
    /// Parses the text, and resolves a name.
    ///
    /// # Errors
    /// The text is invalid, or the name has no address.
    pub(super) fn parse(text: &str, timeout: Duration) -> Result<Self, Failure> {
        if let Some(path) = text.strip_prefix('@') {
            return Ok(Self::File(path.to_owned()));
        }
        let named = |error: &dyn core::fmt::Display| format!("{text}: {error}");
        let addresses = match PeerPlace::parse(text, PORT).map_err(|error| named(&error))? {
            PeerPlace::Handle(handle) => return Ok(Self::Handle(handle)),
            PeerPlace::Address(address) => vec![address],
            PeerPlace::Host { name, port } => {
                resolve((name, port), timeout).map_err(|error| named(&error))?
            }
        };
        Ok(Self::Addresses {
            name: text.to_owned(),
            addresses,
        })
    }

    /// Returns the peer's handle. Waits for the file or the listener.
    ///
    /// # Errors
    /// There is no handle in time, or the listener does not trust this side.
    pub(super) fn handle<P: Provider, N: Network>(
        &self,
        node: &Node<P, N>,
        timeout: Duration,
        interrupt: &Interrupt,
    ) -> Result<Handle, Failure> {
        let begun = Instant::now();
        loop {
            interrupt.check()?;
            let is_late = begun.elapsed() >= timeout;
            let seconds = timeout.as_secs_f64();
            match self {
                Self::Handle(handle) => return Ok(*handle),
                Self::File(path) => match handle_file::find(path.as_ref()) {
                    Ok(Some(handle)) => return Ok(handle),
                    Ok(None) if is_late => {
                        return Err(format!(
                            "{path}: no such file after {seconds} s: start the receiver with --handle-file"
                        )
                        .into());
                    }
                    Err(why) if is_late => return Err(why.into()),
                    _ => {}
                },
                Self::Addresses { name, addresses } => {
                    let left = timeout.saturating_sub(begun.elapsed());
                    for address in addresses {
                        match ask(node, *address, left, interrupt) {
                            Ok(handle) => return Ok(handle),
                            Err(Asked::Interrupted) => return interrupt::ended(),
                            Err(Asked::Failed(error)) if is_nobody_there(&error) => {}
                            Err(Asked::Failed(error)) => return Err(format!("{address}: {error}").into()),
                        }
                    }
                    if is_late {
                        return Err(format!(
                            "{name}: nobody listens there after {seconds} s: start `doorbell xfer --listen` on that host"
                        )
                        .into());
                    }
                }
            }
            thread::sleep(LOOK_EVERY);
        }
    }
}

/// Whether a listener may still start.
fn is_nobody_there(error: &ConnectError) -> bool {
    matches!(error, ConnectError::Unanswered(_)) || tcp_errno(error) == Some(ECONNREFUSED)
}

enum Asked {
    Interrupted,
    Failed(ConnectError),
}

/// Requests the handle of the listener at an address.
fn ask<P: Provider, N: Network>(
    node: &Node<P, N>,
    address: SocketAddr,
    within: Duration,
    interrupt: &Interrupt,
) -> Result<Handle, Asked> {
    let deadline = node.within(within.max(LOOK_EVERY));
    let mut asking = node.begin_ask(address, deadline).map_err(Asked::Failed)?;
    loop {
        if let Some(answer) = asking.poll(node) {
            return answer.map_err(Asked::Failed);
        }
        if interrupt.is_raised() {
            return Err(Asked::Interrupted);
        }
        thread::sleep(Duration::from_millis(1));
    }
}
