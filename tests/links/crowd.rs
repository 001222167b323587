//! Links beside a crowd: hundreds of peers that begin to connect and never get anywhere cost nobody else anything.

use core::net::{IpAddr, SocketAddr};

use doorbell::connect::HandshakeCounts;
use doorbell::link::SessionEvent;
use doorbell::provider::{Io as _, IoError, Network as _};
use doorbell_sim::{Host, Stream};

use crate::fabric::{hello, is_rejected, port};
use crate::processes::{A, B, PORT, Two, ms};

/// Hosts of the crowd, and how many streams each has open. The peer that means it comes from an address of its own.
const HOSTS: u8 = 10;
const EACH: usize = 30;

/// Nothing; the magic of a frame, a version, and no more; what is no frame at all.
const SAID: [&[u8]; 3] = [b"", b"DBLF\x01", b"GET / HTTP/1.1\r\n\r\n"];

/// Streams that say nothing, half a frame, no frame, or a Hello and no more, and come again as soon as they are turned away.
struct Crowd {
    streams: Vec<Loiterer>,
    to: SocketAddr,
    /// How many were turned away, or had their time.
    gone: usize,
}

struct Loiterer {
    host: Host,
    stream: Stream,
    /// Its bytes, and how many of them it has sent.
    says: Vec<u8>,
    said: usize,
    heard: Vec<u8>,
}

impl Crowd {
    fn empty() -> Self {
        Self {
            streams: Vec::new(),
            to: SocketAddr::from(([10, 0, 0, 2], PORT)),
            gone: 0,
        }
    }

    fn half_open(two: &Two) -> Self {
        let mut crowd = Self::empty();
        for (_, host) in hosts(two, HOSTS) {
            (0..EACH).for_each(|kind| crowd.come(&host, SAID[kind % SAID.len()]));
        }
        crowd
    }

    /// Hellos by the id of the link's key, so many, from so many addresses. The first is that of the link's own peer.
    fn of_hellos(two: &Two, addresses: u8, streams: usize) -> Self {
        let mut crowd = Self::empty();
        let own = ([10, 0, 0, 1].into(), two.hosts[A].clone());
        let all: Vec<_> = core::iter::once(own).chain(hosts(two, addresses - 1)).collect();
        for (address, host) in all.iter().cycle().take(streams) {
            crowd.come(host, &hello(*address, 1));
        }
        crowd
    }

    fn come(&mut self, host: &Host, says: &[u8]) {
        self.streams.push(Loiterer {
            host: host.clone(),
            stream: host.connect(self.to).unwrap(),
            says: says.to_vec(),
            said: 0,
            heard: Vec::new(),
        });
    }

    fn go_on(&mut self) {
        let mut read = [0; 64];
        for one in &mut self.streams {
            if let Ok(written) = one.stream.write(&one.says[one.said..]) {
                one.said += written;
            }
            let is_gone = loop {
                match one.stream.read(&mut read) {
                    Ok(bytes @ 1..) => one.heard.extend_from_slice(&read[..bytes]),
                    Err(IoError::WouldBlock) => break is_rejected(&one.heard),
                    // A stream at its end sends nothing more.
                    Ok(_) | Err(_) => break true,
                }
            };
            if is_gone {
                self.gone += 1;
                (one.stream, one.said) = (one.host.connect(self.to).unwrap(), 0);
                one.heard.clear();
            }
        }
    }
}

fn hosts(two: &Two, count: u8) -> Vec<(IpAddr, Host)> {
    let host = |at: u8| {
        let address = IpAddr::from([10, 0, 0, at + 10]);
        let ports = vec![port("sim0", &format!("{address}/24"))];
        (address, two.fabric.host(&format!("c{at}"), ports).unwrap())
    };
    (0..count).map(host).collect()
}

/// When a link had both rails, had none, and had one again, in microseconds; how many of the crowd were turned away; and what its
/// listener counted.
fn times(crowd: impl FnOnce(&Two) -> Crowd) -> ([u64; 4], usize, HandshakeCounts) {
    let plan = "at 150ms link a/sim0-b/sim0 down for 200ms; at 150ms link a/sim1-b/sim1 down for 200ms";
    let mut two = Two::waiting(2, plan);
    let mut crowd = crowd(&two);
    let mut looked = 0;
    let mut attend = |two: &Two| {
        let now = two.fabric.now().to_ns();
        if now - looked >= 15_000_000 {
            looked = now;
            crowd.go_on();
        }
    };
    // The crowd is there before the link begins.
    two.run(ms(50), |two| {
        attend(two);
        false
    });
    two.begin();
    let both = [0, 1].map(|rail| SessionEvent::RailUp { rail });
    let is_there = |two: &Two| both.iter().all(|up| two.process(A).saw(*up).is_some());
    let began = two.run(ms(120), |two| {
        attend(two);
        is_there(two)
    });
    assert!(began, "{:?}", two.process(A).events);
    two.sends_every = [Some(ms(5)), Some(ms(5))];
    let is_back = two.run(ms(3000), |two| {
        attend(two);
        two.process(A).saw(SessionEvent::Recovered).is_some()
    });
    assert!(is_back, "{:?}", two.process(A).events);
    two.run(ms(700), |two| {
        attend(two);
        false
    });
    assert!(two.settle(ms(4000)), "{:?} {:?}", two.counts(A), two.counts(B));
    let handshakes = two.process(B).links.handshakes();
    let a = two.process(A);
    let at = |event| a.saw(event).unwrap().to_ns() / 1000;
    let times = [
        both[0],
        both[1],
        SessionEvent::Recovering,
        SessionEvent::Recovered,
    ]
    .map(at);
    (times, crowd.gone, handshakes)
}

#[test]
fn hundreds_of_half_open_clients_delay_no_link_as_it_begins_nor_as_it_recovers() {
    let (alone, _, _) = times(|_| Crowd::empty());
    let (crowded, gone, handshakes) = times(Crowd::half_open);
    assert!(gone > usize::from(HOSTS) * EACH / 2, "{gone} {handshakes:?}");
    assert!(
        handshakes.refused > 40 && handshakes.failed > 100,
        "{handshakes:?}"
    );
    for (alone, crowded) in alone.into_iter().zip(crowded) {
        // Chance is another one: what is drawn for waits between attempts.
        assert!(
            crowded < alone + 200_000,
            "{alone} {crowded} {gone} {handshakes:?}"
        );
    }
    let [first, second, ..] = [0, 1].map(|at| (alone[at], crowded[at]));
    // To begin with there is nothing drawn: what is left is a packet that waits for another.
    for (alone, crowded) in [first, second] {
        assert!(crowded <= alone + 100, "{alone} {crowded}");
    }
}

/// More streams of each address than it has places, and of four more than there are. Each names the key of the link, and proves nothing.
#[test]
fn a_flood_of_hellos_delays_no_link_as_it_begins_nor_as_it_recovers() {
    let (alone, _, _) = times(|_| Crowd::empty());
    for (addresses, streams) in [(1, 128), (4, 288)] {
        let (flooded, gone, handshakes) = times(|two| Crowd::of_hellos(two, addresses, streams));
        assert!(gone > 100, "{addresses}: {gone} {handshakes:?}");
        for (alone, flooded) in alone.into_iter().zip(flooded) {
            // Chance is another one: what is drawn for waits between attempts.
            assert!(
                flooded < alone + 200_000,
                "{addresses}: {alone} {flooded} {gone} {handshakes:?}"
            );
        }
    }
}
