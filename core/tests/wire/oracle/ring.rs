//! Any bytes as an invitation into a ring.

use doorbell_core::wire::{Publication, RING_INVITATION_BYTES, RingInvitation, ring_window_bytes};

use super::plain;

/// Panics where reading `bytes` as an invitation breaks a promise.
pub(crate) fn check(bytes: &[u8]) {
    let plain = plain::ring::read(bytes);
    let invitation = match RingInvitation::parse(bytes) {
        Ok(invitation) => invitation,
        Err(error) => {
            assert!(plain.is_none(), "{error}, and yet it is an invitation: {plain:?}");
            assert!(usize::from(error.offset) <= RING_INVITATION_BYTES, "{error}");
            return;
        }
    };
    let plain = plain.expect("taken, and yet it is no invitation");
    let window = invitation.window();
    assert_eq!(
        (
            window.address(),
            window.length_bytes(),
            u64::from(window.rkey().0)
        ),
        (plain.address, plain.length, plain.rkey)
    );
    let (cells, cell_bytes) = (invitation.cells(), invitation.cell_bytes());
    assert_eq!(
        (u64::from(cells), u64::from(cell_bytes)),
        (plain.cells, plain.cell_bytes)
    );
    assert_eq!(
        invitation.publication() == Publication::Immediate,
        plain.is_by_immediate
    );
    // Every cell of it, and the word behind them, has addresses within the window.
    let cells_end = plain.cells * plain.cell_bytes;
    for (offset, length) in [
        (0, plain.cell_bytes),
        (cells_end - plain.cell_bytes, plain.cell_bytes),
        (cells_end, 64),
    ] {
        let address = u128::from(plain.address) + u128::from(offset);
        let found = window.address_of(offset, length);
        assert_eq!(found.map(u128::from), Some(address));
    }
    assert_eq!(ring_window_bytes(cells, cell_bytes), Some(cells_end + 64));
    assert_eq!(invitation.to_bytes().as_slice(), bytes);
    let rebuilt = RingInvitation::new(*window, cells, cell_bytes, invitation.publication());
    assert_eq!(rebuilt.as_ref(), Some(invitation));
}
