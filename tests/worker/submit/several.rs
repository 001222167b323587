//! Requests that the polling thread submits to several channels.

use core::mem;
use core::time::Duration;

use doorbell::worker::CloseProgress;
use doorbell::{Event, Operation, PostFlags};

use super::{Hub, config, home, hub, numbers, submit, until};
use crate::fabric::small;

impl Hub {
    /// Submits a message with this number on one of the channels itself.
    fn submit_own(&mut self, at: usize, number: u32) {
        let mut lease = self.worker.lease().expect("memory");
        lease.fill(&number.to_be_bytes()).unwrap();
        let channel = self.worker.channel(self.ids[at]).unwrap();
        channel
            .submit(Operation::Send, lease, PostFlags::empty())
            .unwrap();
    }
}

#[test]
fn of_several_channels_each_is_one_doorbell() {
    let mut hub = hub(3, small());
    let mut submitter = hub.worker.submitter(&config(8, 8)).unwrap();
    for round in 0..4 {
        for number in 0..2 {
            (0..3).for_each(|at| hub.submit_own((at + round) % 3, number));
        }
        for id in hub.ids.clone() {
            submit(&mut submitter, id, 2);
        }
        let before = hub.worker.statistics().snapshot();
        hub.poll();
        let since = hub.worker.statistics().snapshot().since(&before);
        assert_eq!((since.doorbells, since.requests), (3, 9));
        for end in &mut hub.ends {
            assert_eq!(numbers(end), [0, 1, 2]);
        }
        until("all is home", || {
            hub.poll();
            home(&mut submitter) == 8
        });
    }
}

#[test]
fn a_channel_is_closed_while_others_wait_beside_it() {
    let mut hub = hub(3, small());
    drop(hub.worker.submitter(&config(8, 8)).unwrap());
    let middle = hub.ids[1];
    // Two of each wait for credits, and one of each was submitted since.
    for number in 0..18 {
        (0..3).for_each(|at| hub.submit_own(at, number));
        hub.poll();
    }
    (0..3).for_each(|at| hub.submit_own(at, 18));
    let now = hub.worker.within(Duration::ZERO);
    hub.worker.begin_close(middle, now).unwrap();
    let mut back = Vec::new();
    until("it is closed", || {
        let polled = hub.worker.poll_tending(|turn, event| match event {
            Event::Unsent { lease, .. } => {
                assert_eq!(turn.channel.id(), middle);
                back.push(u32::from_be_bytes(lease.unwrap().payload().try_into().unwrap()));
            }
            Event::Done { .. } => {}
            other => assert_eq!(turn.channel.id(), middle, "{other:?}"),
        });
        polled.unwrap();
        hub.worker.close_progress(middle) != CloseProgress::UnderWay
    });
    assert_eq!(back, [16, 17, 18]);
    for at in [0, 2] {
        let mut came = Vec::new();
        until("they come", || {
            came.extend(numbers(&mut hub.ends[at]));
            hub.poll();
            came.len() == 19
        });
        assert!(came.into_iter().eq(0..19));
    }
}

#[test]
fn channels_that_were_exchanged_take_nothing_from_others() {
    let mut hub = hub(3, small());
    drop(hub.worker.submitter(&config(8, 8)).unwrap());
    for has_submitters in [false, true] {
        if has_submitters {
            drop(hub.ends[1].worker().submitter(&config(8, 8)).unwrap());
        }
        (0..3).for_each(|at| hub.submit_own(at, 7));
        let (here, there) = (hub.ids[1], hub.ends[1].id());
        let exchange = |hub: &mut Hub| {
            let here = hub.worker.channel(here).unwrap();
            mem::swap(here, hub.ends[1].worker().channel(there).unwrap());
        };
        exchange(&mut hub);
        hub.poll();
        assert_eq!(numbers(&mut hub.ends[0]), [7]);
        assert_eq!(numbers(&mut hub.ends[2]), [7]);
        // Nor is anything of them lost, once they are back.
        exchange(&mut hub);
        hub.poll();
        assert_eq!(numbers(&mut hub.ends[1]), [7]);
        hub.poll();
    }
}
