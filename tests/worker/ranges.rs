//! Requests of ranges of windows, and memory that is registered more than once.

use crate::fabric::{End, connect, node, nodes, pair_with, port};
use crate::posting::config;
use doorbell::provider::{RevokeError, Window as _};
use doorbell::worker::NotRevoked;
use doorbell::{
    Event, LocalWindow, Operation, PostFlags, RemoteAccess, RemoteAddress, SendErrorKind, Ticket,
    WindowConfig,
};
use doorbell_sim::{Fabric, Host};

const BYTES: usize = 1 << 20;

fn pair() -> (End, End) {
    pair_with(config(), config())
}

fn window(end: &mut End, remote: RemoteAccess) -> LocalWindow<Host> {
    end.worker().window(&WindowConfig::new(BYTES, remote)).unwrap()
}

fn at(window: &LocalWindow<Host>, offset: u64, bytes: u64) -> RemoteAddress {
    RemoteAddress::within(&window.remote(), offset, bytes).unwrap()
}

/// Polls until this request ended; says whether it is done.
fn ended(end: &mut End, ticket: Ticket) -> bool {
    end.until(|event| match event {
        Event::Done { through } if through >= ticket => Some(true),
        Event::Failed { ticket: failed, .. } if failed >= ticket => Some(false),
        Event::Fetched { .. } => panic!("nothing is handed out: {event:?}"),
        _ => None,
    })
}

fn bytes_of(window: &LocalWindow<Host>, offset: usize, bytes: usize) -> Vec<u8> {
    let mut copy = vec![0; bytes];
    window.copy_out(offset, &mut copy).unwrap();
    copy
}

#[test]
fn large_memory_is_written_read_and_sent_in_ranges() {
    let (mut server, mut client) = pair();
    let theirs = window(&mut server, RemoteAccess::ALL);
    let ours = window(&mut client, RemoteAccess::NONE);
    let bytes: Vec<u8> = (0..=250).cycle().take(300_000).collect();
    ours.copy_in(777, &bytes).unwrap();
    let id = client.id();
    let channel = client.worker().channel(id).unwrap();
    let ranges = [ours.range(777, 200_000), ours.range(200_777, 100_000)];
    let write = Operation::Write(at(&theirs, 3, 300_000));
    let ticket = channel.post_ranges(write, ranges, PostFlags::empty()).unwrap();
    assert!(ours.is_in_flight());
    assert!(ended(&mut client, ticket));
    assert!(!ours.is_in_flight());
    assert_eq!(bytes_of(&theirs, 3, 300_000), bytes);
    // Back, to elsewhere, and a word beside it: two requests of one doorbell.
    theirs.store_u64(400_000, 5).unwrap();
    let channel = client.worker().channel(id).unwrap();
    let mut batch = channel.batch();
    let read = Operation::Read(at(&theirs, 3, 300_000));
    batch
        .push_ranges(read, [ours.range(500_000, 300_000)], PostFlags::empty())
        .unwrap();
    let add = Operation::FetchAndAdd {
        remote: at(&theirs, 400_000, 8),
        add: 1,
    };
    let ticket = batch
        .push_ranges(add, [ours.range(0, 8)], PostFlags::empty())
        .unwrap();
    assert_eq!(batch.ring(), Ok(2));
    assert!(ended(&mut client, ticket));
    assert_eq!(bytes_of(&ours, 500_000, 300_000), bytes);
    assert_eq!((ours.load_u64(0), theirs.load_u64(400_000)), (Ok(5), Ok(6)));
    // A message.
    let channel = client.worker().channel(id).unwrap();
    let ranges = [ours.range(777, 3), ours.range(1000, 5)];
    let ticket = channel
        .post_ranges(Operation::Send, ranges, PostFlags::empty())
        .unwrap();
    assert!(ended(&mut client, ticket));
    let came = server.until(|event| match event {
        Event::Received { message, .. } => Some(message.payload().to_vec()),
        _ => None,
    });
    assert_eq!(came, [&bytes[..3], &bytes[223..228]].concat());
    ours.revoke().unwrap();
}

#[test]
fn a_window_that_is_dropped_under_way_is_still_sent_from() {
    let (mut server, mut client) = pair();
    let theirs = window(&mut server, RemoteAccess::WRITE);
    let ours = window(&mut client, RemoteAccess::NONE);
    ours.copy_in(0, b"still there").unwrap();
    let id = client.id();
    let post = |client: &mut End, window: &LocalWindow<Host>| {
        let write = Operation::Write(at(&theirs, 0, 11));
        let channel = client.worker().channel(id).unwrap();
        channel
            .post_ranges(write, [window.range(0, 11)], PostFlags::empty())
            .unwrap()
    };
    post(&mut client, &ours);
    // Its right is not taken away as long as the request is under way.
    let NotRevoked { window: ours, error } = ours.revoke().unwrap_err();
    assert_eq!(error, RevokeError::InFlight);
    let ticket = post(&mut client, &ours);
    drop(ours);
    assert!(ended(&mut client, ticket));
    assert_eq!(bytes_of(&theirs, 0, 11), b"still there");
}

#[test]
fn requests_of_ranges_that_fail_let_go_of_their_windows() {
    let (mut server, mut client) = pair();
    let theirs = window(&mut server, RemoteAccess::WRITE);
    let ours = window(&mut client, RemoteAccess::ALL);
    let gone = at(&theirs, 0, 8);
    theirs.revoke().unwrap();
    let id = client.id();
    let channel = client.worker().channel(id).unwrap();
    let mut post = || channel.post_ranges(Operation::Write(gone), [ours.range(0, 8)], PostFlags::empty());
    let (first, second) = (post().unwrap(), post().unwrap());
    assert!(!ended(&mut client, first) && !ended(&mut client, second));
    assert!(!ours.is_in_flight());
    assert!(ours.revoke().is_ok());
}

#[test]
fn a_grant_of_one_peer_ends_and_those_of_others_go_on() {
    let (mut server, mut client) = pair();
    let memory = window(&mut server, RemoteAccess::NONE);
    let grants = [(); 2].map(|()| server.worker().window_of(&memory, RemoteAccess::WRITE).unwrap());
    let [first, second] = grants.each_ref().map(|grant| at(grant, 0, 8));
    assert_ne!(first.rkey(), second.rkey());
    let id = client.id();
    let write = |client: &mut End, to, word: u64| {
        let channel = client.worker().channel(id).unwrap();
        channel
            .post_inline(Operation::Write(to), &word.to_ne_bytes())
            .unwrap()
    };
    for (to, word) in [(first, 1), (second, 2)] {
        let ticket = write(&mut client, to, word);
        assert!(ended(&mut client, ticket));
        assert_eq!(memory.load_u64(0), Ok(word));
    }
    let [first_grant, second_grant] = grants;
    first_grant.revoke().unwrap();
    let ticket = write(&mut client, second, 3);
    assert!(ended(&mut client, ticket));
    assert_eq!(second_grant.load_u64(0), Ok(3));
    let ticket = write(&mut client, first, 4);
    assert!(!ended(&mut client, ticket), "its right was taken away");
    assert_eq!(memory.load_u64(0), Ok(3));
}

#[test]
fn a_device_that_refuses_leaves_the_window_with_its_owner_and_its_peers() {
    const EBUSY: i32 = 16;
    let fabric = Fabric::new();
    let (mut server, client) = connect(nodes(&fabric).into(), config(), config());
    let mut client = client.unwrap();
    let memory = window(&mut server, RemoteAccess::WRITE);
    let to = at(&memory, 0, 8);
    let id = client.id();
    let write = |client: &mut End, word: u64| {
        let channel = client.worker().channel(id).unwrap();
        let ticket = channel
            .post_inline(Operation::Write(to), &word.to_ne_bytes())
            .unwrap();
        ended(client, ticket)
    };
    fabric.follow(&"fail 1st deregistration of a with 16".parse().unwrap());
    let NotRevoked { window, error } = memory.revoke().unwrap_err();
    assert!(matches!(error, RevokeError::Provider(error) if error.errno == EBUSY));
    assert!(write(&mut client, 1), "the right stands");
    assert_eq!(window.load_u64(0), Ok(1));
    // The next call of the device succeeds.
    window.revoke().unwrap();
    assert!(!write(&mut client, 2), "its right was taken away");
}

#[test]
fn one_memory_is_reached_through_two_devices() {
    let fabric = Fabric::new();
    let ports = vec![port("simA1", "127.0.1.1/24"), port("simA2", "127.0.0.1/24")];
    let a = node(&fabric, "a", ports);
    // On the subnet of the second device alone.
    let b = node(&fabric, "b", vec![port("simB", "127.0.0.2/24")]);
    let (mut server, client) = connect((a, b), config(), config());
    let mut client = client.unwrap();
    let used = server.at.worker;
    assert_eq!(server.workers[used].device(), "simA2");
    let other = server
        .workers
        .iter()
        .find(|worker| worker.device() == "simA1")
        .unwrap();
    let config = WindowConfig::new(BYTES, RemoteAccess::ALL);
    let first = other.window(&config).unwrap();
    let second = server.workers[used].window_of(&first, RemoteAccess::ALL).unwrap();
    let id = client.id();
    let write = |client: &mut End, window: &LocalWindow<Host>, word: u64| {
        let channel = client.worker().channel(id).unwrap();
        let ticket = channel
            .post_inline(Operation::Write(at(window, 8, 8)), &word.to_ne_bytes())
            .unwrap();
        ended(client, ticket)
    };
    assert!(write(&mut client, &second, 7));
    assert_eq!((first.load_u64(8), second.load_u64(8)), (Ok(7), Ok(7)));
    // The Worker of the second device posts it, too, by its own registration alone.
    first.copy_in(0, b"by both").unwrap();
    let server_id = server.id();
    let channel = server.worker().channel(server_id).unwrap();
    let refused = channel.post_ranges(Operation::Send, [first.range(0, 7)], PostFlags::empty());
    assert!(matches!(refused, Err(SendErrorKind::Refused(_))), "{refused:?}");
    channel
        .post_ranges(Operation::Send, [second.range(0, 7)], PostFlags::empty())
        .unwrap();
    let came = client.until(|event| match event {
        Event::Received { message, .. } => Some(message.payload().to_vec()),
        _ => None,
    });
    assert_eq!(came, b"by both");
    // The key of a device opens nothing on another.
    assert!(!write(&mut client, &first, 9));
    assert_eq!(first.load_u64(8), Ok(7));
}

#[test]
fn memory_of_another_host_is_not_registered() {
    let (mut server, mut client) = pair();
    let theirs = window(&mut server, RemoteAccess::ALL);
    let refused = client.worker().window_of(&theirs, RemoteAccess::ALL);
    assert_eq!(refused.unwrap_err().errno, 22);
}
