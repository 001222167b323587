//! Remains of a key in the memory of the process, once handshakes are over and it was taken out: nothing that forges.
//!
//! Alone in its program: all memory that may be written to is searched, whosever it is.

mod fabric;

use core::hint::black_box;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;

use doorbell::trust::Key;
use doorbell::{Event, KeyRing, Operation, Trust};
use doorbell_sim::Fabric;
use fabric::{connect, node_that, port, small};

/// Nothing here may be found by itself: so no pattern stands in memory as it is.
const VEIL: u8 = 0xa5;

/// SHA-256 behind the key's block for the inner and for the outer hash: the states of RFC 2104, veiled, each computed from the
/// key by hand.
const STATES: [[u32; 8]; 2] = [
    [
        0x4a93_9a1e,
        0x835d_b05f,
        0xc54a_c320,
        0x8984_a553,
        0xe4de_fedc,
        0xccbc_95dc,
        0x51f2_d420,
        0xf2cf_fa2e,
    ],
    [
        0xbc06_8c4c,
        0xf149_63a6,
        0x32ad_b47b,
        0xff66_4da0,
        0x684d_c93f,
        0xd194_84cf,
        0x6d34_69f9,
        0x943e_aa49,
    ],
];

/// The byte of the key, veiled: 38n² + 11n + 5, which is no sequence that keys may not be.
fn veiled(at: u8) -> u8 {
    at.wrapping_mul(38)
        .wrapping_add(11)
        .wrapping_mul(at)
        .wrapping_add(5)
        ^ VEIL
}

/// Sixteen bytes are enough to know each of them by.
fn patterns() -> Vec<(&'static str, Vec<u8>)> {
    let key = |pad: u8| (0..16).map(|at| veiled(at) ^ pad).collect();
    let state = |which: usize| {
        STATES[which][..4]
            .iter()
            .flat_map(|word| word.to_ne_bytes())
            .collect()
    };
    vec![
        ("the key", key(0)),
        ("its inner block", key(0x36)),
        ("its outer block", key(0x5c)),
        ("its inner state", state(0)),
        ("its outer state", state(1)),
    ]
}

/// The copies of it that are found in memory that may be written to.
fn found() -> Vec<&'static str> {
    let memory = File::open("/proc/self/mem").unwrap();
    let mut found = Vec::new();
    let patterns = patterns();
    let mut page = vec![0_u8; 64 << 10];
    for line in fs::read_to_string("/proc/self/maps").unwrap().lines() {
        let mut words = line.split(' ');
        let (range, rights) = (words.next().unwrap(), words.next().unwrap());
        if !rights.starts_with("rw") {
            continue;
        }
        let (from, to) = range.split_once('-').unwrap();
        let [mut at, to] = [from, to].map(|word| u64::from_str_radix(word, 16).unwrap());
        while at < to {
            let length = page.len().min((to - at) as usize);
            let Ok(read) = memory.read_at(&mut page[..length], at) else {
                // A guard page, or a device's.
                at += 4096;
                continue;
            };
            let page = &mut page[..read];
            page.iter_mut().for_each(|byte| *byte ^= VEIL);
            for (name, pattern) in &patterns {
                if page.windows(pattern.len()).any(|window| window == pattern) {
                    found.push(*name);
                }
            }
            page.fill(0);
            if at + read as u64 >= to {
                break;
            }
            // A copy across two pieces is found, too.
            at += read as u64 - 15;
        }
    }
    found.dedup();
    found
}

/// The key, made where nothing of it stays.
#[inline(never)]
fn key() -> Key {
    let mut secret = [0_u8; 32];
    (0..)
        .zip(&mut secret)
        .for_each(|(at, byte)| *byte = veiled(at) ^ VEIL);
    let key = Key::new(7, &secret).unwrap();
    secret.fill(0);
    black_box(&mut secret);
    key
}

#[test]
fn nothing_that_forges_stays() {
    assert_eq!(found(), Vec::<&str>::new(), "before there is any");
    let fabric = Fabric::new();
    let nodes =
        [("a", "simA", "127.0.0.1/24"), ("b", "simB", "127.0.0.2/24")].map(|(name, device, address)| {
            node_that(
                &fabric,
                name,
                vec![port(device, address)],
                Trust::keys(KeyRing::new(key())),
            )
        });
    let [a, b] = nodes;
    let (mut server, client) = connect((a, b), small(), small());
    let mut client = client.unwrap();
    let id = client.id();
    let sent = client
        .worker()
        .channel(id)
        .unwrap()
        .post_inline(Operation::Send, b"proven");
    sent.unwrap();
    server.until(|event| matches!(event, Event::Received { .. }).then_some(()));
    assert_eq!(
        found(),
        ["the key"],
        "the search finds what there is, and no state of a handshake that is over"
    );

    let other = || Trust::keys(KeyRing::new(fabric::key(8, "another")));
    server.node.set_trust(other());
    client.node.set_trust(other());
    assert_eq!(found(), Vec::<&str>::new(), "once it was taken out");
}
