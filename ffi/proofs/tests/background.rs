//! Handshakes on threads of their own, over `ffi` on the fake libibverbs. Real peers get through whichever call
//! of the device fails, and whichever strangers are at the port. All verbs objects that were made are destroyed.
//!
//! One test, since calls are counted, and made to fail, for the whole process.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

use core::net::SocketAddr;
use core::time::Duration;
use std::io::Write as _;
use std::net::TcpStream;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use doorbell::connect::{Acceptances, Background, HandshakeLimits};
use doorbell::worker::SharedReceivesConfig;
use doorbell::{ChannelConfig, ConnectError, Listener, Node, Trust, Worker, WorkerConfig, within};
use doorbell_fake::{Call, Control};
use doorbell_ffi::leaks;

const SOON: Duration = Duration::from_secs(20);
/// How long a stage of a handshake may take: longer than anything here is waited for.
const STAGE: Duration = Duration::from_secs(200);
const ENOMEM: i32 = 12;

/// Real peers of one round, one after the other.
const PEERS: usize = 8;

fn config() -> ChannelConfig {
    let mut config = ChannelConfig::default();
    config.send_depth = 8;
    config.receive_depth = 8;
    config.handshake_stage = STAGE;
    config
}

fn worker(node: &Node, shared: Option<SharedReceivesConfig>) -> Worker {
    let mut config = WorkerConfig::default();
    config.slots = 256;
    config.slot_bytes = 64;
    config.shared_receives = shared;
    node.workers(&config).unwrap().remove(0)
}

/// Connections that never become peers: silent, or talking nonsense.
fn rabble(to: SocketAddr) -> Vec<TcpStream> {
    (0..24)
        .map(|turn| {
            let mut stream = TcpStream::connect(to).unwrap();
            if turn % 2 == 0 {
                stream.write_all(&[0xff; 300]).unwrap();
            }
            stream
        })
        .collect()
}

/// Connects, and tries again where that fails; closes each. Says how many failed.
fn connect_all(node: &Node, to: SocketAddr) -> usize {
    let mut own = [worker(node, None)];
    let (mut done, mut failed) = (0, 0);
    while done < PEERS {
        match node.connect_at(&mut own, to, &config(), within(SOON)) {
            Ok(peer) => {
                done = done.saturating_add(1);
                close(own.first_mut().unwrap(), peer.channel);
            }
            Err(_) if failed < PEERS => failed = failed.saturating_add(1),
            Err(error) => panic!("{error}"),
        }
    }
    failed
}

fn close(worker: &mut Worker, channel: doorbell::ChannelId) {
    worker.begin_close(channel, within(Duration::ZERO)).unwrap();
    while worker.channels().count() > 0 {
        worker.poll_tending(|_, event| drop(event)).unwrap();
    }
}

/// Accepts until the peers are through, and each of them was accepted. A peer knows that it is connected before the thread of
/// the handshakes has handed the connection over, so the last one comes when its peer may be gone.
fn accept_all(
    acceptances: &mut Acceptances,
    worker: &mut Worker,
    peers: &thread::JoinHandle<usize>,
) -> usize {
    let (mut accepted, mut late) = (0_usize, None);
    while !peers.is_finished() || accepted < PEERS {
        if peers.is_finished() {
            let since = late.get_or_insert_with(Instant::now);
            assert!(
                since.elapsed() < SOON,
                "{accepted} of {PEERS}: {:?}",
                acceptances.counts()
            );
        }
        match acceptances.accept(worker, within(Duration::from_millis(5))) {
            Ok(channel) => {
                accepted = accepted.saturating_add(1);
                close(worker, channel);
            }
            Err(ConnectError::TimedOut { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
    accepted
}

fn start(node: &Arc<Node>, worker: &Worker) -> (Background, Acceptances) {
    let workers = core::slice::from_ref(worker);
    let listener = Listener::bind(node, workers, "127.0.0.1:0".parse().unwrap(), &config()).unwrap();
    let (background, mut acceptances) = listener
        .background(node, workers, &HandshakeLimits::default())
        .unwrap();
    (background, acceptances.remove(0))
}

/// One round in which the call fails once, after it succeeded so often.
fn round(control: Control, fails: Option<(Call, u32)>, shared: Option<SharedReceivesConfig>) {
    control.heal();
    let case = format!("{fails:?}");
    let node = Arc::new(Node::open(Trust::unauthenticated_on_purpose()).unwrap());
    let mut own = worker(&node, shared);
    let (background, mut acceptances) = start(&node, &own);
    let to = background.address();
    let others = rabble(to);
    if let Some((call, after)) = fails {
        control.fail(call, after, ENOMEM);
    }
    let theirs = Arc::clone(&node);
    let peers = thread::spawn(move || connect_all(&theirs, to));
    let accepted = accept_all(&mut acceptances, &mut own, &peers);
    let failed = peers.join().unwrap();
    assert!(failed <= usize::from(fails.is_some()), "{case}: {failed}");
    // Peers may be accepted whose own side failed afterwards, but no others.
    assert!(accepted <= PEERS.saturating_add(failed), "{case}: {accepted}");
    // It waits for no stage of the silent streams, which would end long after its deadline.
    assert!(background.stop(within(SOON)), "{case}");
    drop((acceptances, others, own));
    assert!(node.settle(within(SOON)), "{case}");
    drop(node);
    // Each peer has one at either end.
    let queue_pairs = control.calls(Call::CreateQp) as usize;
    assert!(queue_pairs >= PEERS.saturating_mul(2), "{case}: {queue_pairs}");
    for (made, destroyed) in Call::LIVES {
        // A call that failed made nothing.
        let failed = u32::from(fails.is_some_and(|(call, _)| call == made));
        let made = control.calls(made).saturating_sub(failed);
        assert_eq!(made, control.calls(destroyed), "{case}: {destroyed:?}");
    }
}

#[test]
fn whatever_fails_nothing_is_left() {
    let path = doorbell_fake::library_path().unwrap();
    // SAFETY: the fake was built from this workspace and stands for libibverbs of the machine's ABI.
    unsafe { rdma_sys::load_from(&path) }.unwrap();
    drop(Node::open(Trust::unauthenticated_on_purpose()).unwrap());
    let control = Control::of(&path).unwrap();
    let before = leaks();
    let mut shared = SharedReceivesConfig::default();
    shared.depth = 64;
    for shared in [None, Some(shared)] {
        round(control, None, shared);
        for call in [Call::CreateQp, Call::ModifyQp, Call::PostRecv] {
            for after in 0..7 {
                round(control, Some((call, after)), shared);
            }
        }
    }
    assert_eq!(leaks(), before);
}
