//! Ranks on threads of their own, in a ring.

use std::sync::mpsc;
use std::thread;

use super::Outcome;
use crate::peers::{Memory, Rank, eventually, finish, receive, send, told};
use crate::plugin::{Net, Object};

/// A rank of a ring: it sends to the next one, and receives from the one before.
pub(crate) struct Member {
    pub(crate) rank: Rank,
    pub(crate) listener: Object,
    pub(crate) send: Object,
    pub(crate) receive: Object,
}

impl Member {
    pub(crate) fn close(self) -> Result<(), String> {
        let net = self.rank.net;
        told("closeSend", net.close_send(self.send))?;
        told("closeRecv", net.close_receive(self.receive))?;
        told("closeListen", net.close_listener(self.listener))?;
        self.rank.finalize()
    }
}

/// Runs ranks on threads, connected in a ring.
fn in_ring(
    net: &Net,
    ranks: usize,
    run: fn(&Member, usize, usize) -> Result<(), String>,
) -> Result<(), String> {
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..ranks).map(|_| mpsc::channel::<[u8; 128]>()).unzip();
    let threads: Vec<_> = receivers
        .into_iter()
        .enumerate()
        .map(|(rank, next)| {
            let net = *net;
            // The handle goes to the one before, which connects here.
            let before = senders[(rank + ranks - 1) % ranks].clone();
            thread::spawn(move || {
                let of = Rank::new(&net)?;
                let (listener, handle) = told("listen", net.listen(of.context))?;
                before.send(handle).map_err(|error| error.to_string())?;
                let mut handle = next.recv().map_err(|error| error.to_string())?;
                let (send, receive) = crate::peers::connected(&net, of.context, &mut handle, listener)?;
                let member = Member {
                    rank: of,
                    listener,
                    send,
                    receive,
                };
                run(&member, rank, ranks)?;
                member.close()
            })
        })
        .collect();
    drop(senders);
    let ended = threads.into_iter().map(|thread| match thread.join() {
        Ok(outcome) => outcome,
        Err(_) => Err("a rank panicked".to_owned()),
    });
    // All are waited for.
    ended.collect::<Vec<_>>().into_iter().collect()
}

/// Each rank passes on what it gets.
pub(super) fn ring(net: &Net) -> Outcome {
    in_ring(net, 3, |member, rank, ranks| {
        let net = &member.rank.net;
        let mut from = Memory::new(net, member.send, 200_000)?;
        let mut to = Memory::new(net, member.receive, 200_000)?;
        let mut seed = u32::try_from(rank).unwrap_or(0);
        for bytes in [8, 4096, 200_000].into_iter().cycle().take(12) {
            from.buffer.fill(0, bytes, seed);
            let receiving = receive(net, member.receive, &[to.part(0, bytes, 1)])?;
            let sending = send(net, member.send, from.part(0, bytes, 1))?;
            finish(net, &[receiving, sending])?;
            // The rank before has passed this on.
            let ranks = u32::try_from(ranks).unwrap_or(1);
            seed = (seed + ranks - 1) % ranks;
            to.buffer.check(0, bytes, seed)?;
        }
        from.deregister()?;
        to.deregister()
    })?;
    Ok("3 ranks, 12 rounds".to_owned())
}

/// Words that each rank has, of which all get the sums.
pub(crate) fn reduce(member: &Member, rank: usize, ranks: usize, words: usize) -> Result<(), String> {
    const WORD: usize = size_of::<u32>();
    let net = &member.rank.net;
    let own = |rank: usize, place: usize| {
        u32::try_from(rank * 31 + place)
            .unwrap_or(0)
            .wrapping_mul(2_654_435_761)
    };
    // Both directions' memory: what is summed, and what comes.
    let mut data = Memory::new(net, member.send, words * WORD)?;
    let mut came = Memory::new(net, member.receive, words * WORD)?;
    for (place, word) in data
        .buffer
        .slice(0, words * WORD)
        .chunks_exact_mut(WORD)
        .enumerate()
    {
        word.copy_from_slice(&own(rank, place).to_ne_bytes());
    }
    let chunk = |index: usize| {
        let each = words.div_ceil(ranks);
        let begin = (index % ranks * each).min(words);
        let end = (begin + each).min(words);
        (begin * WORD, (end - begin) * WORD)
    };
    for step in 0..2 * (ranks - 1) {
        // First each chunk is summed on its way round; then the sums go round.
        let is_summing = step < ranks - 1;
        let sent = chunk(rank + 2 * ranks - step);
        let got = chunk(rank + 2 * ranks - step - 1);
        let receiving = receive(net, member.receive, &[came.part(got.0, got.1, 0)])?;
        let sending = send(net, member.send, data.part(sent.0, sent.1, 0))?;
        finish(net, &[receiving, sending])?;
        let words = came.buffer.slice(got.0, got.1).to_vec();
        let sums = data.buffer.slice(got.0, got.1).chunks_exact_mut(WORD);
        for (sum, word) in sums.zip(words.chunks_exact(WORD)) {
            let word = u32::from_ne_bytes(word.try_into().unwrap_or_default());
            let before = u32::from_ne_bytes((&*sum).try_into().unwrap_or_default());
            let after = if is_summing {
                before.wrapping_add(word)
            } else {
                word
            };
            sum.copy_from_slice(&after.to_ne_bytes());
        }
    }
    for (place, word) in data.buffer.slice(0, words * WORD).chunks_exact(WORD).enumerate() {
        let expected = (0..ranks).fold(0_u32, |sum, rank| sum.wrapping_add(own(rank, place)));
        let found = u32::from_ne_bytes(word.try_into().unwrap_or_default());
        if found != expected {
            return Err(format!(
                "rank {rank}: word {place} is {found}, and {expected} is right"
            ));
        }
    }
    data.deregister()?;
    came.deregister()
}

/// An all-reduce: each rank gets the sums of all.
pub(super) fn all_reduce(net: &Net) -> Outcome {
    in_ring(net, 4, |member, rank, ranks| {
        for words in [1, 1000, 100_003] {
            reduce(member, rank, ranks, words)?;
        }
        Ok(())
    })?;
    Ok("4 ranks; 1, 1,000 and 100,003 words".to_owned())
}

/// Four threads, each with communicators of its own, at a time.
pub(super) fn threads(net: &Net) -> Outcome {
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let net = *net;
            thread::spawn(move || {
                in_ring(&net, 2, |member, rank, ranks| {
                    (0..3).try_for_each(|_| reduce(member, rank, ranks, 30_000))
                })
            })
        })
        .collect();
    for thread in threads {
        thread.join().map_err(|_| "a thread panicked".to_owned())??;
    }
    // Nothing is left that a later one waits for.
    eventually("a last ring", || in_ring(net, 2, |_, _, _| Ok(())).map(Some))?;
    Ok("4 rings of 2 ranks at a time".to_owned())
}
