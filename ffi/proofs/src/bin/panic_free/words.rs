//! Operations of the data path of `core` and `hotpath` on plain words: the in-flight table, credits, and the
//! handles that peers hand out.

use core::num::NonZeroU16;

use doorbell_core::in_flight::{InFlight, Range, Request};
use doorbell_core::provider::Rejected;
use doorbell_core::wire::{AdvertisedRail, Fit, Handle, InstanceId, SpeedClass};
use doorbell_core::{Gid, IpPrefix, Ticket, WorkId, WorkKind};
use doorbell_hotpath::{Credits, Statistics};

#[cfg(feature = "panic_free")]
use no_panic::no_panic;

/// Requests of the table.
const REQUESTS: usize = 8;

type Table = InFlight<u64, [Request<u64>; REQUESTS]>;

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn stage_request(table: &mut Table, slots: [u64; 2]) -> Result<(Ticket, WorkId), [u64; 2]> {
    table.stage(slots)
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn post_requests(table: &mut Table, count: u32) {
    table.post(count);
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn unstage_requests(table: &mut Table, sum: &mut u64) {
    table.unstage(|_, slot| *sum = sum.wrapping_add(slot));
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn retire_requests(table: &mut Table, work_id: WorkId, sum: &mut u64) -> Result<Range, Rejected> {
    table.retire(work_id, |_, slot| *sum = sum.wrapping_add(slot))
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn learn(credits: &mut Credits, announced: u32) -> bool {
    credits.learn(announced)
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn count_doorbell(statistics: &Statistics, requests: u32) {
    statistics.doorbell(requests, 64, 0);
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn parse_handle(bytes: &[u8]) -> bool {
    Handle::parse(bytes).is_ok()
}

fn table_works() -> Option<bool> {
    let requests = core::array::from_fn(|_| Request::default());
    let mut table = Table::new(requests, WorkKind::Send, 1, 8, 0).ok()?;
    let (mut staged, mut back) = (0_u64, 0_u64);
    for number in 0..100_u64 {
        let (_, first) = stage_request(&mut table, [number, 1]).ok()?;
        let (_, last) = stage_request(&mut table, [number, 2]).ok()?;
        post_requests(&mut table, 2);
        stage_request(&mut table, [number, 3]).ok()?;
        unstage_requests(&mut table, &mut back);
        retire_requests(&mut table, last, &mut back).ok()?;
        if retire_requests(&mut table, first, &mut back).is_ok() {
            return Some(false);
        }
        staged = staged.wrapping_add(number.wrapping_mul(3)).wrapping_add(6);
    }
    Some(staged == back)
}

fn handle_parses() -> Option<bool> {
    let mut builder = Handle::builder(NonZeroU16::new(18_515)?, InstanceId::new(7)?);
    let address = "10.0.0.1".parse().ok()?;
    let prefix = IpPrefix::new(address, 24).ok()?;
    let rail = AdvertisedRail::new(prefix, Gid::from_ip(address), SpeedClass::from_mbps(100_000)).ok()?;
    if builder.push(&rail) == Fit::LeftOut {
        return None;
    }
    let handle = builder.finish().ok()?;
    let bytes = handle.as_bytes();
    let cut = bytes.get(..bytes.len().checked_sub(1)?)?;
    Some(parse_handle(bytes) && parse_handle(handle.as_padded_bytes()) && !parse_handle(cut))
}

/// Runs all of it; says whether it did what it should.
pub(crate) fn run() -> bool {
    let mut credits = Credits::new(0, 16);
    credits.note_sent(4);
    let learns = learn(&mut credits, 20) && !learn(&mut credits, 21);
    let statistics = Statistics::default();
    for requests in [0, 1, u32::MAX] {
        count_doorbell(&statistics, requests);
    }
    table_works() == Some(true)
        && handle_parses() == Some(true)
        && learns
        && statistics.snapshot().doorbells == 3
}
