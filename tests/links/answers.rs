//! Requests and answers over links that are longer than a fragment: each has one end, and a rail that fails costs none its answer.

use core::time::Duration;

use doorbell::link::{FinalReason, LinkConfig, LinkEvent};
use doorbell::provider::{Clock as _, Instant};
use doorbell::requests::{Ended, Framing, RequestFailure, RequestHeader, RequestKind, Requests};
use doorbell_core::wire::RefusalReason;

use crate::processes::{A, B, Process, Two, config, ms};

/// The longest body that the links of these tests take.
const BODY: usize = 100_000 - doorbell::requests::REQUEST_HEADER_BYTES;

/// A client at A and a server at B, and how each request ended.
struct Asking {
    two: Two,
    requests: Requests<usize>,
    framing: Framing,
    ends: Vec<(usize, Result<usize, String>)>,
    /// Requests that came to the server, and are not answered yet.
    came: Vec<(doorbell::requests::CorrelationId, usize)>,
    answers: bool,
}

fn body(number: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (number * 31 + at / 3) as u8).collect()
}

impl Asking {
    fn new(plan: &str, server: &LinkConfig) -> Self {
        let mut two = Two::waiting(2, plan);
        two.processes[B] = None;
        two.processes[B] = Some(Process::on(&two.hosts[B], server, true));
        two.begin();
        two.connected(2);
        Self {
            two,
            requests: Requests::new(8, BODY),
            framing: Framing::new(BODY),
            ends: Vec::new(),
            came: Vec::new(),
            answers: true,
        }
    }

    /// Sends a request, as soon as the link takes it.
    fn ask(&mut self, number: usize, bytes: usize, within: Duration) {
        let deadline = self.two.deadline(within);
        loop {
            let a = self.two.process_mut(A);
            let (links, link) = (&mut a.links, a.link.unwrap());
            let asked = self
                .requests
                .send_link(links, link, &body(number, bytes), deadline, number);
            match asked {
                Ok(_) => return,
                Err(refused) => assert!(refused.kind.is_temporary(), "{refused}"),
            }
            self.turn();
        }
    }

    /// Lets both sides take what there is, and time pass.
    fn turn(&mut self) {
        let Self {
            two,
            requests,
            framing,
            ends,
            came,
            answers,
        } = self;
        let mut ended = |number: usize, end: Ended<'_>| {
            ends.push((
                number,
                match end {
                    Ended::Answered(answer) => {
                        assert!(
                            answer == body(number + 1, answer.len()),
                            "the answer to {number} is torn"
                        );
                        Ok(answer.len())
                    }
                    end => Err(format!("{end:?}")),
                },
            ));
        };
        if let Some(b) = &mut two.processes[B] {
            b.links
                .poll(&b.node, &mut b.workers, |_, event| {
                    if let LinkEvent::Received { message } = event {
                        let (kind, id, asked) = RequestHeader::parse(message).unwrap();
                        assert_eq!(kind, RequestKind::Request);
                        let number = asked.first().map_or(0, |first| usize::from(*first) / 31);
                        assert!(asked == body(number, asked.len()), "request {number} is torn");
                        came.push((id, number));
                    }
                })
                .unwrap();
            while let Some((id, number)) = came.first().copied().filter(|_| *answers) {
                let answer = body(number + 1, BODY - number);
                let answer = framing.answer(id, &answer).unwrap();
                let sent = b.link.map(|link| b.links.send(link, answer));
                if !matches!(sent, Some(Ok(_))) {
                    break;
                }
                came.remove(0);
            }
        }
        let a = two.processes[A].as_mut().unwrap();
        a.links
            .poll(&a.node, &mut a.workers, |_, event| {
                requests.take_link(event, &mut ended);
            })
            .unwrap();
        requests.expire(a.node.network().now(), &mut ended);
        let soon = two.fabric.now().after(Duration::from_micros(50));
        let next = two.fabric.next_at().map_or(soon, |at: Instant| at.min(soon));
        two.fabric.run_until(next);
    }

    /// Goes on until all have ended.
    fn finish(&mut self) -> Vec<(usize, Result<usize, String>)> {
        let until = self.two.fabric.now().after(ms(15_000));
        while self.requests.in_flight() > 0 {
            self.turn();
            assert!(self.two.fabric.now() < until, "something hangs");
        }
        self.two.fabric.audit().unwrap();
        core::mem::take(&mut self.ends)
    }
}

#[test]
fn long_requests_have_long_answers_though_a_rail_is_cut_in_the_midst() {
    for at_us in [150_100, 150_300, 151_000] {
        let plan = format!("at {at_us}us link a/sim0:1-b/sim0:1 down for 300ms");
        let mut asking = Asking::new(&plan, &config());
        asking.two.run(ms(150), |_| false);
        for number in 0..4 {
            asking.ask(number, BODY - number, ms(2000));
        }
        let ends = asking.finish();
        let due: Vec<_> = (0..4).map(|number| (number, Ok(BODY - number))).collect();
        assert_eq!(ends, due, "{at_us}");
    }
}

#[test]
fn a_deadline_and_a_cancellation_hold_for_long_ones_and_a_late_answer_is_dropped() {
    let mut asking = Asking::new("", &config());
    asking.answers = false;
    asking.ask(1, BODY, ms(5));
    let deadline = asking.two.deadline(ms(50));
    let a = asking.two.process_mut(A);
    let link = a.link.unwrap();
    let cancelled = asking
        .requests
        .send_link(&mut a.links, link, &body(2, 20_000), deadline, 2);
    assert_eq!(asking.requests.cancel(cancelled.unwrap()), Some(2));
    assert_eq!(asking.finish(), [(1, Err("TimedOut".to_owned()))]);
    asking.answers = true;
    let until = asking.two.fabric.now().after(ms(500));
    while asking.requests.counts().late < 2 && asking.two.fabric.now() < until {
        asking.turn();
    }
    let counts = asking.requests.counts();
    assert_eq!(
        (counts.late, counts.unasked, counts.timed_out, counts.cancelled),
        (2, 0, 1, 1)
    );
}

#[test]
fn a_request_that_the_peer_has_no_room_for_ends_with_the_reason_of_the_link() {
    let mut short = config();
    short.message_bytes_max = 50_000;
    let mut asking = Asking::new("", &short);
    // The longest that it takes, and one byte more.
    asking.answers = false;
    asking.ask(1, 50_000 - 16, ms(5000));
    while asking.came.is_empty() {
        asking.turn();
    }
    asking.ask(2, 50_000 - 15, ms(5000));
    let over = format!(
        "{:?}",
        Ended::Failed(RequestFailure::Link(FinalReason::EndedByPeer(
            RefusalReason::TOO_LONG
        )))
    );
    assert_eq!(asking.finish(), [(1, Err(over.clone())), (2, Err(over))]);
}
