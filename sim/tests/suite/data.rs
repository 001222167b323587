//! Data: what a request may carry, and what is checked before anything is sent.

use doorbell_core::provider::{Operation, PostFlags, SendBatch, SendQueue, Window};
use doorbell_core::{Mtu, QpState, WcStatus};

use super::{Rig, USUAL, WINDOW_BYTES, Wish, connected, connected_as};

pub(crate) fn inline_bytes_and_empty_messages<R: Rig>(rig: &R) {
    let [mut near, mut far] = connected(rig);
    far.post_receives(3);
    let text = *b"inline";
    let mut batch = near.send.stage();
    batch
        .push_inline(Operation::Send, &text, PostFlags::empty())
        .unwrap();
    batch
        .push_inline(Operation::Write(far.at(0)), &text, PostFlags::empty())
        .unwrap();
    batch
        .push(Operation::Send, [], PostFlags::empty())
        .map_err(|refused| refused.reason)
        .unwrap();
    batch.signal_last();
    assert_eq!(batch.ring(), Ok(3));
    let slot = near.slot(b"mine");
    near.post_slots(Operation::Send, [slot], PostFlags::INLINE | PostFlags::SIGNALED);
    let sent = near.sent(2);
    assert_eq!((sent[0].retired.count(), sent[1].retired.count()), (3, 1));
    assert_eq!(sent[1].slots[0].1, b"mine");
    let payloads: Vec<_> = far
        .received(3)
        .into_iter()
        .map(|received| received.payload)
        .collect();
    assert_eq!(payloads, [&b"inline"[..], b"", b"mine"]);
    assert_eq!(far.window_bytes(0, 6), text);
}

pub(crate) fn windows_are_checked_locally<R: Rig>(rig: &R) {
    let [near, _far] = connected(rig);
    let window = &near.window;
    assert_eq!(window.bytes(), WINDOW_BYTES);
    window.copy_in(WINDOW_BYTES - 8, &7_u64.to_ne_bytes()).unwrap();
    assert_eq!(window.load_u64(WINDOW_BYTES - 8), Ok(7));
    assert!(window.load_u64(WINDOW_BYTES - 4).is_err());
    assert!(window.load_u64(4).is_err(), "not aligned");
    assert!(window.load_u8(WINDOW_BYTES).is_err());
    assert!(window.copy_out(usize::MAX, &mut [0; 2]).is_err());
    assert!(window.copy_in(WINDOW_BYTES, &[]).is_ok());
    assert_eq!(window.store_u64(8, 40), Ok(()));
    assert_eq!(
        window.compare_exchange_u64(8, 41, 1),
        Ok(40),
        "another word: nothing is replaced"
    );
    assert_eq!(window.compare_exchange_u64(8, 40, 2), Ok(40));
    assert_eq!(window.load_u64(8), Ok(2));
    assert!(window.store_u64(WINDOW_BYTES - 4, 0).is_err());
    assert!(window.compare_exchange_u64(4, 0, 0).is_err(), "not aligned");
    assert_ne!(near.window.remote().rkey().0, 0);
}

pub(crate) fn unequal_path_mtus_fail_long_messages<R: Rig>(rig: &R) {
    for (ours, theirs) in [(Mtu::B256, Mtu::B1024), (Mtu::B1024, Mtu::B256)] {
        let wishes = [
            Wish {
                path_mtu: ours,
                ..USUAL
            },
            Wish {
                path_mtu: theirs,
                ..USUAL
            },
        ];
        let [mut near, far] = connected_as(rig, wishes);
        near.post(Operation::Write(far.at(0)), &[1; 256]);
        assert!(near.status().is_success(), "one packet either way");
        let slots = [near.slot(&[1; 256]), near.slot(b"x")];
        near.post_slots(Operation::Write(far.at(0)), slots, PostFlags::SIGNALED);
        assert_eq!(near.status(), WcStatus::REM_INV_REQ_ERR);
        assert_eq!((near.state(), far.state()), (QpState::Error, QpState::Error));
    }
}
