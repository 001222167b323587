//! A node that can be shown without a device: a mesh of three members on a simulated fabric, which serves its
//! metrics.

use core::net::{Ipv4Addr, SocketAddr};
use core::time::Duration;
use std::sync::mpsc;
use std::thread;

use doorbell_operation::Labels;

use crate::board::Board;
use crate::mesh::{CollectiveName, World, simulated_settings};
use crate::report::Failure;

/// Number of members of the mesh.
const RANKS: u8 = 3;

/// Number of bytes that each member has for each other member in a round.
const MESSAGE_BYTES: u32 = 64;

/// Pause between two rounds, which leaves processor time to the user.
const PAUSE: Duration = Duration::from_millis(1);

/// Starts a mesh that runs until the program ends. Returns the address where its first member serves metrics.
///
/// # Errors
/// The members do not reach each other, or there is no port for the metrics.
pub(super) fn begin() -> Result<SocketAddr, Failure> {
    let (tell, told) = mpsc::channel();
    thread::Builder::new()
        .name("doorbell-mesh".into())
        .spawn(move || {
            if let Err(error) = go_on(&tell) {
                // The receiver is gone if the program ends.
                let _ = tell.send(Err(error.to_string()));
            }
        })?;
    Ok(told.recv()??)
}

fn go_on(tell: &mpsc::Sender<Result<SocketAddr, String>>) -> Result<(), Failure> {
    let mut world = World::new(RANKS, &simulated_settings()?)?;
    let mut work = world.join(CollectiveName::AllToAll, MESSAGE_BYTES)?;
    let first = world.members.first().ok_or("there are no members")?;
    let mut board = Board::start((Ipv4Addr::LOCALHOST, 0).into(), &first.workers)?;
    let mut is_told = false;
    loop {
        world.round(&mut work)?;
        if let Some(first) = world.members.first_mut() {
            let mesh = &first.mesh;
            board.note(&mut first.workers, |metrics| {
                metrics.mesh(&Labels::NONE, mesh);
                metrics.handshakes(&Labels::NONE, &mesh.links().handshakes());
            });
        }
        if !core::mem::replace(&mut is_told, true) && tell.send(Ok(board.address())).is_err() {
            return Ok(());
        }
        thread::sleep(PAUSE);
    }
}
