//! Links beside a crowd: hundreds who begin to connect and never get anywhere cost nobody else anything.

use core::net::SocketAddr;

use doorbell::Network as _;
use doorbell::vocabulary::handshake::{Io as _, IoError};
use doorbell::vocabulary::session::SessionEvent;
use doorbell_sim::{Host, Stream};

use crate::fabric::port;
use crate::processes::{A, B, PORT, Two, ms};

/// Hosts of the crowd, and how many streams each has open. The peer that means it comes from an address of its own.
const HOSTS: u8 = 10;
const EACH: usize = 30;

/// Nothing; the magic of a frame, a version, and no more; what is no frame at all.
const SAID: [&[u8]; 3] = [b"", b"DBLF\x01", b"GET / HTTP/1.1\r\n\r\n"];

/// Those who say nothing, half a sentence, or no sentence, and come again as soon as they are turned away.
struct Crowd {
    /// Each with what it has still to say.
    streams: Vec<(Host, Stream, &'static [u8])>,
    to: SocketAddr,
    /// How many were turned away, or had their time.
    gone: usize,
}

impl Crowd {
    fn new(two: &Two) -> Self {
        let mut crowd = Self {
            streams: Vec::new(),
            to: SocketAddr::from(([10, 0, 0, 2], PORT)),
            gone: 0,
        };
        for at in 0..HOSTS {
            let address = format!("10.0.0.{}/24", at + 10);
            let host = two
                .fabric
                .host(&format!("c{at}"), vec![port("sim0", &address)])
                .unwrap();
            for kind in 0..EACH {
                let stream = host.connect(crowd.to).unwrap();
                crowd
                    .streams
                    .push((host.clone(), stream, SAID[kind % SAID.len()]));
            }
        }
        crowd
    }

    fn go_on(&mut self) {
        let mut read = [0; 64];
        for (at, (host, stream, unsaid)) in self.streams.iter_mut().enumerate() {
            if let Ok(written) = stream.write(unsaid) {
                *unsaid = &unsaid[written..];
            }
            let is_gone = loop {
                match stream.read(&mut read) {
                    Ok(1..) => {}
                    Err(IoError::WouldBlock) => break false,
                    // What is at its end says nothing more.
                    Ok(_) | Err(_) => break true,
                }
            };
            if is_gone {
                self.gone += 1;
                *stream = host.connect(self.to).unwrap();
                *unsaid = SAID[at % SAID.len()];
            }
        }
    }
}

#[test]
fn hundreds_of_half_open_clients_delay_no_link_as_it_begins_nor_as_it_recovers() {
    // When a link had both rails, had none, and had one again, in microseconds.
    let times = |is_crowded: bool| {
        let plan = "at 300ms link a/sim0-b/sim0 down for 400ms; at 300ms link a/sim1-b/sim1 down for 400ms";
        let mut two = Two::waiting(2, plan);
        let mut crowd = is_crowded.then(|| Crowd::new(&two));
        let mut looked = 0;
        let mut attend = |two: &Two| {
            let now = two.fabric.now().to_ns();
            if let Some(crowd) = crowd.as_mut().filter(|_| now - looked >= 10_000_000) {
                looked = now;
                crowd.go_on();
            }
        };
        // The crowd is there before the link begins.
        two.run(ms(100), |two| {
            attend(two);
            false
        });
        two.begin();
        let both = [0, 1].map(|rail| SessionEvent::RailUp { rail });
        let is_there = |two: &Two| both.iter().all(|up| two.process(A).saw(*up).is_some());
        let began = two.run(ms(200), |two| {
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
        two.run(ms(1150), |two| {
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
        let gone = crowd.map_or(0, |crowd| crowd.gone);
        (times, gone, handshakes)
    };
    let (alone, _, _) = times(false);
    let (crowded, gone, handshakes) = times(true);
    assert!(gone > usize::from(HOSTS) * EACH / 2, "{gone} {handshakes:?}");
    assert!(
        handshakes.refused > 40 && handshakes.failed > 100,
        "{handshakes:?}"
    );
    for (alone, crowded) in alone.into_iter().zip(crowded) {
        // Chance is another one: what is drawn for waits between attempts.
        assert!(crowded < alone + 200_000, "{alone} {crowded}");
    }
    let [first, second, ..] = [0, 1].map(|at| (alone[at], crowded[at]));
    // To begin with there is nothing drawn: what is left is a packet that waits for another.
    for (alone, crowded) in [first, second] {
        assert!(crowded <= alone + 100, "{alone} {crowded}");
    }
}
