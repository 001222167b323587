//! Two processes of one node with `doorbell serve`: one sends a message, and the other sends it back.
//!
//! ```text
//! hello SOCKET answer    waits for a message and sends it back
//! hello SOCKET ask       sends a message and waits for the answer
//! ```
use core::{error::Error, time::Duration};
use std::path::Path;

use doorbell::within;
use doorbell_daemon::{
    AttachRequest, Client, EndpointAddress, EndpointEvent, EndpointLayout, JobKey, JobNumber,
};

type Failure = Box<dyn Error + Send + Sync>;

const PATIENCE: Duration = Duration::from_secs(30);

/// Attaches this process under a number in its job.
fn attach(socket: &Path, endpoint: u32) -> Result<Client, Failure> {
    // All processes of the job have this key. Use random bytes instead, and keep them secret.
    let (job, key) = (JobNumber(7), JobKey([7; 16]));
    let layout = EndpointLayout::default();
    let request = AttachRequest {
        job,
        key,
        endpoint,
        layout,
    };
    Ok(Client::attach(socket, &request, within(PATIENCE))?)
}

/// Sends a message to endpoint 0 of this node, and waits for the answer.
fn ask(mut client: Client) -> Result<Vec<u8>, Failure> {
    let node = client.address().node;
    client.send(EndpointAddress { node, endpoint: 0 }, b"hello")?;
    let (_, answer) = receive(&mut client)?;
    client.detach()?;
    Ok(answer)
}

/// Waits for one message. The first `wait` publishes the messages that were sent before.
fn receive(client: &mut Client) -> Result<(EndpointAddress, Vec<u8>), Failure> {
    let (deadline, mut outcome) = (within(PATIENCE), None);
    while outcome.is_none() {
        let in_time = client.wait(deadline, |event| match event {
            EndpointEvent::Received { from, message } => outcome = Some(Ok((from, message.to_vec()))),
            EndpointEvent::Undelivered { to, reason, .. } => outcome = Some(Err(format!("{to}: {reason}"))),
            _ => {}
        })?;
        if !in_time {
            return Err("no message in time".into());
        }
    }
    Ok(outcome.ok_or("no message")??)
}

// The page docs/concepts/node-daemon.md has the part above.

/// Waits for a message, and sends it back. `detach` publishes it first.
fn answer(mut client: Client) -> Result<Vec<u8>, Failure> {
    let (from, message) = receive(&mut client)?;
    client.send(from, &message)?;
    client.detach()?;
    Ok(message)
}

fn main() -> Result<(), Failure> {
    let message = match &std::env::args().collect::<Vec<_>>()[..] {
        [_, socket, part] if part == "answer" => answer(attach(Path::new(socket), 0)?)?,
        [_, socket, part] if part == "ask" => ask(attach(Path::new(socket), 1)?)?,
        _ => return Err("hello SOCKET answer, or hello SOCKET ask".into()),
    };
    println!("received {:?}", String::from_utf8_lossy(&message));
    Ok(())
}

#[cfg(test)]
mod tests;
