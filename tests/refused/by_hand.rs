//! A lease comes from a Worker alone. (In a file of its own: where types are wrong, the compiler does
//! not come to look at privacy.)

use doorbell::provider::Provider;
use doorbell::{Lease, Rdma};

pub fn a_lease_made_of_a_slot(slot: <Rdma as Provider>::Slot) {
    let _lease: Lease = Lease { slot }; //~ E0451
}
