//! Events of the device about shared receives.

use doorbell::provider::AsyncEvent;

use super::Hub;

#[test]
fn the_limit_is_told_once_and_again_after_refilling() {
    let mut hub = Hub::new(8, 4, 8);
    hub.add(8).unwrap();
    let limit = AsyncEvent::SharedReceiveLimit(hub.counts().id);
    for round in 0..5 {
        for _ in 0..4 {
            assert!(hub.peers[0].send());
        }
        hub.poll();
        assert_eq!(
            hub.worker().next_event(),
            Ok(None),
            "as many as the limit are left"
        );
        for _ in 0..2 {
            assert!(hub.peers[0].send());
        }
        hub.poll();
        assert_eq!(hub.worker().next_event(), Ok(Some(limit)), "round {round}");
        assert_eq!(hub.worker().next_event(), Ok(None));
        hub.poll();
        // The held leases come back: from then on the event comes again.
        hub.give_back(usize::MAX);
        hub.poll();
        assert_eq!(hub.counts().posted, 8);
    }
    // Without a reader of the event, nobody sets it again.
    for _ in 0..2 {
        while hub.peers[0].send() {}
        hub.settle();
    }
    assert_eq!(hub.worker().next_event(), Ok(Some(limit)));
    assert_eq!(hub.worker().next_event(), Ok(None));
}

#[test]
fn a_closing_keeps_the_events_it_finds() {
    let mut hub = Hub::new(8, 8, 8);
    hub.add(4).unwrap();
    hub.add(4).unwrap();
    assert!(hub.peers[0].send() && hub.peers[1].send());
    assert_eq!(hub.close(1), Ok(()));
    let limit = AsyncEvent::SharedReceiveLimit(hub.counts().id);
    assert_eq!(hub.worker().next_event(), Ok(Some(limit)));
    assert_eq!(
        hub.worker().next_event(),
        Ok(None),
        "and not that a queue pair ended"
    );
}
