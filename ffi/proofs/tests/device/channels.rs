//! A hundred channels sized by one call, and an idle channel whose peer is dead.

use core::net::IpAddr;
use core::time::Duration;
use std::thread;
use std::time::Instant;

use doorbell::{ChannelConfig, ChannelId, Event, Listener, Node, WcStatus, Worker, WorkerConfig, within};

use super::{SOON, config, node, worker};

/// Connects once more, and waits for both sides: the name of the channel at the one that connects.
fn connect(
    node: &Node,
    (listener, hub): (&mut Listener, &mut [Worker]),
    peer: &mut [Worker],
    config: &ChannelConfig,
) -> ChannelId {
    let address = listener.address();
    thread::scope(|scope| {
        let accepting = scope.spawn(|| listener.accept(node, hub, within(SOON)).unwrap());
        let there = node.connect_at(peer, address, config, within(SOON)).unwrap();
        accepting.join().unwrap();
        there.channel
    })
}

fn listener(node: &Node, hub: &[Worker], config: &ChannelConfig) -> Listener {
    let address = (IpAddr::from([127, 0, 0, 1]), 0).into();
    Listener::bind(node, hub, address, config).unwrap()
}

#[test]
fn a_hundred_channels_work_from_the_defaults_of_one_call() {
    const CHANNELS: u32 = 100;
    let node = node();
    let (own, config) = (
        WorkerConfig::for_channels(CHANNELS, 256),
        ChannelConfig::for_channels(CHANNELS),
    );
    let workers = || {
        let mut workers = node.workers(&own).unwrap();
        workers.truncate(1);
        workers
    };
    let (mut hub, mut peer) = (workers(), workers());
    let mut listener = listener(&node, &hub, &config);
    for number in 0..u64::from(CHANNELS) {
        let there = connect(&node, (&mut listener, &mut hub), &mut peer, &config);
        peer[0].channel(there).unwrap().set_user(number);
        peer[0].send(there, &number.to_be_bytes()).unwrap();
    }
    let (mut answers, began) = (0, Instant::now());
    while answers < CHANNELS {
        assert!(began.elapsed() < SOON, "{answers} answers");
        hub[0]
            .poll_tending(|turn, event| match event {
                Event::Received { message, .. } => {
                    turn.channel.send_lease(message.keep()).unwrap();
                }
                Event::Done { .. } => {}
                other => panic!("{other:?}"),
            })
            .unwrap();
        peer[0]
            .poll_tending(|turn, event| match event {
                Event::Received { message, .. } => {
                    assert_eq!(message.payload(), turn.channel.user().to_be_bytes());
                    answers += 1;
                }
                Event::Done { .. } => {}
                other => panic!("{other:?}"),
            })
            .unwrap();
    }
    assert!(hub[0].lease().is_some(), "memory is kept for leases");
}

/// The retries of the device would take half a minute: seven tries of 4.3 s.
#[test]
fn the_timeout_of_a_probe_gives_up_a_dead_idle_peer() {
    let node = node();
    let (mut hub, mut peer) = (worker(&node, 1024), worker(&node, 1024));
    let mut own = config();
    (own.timeout, own.retry_count) = (20, 6);
    own.probe_after = Some(Duration::from_millis(100));
    own.probe_timeout = Some(Duration::from_millis(50));
    let mut listener = listener(&node, &hub, &own);
    let there = connect(&node, (&mut listener, &mut hub), &mut peer, &config());
    // From now on its device answers nothing on this channel, and nothing was said before.
    peer[0].channel(there).unwrap().shut().unwrap();
    let (mut cause, began) = (None, Instant::now());
    while cause.is_none() {
        assert!(began.elapsed() < SOON, "the peer is not given up");
        hub[0]
            .poll_tending(|_, event| match event {
                Event::ChannelFailed { cause: of } => cause = Some(of.status),
                other => panic!("{other:?}"),
            })
            .unwrap();
    }
    assert_eq!(cause, Some(WcStatus::RESP_TIMEOUT_ERR));
}
