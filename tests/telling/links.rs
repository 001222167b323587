//! Events about links: their rails, peers that stand still, and refused peers.

use core::net::SocketAddr;

use doorbell::connect::HandshakeLimits;
use doorbell::link::{Epoch, LinkError, Sequence, SessionEvent, SessionId};
use doorbell::provider::PortState;
use doorbell::wire::{Attach, AttachParameters, Resumption};
use doorbell::{Listener, Operation};
use tracing_subscriber::filter::LevelFilter;

use crate::fabric::{port, small};
use crate::processes::{A, B, PORT, Process, Two, config, ms, ports, ports_of_one_device};
use crate::{Log, assert_told, count_told};

#[test]
fn a_peer_that_stands_still_is_told_once_and_again_when_it_goes_on() {
    let log = Log::of(LevelFilter::INFO, || {
        let mut two = Two::new(1, "");
        two.connected(1);
        two.sends_every = [Some(ms(1)), Some(ms(1))];
        two.run(ms(50), |_| false);
        two.process_mut(B).is_stopped = true;
        two.run(ms(3050), |_| false);
        two.process_mut(B).is_stopped = false;
        two.run(ms(3200), |_| false);
        assert!(two.settle(ms(4000)));
    });
    assert_told(&log, &["INFO doorbell: link connected .. link="]);
    for words in [
        "WARN doorbell: the peer takes no messages .. link=",
        "INFO doorbell: the peer takes messages again .. link=",
    ] {
        assert_eq!(count_told(&log, words), 1, "{words}\n{log}");
    }
}

#[test]
fn a_link_whose_only_rail_fails_and_comes_back_says_so_and_how_it_ends() {
    let log = Log::of(LevelFilter::DEBUG, || {
        let mut two = Two::new(1, "at 50ms link a-b down for 400ms");
        two.connected(1);
        two.sends_every = [Some(ms(1)), Some(ms(1))];
        assert!(two.run(ms(5000), |two| {
            [A, B]
                .iter()
                .all(|at| two.process(*at).saw(SessionEvent::Recovered).is_some())
        }));
        assert!(two.settle(ms(6000)));
        let link = two.process(A).link.unwrap();
        let deadline = two.deadline(ms(1000));
        two.process_mut(A).links.close(link, deadline);
        assert!(two.run(ms(8000), |two| {
            [A, B].iter().all(|at| two.process(*at).over.is_some())
        }));
        two.run(ms(9000), |_| false);
    });
    assert_told(
        &log,
        &[
            "WARN doorbell: rail failed .. link= .. rail=0",
            "WARN doorbell: rail down .. link= .. rail=0",
            "WARN doorbell: link without a rail .. link=",
            "INFO doorbell: link has a rail again .. link=",
            "INFO doorbell: link over .. link= .. reason=",
            "DEBUG doorbell: channel closed .. channel=",
        ],
    );
}

#[test]
fn a_port_that_is_in_no_pair_and_one_that_is_not_used_are_told() {
    let log = Log::of(LevelFilter::DEBUG, || {
        let mut b = ports_of_one_device(2);
        b[1].state = PortState::DOWN;
        let mut two = Two::between([ports(A, 2, 10_000), b], "", None);
        two.connected(1);
    });
    assert_told(
        &log,
        &[
            "INFO doorbell: rail in no pair .. rail=1 .. reason=",
            "DEBUG doorbell: rail not used .. device=sim0 .. port=2 .. reason=the port is DOWN, not ACTIVE",
        ],
    );
}

#[test]
fn a_peer_that_no_rail_reaches_is_told_at_once() {
    let log = Log::of(LevelFilter::WARN, || {
        let elsewhere = vec![port("sim0", "10.9.0.2/24")];
        let mut two = Two::apart([ports(A, 1, 10_000), elsewhere], "", None);
        let handle = two.process(B).handle.unwrap();
        let Process {
            links, workers, node, ..
        } = two.process_mut(A);
        let outcome = links.connect(node, workers, &handle);
        assert!(matches!(outcome, Err(LinkError::NoRoute(_))), "{outcome:?}");
    });
    assert_told(&log, &["WARN doorbell: no rail reaches the peer .. reason="]);
}

/// The side that connected has another address by now, of a subnet that its peer is not in, and looks at it.
#[test]
fn a_link_that_is_out_of_reach_keeps_its_rails_as_they_are() {
    let log = Log::of(LevelFilter::WARN, || {
        let mut two = Two::new(1, "at 50ms gid a/sim0:1 10.0.0.1 becomes 10.7.0.1");
        two.connected(1);
        two.run(ms(55), |_| false);
        let Process {
            links, workers, node, ..
        } = two.process_mut(A);
        links.refresh(node, workers).unwrap();
        two.run(ms(100), |_| false);
    });
    assert_told(&log, &["WARN doorbell: rails stay as they are .. reason=no rail"]);
}

/// The rail's is the first failure that ends the connection, so the rail reports it at once.
#[test]
fn a_peer_whose_queue_pair_fails_fails_the_rail_for_that() {
    let log = Log::of(LevelFilter::INFO, || {
        let mut two = Two::waiting(1, "");
        let handle = two.process(B).handle.unwrap();
        let Process {
            node, mut workers, ..
        } = two.processes[A].take().unwrap();
        let (session, epoch) = (SessionId::new(99).unwrap(), 7);
        let mut channel = small();
        channel.session = Some(Resumption {
            session,
            epoch,
            next_sequence: 0,
        });
        let deadline = two.deadline(ms(1000));
        let mut connecting = node.begin_connect(&workers, &handle, &channel, deadline).unwrap();
        let mut at = None;
        two.run(ms(100), |_| {
            at = connecting.poll(&node, &mut workers).map(Result::unwrap);
            at.is_some()
        });
        let at = at.unwrap();
        let attach = Attach::new(&AttachParameters {
            session,
            epoch: Epoch::from_wire(epoch),
            rail: 0,
            begins: true,
            oldest: Sequence(0),
            expected: Sequence(0),
            window: 8,
        });
        let worker = &mut workers[at.worker];
        let channel = worker.channel(at.channel).unwrap();
        channel.post_inline(Operation::Send, &attach.to_bytes()).unwrap();
        assert!(two.run(ms(200), |two| two.process(B).link.is_some()));
        // Its peer's next frame is answered by nobody.
        worker.channel(at.channel).unwrap().shut().unwrap();
        two.run(ms(5000), |_| false);
    });
    let words = "WARN doorbell: rail failed .. link= .. rail=0 .. cause=transport retries exceeded";
    assert_told(&log, &[words]);
}

#[test]
fn a_link_there_is_no_memory_for_is_refused_and_that_is_told() {
    let log = Log::of(LevelFilter::INFO, || {
        let mut large = config();
        large.message_bytes_max = usize::MAX / 4;
        let mut two = Two::waiting(1, "");
        two.processes[B] = None;
        two.processes[B] = Some(Process::on(&two.hosts[B], &large, true));
        two.begin();
        assert!(two.run(ms(500), |two| two.process(A).over.is_some()));
    });
    assert_told(
        &log,
        &[
            "WARN doorbell: link refused .. reason=",
            "INFO doorbell: link over .. link= .. reason=",
        ],
    );
}

#[test]
fn with_handshakes_over_it_is_told_once_that_nobody_is_let_in_any_more() {
    let log = Log::of(LevelFilter::INFO, || {
        let mut two = Two::waiting(1, "");
        two.processes[B] = Some(Process::on(&two.hosts[B], &config(), false));
        let any = SocketAddr::from(([0; 4], PORT));
        let b = two.process_mut(B);
        let listener = Listener::bind(&b.node, &b.workers, any, &small()).unwrap();
        let (handshakes, acceptances) = listener.aside(&b.node, &b.workers, &HandshakeLimits::default());
        b.links.accept_from(acceptances);
        two.run(ms(10), |_| false);
        drop(handshakes);
        two.run(ms(50), |_| false);
    });
    let words = "ERROR doorbell: no peer is let in any more .. reason=";
    assert_eq!(count_told(&log, words), 1, "{log}");
}
