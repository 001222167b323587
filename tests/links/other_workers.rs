//! Polls with other Workers than those that the links were made with.

use doorbell::Worker;
use doorbell::provider::ProviderError;
use doorbell_sim::Host;

use crate::processes::{A, Process, Two, config, ms};

const EINVAL: i32 = 22;

fn poll(process: &mut Process, workers: &mut [Worker<Host>]) -> Result<(), ProviderError> {
    process.links.poll(&process.node, workers, |_, _| {})
}

#[test]
fn a_poll_with_other_workers_or_in_another_order_is_refused_and_the_links_go_on() {
    let mut two = Two::new(2, "");
    two.connected(2);
    let host = two.hosts[A].clone();
    let mut others = Process::on(&host, &config(), false).workers;
    let a = two.process_mut(A);
    let mut own = core::mem::take(&mut a.workers);
    assert_eq!(own.len(), 2);
    a.send().unwrap();
    own.swap(0, 1);
    let errnos = [
        poll(a, &mut own),
        poll(a, &mut own[1..]),
        poll(a, &mut others),
        poll(a, &mut []),
    ]
    .map(|outcome| outcome.unwrap_err().errno);
    assert_eq!(errnos, [EINVAL; 4]);
    own.swap(0, 1);
    assert_eq!(poll(a, &mut own[..1]).unwrap_err().errno, EINVAL);
    a.workers = own;
    assert!(two.run(ms(1000), |two| two.process(A).done == 1));
}
