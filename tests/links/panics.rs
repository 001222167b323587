//! Links whose application panics in its callback, and polls again: each event is reported once, and no message holds a part of
//! another.

use doorbell::RemoteAccess;
use doorbell::link::{FinalReason, Request};
use doorbell::provider::Window as _;

use crate::one_sided::granted;
use crate::processes::{A, B, Two, ms};

#[test]
fn messages_arrive_whole_and_in_order() {
    for every in 1..=4 {
        for (rails, bytes, plan) in [
            (1, 10_000, ""),
            (3, 10_000, ""),
            (3, 99_999, "drop every 30th send of any->any; seed 3"),
            (2, 64, "at 25ms link a-b down for 20ms"),
        ] {
            let mut two = Two::new(rails, plan);
            two.connected(rails as u8);
            for at in [A, B] {
                two.process_mut(at).message_bytes = bytes;
                two.process_mut(at).panics_every = Some(every);
            }
            two.sends_every = [Some(ms(1)); 2];
            two.run(ms(60), |two| two.process(B).sent >= 20);
            assert!(two.settle(ms(12_000)), "{every} {rails} {bytes}");
            let deadline = two.deadline(ms(100));
            let a = two.process_mut(A);
            a.links.close(a.link.unwrap(), deadline);
            let at = two.fabric.now().to_ns() / 1_000_000;
            let is_over = two.run(ms(at + 500), |two| {
                two.process(A).over.is_some() && two.process(B).over.is_some()
            });
            assert!(is_over, "{every} {rails} {bytes}");
            assert_eq!(two.process(A).over, Some(FinalReason::Closed));
            for at in [A, B] {
                assert!(two.process(at).panics > 20 / every);
                assert_eq!(two.process(at).links.ids().count(), 0, "it is gone");
            }
            two.fabric.audit().unwrap();
        }
    }
}

#[test]
fn each_request_has_one_end() {
    for every in 1..=3 {
        let (mut two, memory, window) = granted("", RemoteAccess::ALL);
        two.process_mut(A).panics_every = Some(every);
        let requests = 40;
        let mut asked = 0;
        while asked < requests {
            let a = two.process_mut(A);
            let link = a.link.unwrap();
            while asked < requests {
                let request = match asked % 3 {
                    0 => Request::FetchAndAdd(1),
                    1 => Request::Read(64),
                    _ => Request::Write(b"written"),
                };
                let offset = if asked % 3 == 0 { 0 } else { 64 };
                if a.links
                    .request(&a.node, link, (window, offset), &request)
                    .is_err()
                {
                    break;
                }
                asked += 1;
            }
            let at = two.fabric.now().to_ns() / 1_000_000;
            two.run(ms(at + 1), |_| false);
        }
        let at = two.fabric.now().to_ns() / 1_000_000;
        assert!(two.run(ms(at + 1000), |two| two.process(A).asides.len() == requests));
        assert_eq!(memory.load_u64(0), Ok(14));
        assert!(two.process(A).panics >= requests as u32 / every);
    }
}
