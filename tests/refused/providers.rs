//! Memory of one provider stays with it, and no other memory is ever posted.

use doorbell::{Channel, Lease, Operation, PostFlags, Rdma, Worker};
use doorbell_sim::Host;

pub fn sent_on_another_provider(channel: &mut Channel<Host>, lease: Lease<Rdma>) {
    channel.send_lease(lease).ok(); //~ E0308
}

pub fn gathered_from_two_providers(channel: &mut Channel, ours: Lease<Rdma>, theirs: Lease<Host>) {
    let mut batch = channel.batch();
    batch.push(Operation::Send, [ours, theirs], PostFlags::empty()).ok(); //~ E0308
}

pub fn released_to_another_provider(worker: &mut Worker<Host>, lease: Lease<Rdma>) {
    worker.release(lease); //~ E0308
}

pub fn memory_of_the_heap(channel: &mut Channel) {
    channel.send_lease(vec![0; 64]).ok(); //~ E0308
}

pub fn memory_of_the_stack(channel: &mut Channel) {
    let mut bytes = [0; 64];
    channel.send_lease(&mut bytes).ok(); //~ E0308
}

pub fn the_slot_taken_out_of_a_lease(lease: Lease) {
    let _slot = lease.slot; //~ E0616
}
