//! Connects to a listener that may not have started yet.

use core::time::Duration;
use std::thread;
use std::time::Instant;

use doorbell::connect::{Cause, HandshakeError};
use doorbell::provider::{Network, Provider};
use doorbell::{ChannelConfig, ConnectError, Connection, Node, Worker};

use super::error::PerfError;
use super::terms::{Target, Terms};
use crate::address::share;

/// Pause between two attempts to connect while no listener is there.
const RETRY_EVERY: Duration = Duration::from_millis(100);
pub(crate) const ECONNREFUSED: i32 = 111;

/// Connects, and retries while no listener is there. Returns the address, for later connections.
pub(super) fn dial<P: Provider, N: Network>(
    node: &Node<P, N>,
    workers: &mut [Worker<P>],
    target: &Target,
    config: &ChannelConfig,
    terms: &Terms,
) -> Result<(Connection, Target), PerfError> {
    let begun = Instant::now();
    let mut was_refused = false;
    loop {
        let error = match target {
            Target::Handle(handle) => {
                let deadline = node.within(terms.timeout.saturating_sub(begun.elapsed()));
                match node.connect(workers, handle, config, deadline) {
                    Ok(connection) => return Ok((connection, target.clone())),
                    Err(error) => error,
                }
            }
            Target::Addresses { name, addresses } => {
                let mut last = ConnectError::Unreachable("a name was resolved to no address");
                for (address, untried) in addresses.iter().zip((1..=addresses.len()).rev()) {
                    let left = terms.timeout.saturating_sub(begun.elapsed());
                    let deadline = node.within(share(left, untried));
                    match node.connect_at(workers, *address, config, deadline) {
                        Ok(connection) => {
                            let found = Target::Addresses {
                                name: name.clone(),
                                addresses: vec![*address],
                            };
                            return Ok((connection, found));
                        }
                        Err(error) => last = error,
                    }
                    if !may_be_elsewhere(&last) {
                        break;
                    }
                }
                last
            }
        };
        let waited = begun.elapsed();
        // The deadline may interrupt the last attempt. Then the earlier refusals are reported, which tell
        // more.
        was_refused = tcp_errno(&error) == Some(ECONNREFUSED) || was_refused && waited >= terms.timeout;
        if !was_refused {
            return Err(error.into());
        }
        if waited.saturating_add(RETRY_EVERY) >= terms.timeout {
            return Err(PerfError::NobodyListens {
                address: target.to_string(),
                waited,
            });
        }
        thread::sleep(RETRY_EVERY);
    }
}

/// Whether the listener may be at another address: this one cannot be reached, or it is silent.
pub(crate) fn may_be_elsewhere(error: &ConnectError) -> bool {
    match error {
        ConnectError::Unanswered(_) => true,
        ConnectError::Handshake(HandshakeError {
            cause: Cause::StageTimedOut | Cause::WholeTimedOut,
            ..
        }) => true,
        error => tcp_errno(error).is_some(),
    }
}

/// Returns the error number of TCP, if TCP is the cause.
pub(crate) fn tcp_errno(error: &ConnectError) -> Option<i32> {
    match error {
        ConnectError::Tcp(error) => error.raw_os_error(),
        ConnectError::Handshake(HandshakeError {
            cause: Cause::Stream(errno),
            ..
        }) => Some(*errno),
        _ => None,
    }
}
