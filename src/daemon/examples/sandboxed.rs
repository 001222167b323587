//! A process whose seccomp filter allows little more than sleeping at the daemon's socket and printing. It still accesses another node's
//! memory by RDMA.
//!
//! ```text
//! arena SOCKET own 1                     the owner of the memory, see the example `arena`
//! sandboxed SOCKET NODE ROUNDS           writes, reads and counts there, and takes half of that memory in a transfer
//! sandboxed SOCKET NODE ROUNDS forbidden opens a file at the end, and is killed for that
//! ```
use core::{error::Error, time::Duration};
use std::{env, os::fd::AsFd as _, path::Path};

use doorbell::interprocess::SharedBytes as _;
use doorbell::within;
use doorbell_daemon::{
    ArenaGrant, ArenaOffer, ArenaOperation as Do, ArenaRange, AttachRequest, Client, EndpointAddress,
    EndpointEvent as Event, EndpointLayout, JobKey, JobNumber, NodeNumber,
};
use doorbell_sandbox::Confinement;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<_> = env::args().skip(1).collect();
    let [socket, node, rounds, rest @ ..] = &words[..] else {
        return Err("sandboxed SOCKET NODE ROUNDS [forbidden]".into());
    };
    let (node, rounds) = (NodeNumber(node.parse()?), rounds.parse::<u32>()?);
    let (job, key, endpoint) = (JobNumber(1), JobKey([7; 16]), 1);
    let layout = EndpointLayout::default()
        .with_arena(16 << 20)
        .ok_or("no such arena")?;
    let request = AttachRequest {
        job,
        key,
        endpoint,
        layout,
    };
    let mut client = Client::attach(Path::new(socket), &request, within(Duration::from_secs(60)))?;
    // The next daemon would have another socket.
    client.set_reattach_within(Duration::ZERO);
    println!("attached");
    let (output, errors) = (std::io::stdout(), std::io::stderr());
    Confinement::default()
        .may_sleep_at(client.as_fd())
        .may_write_to(output.as_fd())
        .may_write_to(errors.as_fd())
        .enter()?;

    let (to, bytes) = (EndpointAddress { node, endpoint: 0 }, 4096);
    client.send(to, b"a grant, please")?;
    let name = events(&mut client, 1)?.try_into().map(ArenaGrant::from_bytes);
    let name = name.map_err(|_| "no grant")?;
    let (own, back) = (
        ArenaRange { offset: 0, bytes },
        ArenaRange { offset: 8192, bytes },
    );
    for round in 0..rounds {
        let written = [round.to_le_bytes()[0].max(1); 4096];
        let mut read = [0; 4096];
        let put = client
            .arena()
            .is_some_and(|arena| arena.copy_in(own.offset, &written));
        for operation in [
            Do::Write(own),
            Do::Read(back),
            Do::FetchAndAdd(1),
            Do::WriteWithImmediate(own, round),
        ] {
            client.request(&name, 0, &operation)?;
        }
        events(&mut client, 4)?;
        let got = client
            .arena()
            .is_some_and(|arena| arena.copy_out(back.offset, &mut read));
        assert!(put && got && read == written, "other bytes came back");
        println!("round {round}: {bytes} bytes compared");
    }
    client.send(to, b"an offer, please")?;
    let offer = events(&mut client, 1)?.try_into().map(ArenaOffer::from_bytes);
    client.take(
        &offer.map_err(|_| "no offer")?,
        4096,
        within(Duration::from_secs(30)),
    )?;
    events(&mut client, 1)?;
    if rest.first().is_some_and(|word| word == "forbidden") {
        let _ = std::fs::File::open(socket);
        println!("a file could be opened");
    }
    // Nothing is dropped, since closing the memory and the socket would need system calls.
    std::process::exit(0)
}

/// Waits for this many messages or ends. Returns the last message.
fn events(client: &mut Client, count: usize) -> Result<Vec<u8>, Box<dyn Error>> {
    let (mut last, mut seen, mut wrong) = (Vec::new(), 0, None);
    while seen < count {
        let woken = client.wait(within(Duration::from_secs(30)), |event| {
            seen += 1;
            match event {
                Event::Received { message, .. } => last = message.to_vec(),
                Event::TransferEnded { end, bytes, .. } => println!("{bytes} bytes are taken: {end}"),
                Event::Completed { .. } => {}
                event => wrong = Some(format!("{event:?}")),
            }
        })?;
        if let Some(wrong) = wrong.take().or_else(|| (!woken).then(|| "nothing came".into())) {
            return Err(wrong.into());
        }
    }
    Ok(last)
}
