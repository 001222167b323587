//! Moves messages of 64 bytes between two processes of a node daemon, for callgrind to count: `daemon_instructions BATCH ROUNDS [ENDPOINTS]`.
//!
//! Both endpoints and the router are in this program, and share memory as processes do. `measured_send` takes and publishes a batch.
//! `measured_route` is the one poll of the router that finds the batch. `measured_receive` is the one poll of the receiver. ENDPOINTS more
//! endpoints are attached and idle. Their client sides are closed, so the memory in use at the end belongs to the router.
use core::error::Error;
use core::hint::black_box;
use std::env;

use doorbell_daemon::{
    AttachRequest, Credentials, Endpoint, EndpointAddress, EndpointEvent, EndpointLayout, JobKey, JobNumber,
    NodeNumber, Router, RouterLimits,
};

fn attach(router: &mut Router, endpoint: u32) -> Result<Endpoint, Box<dyn Error>> {
    let layout = EndpointLayout::default();
    let (job, key) = (JobNumber(1), JobKey([7; 16]));
    let ours = Endpoint::new(layout)?;
    let memory = layout.adopt(&ours.descriptors())?;
    let (uid, gid, pid) = (1, 1, None);
    let request = AttachRequest {
        job,
        key,
        endpoint,
        layout,
    };
    router.attach(Credentials { uid, gid, pid }, &request, memory)?;
    Ok(ours)
}

#[inline(never)]
fn measured_send(endpoint: &mut Endpoint, to: EndpointAddress, message: &[u8], batch: u32) -> bool {
    let taken = (0..batch).all(|_| endpoint.send(to, message).is_ok());
    endpoint.flush();
    taken
}

#[inline(never)]
fn measured_route(router: &mut Router) -> bool {
    router.poll(|_| {})
}

#[inline(never)]
fn measured_receive(endpoint: &mut Endpoint) -> u32 {
    let mut received = 0_u32;
    let polled = endpoint.poll(|event| {
        if let EndpointEvent::Received { message, .. } = event {
            received = received.wrapping_add(u32::from(black_box(message).len() == 64));
        }
    });
    if polled.is_ok() { received } else { 0 }
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Result<Vec<u32>, _> = env::args().skip(1).map(|word| word.parse()).collect();
    let words = words?;
    let [batch, rounds, rest @ ..] = &words[..] else {
        return Err("daemon_instructions BATCH ROUNDS [ENDPOINTS]".into());
    };
    let limits = RouterLimits {
        clients_max: 4096,
        clients_of_user_max: 4096,
        clients_of_job_max: 4096,
        ..RouterLimits::default()
    };
    let mut router = Router::new(NodeNumber(0), &limits);
    let (mut sender, mut receiver) = (attach(&mut router, 0)?, attach(&mut router, 1)?);
    let idle = rest.first().copied().unwrap_or(0);
    for number in 0..idle {
        drop(attach(&mut router, number.wrapping_add(2))?);
    }
    while router.poll(|_| {}) {}
    let to = EndpointAddress {
        node: NodeNumber(0),
        endpoint: 1,
    };
    let message = black_box([7; 64]);
    for _ in 0..*rounds {
        let is_sent = measured_send(&mut sender, to, &message, *batch);
        measured_route(&mut router);
        let received = measured_receive(&mut receiver);
        if !is_sent || received != *batch {
            return Err("a message was not taken, or did not come".into());
        }
    }
    println!("{rounds} rounds of {batch}, beside {idle} idle endpoints");
    // Leak checkers report the memory that is in use at this point.
    std::process::exit(0);
}
