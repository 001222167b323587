//! The bytes of a claim are the claim's alone, and out of reach once it is sent.

use doorbell::{Channel, Claim};

pub fn bytes_after_sending(channel: &mut Channel) {
    let mut claim = channel.claim(8).unwrap();
    claim.send().ok();
    claim.bytes()[0] = 1; //~ E0382
}

pub fn bytes_kept_past_sending(channel: &mut Channel) {
    let mut claim = channel.claim(8).unwrap();
    let bytes = claim.bytes();
    claim.send().ok(); //~ E0505
    bytes[0] = 1;
}

pub fn a_message_past_a_claim(channel: &mut Channel) {
    let claim = channel.claim(8).unwrap();
    channel.send(b"first").ok(); //~ E0499
    claim.send().ok();
}

pub fn two_claims_at_a_time(channel: &mut Channel) {
    let one = channel.claim(8).unwrap();
    channel.claim(8).unwrap().send().ok(); //~ E0499
    one.send().ok();
}

pub fn bytes_past_the_doorbell(channel: &mut Channel) {
    let mut batch = channel.batch();
    let mut claim = batch.claim(8).unwrap();
    batch.ring().ok(); //~ E0505
    claim.bytes()[0] = 1;
}

pub fn bytes_past_staging(channel: &mut Channel) {
    let mut batch = channel.batch();
    let mut claim = batch.claim(8).unwrap();
    let bytes = claim.bytes();
    claim.send().ok(); //~ E0505
    bytes[0] = 1;
    batch.ring().ok();
}

pub fn two_claims_of_a_batch_at_a_time(channel: &mut Channel) {
    let mut batch = channel.batch();
    let one = batch.claim(8).unwrap();
    batch.claim(8).unwrap().send().ok(); //~ E0499
    one.send().ok();
    batch.ring().ok();
}

pub fn a_claim_past_its_worker(mut worker: doorbell::Worker, id: doorbell::ChannelId) {
    let claim: Claim<'_> = worker.channel(id).unwrap().claim(8).unwrap();
    drop(worker); //~ E0505
    claim.send().ok();
}

pub fn a_claim_twice(claim: Claim<'_>) {
    drop(claim.clone()); //~ E0599
    claim.send().ok();
}
