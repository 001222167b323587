//! Requests of ranges of windows, and several registrations of one memory (S8, S9, S17, S26).

use doorbell_core::QpState;
use doorbell_core::provider::{
    Operation, PostFlags, ProtectionDomain, Provider, RemoteAccess, RemoteAddress, Window, WindowConfig,
    WindowRange,
};

use super::refused::end_of_posted;
use super::table;
use crate::notes::{either, list, statuses};
use crate::side::{Side, connected};
use crate::{Notes, Rig, Trouble};

table! {
    8 s08_a_range_of_another_domain_is_not_sent
        "a gather element that may not be used, be it of a window: LOC_PROT_ERR, ERR"
        => "sent: LOC_PROT_ERR; state: ERR; peer: nothing";
    8 s08_a_window_stays_registered_until_its_requests_are_done
        "memory that a request names may be deregistered once the request is done"
        => "before: nothing; after: SUCCESS; received: of a window that is gone; held: until its request was retired";
    9 s09_each_registration_of_a_memory_has_a_key_of_its_own
        "a key ends with its registration, and other keys of the same memory go on"
        => "by one key: SUCCESS; by the other: SUCCESS; seen: both; when one is gone: SUCCESS; by that one: REM_ACCESS_ERR, ERR ERR; seen: by the other alone";
    9 s09_each_registration_of_a_memory_has_rights_of_its_own
        "REMOTE_WRITE and REMOTE_READ are those of the registration, not of the memory"
        => "READ by one: SUCCESS; WRITE by it: REM_ACCESS_ERR, ERR ERR";
    9 s09_a_registration_of_a_part_has_its_bounds
        "an access is checked against the bounds of the registration, not of the memory"
        => "within: SUCCESS; seen: where the part lies; behind its end: REM_ACCESS_ERR, ERR ERR";
    17 s17_a_message_gathers_ranges_of_windows
        "elements are gathered in order, from wherever they lie"
        => "sent: SUCCESS SUCCESS; received: two of one/two";
    17 s17_write_and_read_use_ranges_of_windows
        "elements are gathered and scattered in order, and nothing beside them is touched"
        => "sent: SUCCESS SUCCESS SUCCESS; given back: 5 without bytes; written: as it lay; read: as it lay; words: 41 42";
    26 s26_memory_that_no_peer_may_reach_is_read_into
        "LOCAL_WRITE alone is enough for what a READ brings"
        => "sent: SUCCESS; read: .brought.; by a peer: REM_ACCESS_ERR, ERR ERR";
    26 s26_memory_is_paged_on_demand
        "pages of memory that is registered with ON_DEMAND come into place as requests need them, and it is used like any other"
        => "made: with no page in place; sent: SUCCESS; received: zeros; READ, WRITE, READ: SUCCESS SUCCESS SUCCESS; there: as it went; back: as it went; atomic: SUCCESS, 41 42";
    26 s26_bytes_of_paged_memory_lie_where_they_are_named
        "a range of memory that is paged on demand has any offset in its pages, and any number of them"
        => "made: with no page in place; within a page: SUCCESS, in their place; across a border: SUCCESS, in their place; read: SUCCESS, its bytes";
}

/// Bytes of a window that is paged on demand.
const PAGED_BYTES: usize = 1 << 16;

/// A window of this side's domain, with these bytes at its beginning.
fn window<P: Provider>(side: &Side<P>, remote: RemoteAccess, bytes: &[u8]) -> Result<P::Window, Trouble> {
    let window = side.domain.window(&WindowConfig::new(4096, remote))?;
    window.copy_in(0, bytes)?;
    Ok(window)
}

const fn range<W>(window: &W, offset: usize, bytes: u32) -> WindowRange<'_, W> {
    WindowRange {
        window,
        offset,
        bytes,
    }
}

/// A place in a window, or behind its end, for a peer.
fn place<W: Window>(window: &W, offset: u64) -> RemoteAddress {
    let remote = window.remote();
    RemoteAddress::new(remote.address().wrapping_add(offset), remote.rkey())
}

/// The start of a window, for a peer.
fn start<W: Window>(window: &W) -> RemoteAddress {
    place(window, 0)
}

/// Bytes of a window, as text.
fn text<W: Window>(window: &W, offset: usize, bytes: usize) -> Result<String, Trouble> {
    let mut copy = vec![0; bytes];
    window.copy_out(offset, &mut copy)?;
    Ok(String::from_utf8_lossy(&copy).replace('\0', "."))
}

fn s08_a_range_of_another_domain_is_not_sent<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    use doorbell_core::provider::Context as _;
    let [mut near, mut far] = connected(rig)?;
    far.post_receives(1)?;
    let other = near.context.protection_domain()?;
    let window = other.window(&WindowConfig::new(64, RemoteAccess::ALL))?;
    near.post_ranges(Operation::Send, [range(&window, 0, 8)], PostFlags::empty())?;
    notes.put("sent", near.send_ends(1)?);
    notes.put("state", near.state_after(QpState::Error)?);
    notes.put("peer", far.stray_ends()?);
    Ok(())
}

fn s08_a_window_stays_registered_until_its_requests_are_done<R: Rig>(
    rig: &R,
    notes: &mut Notes,
) -> Result<(), Trouble> {
    let [mut near, mut far] = connected(rig)?;
    let window = window(&near, RemoteAccess::NONE, b"of a window that is gone")?;
    // It waits for a receive.
    let ranges = [range(&window, 0, 12), range(&window, 12, 12)];
    near.post_ranges(Operation::Send, ranges, PostFlags::SIGNALED)?;
    let other = near
        .domain
        .window_of(&window, 0..window.bytes(), RemoteAccess::NONE)?;
    let was_in_flight = window.is_in_flight() && !other.is_in_flight();
    drop(window);
    notes.put("before", near.stray_ends()?);
    far.post_receives(1)?;
    notes.put("after", near.send_ends(1)?);
    notes.put("received", list(far.received(1)?.iter().map(|came| came.text())));
    near.post_ranges(Operation::Send, [range(&other, 0, 1)], PostFlags::SIGNALED)?;
    let is_held = other.is_in_flight();
    far.post_receives(1)?;
    near.sent(1)?;
    let is_so = was_in_flight && is_held && !other.is_in_flight();
    notes.put(
        "held",
        either(is_so, "until its request was retired", "for another time"),
    );
    Ok(())
}

fn s09_each_registration_of_a_memory_has_a_key_of_its_own<R: Rig>(
    rig: &R,
    notes: &mut Notes,
) -> Result<(), Trouble> {
    let [mut near, far] = connected(rig)?;
    let grant = far
        .domain
        .window_of(&far.window, 0..far.window.bytes(), RemoteAccess::ALL)?;
    let (by_window, by_grant) = (far.at(0)?, start(&grant));
    near.post(Operation::Write(by_window), b"one")?;
    notes.put("by one key", near.send_ends(1)?);
    let seen = text(&grant, 0, 4)? == "one.";
    near.post(Operation::Write(by_grant), b"two")?;
    notes.put("by the other", near.send_ends(1)?);
    let seen = seen && far.window_bytes(0, 4)? == b"two\0";
    notes.put("seen", either(seen, "both", "not both"));
    drop(grant);
    near.post(Operation::Write(by_window), b"on.")?;
    notes.put("when one is gone", near.send_ends(1)?);
    near.post(Operation::Write(by_grant), b"off")?;
    notes.put("by that one", end_of_posted(&mut near, &far)?);
    let seen = far.window_bytes(0, 4)? == b"on.\0";
    notes.put(
        "seen",
        either(seen, "by the other alone", "by the one that is gone"),
    );
    Ok(())
}

fn s09_each_registration_of_a_memory_has_rights_of_its_own<R: Rig>(
    rig: &R,
    notes: &mut Notes,
) -> Result<(), Trouble> {
    let [mut near, far] = connected(rig)?;
    // The window itself grants everything.
    let grant = far
        .domain
        .window_of(&far.window, 0..far.window.bytes(), RemoteAccess::READ)?;
    near.post(Operation::Read(start(&grant)), &[0; 8])?;
    notes.put("READ by one", near.send_ends(1)?);
    near.post(Operation::Write(start(&grant)), &[9; 8])?;
    notes.put("WRITE by it", end_of_posted(&mut near, &far)?);
    Ok(())
}

fn s09_a_registration_of_a_part_has_its_bounds<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [mut near, far] = connected(rig)?;
    let part = far.domain.window_of(&far.window, 64..72, RemoteAccess::WRITE)?;
    let at = |offset| place(&part, offset);
    near.post(Operation::Write(at(4)), b"in")?;
    notes.put("within", near.send_ends(1)?);
    let seen = far.window_bytes(68, 2)? == b"in" && text(&part, 4, 2)? == "in";
    notes.put("seen", either(seen, "where the part lies", "elsewhere"));
    near.post(Operation::Write(at(7)), b"on")?;
    notes.put("behind its end", end_of_posted(&mut near, &far)?);
    Ok(())
}

fn s17_a_message_gathers_ranges_of_windows<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [mut near, mut far] = connected(rig)?;
    let one = window(&near, RemoteAccess::NONE, b"one of two")?;
    let two = window(&near, RemoteAccess::ALL, b"/two")?;
    far.post_receives(2)?;
    let ranges = [range(&one, 7, 3), range(&one, 3, 3)];
    near.post_ranges(Operation::Send, ranges, PostFlags::SIGNALED)?;
    let ranges = [range(&one, 0, 3), range(&two, 0, 4)];
    near.post_ranges(Operation::Send, ranges, PostFlags::SIGNALED)?;
    notes.put("sent", near.send_ends(2)?);
    let received = far.received(2)?;
    notes.put("received", list(received.iter().map(|came| came.text())));
    Ok(())
}

fn s17_write_and_read_use_ranges_of_windows<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [mut near, far] = connected(rig)?;
    // Longer than a packet, in two parts whose offsets are aligned to nothing.
    let long: Vec<u8> = (0..=u8::MAX).cycle().take(3001).collect();
    let local = window(&near, RemoteAccess::NONE, &[])?;
    local.copy_in(17, &long)?;
    let ranges = [range(&local, 17, 2000), range(&local, 2017, 1001)];
    near.post_ranges(Operation::Write(far.at(5)?), ranges, PostFlags::SIGNALED)?;
    let mut sent = near.sent(1)?;
    let is_so = far.window_bytes(4, 3003)? == [&[0], &long[..], &[0]].concat();
    let back = window(&near, RemoteAccess::NONE, &[])?;
    let ranges = [range(&back, 1, 3), range(&back, 9, 2998)];
    near.post_ranges(Operation::Read(far.at(5)?), ranges, PostFlags::SIGNALED)?;
    sent.extend(near.sent(1)?);
    let mut read = vec![0; 3008];
    back.copy_out(0, &mut read)?;
    let (first, rest) = long.split_at(3);
    let is_back = read == [&[0], first, &[0; 5], rest, &[0]].concat();
    far.window.store_u64(0, 41)?;
    let add = Operation::FetchAndAdd {
        remote: far.at(0)?,
        add: 1,
    };
    near.post_ranges(add, [range(&back, 64, 8)], PostFlags::SIGNALED)?;
    sent.extend(near.sent(1)?);
    notes.put("sent", statuses(sent.iter().map(|sent| sent.retired.status)));
    let given_back: Vec<_> = sent.iter().flat_map(|sent| &sent.slots).collect();
    let is_empty = given_back.iter().all(|slot| slot.is_empty());
    let count = given_back.len();
    notes.put(
        "given back",
        format_args!("{count} {}", either(is_empty, "without bytes", "with bytes")),
    );
    notes.put("written", either(is_so, "as it lay", "otherwise"));
    notes.put("read", either(is_back, "as it lay", "otherwise"));
    let words = [back.load_u64(64)?, far.window.load_u64(0)?];
    notes.put("words", list(words));
    Ok(())
}

fn s26_memory_that_no_peer_may_reach_is_read_into<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [mut near, far] = connected(rig)?;
    far.window.copy_in(0, b"brought")?;
    let local = window(&near, RemoteAccess::NONE, &[])?;
    let ranges = [range(&local, 3, 7)];
    near.post_ranges(Operation::Read(far.at(0)?), ranges, PostFlags::SIGNALED)?;
    notes.put("sent", near.send_ends(1)?);
    notes.put("read", text(&local, 2, 9)?);
    // By a peer, to memory of the same kind.
    let closed = window(&far, RemoteAccess::NONE, b"closed")?;
    near.post(Operation::Read(start(&closed)), &[0; 6])?;
    notes.put("by a peer", end_of_posted(&mut near, &far)?);
    Ok(())
}

/// Two windows that are paged on demand, one of each side, and whether no page of the far one is in place yet. `None` if a device has
/// none, which is noted.
fn paged<R: Rig>(
    [near, far]: [&Side<R::P>; 2],
    notes: &mut Notes,
) -> Option<[<R::P as Provider>::Window; 2]> {
    let mut config = WindowConfig::new(PAGED_BYTES, RemoteAccess::ALL);
    config.placement.on_demand = true;
    match (near.domain.window(&config), far.domain.window(&config)) {
        (Ok(local), Ok(distant)) => {
            let seen = distant.placement().seen;
            let is_empty = seen.is_none_or(|seen| seen.resident_bytes == 0);
            notes.put(
                "made",
                either(is_empty, "with no page in place", "with pages in place"),
            );
            Some([local, distant])
        }
        (Err(error), _) | (_, Err(error)) => {
            notes.put("made", error);
            None
        }
    }
}

fn s26_memory_is_paged_on_demand<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [first, second, third, fourth] = [4096, 8192, 12_288, 16_384_usize];
    let [mut near, mut far] = connected(rig)?;
    let Some([local, distant]) = paged::<R>([&near, &far], notes) else {
        return Ok(());
    };
    far.post_receives(1)?;
    near.post_ranges(Operation::Send, [range(&local, first, 64)], PostFlags::SIGNALED)?;
    notes.put("sent", near.send_ends(1)?);
    let received = far.received(1)?;
    let is_zero = received.iter().all(|came| came.payload == [0; 64]);
    notes.put("received", either(is_zero, "zeros", "something else"));
    // A page that was first read is there to be read alone, until it is written.
    let page = place(&distant, second as u64);
    let full: Vec<u8> = (1..=251).cycle().take(4096).collect();
    let [one, two] = [range(&local, second, 1024), range(&local, third, 1024)];
    let mut ends = Vec::new();
    near.post_ranges(Operation::Read(page), [one], PostFlags::SIGNALED)?;
    ends.extend(near.sent(1)?);
    local.copy_in(second, &full)?;
    near.post_ranges(Operation::Write(page), [one], PostFlags::SIGNALED)?;
    ends.extend(near.sent(1)?);
    near.post_ranges(Operation::Read(page), [two], PostFlags::SIGNALED)?;
    ends.extend(near.sent(1)?);
    notes.put(
        "READ, WRITE, READ",
        statuses(ends.iter().map(|sent| sent.retired.status)),
    );
    let (mut there, mut back) = (vec![0; 1024], vec![0; 1024]);
    distant.copy_out(second, &mut there)?;
    local.copy_out(third, &mut back)?;
    let sent = full.get(..1024).unwrap_or_default();
    notes.put("there", either(there == sent, "as it went", "otherwise"));
    notes.put("back", either(back == sent, "as it went", "otherwise"));
    distant.store_u64(0, 41)?;
    let add = Operation::FetchAndAdd {
        remote: start(&distant),
        add: 1,
    };
    near.post_ranges(add, [range(&local, fourth, 8)], PostFlags::SIGNALED)?;
    let status = near.send_ends(1)?;
    let words = list([local.load_u64(fourth)?, distant.load_u64(0)?]);
    notes.put("atomic", format_args!("{status}, {words}"));
    Ok(())
}

fn s26_bytes_of_paged_memory_lie_where_they_are_named<R: Rig>(
    rig: &R,
    notes: &mut Notes,
) -> Result<(), Trouble> {
    let [mut near, far] = connected(rig)?;
    let Some([local, distant]) = paged::<R>([&near, &far], notes) else {
        return Ok(());
    };
    let at = |offset| place(&distant, offset);
    // Within a page and not at its beginning, out of memory that does not page; then across the border of two.
    for (name, offset) in [("within a page", 100), ("across a border", 3 * 4096 - 50)] {
        near.post(Operation::Write(at(offset)), &[7; 100])?;
        let status = near.send_ends(1)?;
        let mut there = vec![0; PAGED_BYTES];
        distant.copy_out(0, &mut there)?;
        let place = there.iter().position(|byte| *byte == 7);
        let count = there.iter().filter(|byte| **byte == 7).count();
        distant.copy_in(0, &[0; PAGED_BYTES])?;
        let offset = usize::try_from(offset).unwrap_or_default();
        let is_so = (place, count) == (Some(offset), 100);
        let place = place.map_or_else(|| "nowhere".to_owned(), |place| format!("{count} at {place}"));
        let place = if is_so { "in their place".to_owned() } else { place };
        notes.put(name, format_args!("{status}, {place}"));
    }
    // READ from a place within a page.
    local.copy_in(0, &[1; 4096])?;
    distant.copy_in(0, &[2; 100])?;
    distant.copy_in(100, &[3; 100])?;
    near.post_ranges(
        Operation::Read(at(100)),
        [range(&local, 200, 100)],
        PostFlags::SIGNALED,
    )?;
    let status = near.send_ends(1)?;
    let mut came = vec![0; 100];
    local.copy_out(200, &mut came)?;
    let mut start = vec![0; 100];
    local.copy_out(0, &mut start)?;
    let is_so = came == [3; 100] && start == [1; 100];
    let what = format!("{:?} {:?}", came.first(), start.first());
    let what = if is_so { "its bytes".to_owned() } else { what };
    notes.put("read", format_args!("{status}, {what}"));
    Ok(())
}
