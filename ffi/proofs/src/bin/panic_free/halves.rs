//! Workers taken apart: polling each half, and what it leaves to those who submit to it.

use doorbell::{ArenaConfig, Event, ReceiveHalf, ReceiveWorker, SendHalf, SendWorker, Turn};
use doorbell_core::provider::ProviderError;
use doorbell_proofs::Pair;

use crate::channel::given_back;

#[cfg(feature = "panic_free")]
use no_panic::no_panic;

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn poll_sending(half: &mut SendWorker, done: &mut u64) -> Result<u32, ProviderError> {
    half.poll(|_: Turn<'_, _, SendHalf>, event| {
        if let Event::Done { .. } = event {
            *done = done.wrapping_add(1);
        }
    })
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn poll_receiving(half: &mut ReceiveWorker, received: &mut u64) -> Result<u32, ProviderError> {
    half.poll(|mut turn: Turn<'_, _, ReceiveHalf>, event| {
        if let Event::Received { message, .. } = event {
            *received = received.wrapping_add(1);
            turn.release(message);
        }
    })
}

/// Runs all of it; says whether it did what it should.
pub(crate) fn run(pair: Pair) -> bool {
    let Pair { a, b, .. } = pair;
    let (to, back) = (a.channel, b.channel);
    let arena = ArenaConfig::new(16, 64);
    let (Ok((mut a_sends, mut a_receives)), Ok((mut b_sends, mut b_receives))) =
        (a.worker.split(&arena), b.worker.split(&arena))
    else {
        return false;
    };
    let (mut done, mut received) = (0, 0);
    let mut sent = 0_u64;
    for _ in 0..100 {
        for (half, channel) in [(&mut a_sends, to), (&mut b_sends, back)] {
            let lease = half.lease();
            let posted = half.channel(channel).zip(lease).map(|(half, mut lease)| {
                let is_filled = lease.fill(&[1; 64]).is_ok();
                is_filled && half.send(lease).is_ok()
            });
            sent = sent.wrapping_add(u64::from(posted == Some(true)));
        }
        // Receives are announced by the half that sends, once the other has told of them.
        let polled = [
            poll_receiving(&mut a_receives, &mut received),
            poll_receiving(&mut b_receives, &mut received),
            poll_sending(&mut a_sends, &mut done),
            poll_sending(&mut b_sends, &mut done),
        ];
        if polled.iter().any(Result::is_err) {
            return false;
        }
    }
    let mut submitters = a.submitters;
    sent == 200 && received == sent && done > 0 && given_back(&mut submitters, to, a_sends)
}
