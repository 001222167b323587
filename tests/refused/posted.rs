//! Attempts to use memory between its posting, which gives it to the device, and the completion that hands it back.

use doorbell::{Channel, Event, Lease, Message, Operation, PostFlags, Worker};

pub fn read_after_it_was_sent(channel: &mut Channel, lease: Lease) {
    channel.send_lease(lease).ok();
    lease.payload(); //~ E0382
}

pub fn written_after_it_was_posted(channel: &mut Channel, mut lease: Lease) {
    channel.post(Operation::SendWithImmediate(1), lease, PostFlags::SIGNALED).ok();
    lease.buffer_mut()[0] = 1; //~ E0382
}

pub fn written_after_it_was_staged(channel: &mut Channel, mut lease: Lease) {
    let mut batch = channel.batch();
    batch.push(Operation::Send, [lease], PostFlags::empty()).ok();
    lease.fill(b"late").ok(); //~ E0382
    batch.ring().ok();
}

pub fn read_after_its_queue_pair_is_gone(mut worker: Worker, id: doorbell::ChannelId, lease: Lease) {
    worker.channel(id).map(|channel| channel.send_lease(lease).ok());
    drop(worker);
    lease.payload(); //~ E0382
}

pub fn dropped_while_it_is_sent(channel: &mut Channel, lease: Lease) {
    channel.send_lease(lease).ok();
    drop(lease); //~ E0382
}

pub fn posted_twice(channel: &mut Channel, lease: Lease) {
    channel.send_lease(lease).ok();
    channel.send_lease(lease).ok(); //~ E0382
}

pub fn gathered_twice(channel: &mut Channel, lease: Lease) {
    let mut batch = channel.batch();
    batch.push(Operation::Send, [lease, lease], PostFlags::empty()).ok(); //~ E0382
}

pub fn bytes_kept_while_it_is_sent(channel: &mut Channel, lease: Lease) {
    let bytes = lease.payload();
    channel.send_lease(lease).ok(); //~ E0505
    assert!(bytes.is_empty());
}

pub fn buffer_kept_while_it_is_read_into(channel: &mut Channel, operation: Operation, mut lease: Lease) {
    let bytes = lease.buffer_mut();
    channel.post(operation, lease, PostFlags::empty()).ok(); //~ E0505
    bytes[0] = 1;
}

pub fn bytes_kept_of_what_is_staged(channel: &mut Channel, lease: Lease) {
    let mut batch = channel.batch();
    let bytes = lease.payload();
    batch.push(Operation::Send, [lease], PostFlags::empty()).ok(); //~ E0505
    assert!(bytes.is_empty());
}

pub fn cloned(lease: &Lease) {
    let _twin: Lease = lease.clone(); //~ E0308
}

pub fn copied(lease: &Lease) {
    let _twin = *lease; //~ E0507
}

pub fn received_bytes_kept_beyond_their_release(worker: &mut Worker) {
    worker
        .poll(|_, event| {
            if let Event::Received { message, .. } = event {
                let bytes = message.payload();
                drop(message); //~ E0505
                assert!(bytes.is_empty());
            }
        })
        .ok();
}

pub fn a_message_kept_and_read(worker: &mut Worker, kept: &mut Vec<Lease>) {
    worker
        .poll(|_, event| {
            if let Event::Received { message, .. } = event {
                kept.push(message.keep());
                message.payload(); //~ E0382
            }
        })
        .ok();
}

pub fn a_message_kept_beyond_the_callback(worker: &mut Worker, kept: &mut Vec<Message<'static>>) {
    worker
        .poll(|_, event| {
            if let Event::Received { message, .. } = event {
                kept.push(message); //~ E0521
            }
        })
        .ok();
}

pub fn an_event_kept_beyond_the_callback(worker: &mut Worker, kept: &mut Vec<Event<'static>>) {
    worker.poll(|_, event| kept.push(event)).ok(); //~ E0521
}

pub fn a_message_copied(message: &Message<'_>) {
    let _twin: Message<'_> = message.clone(); //~ E0308
}

pub fn received_bytes_kept_beyond_the_callback(worker: &mut Worker) {
    let mut kept: &[u8] = &[];
    worker
        .poll(|_, event| {
            if let Event::Received { message, .. } = event {
                kept = message.payload(); //~ E0521
            }
        })
        .ok();
    assert!(kept.is_empty());
}
