//! Values that are forgotten where they would be dropped: no memory, receive or credit of the library's is lost by it.

use core::mem::forget;

use crate::cells::received;
use crate::fabric::pair;
use doorbell::{Event, Turn};
use doorbell_sim::Host;

/// More than there are receives, sends and slots.
const MESSAGES: u32 = 300;

#[test]
fn messages_and_other_events_that_are_forgotten_cost_nothing() {
    let (mut a, mut b) = pair();
    let id = a.id();
    let (mut sent, mut came) = (0_u32, 0_u32);
    for _ in 0..10_000 {
        while sent < MESSAGES {
            let channel = a.worker().channel(id).unwrap();
            if channel.send(&sent.to_be_bytes()).is_err() {
                break;
            }
            sent += 1;
        }
        a.worker().poll(|_, event| forget(event)).unwrap();
        let each = |_: Turn<'_, Host>, event: Event<'_, Host>| match event {
            Event::Received { message, .. } => {
                assert_eq!(message.payload(), came.to_be_bytes());
                came += 1;
                forget(message);
            }
            other => forget(other),
        };
        b.worker().poll(each).unwrap();
    }
    assert_eq!((sent, came), (MESSAGES, MESSAGES));
    assert_eq!(a.worker().channel(id).unwrap().in_flight(), 0);
}

#[test]
fn claims_that_are_forgotten_send_nothing_and_the_next_message_has_their_memory() {
    let (mut a, mut b) = pair();
    let id = a.id();
    let channel = a.worker().channel(id).unwrap();
    let (room, credits) = (channel.room(), channel.credits());
    for _ in 0..2 * MESSAGES {
        let mut claim = channel.claim(8).unwrap();
        claim.bytes().fill(0xee);
        forget(claim);
    }
    let mut batch = channel.batch();
    batch.send(b"rung").unwrap();
    assert_eq!(batch.ring().unwrap(), 1);
    forget(channel.claim(8).unwrap());
    channel.send(b"behind").unwrap();
    assert_eq!((channel.room(), channel.credits()), (room - 2, credits - 2));
    for expected in ["rung", "behind"] {
        assert_eq!(b.until(received), expected.as_bytes());
    }
    assert_eq!(b.worker().poll(|_, _| panic!("something came")).unwrap(), 0);
}
