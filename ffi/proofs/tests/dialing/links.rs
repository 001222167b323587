//! Links that are connected while calls of a device are held.
#![expect(clippy::unwrap_used, reason = "tests")]

use core::net::Ipv4Addr;
use core::num::NonZeroU16;
use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

use doorbell::link::{FinalReason, LinkConfig, LinkEvent, Links, SessionEvent};
use doorbell::provider::{Gid, IpPrefix};
use doorbell::rails::{AdvertisedRail, SpeedClass};
use doorbell::wire::InstanceId;
use doorbell::{ConnectError, Handle, Node, Worker, WorkerConfig};
use doorbell_fake::{Call, Control};

use crate::BEFORE_READY_TO_RECEIVE;
use crate::held::{HELD, POLLS, SOON, all_destroyed, open};

/// One side of a link.
pub(crate) struct Side {
    pub(crate) node: Arc<Node>,
    pub(crate) workers: Vec<Worker>,
    pub(crate) links: Links,
    received: u32,
}

impl Side {
    pub(crate) fn new(attach_within: Duration) -> Self {
        let node = open();
        let workers = node.workers(&WorkerConfig::default()).unwrap();
        let mut config = LinkConfig::default();
        config.session.attach_within = attach_within;
        config.channel.handshake_stage = SOON;
        let links = Links::new(&node, &workers, &config).unwrap();
        Self {
            node,
            workers,
            links,
            received: 0,
        }
    }

    pub(crate) fn poll(&mut self) {
        let received = &mut self.received;
        let each = |_, event: LinkEvent<'_>| {
            *received = received.saturating_add(u32::from(matches!(event, LinkEvent::Received { .. })));
        };
        self.links.poll(&self.node, &mut self.workers, each).unwrap();
    }
}

/// A link is connected while another one goes on.
pub(crate) fn links(control: Control) {
    control.heal();
    let (mut a, mut b) = (Side::new(SOON), Side::new(SOON));
    let any = "[::]:0".parse().unwrap();
    let handle: Handle = b.links.listen(&b.node, &b.workers, any).unwrap();
    let first = a.links.connect(&a.node, &a.workers, &handle).unwrap();
    let began = Instant::now();
    while b.received == 0 {
        assert!(began.elapsed() < SOON);
        let _ = a.links.send(first, b"hello");
        a.poll();
        b.poll();
    }
    control.hold(Call::ModifyQp, BEFORE_READY_TO_RECEIVE);
    let held = control
        .calls(Call::ModifyQp)
        .saturating_add(BEFORE_READY_TO_RECEIVE)
        .saturating_add(1);
    let second = a.links.connect(&a.node, &a.workers, &handle).unwrap();
    let mut polls = 0_u32;
    let began = Instant::now();
    while polls < POLLS {
        assert!(began.elapsed() < SOON);
        if control.calls(Call::ModifyQp) < held {
            b.received = 0;
        } else {
            polls = polls.saturating_add(1);
        }
        let _ = a.links.send(first, b"hello again");
        a.poll();
        b.poll();
    }
    assert!(!a.links.is_connected(second) && a.links.is_connected(first));
    assert_eq!(a.links.descriptors().count(), 1);
    assert_eq!(control.let_go(), 0);
    assert!(b.received > 100, "{}", b.received);
    while !a.links.is_connected(second) {
        assert!(began.elapsed() < SOON);
        a.poll();
        b.poll();
    }
    assert_eq!(a.links.descriptors().count(), 0);
    // Reached by others, perhaps: our ports are looked at again.
    control.hold(Call::OpenDevice, 0);
    assert!(a.links.reroute(&a.node, &a.workers, first, &handle));
    a.poll();
    assert_eq!(a.links.descriptors().count(), 1);
    assert_eq!(control.let_go(), 0);
    while a.links.descriptors().count() > 0 {
        assert!(began.elapsed() < SOON);
        a.poll();
        b.poll();
    }
    // For a link that is begun too, and where something changed.
    control.hold(Call::OpenDevice, 0);
    let third = a.links.connect(&a.node, &a.workers, &handle).unwrap();
    a.links.refresh(&a.node, &a.workers).unwrap();
    a.poll();
    assert!(a.links.take_refreshed().is_none());
    assert_eq!(a.links.descriptors().count(), 2);
    assert_eq!(control.let_go(), 0);
    while !a.links.is_connected(third) {
        assert!(began.elapsed() < SOON);
        a.poll();
        b.poll();
    }
    let refreshed = loop {
        if let Some(refreshed) = a.links.take_refreshed() {
            break refreshed;
        }
        assert!(began.elapsed() < SOON);
        a.poll();
    };
    // It listens to nobody.
    assert_eq!(refreshed.unwrap(), None);
    drop((a, b));
    all_destroyed(control);
}

/// A handle that no rail of ours leads to.
fn nowhere() -> Handle {
    let elsewhere = IpPrefix::new(Ipv4Addr::new(198, 51, 100, 1).into(), 24).unwrap();
    let gid = Gid::from_ip(elsewhere.address());
    let rail = AdvertisedRail::new(elsewhere, gid, SpeedClass(7)).unwrap();
    let port = NonZeroU16::new(7000).unwrap();
    let mut handle = Handle::builder(port, InstanceId::new(1).unwrap());
    let _ = handle.push(&rail);
    handle.finish().unwrap()
}

/// A link to a peer that no rail reaches ends as unreachable once our ports were looked at.
pub(crate) fn a_link_to_nowhere(control: Control) {
    control.heal();
    let mut a = Side::new(SOON);
    let handle = nowhere();
    control.hold(Call::OpenDevice, 0);
    let link = a.links.connect(&a.node, &a.workers, &handle).unwrap();
    a.poll();
    assert_eq!(a.links.ids().count(), 1);
    assert_eq!(a.links.not_connected(link).count(), 0);
    assert_eq!(control.let_go(), 0);
    let (began, mut over) = (Instant::now(), None);
    while over.is_none() {
        assert!(began.elapsed() < SOON);
        let each = |id, event: LinkEvent<'_>| {
            if let LinkEvent::Session(SessionEvent::Final { reason }) = event {
                over = Some((id, reason));
            }
        };
        a.links.poll(&a.node, &mut a.workers, each).unwrap();
    }
    assert_eq!(over, Some((link, FinalReason::Unreachable)));
    let mut reasons = a.links.not_connected(link);
    let reason = reasons.next().unwrap();
    assert!(reason.between.is_none());
    assert!(matches!(reason.why, ConnectError::NoRoute(_)), "{reason}");
    assert!(reasons.next().is_none());
    drop(reasons);
    drop(a);
    all_destroyed(control);
}

/// A look of ours that fails says nothing of the peer: it is done again, and what that finds is gone by.
pub(crate) fn a_link_whose_first_look_fails(control: Control) {
    control.heal();
    let mut a = Side::new(SOON);
    control.fail(Call::GetDeviceList, 0, libc::EMFILE);
    let link = a.links.connect(&a.node, &a.workers, &nowhere()).unwrap();
    let (began, mut over, mut failure) = (Instant::now(), None, None);
    while over.is_none() {
        assert!(began.elapsed() < SOON);
        let each = |_, event: LinkEvent<'_>| {
            if let LinkEvent::Session(SessionEvent::Final { reason }) = event {
                over = Some(reason);
            }
        };
        a.links.poll(&a.node, &mut a.workers, each).unwrap();
        let mut reasons = a.links.not_connected(link);
        if let Some(ConnectError::Provider(error)) = reasons.next().map(|reason| &reason.why) {
            failure = Some(error.errno);
        }
    }
    assert_eq!(
        (over, failure),
        (Some(FinalReason::Unreachable), Some(libc::EMFILE))
    );
    let why = a.links.not_connected(link).next().map(|reason| &reason.why);
    assert!(matches!(why, Some(ConnectError::NoRoute(_))), "{why:?}");
    drop(a);
    all_destroyed(control);
}

/// Changes that follow each other faster than ports are looked at: what was seen is gone by all the same.
pub(crate) fn changes_faster_than_looks(control: Control) {
    control.heal();
    let mut a = Side::new(SOON);
    // Each takes longer than to call again.
    let (began, mut seen) = (Instant::now(), 0_u32);
    while seen < 3 {
        assert!(began.elapsed() < SOON);
        control.hold(Call::OpenDevice, 0);
        a.links.refresh(&a.node, &a.workers).unwrap();
        a.poll();
        seen = seen.saturating_add(u32::from(a.links.take_refreshed().is_some()));
        a.links.refresh(&a.node, &a.workers).unwrap();
        assert_eq!(control.let_go(), 0);
        std::thread::sleep(Duration::from_millis(1));
    }
    // Then there is one more, and no other.
    let mut is_reported = false;
    while a.links.descriptors().count() > 0 {
        assert!(began.elapsed() < SOON);
        a.poll();
        is_reported |= a
            .links
            .take_refreshed()
            .is_some_and(|refreshed| refreshed.is_ok());
    }
    assert!(is_reported);
    drop(a);
    all_destroyed(control);
}

/// A rail's time to attach is its peer's: what our ports take to be looked at is not of it.
pub(crate) fn looked_at_for_longer_than_a_rail_has(control: Control) {
    control.heal();
    let (mut a, mut b) = (Side::new(HELD / 2), Side::new(SOON));
    let any = "[::]:0".parse().unwrap();
    let handle: Handle = b.links.listen(&b.node, &b.workers, any).unwrap();
    let before = control.calls(Call::OpenDevice);
    // Behind the look that the link is begun with.
    control.hold(Call::OpenDevice, 1);
    let link = a.links.connect(&a.node, &a.workers, &handle).unwrap();
    let began = Instant::now();
    while began.elapsed() < HELD {
        a.poll();
        b.poll();
        // It is not given up meanwhile, and begun again.
        assert_eq!(a.links.descriptors().count(), 1);
    }
    let looks = control.calls(Call::OpenDevice).wrapping_sub(before);
    assert_eq!(control.let_go(), 0);
    while !a.links.is_connected(link) {
        assert!(began.elapsed() < SOON);
        a.poll();
        b.poll();
    }
    assert_eq!((looks, b.links.handshakes().begun), (2, 1));
    drop((a, b));
    all_destroyed(control);
}
