//! A submitter belongs to one thread, and what it submitted to nobody.

use doorbell::{ChannelId, Lease, Worker};
use doorbell::worker::Submitter;

pub fn a_lease_written_after_it_was_submitted(submitter: &mut Submitter, to: ChannelId, lease: Lease) {
    let mut lease = lease;
    submitter.send(to, lease).ok();
    lease.fill(b"late").ok(); //~ E0382
}

pub fn bytes_kept_beyond_the_submission(submitter: &mut Submitter, to: ChannelId, mut lease: Lease) {
    let bytes = lease.buffer_mut();
    submitter.send(to, lease).ok(); //~ E0505
    bytes[0] = 1;
}

pub fn a_lease_submitted_twice(submitter: &mut Submitter, to: ChannelId, lease: Lease) {
    submitter.send(to, lease).ok();
    submitter.send(to, lease).ok(); //~ E0382
}

pub fn a_submitter_used_by_two_threads(submitter: &mut Submitter) {
    std::thread::scope(|scope| {
        scope.spawn(|| submitter.lease());
        scope.spawn(|| submitter.lease()); //~ E0499
    });
}

pub fn a_submitter_cloned_for_another_thread(submitter: &Submitter) {
    let _other: Submitter = submitter.clone(); //~ E0308
}

pub fn a_submitter_made_while_the_worker_polls(worker: &mut Worker) {
    worker.poll(|_, _| drop(worker.submitter(&Default::default()))).ok(); //~ E0500 E0501
}

pub fn what_is_allowed(mut worker: Worker, to: ChannelId) {
    // It may be on a thread of its own, and outlive its Worker.
    if let Ok(mut submitter) = worker.submitter(&Default::default()) {
        std::thread::spawn(move || submitter.lease().map(|lease| submitter.send(to, lease).is_ok()));
    }
    drop(worker);
}
