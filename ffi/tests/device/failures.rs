//! Failures on a connection, and requests that are refused at set-up.

use doorbell_core::provider::{
    ArenaConfig, Completion as _, CompletionQueue as _, CompletionQueueConfig, Context as _, DataInOrder,
    MemoryError, Operation, PostFlags, ProtectionDomain as _, Provider as _, ProviderError, QueuePair as _,
    ReceiveQueue as _, RemoteAccess, SendBatch as _, SendQueue as _, WindowConfig,
};
use doorbell_ffi::ProviderKind;

use super::bench::{Bench, bench, config, poll, post_receives, slot_with};

#[test]
fn a_completion_of_another_queue_is_rejected() {
    let Some(bench) = bench("a_completion_of_another_queue_is_rejected") else {
        return;
    };
    let mut arena = bench.arena(16, 64);
    // Channel 1 exists twice, on completion queues of its own each time.
    let ((mut one, mut two), (mut three, mut four)) = (bench.pair(), bench.pair());
    for (sender, receiver) in [(&mut one, &mut two), (&mut three, &mut four)] {
        post_receives(&mut receiver.parts.receive, &mut arena, 1);
        let mut batch = sender.parts.send.stage();
        batch
            .push(
                Operation::Send,
                [slot_with(&mut arena, b"x")],
                PostFlags::SIGNALED,
            )
            .unwrap();
        assert_eq!(batch.ring(), Ok(1));
    }
    let foreign = poll(&mut three.sends, 1).pop().unwrap();
    assert!(one.parts.send.retire(foreign.lend(), |_, _| ()).is_err());
    let receive = poll(&mut two.receives, 1).pop().unwrap();
    assert!(two.parts.send.retire(receive.lend(), |_, _| ()).is_err());
    assert_eq!(
        (one.parts.send.in_flight(), two.parts.receive.in_flight()),
        (1, 1)
    );
    let own = poll(&mut one.sends, 1).pop().unwrap();
    assert!(one.parts.send.retire(own.lend(), |_, _| ()).is_ok());
    // A kept completion can be lent again, and is redeemed once.
    assert!(one.parts.send.retire(own.lend(), |_, _| panic!("twice")).is_err());
}

#[test]
fn a_provider_is_known_and_what_it_does_otherwise_is_refused_in_words() {
    let Some(bench) = bench("a_provider_is_known_and_what_it_does_otherwise_is_refused_in_words") else {
        return;
    };
    let (mut one, other) = (bench.end(&config(1)), bench.end(&config(2)));
    let receive = bench.receive_with(&other.parts, 0);
    let control = &mut one.parts.control;
    control.initialize(bench.port.port, RemoteAccess::READ).unwrap();
    control.ready_to_receive(&receive).unwrap();
    let provider = crate::described_provider(&bench.port.device);
    assert_eq!(bench.context.quirks().provider, provider);
    if provider == ProviderKind::Rxe {
        let mut endless = Bench::send_with(0);
        endless.retry_count = 7;
        let error = control.ready_to_send(&endless).unwrap_err();
        assert!(error.to_string().contains("never gives up"), "{error}");
        // rxe does not answer the query, so a program that polls memory must not rely on an order (S20).
        assert_eq!(control.data_in_order(), DataInOrder::No);
    }
}

#[test]
fn what_cannot_be_made_is_refused_with_its_errno() {
    let Some(bench) = bench("what_cannot_be_made_is_refused_with_its_errno") else {
        return;
    };
    let missing = bench.rdma.open("no-such-device").unwrap_err();
    assert_eq!(missing.errno, libc::ENODEV);
    assert!(bench.context.port(0).is_err());
    assert!(bench.context.port(200).is_err());
    for depth in [0, u32::MAX] {
        let config = CompletionQueueConfig { depth, notify: false };
        assert_eq!(
            bench.context.completion_queue(&config).unwrap_err().errno,
            libc::EINVAL
        );
    }
    let empty = WindowConfig::new(0, RemoteAccess::ALL);
    let is_invalid = |error| {
        matches!(
            error,
            MemoryError::Provider(ProviderError {
                errno: libc::EINVAL,
                ..
            })
        )
    };
    assert!(is_invalid(bench.domain.window(&empty).unwrap_err()));
    for (slots, slot_bytes) in [(0, 64), (64, 0)] {
        let config = ArenaConfig::new(slots, slot_bytes);
        assert!(is_invalid(bench.domain.arena(&config).unwrap_err()));
    }
    let (sends, receives) = (bench.queue(), bench.queue());
    let refused = |config| {
        bench
            .domain
            .queue_pair(&sends, &receives, &config)
            .unwrap_err()
            .errno
    };
    for wrong in [
        doorbell_core::provider::QueuePairConfig {
            channel: 1 << 20,
            ..config(1)
        },
        doorbell_core::provider::QueuePairConfig {
            gather_max: 5,
            ..config(1)
        },
        doorbell_core::provider::QueuePairConfig {
            send_depth: 0,
            ..config(1)
        },
        doorbell_core::provider::QueuePairConfig {
            receive_depth: 65_537,
            ..config(1)
        },
    ] {
        assert_eq!(refused(wrong), libc::EINVAL, "{wrong:?}");
    }
    // None of those kept the channel.
    let live = bench.domain.queue_pair(&sends, &receives, &config(1)).unwrap();
    assert_eq!(refused(config(1)), libc::EEXIST);
    drop(live);
    drop(bench.domain.queue_pair(&sends, &receives, &config(1)).unwrap());
    // Completion queues of another opening of the device.
    let again = bench.rdma.open(&bench.port.device).unwrap();
    let config_of_queue = CompletionQueueConfig {
        depth: 8,
        notify: false,
    };
    let elsewhere = again.completion_queue(&config_of_queue).unwrap();
    assert!(elsewhere.depth() >= 8);
    let mixed = bench.domain.queue_pair(&sends, &elsewhere, &config(2));
    assert_eq!(mixed.unwrap_err().errno, libc::EINVAL);
}

#[test]
fn devices_are_reported_whole() {
    let Some(bench) = bench("devices_are_reported_whole") else {
        return;
    };
    let devices = bench.rdma.devices().unwrap();
    let ours = devices
        .iter()
        .find(|device| device.name == bench.port.device)
        .unwrap();
    eprintln!("{ours:#?}");
    assert!(ours.failures.is_empty());
    let port = ours
        .ports
        .iter()
        .find(|port| port.port == bench.port.port)
        .unwrap();
    assert_eq!(*port, bench.context.port(port.port).unwrap());
    assert!(port.is_ethernet && port.active_mtu.is_some() && port.active_mtu <= port.mtu_max);
    let gid = port.usable_gids().next().unwrap();
    assert_eq!(gid.address.unwrap().address(), gid.gid.to_ip());
    assert!(gid.interface.is_some());
    let limits = bench.context.limits();
    assert!(limits.queue_depth_max > 0 && limits.completion_depth_max > 0 && limits.segments_max > 0);
}
