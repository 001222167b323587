//! Messages that are written where the link keeps them. Half of those that [`Process`](crate::processes::Process) sends are, so their bytes
//! are checked in every other test.

use doorbell::link::PushRefusal;

use crate::processes::{A, Two, config, ms};

/// One that goes in one fragment is taken, and one byte more is refused with the limit.
#[test]
fn a_message_of_one_fragment_is_taken_in_place_and_a_longer_one_is_not() {
    let mut two = Two::new(1, "");
    two.connected(1);
    let limit = usize::try_from(config().session.fragment_bytes).unwrap();
    let soon = two.deadline(ms(100));
    let a = two.process_mut(A);
    let link = a.link.unwrap();
    let too_long = PushRefusal::TooLong {
        bytes: limit as u64 + 1,
        bytes_max: limit as u64,
    };
    assert_eq!(a.links.send_in_place(link, limit + 1).err(), Some(too_long));
    assert_eq!(a.links.send_in_place(link, limit).unwrap().1.len(), limit);
    assert_eq!(a.links.send_in_place(link, 0).unwrap().1.len(), 0);
    a.links.close(link, soon);
    assert_eq!(a.links.send_in_place(link, 8).err(), Some(PushRefusal::Closing));
}

/// As many as are kept are taken, and another one is refused.
#[test]
fn a_link_that_keeps_as_many_as_it_may_refuses_another() {
    let mut two = Two::new(1, "");
    two.connected(1);
    let a = two.process_mut(A);
    let link = a.link.unwrap();
    for _ in 0..config().retained {
        a.links.send_in_place(link, 8).unwrap();
    }
    assert_eq!(a.links.send_in_place(link, 8).err(), Some(PushRefusal::Full));
}
