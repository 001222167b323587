//! Unreliable datagrams: what stands in front of them, and which are lost without a word (S31).

use doorbell_core::provider::{DatagramQueuePair, PostFlags};
use doorbell_core::{Qkey, QpState};

use super::table;
use crate::notes::{asked, either, list, states, statuses};
use crate::office::{CLASS, HOPS, KEY, Office, PSN, ready};
use crate::{Notes, Rig, Trouble};

table! {
    31 s31_the_route_comes_in_front_of_a_datagram
        "the first 40 bytes of a receive are the route header; the datagram begins behind it"
        => "sent: SUCCESS; received: hello of 5 bytes; from: its queue pair, its GID; to: our GID; class: 0x28; hops: 17";
    31 s31_what_came_can_be_answered
        "the header and the number of its queue pair lead back to the sender"
        => "asked: SUCCESS, received question; answered: SUCCESS, received answer";
    31 s31_a_datagram_gathers_and_goes_inline
        "elements are gathered in order; inline bytes are taken when it is posted; only what is signaled completes"
        => "sent: SUCCESS SUCCESS, of 3; received: onetwo unsignaled inline";
    31 s31_a_datagram_longer_than_the_mtu_is_not_sent
        "it completes in success, and no packet leaves"
        => "of the MTU: SUCCESS, received whole; of a byte more: SUCCESS, received nothing; state: RTS";
    31 s31_a_wrong_key_is_dropped
        "what does not bring the key of the queue pair consumes nothing"
        => "with another: SUCCESS, received nothing; receives left: 1; with the key: SUCCESS, received heard";
    31 s31_without_a_receive_a_datagram_is_lost
        "nobody waits for a receive"
        => "without: SUCCESS, received nothing; posted then: nothing; the next: SUCCESS, received second";
    31 s31_a_datagram_longer_than_the_receive_is_dropped
        "the receive stays for the next"
        => "too long: SUCCESS, received nothing; receives left: 1; the next: SUCCESS, received fits; state: RTS";
    31 s31_nobody_hears_what_goes_to_no_queue_pair
        "a datagram for a number that nobody has is lost"
        => "sent: SUCCESS; state: RTS";
    31 s31_in_error_all_receives_are_flushed
        "they complete in WR_FLUSH_ERR, and hold nothing"
        => "received: WR_FLUSH_ERR WR_FLUSH_ERR; headers: 0; state: ERR";
    31 s31_a_datagram_queue_pair_has_no_peer
        "INIT needs a key, RTR nothing, RTS a PSN"
        => "a receive in RESET: refused; states: RESET INIT RTR RTS; a datagram in RTR: refused; twice to INIT, RTR, RTS: EINVAL EINVAL EINVAL";
}

fn s31_the_route_comes_in_front_of_a_datagram<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [mut near, mut far] = ready(rig)?;
    far.post_receive()?;
    let to = near.way_to(&far)?;
    near.post(to, b"hello")?;
    notes.put("sent", near.send_ends(1)?);
    for (came, bytes) in far.received(1)? {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        notes.put(
            "received",
            format_args!("{text} of {} bytes", came.arrival.payload_bytes),
        );
        let is_its = came.source_qpn == near.control.qpn();
        let whose = either(is_its, "its queue pair", "another queue pair");
        let Some(grh) = came.grh else {
            notes.put("from", format_args!("{whose}, without a header"));
            continue;
        };
        let gid = either(grh.source == near.end.gid, "its GID", "another GID");
        notes.put("from", format_args!("{whose}, {gid}"));
        notes.put(
            "to",
            either(grh.destination == far.end.gid, "our GID", "another GID"),
        );
        notes.put("class", format_args!("{:#04x}", grh.traffic_class));
        notes.put("hops", grh.hop_limit);
    }
    Ok(())
}

fn s31_what_came_can_be_answered<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [mut near, mut far] = ready(rig)?;
    far.post_receive()?;
    let to = near.way_to(&far)?;
    near.post(to, b"question")?;
    let asked = near.send_ends(1)?;
    let came = far.received(1)?;
    let (question, bytes) = came.first().ok_or(Trouble::new("no question came"))?;
    notes.put(
        "asked",
        format_args!("{asked}, received {}", String::from_utf8_lossy(bytes)),
    );
    let route = question.grh.ok_or(Trouble::new("there is no header"))?;
    let back = far.way(route.source, question.source_qpn)?;
    near.post_receive()?;
    notes.put("answered", far.delivers(back, b"answer", &mut near)?);
    Ok(())
}

fn s31_a_datagram_gathers_and_goes_inline<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [mut near, mut far] = ready(rig)?;
    let to = near.way_to(&far)?;
    let mut texts = Vec::new();
    far.post_receive()?;
    let slots = [near.slot(b"one")?, near.slot(b"two")?];
    near.post_slots(to, slots, PostFlags::SIGNALED)?;
    texts.push(far.text()?);
    far.post_receive()?;
    let slot = near.slot(b"unsignaled")?;
    near.post_slots(to, [slot], PostFlags::empty())?;
    texts.push(far.text()?);
    far.post_receive()?;
    near.post_inline(to, b"inline")?;
    texts.push(far.text()?);
    let sent = near.sent(3)?;
    let count: u64 = sent.iter().map(doorbell_core::provider::Retired::count).sum();
    let ends = statuses(sent.iter().map(|retired| retired.status));
    notes.put("sent", format_args!("{ends}, of {count}"));
    notes.put("received", list(texts));
    Ok(())
}

fn s31_a_datagram_longer_than_the_mtu_is_not_sent<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [mut near, mut far] = ready(rig)?;
    let to = near.way_to(&far)?;
    let mtu = near.mtu_bytes()?;
    let long: Vec<u8> = (0..=u8::MAX).cycle().take(mtu.saturating_add(1)).collect();
    for (what, bytes) in [("of the MTU", mtu), ("of a byte more", long.len())] {
        far.post_receive()?;
        let message = long.get(..bytes).unwrap_or_default();
        near.post(to, message)?;
        let sent = near.send_ends(1)?;
        let received = match far.received_or_not(bytes == mtu)?.first() {
            None => "nothing",
            Some((_, came)) => either(came == message, "whole", "otherwise"),
        };
        notes.put(what, format_args!("{sent}, received {received}"));
    }
    notes.put("state", near.control.state()?);
    Ok(())
}

fn s31_a_wrong_key_is_dropped<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [mut near, mut far] = ready(rig)?;
    far.post_receive()?;
    let mut to = near.way_to(&far)?;
    to.qkey = Qkey::from_low_bits(KEY.to_u32() ^ 1);
    notes.put("with another", near.loses(to, b"unheard", &mut far)?);
    notes.put("receives left", far.receives_left());
    to.qkey = KEY;
    notes.put("with the key", near.delivers(to, b"heard", &mut far)?);
    Ok(())
}

fn s31_without_a_receive_a_datagram_is_lost<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [mut near, mut far] = ready(rig)?;
    let to = near.way_to(&far)?;
    notes.put("without", near.loses(to, b"first", &mut far)?);
    far.post_receive()?;
    notes.put("posted then", far.stray_ends()?);
    notes.put("the next", near.delivers(to, b"second", &mut far)?);
    Ok(())
}

fn s31_a_datagram_longer_than_the_receive_is_dropped<R: Rig>(
    rig: &R,
    notes: &mut Notes,
) -> Result<(), Trouble> {
    let [mut near, mut far] = ready(rig)?;
    let to = near.way_to(&far)?;
    let room_bytes = far.post_short_receive()?;
    let message = vec![7; room_bytes.saturating_add(1)];
    notes.put("too long", near.loses(to, &message, &mut far)?);
    notes.put("receives left", far.receives_left());
    let next = if far.control.state()? == QpState::Error {
        near.loses(to, b"fits", &mut far)?
    } else {
        near.delivers(to, b"fits", &mut far)?
    };
    notes.put("the next", next);
    notes.put("state", far.control.state()?);
    Ok(())
}

fn s31_nobody_hears_what_goes_to_no_queue_pair<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [mut near, far] = ready(rig)?;
    let to = near.way_to(&far)?;
    drop(far);
    near.post(to, b"anybody")?;
    notes.put("sent", near.send_ends(1)?);
    notes.put("state", near.control.state()?);
    Ok(())
}

fn s31_in_error_all_receives_are_flushed<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [mut near, _] = ready(rig)?;
    near.post_receive()?;
    near.post_receive()?;
    near.control.fail()?;
    let came = near.received(2)?;
    notes.put(
        "received",
        statuses(came.iter().map(|(came, _)| came.arrival.status)),
    );
    let headers = came.iter().filter(|(came, _)| came.grh.is_some()).count();
    notes.put("headers", headers);
    notes.put("state", near.control.state()?);
    Ok(())
}

fn s31_a_datagram_queue_pair_has_no_peer<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [near, _] = rig.ends()?;
    let mut near = Office::new(near, rig.patience())?;
    let refused = |outcome: Result<(), Trouble>| either(outcome.is_err(), "refused", "taken");
    notes.put("a receive in RESET", refused(near.post_receive()));
    let mut seen = vec![near.control.state()?];
    let port = near.end.port;
    near.control.initialize(port, KEY)?;
    let init = asked(near.control.initialize(port, KEY));
    seen.push(near.control.state()?);
    near.post_receive()?;
    near.control.ready_to_receive()?;
    let rtr = asked(near.control.ready_to_receive());
    seen.push(near.control.state()?);
    let itself = near.way(near.end.gid, near.control.qpn())?;
    let early = refused(near.post(itself, b"early"));
    near.control.ready_to_send(PSN)?;
    let rts = asked(near.control.ready_to_send(PSN));
    seen.push(near.control.state()?);
    notes.put("states", states(&seen));
    notes.put("a datagram in RTR", early);
    notes.put("twice to INIT, RTR, RTS", list([init, rtr, rts]));
    Ok(())
}

/// The header fields that the cases above name in words.
const _: () = assert!(CLASS == 0x28 && HOPS == 17);
