//! Events about devices, of their own accord, and about channels on their way out.

use doorbell::worker::{CloseError, CloseProgress};
use doorbell::{Notify, Operation};
use doorbell_sim::Fabric;
use tracing_subscriber::filter::LevelFilter;

use crate::fabric::{node, pair_on, port, small, workers};
use crate::world::ms;
use crate::{Log, assert_told};

/// All that a device says, as loud as it matters.
#[test]
fn what_a_device_says_is_told() {
    let log = Log::of(LevelFilter::INFO, || {
        let plan =
            "at 1ms port a/simA:1 down for 1ms; at 3ms gid a/simA:1 10.0.0.1 becomes 10.0.0.9; at 4ms kill a";
        let fabric = Fabric::builder().plan(plan.parse().unwrap()).driven().build();
        let a = node(&fabric, "a", vec![port("simA", "10.0.0.1/24")]);
        let mut at_a = workers(&a);
        fabric.run_for(ms(10));
        while at_a[0].next_event().unwrap().is_some() {}
    });
    assert_told(
        &log,
        &[
            "WARN doorbell: device event .. event=PortError(1)",
            "INFO doorbell: device event .. event=PortActive(1)",
            "WARN doorbell: device event .. event=GidChange(1)",
            "ERROR doorbell: device event .. event=DeviceFatal",
        ],
    );
}

#[test]
fn a_completion_queue_that_failed_is_told_loudly() {
    let log = Log::of(LevelFilter::ERROR, || {
        let fabric = Fabric::builder().driven().build();
        let (mut server, mut client) = pair_on(&fabric, small(), small(), Notify::Never);
        fabric.follow(&"at 0ms overrun a".parse().unwrap());
        fabric.run_for(ms(1));
        let id = client.id();
        let channel = client.worker().channel(id).unwrap();
        for _ in 0..2 {
            channel.post_inline(Operation::Send, b"?").unwrap();
        }
        fabric.run_for(ms(1));
        while server.worker().next_event().unwrap().is_some() {}
    });
    assert_told(
        &log,
        &["ERROR doorbell: device event .. event=CompletionQueueError"],
    );
}

#[test]
fn a_channel_that_is_closed_before_all_was_done_is_told_with_why() {
    let log = Log::of(LevelFilter::INFO, || {
        let fabric = Fabric::builder().driven().build();
        let (mut server, _client) = pair_on(&fabric, small(), small(), Notify::Never);
        fabric.follow(&"at 0ms link a-b down".parse().unwrap());
        fabric.run_for(ms(1));
        let id = server.id();
        let deadline = server.node.within(ms(5));
        let channel = server.worker().channel(id).unwrap();
        channel.post_inline(Operation::Send, b"?").unwrap();
        server.worker().begin_close(id, deadline).unwrap();
        for _ in 0..200 {
            server.worker().poll_tending(|_, event| drop(event)).unwrap();
            fabric.run_for(ms(1));
        }
        let outcome = server.worker().close_progress(id);
        assert!(
            matches!(outcome, CloseProgress::Closed(Err(CloseError::TimedOut))),
            "{outcome:?}"
        );
    });
    let why = "WARN doorbell: channel closed .. channel=0 .. reason=requests in flight were not acknowledged";
    assert_told(&log, &[why]);
}
