//! A run with packets of every kind and part, over links that lose, double, delay and change some.

use core::time::Duration;

use doorbell_core::provider::{
    Arena, ArenaConfig, CompletionQueue, LentCompletion as _, Operation, PostFlags, ProtectionDomain,
    Provider, ReceiveBatch, ReceiveQueue, Slot,
};
use doorbell_core::{Mtu, WcStatus};
use doorbell_sim::{Fabric, Host};

use super::datagrams::Office;
use super::{End, Rig, Side, USUAL, WINDOW_BYTES, Wish, connected_as, hosts};

/// Plan of its faults.
pub(crate) const PLAN: &str = "seed 3; drop 2nd send of a->b; duplicate 3rd write of a->b; corrupt 2nd response of b->a; \
                    delay 1st atomic of a->b by 20us; drop 1st result of b->a; at 40us pause b for 10us";

/// Several packets of the path.
pub(crate) const LONG_BYTES: usize = 1200;

struct On<'r>(Fabric, [&'r str; 2]);

impl Rig for On<'_> {
    type P = Host;

    fn ends(&self) -> [End<Host>; 2] {
        let [a, b] = self.1;
        [("a", a), ("b", b)].map(|(name, address)| hosts::end(&self.0, name, address, Mtu::B1024))
    }
}

/// Two hosts, and slots that are long enough.
struct Two {
    fabric: Fabric,
    near: Side<Host>,
    far: Side<Host>,
    arenas: [<Host as Provider>::Arena; 2],
}

impl Two {
    fn new(fabric: Fabric, addresses: [&str; 2]) -> Self {
        let wish = Wish {
            path_mtu: Mtu::B256,
            retry_count: 6,
            ..USUAL
        };
        let [near, far] = connected_as(&On(fabric.clone(), addresses), [wish; 2]);
        let config = ArenaConfig::new(8, u32::try_from(LONG_BYTES).unwrap());
        let arenas = [&near, &far].map(|side| side.domain.arena(&config).unwrap());
        Self {
            fabric,
            near,
            far,
            arenas,
        }
    }

    fn begin(&mut self, operation: Operation, bytes: usize) {
        let mut slot = self.arenas[0].lease().unwrap();
        slot.set_len_bytes(bytes);
        self.near.post_slots(operation, [slot], PostFlags::SIGNALED);
    }

    /// Lets time pass until a request has completed, and says how.
    fn end(&mut self) -> WcStatus {
        loop {
            let mut taken = None;
            self.near
                .send_completions
                .poll(|completion| taken = Some(completion.keep()))
                .unwrap();
            match taken {
                Some(completion) => return self.near.retire_send(completion).retired.status,
                None => assert!(self.fabric.step(), "nothing will happen any more"),
            }
        }
    }

    fn run(&mut self, operation: Operation, bytes: usize) {
        self.begin(operation, bytes);
        assert_eq!(self.end(), WcStatus::SUCCESS, "{operation:?}");
        self.fabric.run_for(Duration::from_micros(2));
    }

    /// A datagram queue pair beside each end of the connection.
    fn offices(&self) -> [Office<Host>; 2] {
        [&self.near, &self.far].map(|side| Office::new(&side.context, &side.domain, &side.end))
    }

    fn post_receive(&mut self) {
        let slot = self.arenas[1].lease().unwrap();
        let mut batch = self.far.receive.stage();
        batch.push([slot]).map_err(|refused| refused.reason).unwrap();
        batch.ring().unwrap();
    }
}

/// Does it, from one host at these addresses to the other, on a fabric that is driven.
pub(crate) fn run(fabric: &Fabric, addresses: [&str; 2]) {
    let mut two = Two::new(fabric.clone(), addresses);
    let far = two.far.at(0);
    fabric.remark("a", "SENDs");
    (0..3).for_each(|_| two.post_receive());
    two.run(Operation::Send, LONG_BYTES);
    two.run(Operation::Send, 3);
    two.run(Operation::SendWithImmediate(7), LONG_BYTES);
    fabric.remark("a", "before there is a receive");
    two.begin(Operation::SendWithImmediate(8), 64);
    fabric.run_for(Duration::from_micros(20));
    (0..3).for_each(|_| two.post_receive());
    assert_eq!(two.end(), WcStatus::SUCCESS);
    fabric.remark("a", "WRITEs");
    two.run(Operation::Write(far), LONG_BYTES);
    two.run(Operation::Write(far), 5);
    two.run(Operation::WriteWithImmediate(far, 9), LONG_BYTES);
    two.run(Operation::WriteWithImmediate(far, 10), 64);
    fabric.remark("a", "READs and atomics");
    two.run(Operation::Read(far), LONG_BYTES);
    two.run(Operation::Read(far), 64);
    two.run(Operation::FetchAndAdd { remote: far, add: 1 }, 8);
    let swap = Operation::CompareAndSwap {
        remote: far,
        compare: 1,
        swap: 2,
    };
    two.run(swap, 8);
    fabric.remark("a", "beyond the window");
    let beyond = two.far.at(WINDOW_BYTES as u64);
    two.begin(Operation::Write(beyond), 64);
    assert_eq!(two.end(), WcStatus::REM_ACCESS_ERR);
    fabric.run_for(Duration::from_micros(2));
    fabric.remark("a", "a datagram");
    let mut offices = two.offices();
    let [near, far] = &mut offices;
    far.post_receive();
    let to = near.way_to(far);
    near.post(to, &[1, 2, 3]);
    fabric.run_for(Duration::from_micros(20));
    assert_eq!(far.received().unwrap().1, [1, 2, 3]);
    drop(offices);
    fabric.audit().unwrap();
}
