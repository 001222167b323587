//! Streams over links that lose, double, swap, delay and change what they carry: bytes come once, whole and in
//! order, and what comes late of another stream ends none.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    reason = "tests"
)]

use core::net::SocketAddr;
use core::time::Duration;

use doorbell_core::IpPrefix;
use doorbell_core::handshake::{Io, IoError};
use doorbell_core::network::{Network, Stream as _};
use doorbell_sim::{Acceptor, Fabric, Host, PortConfig, Stream};

const BYTES: usize = 60_000;
const STEP: Duration = Duration::from_millis(1);
const ECONNREFUSED: i32 = 111;

/// Two hosts on a fabric where this goes wrong.
struct Two {
    fabric: Fabric,
    hosts: [Host; 2],
}

impl Two {
    fn new(plan: &str) -> Self {
        let fabric = Fabric::builder().plan(plan.parse().unwrap()).driven().build();
        let hosts = [("a", "10.0.0.1"), ("b", "10.0.0.2")].map(|(name, address)| {
            let prefix = IpPrefix::new(address.parse().unwrap(), 24).unwrap();
            fabric
                .host(name, vec![PortConfig::new("sim0", &[prefix])])
                .unwrap()
        });
        Self { fabric, hosts }
    }

    fn listen(&self) -> Acceptor {
        self.hosts[0].listen(at()).unwrap()
    }

    fn connect(&self) -> Stream {
        self.hosts[1].connect(at()).unwrap()
    }

    fn accept(&self, acceptor: &Acceptor) -> Option<Stream> {
        self.hosts[0].accept(acceptor).unwrap()
    }

    /// Two ends of one stream.
    fn pair(&self, acceptor: &Acceptor) -> [Stream; 2] {
        let connected = self.connect();
        for _ in 0..100_000 {
            self.fabric.run_for(STEP);
            if let Some(accepted) = self.accept(acceptor) {
                return [accepted, connected];
            }
        }
        panic!("nobody came");
    }
}

fn at() -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], 7000))
}

/// Bytes that an end writes: each end has a pattern of its own.
fn text(end: usize) -> Vec<u8> {
    (0..BYTES).map(|place| (place % 251 + end) as u8).collect()
}

/// How long it takes that each end has all of the other, in milliseconds.
fn exchange(two: &Two, ends: &mut [Stream; 2], plan: &str) -> u32 {
    let (mut written, mut read) = ([0; 2], [Vec::new(), Vec::new()]);
    let texts = [text(0), text(1)];
    let mut buffer = vec![0; 5000];
    for millis in 0..60_000 {
        for end in 0..2 {
            match ends[end].write(&texts[end][written[end]..]) {
                Ok(count) => written[end] += count,
                Err(error) => assert_eq!(error, IoError::WouldBlock, "{plan}"),
            }
            match ends[end].read(&mut buffer) {
                Ok(count) => read[end].extend_from_slice(&buffer[..count]),
                Err(error) => assert_eq!(error, IoError::WouldBlock, "{plan}"),
            }
        }
        if read.iter().all(|read| read.len() >= BYTES) {
            assert!(read[0] == texts[1] && read[1] == texts[0], "{plan}");
            return millis;
        }
        two.fabric.run_for(STEP);
    }
    panic!("{plan}: {:?}", read.map(|read| read.len()));
}

#[test]
fn every_byte_comes_once_and_in_order() {
    let calm = Two::new("drop every 1st packet of any->any");
    let undisturbed = exchange(&calm, &mut calm.pair(&calm.listen()), "");
    for plan in [
        "drop every 9th stream of any->any",
        "corrupt every 9th stream of a->b",
        "reorder every 7th stream of any->any",
        "delay every 10th stream of b->a by 3ms",
        "delay 3rd stream of a->b by 5s",
        "seed 1; drop 3% stream of any->any; duplicate 20% stream of any->any; reorder 3% stream of any->any; \
         corrupt 1% stream of any->any; delay 2% stream of any->any by 700ms",
    ] {
        let two = Two::new(plan);
        let acceptor = two.listen();
        let mut ends = two.pair(&acceptor);
        let took = exchange(&two, &mut ends, plan);
        assert!(took > undisturbed + 100, "{plan}: {took} of {undisturbed} ms");
        // Nothing that was late made another stream.
        two.fabric.run_for(100 * STEP);
        assert!(two.accept(&acceptor).is_none(), "{plan}");
    }
    let doubled = Two::new("duplicate every 1st stream of any->any");
    let acceptor = doubled.listen();
    let mut ends = doubled.pair(&acceptor);
    assert!(exchange(&doubled, &mut ends, "doubled") <= undisturbed + 1);
    assert!(doubled.accept(&acceptor).is_none());
}

#[test]
fn a_stream_that_was_asked_for_long_ago_is_none() {
    // The second time it asks it is heard, and then what it asked first comes.
    let two = Two::new("delay 1st stream of b->a by 5s");
    let acceptor = two.listen();
    let [accepted, mut connected] = two.pair(&acceptor);
    assert!(two.fabric.now().to_ns() < 2_000_000_000);
    drop(accepted);
    two.fabric.run_for(Duration::from_secs(30));
    assert!(two.accept(&acceptor).is_none(), "to whoever asked it is over");
    assert_eq!(connected.read(&mut [0; 8]), Ok(0));
    assert_eq!(connected.write(b"x"), Ok(1), "and to it nothing was broken off");
}

#[test]
fn a_no_that_comes_late_ends_no_stream_that_stands() {
    let two = Two::new("delay 1st stream of a->b by 2s");
    // There is no listener yet, and then there is one.
    let mut connected = two.connect();
    two.fabric.run_for(100 * STEP);
    let acceptor = two.listen();
    two.fabric.run_for(Duration::from_secs(5));
    assert!(!connected.is_connecting());
    assert_eq!(connected.read(&mut [0; 8]), Err(IoError::WouldBlock));
    let mut ends = [two.accept(&acceptor).unwrap(), connected];
    exchange(&two, &mut ends, "late");
    // If nobody ever listens, the connection is refused.
    let two = Two::new("");
    let mut refused = two.connect();
    two.fabric.run_for(STEP);
    assert_eq!(refused.read(&mut [0; 8]), Err(IoError::Failed(ECONNREFUSED)));
}

#[test]
fn what_is_struck_is_what_the_clause_names() {
    for (plan, arrives) in [
        ("drop every 1st packet of any->any", true),
        ("drop every 1st send of any->any", true),
        ("drop every 1st stream of b->b", true),
        ("drop every 1st stream of b->a", false),
        ("drop every 1st stream of any->any; at 500ms calm", true),
        ("drop every 1st stream of any->any; at 50s calm", false),
    ] {
        let two = Two::new(plan);
        let acceptor = two.listen();
        let _asks = two.connect();
        two.fabric.run_for(Duration::from_secs(2));
        assert_eq!(two.accept(&acceptor).is_some(), arrives, "{plan}");
    }
}
