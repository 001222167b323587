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
}

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

/// The start of a window, for a peer.
fn start<W: Window>(window: &W) -> RemoteAddress {
    let remote = window.remote();
    RemoteAddress::new(remote.address(), remote.rkey())
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
    let at = |offset| RemoteAddress::new(part.remote().address().wrapping_add(offset), part.remote().rkey());
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
