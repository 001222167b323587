//! A channel belongs to its Worker, and the Worker to one thread at a time.

use doorbell::{Channel, ChannelId, Event, Turn, Worker};

pub fn a_turn_kept_beyond_the_callback(worker: &mut Worker) {
    let mut kept: Option<Turn<'_>> = None;
    worker
        .poll(|turn, _| {
            kept = Some(turn); //~ E0521
        })
        .ok();
    drop(kept);
}

pub fn a_channel_kept_beyond_the_callback(worker: &mut Worker) {
    let mut kept: Option<&mut Channel> = None;
    worker
        .poll(|turn, _| {
            kept = Some(turn.channel); //~ E0521
        })
        .ok();
    drop(kept);
}

pub fn the_worker_used_in_its_own_callback(worker: &mut Worker) {
    worker.poll(|_, _| drop(worker.lease())).ok(); //~ E0500 E0501
}

pub fn a_channel_used_while_its_worker_polls(worker: &mut Worker, id: ChannelId) -> Option<()> {
    let channel = worker.channel(id)?;
    worker.poll(|_, _| {}).ok(); //~ E0499
    channel.batch().ring().ok();
    None
}

pub fn a_channel_used_after_its_worker_is_gone(mut worker: Worker, id: ChannelId) -> Option<u32> {
    let channel = worker.channel(id)?;
    drop(worker); //~ E0505
    Some(channel.room())
}

pub fn a_channel_taken_from_its_worker(worker: &mut Worker, id: ChannelId) -> Option<()> {
    let channel = worker.channel(id)?;
    let _taken: Channel = *channel; //~ E0507
    None
}

pub fn a_channel_on_another_thread_while_its_worker_polls(worker: &mut Worker, id: ChannelId) {
    std::thread::scope(|scope| {
        let channel = worker.channel(id);
        scope.spawn(move || channel.map(|channel| channel.shut()));
        worker.poll(|_, _| {}).ok(); //~ E0499
    });
}

pub fn a_channel_on_a_thread_that_may_outlive_its_worker(worker: &mut Worker, id: ChannelId) {
    std::thread::spawn(move || worker.channel(id).map(|channel| channel.room())); //~ E0521
}

pub fn a_worker_polled_by_two_threads(worker: &mut Worker) {
    std::thread::scope(|scope| {
        scope.spawn(|| worker.poll(|_, _: Event| {}));
        scope.spawn(|| worker.poll(|_, _: Event| {})); //~ E0499
    });
}

pub fn two_channels_of_a_worker_at_a_time(worker: &mut Worker, one: ChannelId, other: ChannelId) -> Option<()> {
    let one = worker.channel(one)?;
    worker.channel(other)?.batch().ring().ok(); //~ E0499
    one.batch().ring().ok();
    None
}
