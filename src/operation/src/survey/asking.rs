//! Sends datagrams to hosts on local links, so that the kernel resolves their hardware addresses.

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use std::io;
use std::net::UdpSocket;
use std::thread;
use std::time::Instant;

use doorbell::provider::Interface;

use super::neighbours;
use crate::topology::{NeighbourState, Topology};
use doorbell::NodeError;

/// The discard port. Source: RFC 863.
const DISCARD: u16 = 9;

/// Longest wait for answers: a host on the link answers in milliseconds, and the kernel retries after a second.
const PATIENCE: Duration = Duration::from_secs(1);

/// Interval between queries of the kernel's neighbour table.
const LOOK_EVERY: Duration = Duration::from_millis(10);

impl Topology {
    /// Makes the kernel resolve the hardware addresses of these peers, and reads its neighbour table.
    ///
    /// The kernel's table contains only hosts that packets were sent to. So one datagram is sent to the discard port of each
    /// address in a subnet of a usable rail of this host. The wait for answers ends after a second. Addresses of other subnets,
    /// of this host, and link-local addresses are skipped. Datagrams that could not be sent are listed in
    /// [`Topology::failures`].
    ///
    /// # Errors
    /// The interfaces cannot be listed.
    pub fn ask_neighbours(&mut self, peers: &[IpAddr]) -> Result<(), NodeError> {
        let mut asked = Vec::new();
        for (own, peer) in self.in_reach(peers) {
            match write_to(own, peer) {
                Ok(()) => asked.push(peer),
                Err(error) => self.failures.push(format!("the neighbour {peer}: {error}")),
            }
        }
        if asked.is_empty() {
            return Ok(());
        }
        let interfaces = Interface::all()?;
        let begin = Instant::now();
        loop {
            match neighbours::all(&interfaces) {
                Ok(known) => self.neighbours = known,
                Err(error) => {
                    self.failures.push(format!("neighbours: {error}"));
                    return Ok(());
                }
            }
            let has_ended = |peer: &IpAddr| {
                let mut known = self.neighbours.iter();
                known.any(|it| it.address == *peer && it.state != NeighbourState::Incomplete)
            };
            if asked.iter().all(has_ended) || begin.elapsed() >= PATIENCE {
                return Ok(());
            }
            thread::sleep(LOOK_EVERY);
        }
    }
}

/// Sends one datagram from one address to another.
fn write_to(own: IpAddr, peer: IpAddr) -> io::Result<()> {
    let socket = UdpSocket::bind(SocketAddr::new(own, 0))?;
    socket.send_to(&[0], SocketAddr::new(peer, DISCARD)).map(|_| ())
}
