//! Hosts on a simulated fabric, all in this process, for an example that is tried without a device.

use std::sync::mpsc;
use std::thread;

use doorbell::{Handle, Node, Trust};
use doorbell_sim::{Fabric, Host};

use super::Failure;

/// A host whose connections are made over the fabric, too, in its time.
pub(crate) type Simulated = Node<Host, Host>;

/// Hands out a handle.
type Announce<'a> = &'a dyn Fn(&Handle) -> Result<(), Failure>;

/// So many hosts in one subnet.
fn hosts(fabric: &Fabric, count: u8) -> Result<Vec<Simulated>, Failure> {
    eprintln!("on a simulated fabric: no device, no network, and times that mean nothing");
    (0..count)
        .map(|_| {
            let [host] = fabric.hosts()?;
            Ok(Node::simulated(host, Trust::unauthenticated_on_purpose())?)
        })
        .collect()
}

/// Runs the listening role, and so many roles that connect to it with the handle it announces, each a host
/// and a thread.
///
/// # Errors
/// The first error of any of them.
pub(crate) fn together<L: Send, C: Send>(
    fabric: &Fabric,
    connecting: u8,
    listen: impl FnOnce(&Simulated, Announce<'_>) -> Result<L, Failure> + Send,
    connect: impl Fn(usize, &Simulated, &Handle) -> Result<C, Failure> + Sync,
) -> Result<(L, Vec<C>), Failure> {
    let mut hosts = hosts(fabric, connecting.saturating_add(1))?.into_iter();
    let listener = hosts.next().ok_or("no hosts")?;
    let (handles, handle) = mpsc::channel();
    let connect = &connect;
    thread::scope(|scope| {
        let listening = scope.spawn(move || listen(&listener, &|handle| Ok(handles.send(*handle)?)));
        // If there is no handle, the listening thread reports why.
        let connecting: Vec<_> = handle.recv().map_or_else(
            |_| Vec::new(),
            |handle| {
                let connect = |(number, host)| scope.spawn(move || connect(number, &host, &handle));
                hosts.enumerate().map(connect).collect()
            },
        );
        let listened = listening.join().map_err(|_| "who listens panicked")??;
        let connected = connecting
            .into_iter()
            .map(|connected| connected.join().map_err(|_| "who connects panicked")?)
            .collect::<Result<_, Failure>>()?;
        Ok((listened, connected))
    })
}
