//! One rank of a ring whose ranks are processes, on any hosts.

use std::fs;
use std::path::Path;
use std::time::Instant;

use doorbell_nccl::abi::HANDLE_BYTES;

use crate::peers::{Rank, be_patient, connected, eventually, told};
use crate::plugin::{Net, log};
use crate::scenarios::rings::{Member, reduce};

/// Words that are reduced in each round: of two ranks each message has two pieces, one for each of two rails.
const WORDS: usize = 1 << 18;

pub(crate) fn run(net: &Net, arguments: &[String]) -> Result<String, String> {
    let [folder, rank, ranks, rounds @ ..] = arguments else {
        return Err("--ring wants FOLDER RANK RANKS".to_owned());
    };
    be_patient();
    let number = |text: &String| text.parse::<usize>().map_err(|_| format!("{text} is no number"));
    let (rank, ranks) = (number(rank)?, number(ranks)?);
    let awaited = rounds.get(1).map(Path::new);
    let rounds = rounds.first().map_or(Ok(3), number)?;
    let done = ring(net, Path::new(folder), (rank, ranks), (rounds, awaited));
    // The log says why, and which rails there are.
    for line in log() {
        println!("log: {line}");
    }
    done
}

fn ring(
    net: &Net,
    folder: &Path,
    (rank, ranks): (usize, usize),
    (rounds, awaited): (usize, Option<&Path>),
) -> Result<String, String> {
    let of = Rank::new(net)?;
    let (listener, handle) = told("listen", net.listen(of.context))?;
    let file = |rank: usize| folder.join(format!("rank-{rank}"));
    // Whole, or not there.
    let beside = folder.join(format!("unfinished-{rank}"));
    let written = fs::write(&beside, handle).and_then(|()| fs::rename(&beside, file(rank)));
    written.map_err(|error| error.to_string())?;
    let next = file((rank + 1) % ranks);
    let mut handle: [u8; HANDLE_BYTES] = eventually("the next rank's handle", || {
        Ok(fs::read(&next).ok().and_then(|bytes| bytes.try_into().ok()))
    })?;
    let (send, receive) = connected(net, of.context, &mut handle, listener)?;
    let member = Member {
        rank: of,
        listener,
        send,
        receive,
    };
    println!("rank {rank} of {ranks} is connected");
    let mut spans = Vec::new();
    for round in 0..rounds {
        if let Some(file) = awaited.filter(|_| round == rounds / 2) {
            eventually("the file that half of the rounds wait for", || {
                Ok(file.exists().then_some(()))
            })?;
        }
        let began = Instant::now();
        reduce(&member, rank, ranks, WORDS)?;
        spans.push(began.elapsed());
    }
    spans.sort_unstable();
    let median = spans.get(spans.len() / 2).copied().unwrap_or_default();
    member.close()?;
    println!(
        "median {:.3} ms for a reduction of {} bytes",
        median.as_secs_f64() * 1e3,
        WORDS * 4
    );
    Ok(format!("rank {rank} of {ranks} has reduced {rounds} times"))
}
