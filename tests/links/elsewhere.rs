//! Addresses of a peer at which another process is for a while, or says that it is.

use core::net::{IpAddr, SocketAddr};

use doorbell::connect::{HandshakeLimits, Handshakes};
use doorbell::link::{FinalReason, SessionEvent};
use doorbell::provider::{Io as _, Network as _};
use doorbell::wire::{Fit, FrameBuffer, Reject, RejectReason};
use doorbell::{Handle, Listener};
use doorbell_sim::{Host, PortConfig};

use crate::fabric::prefix;
use crate::processes::{A, B, PORT, Process, Two, config, ms};

fn at(address: [u8; 4]) -> SocketAddr {
    SocketAddr::from((address, PORT))
}

/// Has B let peers in, by handshakes that can end while its links go on.
fn let_in(two: &mut Two) -> Handshakes<Host, Host> {
    let b = two.process_mut(B);
    let listener = Listener::bind(&b.node, &b.workers, at([0; 4]), &config().channel).unwrap();
    let (handshakes, acceptances) = listener.aside(&b.node, &b.workers, &HandshakeLimits::default());
    b.links.accept_from(acceptances);
    b.handle = b.links.handle().copied();
    handshakes
}

/// Two that are linked over so many rails, all of which fail, and come back at 300 ms: by then nobody lets peers in.
fn cut_off(rails: u8) -> Two {
    let mut two = Two::waiting(usize::from(rails), "at 50ms link a-b down for 250ms");
    two.processes[B] = Some(Process::on(&two.hosts[B], &config(), false));
    let mut handshakes = let_in(&mut two);
    two.begin();
    let is_there = |two: &Two| {
        let mut ends = [A, B].iter().map(|at| two.process(*at));
        ends.all(|end| (0..rails).all(|rail| end.saw(SessionEvent::RailUp { rail }).is_some()))
    };
    assert!(two.run(ms(40), |two| {
        handshakes.poll();
        is_there(two)
    }));
    two.sends_every = [Some(ms(1)), Some(ms(1))];
    two.run(ms(60), |_| false);
    two
}

/// The peer lets others in again, and is found.
fn is_found(two: &mut Two, until_ms: u64) -> bool {
    let mut handshakes = let_in(two);
    let is_back = two.run(ms(until_ms), |two| {
        handshakes.poll();
        [A, B]
            .iter()
            .all(|at| two.process(*at).saw(SessionEvent::Recovered).is_some())
    });
    is_back && two.settle(ms(until_ms + 1000))
}

#[test]
fn another_process_at_one_address_ends_no_link_while_it_may_be_reached_at_the_other() {
    let mut two = cut_off(2);
    // With the same key.
    let mut other = Process::on(&two.hosts[B], &config(), false);
    let Process {
        links, workers, node, ..
    } = &mut other;
    links.listen_polled(node, workers, at([10, 0, 0, 2])).unwrap();
    two.run(ms(2000), |two| {
        other.poll(two.fabric.now());
        false
    });
    assert!(
        other.links.handshakes().failed > 2,
        "{:?}",
        other.links.handshakes()
    );
    assert_eq!(two.process(A).over, None);
    drop(other);
    assert!(is_found(&mut two, 5000), "{:?}", two.process(A).events);
    two.fabric.audit().unwrap();
}

#[test]
fn who_says_without_proof_that_another_process_is_there_ends_no_link() {
    let mut two = cut_off(1);
    let host = two.hosts[B].clone();
    let acceptor = host.listen(at([10, 0, 0, 2])).unwrap();
    let refusal = FrameBuffer::reject(&Reject::new(RejectReason::STALE_HANDLE));
    let (mut streams, mut said) = (Vec::new(), 0);
    two.run(ms(3000), |_| {
        while let Some(mut stream) = host.accept(&acceptor).unwrap() {
            assert_eq!(stream.write(refusal.as_bytes()), Ok(refusal.as_bytes().len()));
            streams.push(stream);
            said += 1;
        }
        false
    });
    assert!(said > 4, "{said}");
    assert_eq!(two.process(A).over, None);
    drop((streams, acceptor));
    assert!(is_found(&mut two, 6000), "{:?}", two.process(A).events);
    two.fabric.audit().unwrap();
}

#[test]
fn a_process_that_proves_to_be_another_ends_the_link_at_once_where_no_other_rail_may_lead_to_the_peer() {
    for rails in [1, 2] {
        let mut two = cut_off(rails);
        two.processes[B] = Some(Process::on(&two.hosts[B], &config(), true));
        assert!(two.run(ms(1000), |two| two.process(A).over.is_some()));
        assert_eq!(two.process(A).over, Some(FinalReason::PeerRestarted));
        two.fabric.audit().unwrap();
    }
}

/// A handle of the process that another leads to, by this address of it alone.
fn by(whole: &Handle, address: &str) -> Handle {
    let address: IpAddr = address.parse().unwrap();
    let mut rails = whole.rails().iter();
    let rail = rails.find(|rail| rail.address().address() == address).unwrap();
    let mut handle = Handle::builder(whole.port(), whole.instance());
    assert_eq!(handle.push(&rail), Fit::Included);
    handle.finish().unwrap()
}

/// The answer of another process at the address before says nothing of the address that the rail leads to now.
#[test]
fn another_process_at_an_address_that_a_rail_has_left_ends_no_link() {
    let port = |addresses: &[&str]| {
        let prefixes: Vec<_> = addresses.iter().map(|address| prefix(address)).collect();
        vec![PortConfig::new("sim0", &prefixes)]
    };
    let ports = [port(&["10.0.0.1/24"]), port(&["10.0.0.2/24", "10.0.0.3/24"])];
    let mut two = Two::apart(ports, "at 50ms link a-b down for 250ms", None);
    two.processes[B] = None;
    two.processes[B] = Some(Process::on(&two.hosts[B], &config(), false));
    let mut handshakes = let_in(&mut two);
    let whole = two.process(B).handle.unwrap();
    let handles = ["10.0.0.2", "10.0.0.3"].map(|address| by(&whole, address));
    two.process_mut(A).connect(&handles[0]);
    assert!(two.run(ms(40), |two| {
        handshakes.poll();
        two.process(B).saw(SessionEvent::RailUp { rail: 0 }).is_some()
    }));
    drop(handshakes);
    two.run(ms(60), |_| false);
    let mut other = Process::on(&two.hosts[B], &config(), false);
    let Process {
        links, workers, node, ..
    } = &mut other;
    links.listen_polled(node, workers, at([10, 0, 0, 2])).unwrap();
    // It is meant by the first Hello as the peer, and is asked who it is by the second.
    let is_asked = two.run(ms(2000), |two| {
        other.poll(two.fabric.now());
        other.links.handshakes().begun == 2
    });
    assert!(is_asked);
    assert!(two.process_mut(A).reroute(&handles[1]));
    let until = two.fabric.now().to_ns() / 1_000_000 + 100;
    two.run(ms(until), |two| {
        other.poll(two.fabric.now());
        false
    });
    assert_eq!(two.process(A).over, None);
    drop(other);
    assert!(is_found(&mut two, 5000), "{:?}", two.process(A).events);
    two.fabric.audit().unwrap();
}
