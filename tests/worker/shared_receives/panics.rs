//! A hub whose callback panics: no message is delivered twice or lost, and no share shrinks.

use core::panic::AssertUnwindSafe;
use std::panic::{catch_unwind, resume_unwind};

use doorbell::Event;

use super::Hub;

#[test]
fn no_receive_is_lost() {
    for every in 1..=5_u32 {
        let mut hub = Hub::with(16, 48, &[4, 8]);
        let (mut told, mut caught) = (0, 0);
        for _ in 0..200 {
            for peer in &mut hub.peers {
                peer.flood();
            }
            let Hub { workers, peers, .. } = &mut hub;
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                workers[0].poll_tending(|turn, event| {
                    if let Event::Received { message, .. } = event {
                        let id = turn.channel.id();
                        let peer = peers.iter_mut().find(|peer| peer.at_hub == id).unwrap();
                        assert_eq!(message.payload(), peer.heard.to_be_bytes(), "in order");
                        peer.heard += 1;
                    }
                    told += 1;
                    if told % every == 0 {
                        resume_unwind(Box::new("the callback's own"));
                    }
                })
            }));
            match outcome {
                Ok(polled) => drop(polled.unwrap()),
                Err(panic) => {
                    assert!(panic.is::<&str>());
                    caught += 1;
                }
            }
        }
        assert!(caught >= 100, "{every} {caught}");
        hub.settle();
        hub.check();
        assert_eq!((hub.counts().posted, hub.credits()), (16, 12), "every {every}");
        for peer in &hub.peers {
            assert!(
                peer.sent >= 30 && peer.heard == peer.sent,
                "{} {}",
                peer.sent,
                peer.heard
            );
        }
    }
}
