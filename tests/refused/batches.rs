//! A batch has the channel to itself, and what it refers to lives as long as it does.

use doorbell::{Channel, Lease, Operation, PostFlags};

pub fn inline_bytes_gone_before_the_doorbell(channel: &mut Channel) {
    let mut batch = channel.batch();
    {
        let bytes = [1; 8];
        batch.push_inline(Operation::Send, &bytes, PostFlags::empty()).ok(); //~ E0597
    }
    batch.ring().ok();
}

pub fn inline_bytes_changed_before_the_doorbell(channel: &mut Channel) {
    let mut bytes = [1; 8];
    let mut batch = channel.batch();
    batch.push_inline(Operation::Send, &bytes, PostFlags::empty()).ok();
    bytes[0] = 2; //~ E0506
    batch.ring().ok();
}

pub fn two_batches_at_a_time(channel: &mut Channel) {
    let one = channel.batch();
    channel.batch().ring().ok(); //~ E0499
    one.ring().ok();
}

pub fn a_message_past_a_batch(channel: &mut Channel, lease: Lease) {
    let batch = channel.batch();
    channel.send_lease(lease).ok(); //~ E0499
    batch.ring().ok();
}

pub fn the_doorbell_rung_twice(channel: &mut Channel) {
    let batch = channel.batch();
    batch.ring().ok();
    batch.ring().ok(); //~ E0382
}

pub fn a_batch_kept_beyond_its_channel<'a>(mut channel: Channel) -> Option<doorbell::Batch<'a>> {
    return Some(channel.batch()); //~ E0515
    None
}
