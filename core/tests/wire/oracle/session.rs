//! Any bytes as a frame of a session.

use doorbell_core::transfer::TransferRole;
use doorbell_core::wire::{
    Attach, EndFrame, Fence, FenceFrame, Grant, LandedFrame, LendFrame, OpenFrame, PlacedFrame,
    ProgressFrame, Refusal, SessionFrame, SessionHeader, TakeFrame,
};

use super::plain;

fn fence_fields(fence: &Fence) -> (u64, Vec<u64>) {
    let more = vec![u64::from(fence.rail), u64::from(fence.through.to_u32())];
    (u64::from(fence.epoch.to_u32()), more)
}

fn of_transfer(number: u32, more: &[u64]) -> Vec<u64> {
    [&[u64::from(number)], more].concat()
}

/// Panics where reading `bytes` as a frame breaks a promise.
pub(crate) fn check(bytes: &[u8]) {
    let plain = plain::session::read(bytes);
    let frame = match SessionFrame::parse(bytes) {
        Ok(frame) => frame,
        Err(error) => {
            assert!(plain.is_none(), "{error}, and yet it is a frame: {plain:?}");
            assert!(usize::from(error.offset) <= bytes.len().max(56), "{error}");
            return;
        }
    };
    let plain = plain.expect("taken, and yet it is no frame");
    let fields = |header: &SessionHeader| {
        (
            u64::from(header.epoch().to_u32()),
            header.sequence().0,
            header.expected().0,
        )
    };
    let plainly = (plain.epoch, plain.sequence, plain.acknowledgement);
    let (kind, again) = match frame {
        SessionFrame::Data(header, payload) => {
            assert_eq!(fields(header), plainly);
            assert_eq!(payload, plain.payload);
            let flags = u64::from(header.is_first()) + 2 * u64::from(header.is_last());
            assert_eq!(flags, plain.flags);
            let again = SessionHeader::data(
                header.epoch(),
                header.sequence(),
                header.expected(),
                header.is_first(),
                header.is_last(),
            );
            (1, [&again.to_bytes(), payload].concat())
        }
        SessionFrame::Acknowledgement(header) => {
            assert_eq!(fields(header), plainly);
            let again = SessionHeader::acknowledgement_only(header.epoch(), header.expected());
            (2, again.to_bytes().to_vec())
        }
        SessionFrame::Attach(said) => {
            let found = (u64::from(said.epoch.to_u32()), said.oldest.0, said.expected.0);
            assert_eq!(found, plainly);
            let more = vec![
                said.session.to_u64(),
                u64::from(said.window),
                u64::from(said.rail),
            ];
            assert_eq!(more, plain.more);
            assert_eq!(said.begins, plain.flags == 4);
            (3, Attach::new(&said).to_bytes().to_vec())
        }
        SessionFrame::Refusal(epoch, reason) => {
            assert_eq!(vec![u64::from(reason.0)], plain.more);
            assert_eq!(u64::from(epoch.to_u32()), plain.epoch);
            (4, Refusal::new(epoch, reason).to_bytes().to_vec())
        }
        SessionFrame::Farewell(header) => {
            assert_eq!(fields(header), plainly);
            let again = SessionHeader::farewell(header.epoch(), header.sequence(), header.expected());
            (5, again.to_bytes().to_vec())
        }
        SessionFrame::Moved(header, handle) => {
            let found = plain::handle::read(&bytes[24..]).unwrap();
            assert_eq!(found.length, handle.as_bytes().len());
            assert_eq!(fields(header), plainly);
            let again = SessionHeader::moved(header.epoch(), header.sequence()).to_bytes();
            (6, [&again, handle.as_bytes()].concat())
        }
        SessionFrame::Grant(granted) => {
            assert_eq!(u64::from(granted.epoch.to_u32()), plain.epoch);
            let found = granted.window.map_or([0; 4], |(window, access)| {
                let access =
                    u64::from(access.write) + 2 * u64::from(access.read) + 4 * u64::from(access.atomic);
                let rkey = u64::from(window.rkey().0);
                [access, window.address(), window.length_bytes(), rkey]
            });
            assert_eq!([&[u64::from(granted.number)], &found[..]].concat(), plain.more);
            (7, Grant::new(&granted).to_bytes().to_vec())
        }
        SessionFrame::Fence(fence) => {
            assert_eq!(fence_fields(&fence), (plain.epoch, plain.more.clone()));
            (8, FenceFrame::ask(&fence).to_bytes().to_vec())
        }
        SessionFrame::Fenced(fence) => {
            assert_eq!(fence_fields(&fence), (plain.epoch, plain.more.clone()));
            (9, FenceFrame::answer(&fence).to_bytes().to_vec())
        }
        SessionFrame::Open(open) => {
            let role = match open.role {
                TransferRole::Giver => 1,
                TransferRole::Taker => 2,
            };
            let pieces = open.pieces;
            let cut = [u64::from(pieces.piece_bytes()), pieces.bytes(), open.tag, role];
            let found = (u64::from(open.epoch.to_u32()), of_transfer(open.transfer.0, &cut));
            assert_eq!(found, (plain.epoch, plain.more.clone()));
            assert_eq!(u64::from(pieces.count()), pieces.bytes().div_ceil(cut[0]));
            (10, OpenFrame::new(&open).to_bytes().to_vec())
        }
        SessionFrame::Take(take) => {
            let window = take.window;
            let more = [window.address(), window.length_bytes(), window.rkey().0.into()];
            let found = (
                u64::from(take.epoch.to_u32()),
                of_transfer(take.transfer.0, &more),
            );
            assert_eq!(found, (plain.epoch, plain.more.clone()));
            (11, TakeFrame::new(&take).to_bytes().to_vec())
        }
        SessionFrame::Landed(landed) => {
            let more = [landed.first, landed.count, landed.question].map(u64::from);
            let found = (
                u64::from(landed.epoch.to_u32()),
                of_transfer(landed.transfer.0, &more),
            );
            assert_eq!(found, (plain.epoch, plain.more.clone()));
            (12, LandedFrame::new(&landed).to_bytes().to_vec())
        }
        SessionFrame::Progress(progress) => {
            let more = [progress.base, progress.question].map(u64::from);
            let found = (
                u64::from(progress.epoch.to_u32()),
                of_transfer(progress.transfer.0, &more),
            );
            assert_eq!(found, (plain.epoch, plain.more.clone()));
            assert_eq!(&progress.set[..], plain.payload);
            (13, ProgressFrame::new(&progress).to_bytes().to_vec())
        }
        SessionFrame::End(end) => {
            let more = [u64::from(end.reason.0), u64::from(end.is_answer)];
            let found = (u64::from(end.epoch.to_u32()), of_transfer(end.transfer.0, &more));
            assert_eq!(found, (plain.epoch, plain.more.clone()));
            (14, EndFrame::new(&end).to_bytes().to_vec())
        }
        SessionFrame::Lend(lend) => {
            let window = lend.window;
            let more = vec![window.address(), window.length_bytes(), window.rkey().0.into()];
            assert_eq!(
                (u64::from(lend.epoch.to_u32()), more),
                (plain.epoch, plain.more.clone())
            );
            (15, LendFrame::new(&lend).to_bytes().to_vec())
        }
        SessionFrame::Placed(header, placed) => {
            assert_eq!(fields(header), plainly);
            assert_eq!([placed.offset, placed.bytes].map(u64::from)[..], plain.more[..]);
            let (is_first, is_last) = (header.is_first(), header.is_last());
            assert_eq!(u64::from(is_first) + 2 * u64::from(is_last), plain.flags);
            let (epoch, sequence, expected) = (header.epoch(), header.sequence(), header.expected());
            let again = SessionHeader::placed(epoch, sequence, expected, is_first, is_last);
            (16, PlacedFrame::new(again, placed).to_bytes().to_vec())
        }
        other => panic!("{other:?}"),
    };
    assert_eq!((kind, again.as_slice()), (plain.kind, bytes));
}
