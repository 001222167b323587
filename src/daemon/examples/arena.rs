//! Two processes on nodes with `doorbell serve`: one owns an arena, the other writes, reads and counts there.
//!
//! ```text
//! arena SOCKET own ENDS         runs until the other endpoint has written, has reported that, and has gone, ENDS times
//! arena SOCKET use NODE ROUNDS  asks the owner on that node for a grant and uses it, again after each end of a daemon
//! ```
use core::{error::Error, time::Duration};
use std::{env, path::Path};

use doorbell::interprocess::SharedBytes as _;
use doorbell::{RemoteAccess, within};
use doorbell_daemon::{
    ArenaGrant, ArenaOperation, ArenaRange, AttachRequest, Client, EndpointAddress, EndpointEvent,
    EndpointLayout, JobKey, JobNumber, NodeNumber,
};

const PAGE: ArenaRange = ArenaRange {
    offset: 0,
    bytes: 4096,
};

/// Size of an arena. The first half is offered to the clients that ask.
const ARENA_BYTES: usize = 16 << 20;
const OFFERED: ArenaRange = ArenaRange {
    offset: 0,
    bytes: ARENA_BYTES / 2,
};

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<_> = env::args().skip(1).collect();
    let [socket, part, numbers @ ..] = &words[..] else {
        return Err("arena SOCKET own|use …".into());
    };
    let numbers = numbers
        .iter()
        .map(|word| word.parse())
        .collect::<Result<Vec<u32>, _>>()?;
    let layout = EndpointLayout::default()
        .with_arena(ARENA_BYTES as u64)
        .ok_or("no such arena")?;
    let (job, key, endpoint) = (JobNumber(1), JobKey([7; 16]), u32::from(part == "use"));
    let request = AttachRequest {
        job,
        key,
        endpoint,
        layout,
    };
    let mut client = Client::attach(Path::new(socket), &request, within(Duration::from_secs(60)))?;
    client.set_reattach_within(Duration::from_secs(60));
    println!("attached");
    match (part.as_str(), &numbers[..]) {
        ("own", [ends]) => own(&mut client, *ends),
        ("use", [node, rounds]) => {
            (0..*rounds).try_for_each(|round| use_it(&mut client, NodeNumber(*node), round))
        }
        _ => Err("arena SOCKET own ENDS, or arena SOCKET use NODE ROUNDS".into()),
    }
}

/// Grants the first page to each client that asks for a grant, and offers half of the arena to each client that asks for an
/// offer.
fn own(client: &mut Client, ends: u32) -> Result<(), Box<dyn Error>> {
    let (mut asked, mut last, mut seen) = (None, None, 0);
    while seen < ends {
        client.wait(within(Duration::from_secs(60)), |event| match event {
            EndpointEvent::Received { from, message } => asked = Some((from, message == b"an offer, please")),
            EndpointEvent::TransferEnded { end, .. } => println!("{} bytes are given: {end}", OFFERED.bytes),
            EndpointEvent::Written { from, immediate, .. } => {
                println!("round {immediate} of {from} is written")
            }
            EndpointEvent::Gone { who, reason } => {
                (seen, _) = (seen + 1, println!("{who} is gone: {reason}"))
            }
            EndpointEvent::Restarted { .. } => println!("another daemon has this process"),
            _ => {}
        })?;
        if let Some((to, true)) = asked {
            let (_, offer) = client.offer(to, OFFERED, within(Duration::from_secs(30)))?;
            client.send(to, &offer.to_bytes())?;
        } else if let Some((to, _)) = asked {
            let grant = client.grant(to, PAGE, RemoteAccess::ALL)?;
            client.send(to, &grant.to_bytes())?;
            // A grant that ended with a daemon cannot be revoked any more.
            let _ = last.replace(grant).map(|before| client.revoke(&before));
        }
        asked = None;
    }
    Ok(())
}

/// Asks for a grant, and uses it: a WRITE whose bytes a READ returns, a hundred additions, and a message to the owner.
fn use_it(client: &mut Client, node: NodeNumber, round: u32) -> Result<(), Box<dyn Error>> {
    let owner = EndpointAddress { node, endpoint: 0 };
    let bytes = [round.to_le_bytes()[0].max(1); PAGE.bytes];
    let (mut grant, mut open, mut added) = (None, 0_u32, 0);
    let (mut is_again, mut stage) = (true, 0);
    let second = ArenaRange { offset: 8192, ..PAGE };
    while stage < 4 {
        if core::mem::take(&mut is_again) {
            (grant, open, added, stage) = (None, 0, 0, 0);
            is_again = client.send(owner, b"a grant, please").is_err();
        }
        let woken = client.wait(within(Duration::from_secs(1)), |event| match event {
            EndpointEvent::Received { message, .. } => {
                grant = message.try_into().ok().map(ArenaGrant::from_bytes);
            }
            EndpointEvent::Completed { .. } => open = open.saturating_sub(1),
            event => (is_again, _) = (true, println!("begins again: {event:?}")),
        })?;
        is_again |= !woken;
        let Some(grant) = grant.filter(|_| open == 0 && !is_again) else {
            continue;
        };
        let arena = client.arena().ok_or("no arena")?;
        let operation = match stage {
            0 => {
                assert!(arena.copy_in(PAGE.offset, &bytes));
                ArenaOperation::Write(PAGE)
            }
            1 => ArenaOperation::Read(second),
            2 if added < 100 => ArenaOperation::FetchAndAdd(1),
            2 => {
                let mut back = [0; PAGE.bytes];
                assert!(
                    arena.copy_out(second.offset, &mut back) && back == bytes,
                    "other bytes came back"
                );
                ArenaOperation::WriteWithImmediate(ArenaRange { bytes: 8, ..PAGE }, round)
            }
            _ => ArenaOperation::Read(ArenaRange { bytes: 8, ..second }),
        };
        open += u32::from(client.request(&grant, 0, &operation).is_ok());
        added += u32::from(stage == 2);
        stage += u32::from(stage != 2 || added > 100);
    }
    println!("round {round}: {} bytes compared, 100 additions", PAGE.bytes);
    Ok(())
}
