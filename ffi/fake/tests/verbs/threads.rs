//! Threads at once: one completion queue for many senders, and notices that must not be lost.

use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use rdma_sys::*;

use crate::rig::{Device, PATIENCE, QueuePair, SUCCESS, poll, send, zeroed};

/// Pointers go to threads as numbers.
struct Address(usize);

impl Address {
    fn of<T>(pointer: *mut T) -> Self {
        Self(pointer.expose_provenance())
    }

    fn get<T>(&self) -> *mut T {
        ptr::with_exposed_provenance_mut(self.0)
    }
}

const SENDERS: usize = 3;
const MESSAGES: u64 = 2_000;

#[test]
fn many_senders_complete_into_one_queue() {
    let device = Device::open();
    let shared = device.cq(1024);
    let region = device.region(SENDERS * 8 * 2);
    let mut wanted: ibv_qp_init_attr = zeroed();
    wanted.qp_type = ibv_qp_type::IBV_QPT_RC;
    wanted.recv_cq = shared;
    wanted.cap.max_send_wr = 1;
    wanted.cap.max_recv_wr = 64;
    wanted.cap.max_recv_sge = 1;
    let mut receivers = Vec::new();
    let mut senders = Vec::new();
    for index in 0..SENDERS {
        wanted.send_cq = device.cq(1);
        // SAFETY: the domain and both completion queues are there, and the attributes are whole.
        let qp = unsafe { ibv_create_qp(device.pd, &raw mut wanted) };
        let receiver = QueuePair {
            qp,
            cq: wanted.send_cq,
        };
        let sender = device.queue_pair(ptr::null_mut());
        sender.connect(receiver.number());
        receiver.connect(sender.number());
        for _ in 0..64 {
            receiver
                .receive(index as u64, &[region.element(index * 8, 8)])
                .unwrap();
        }
        receivers.push(receiver);
        senders.push(sender);
    }
    let threads: Vec<_> = senders
        .iter()
        .enumerate()
        .map(|(index, sender)| {
            let (qp, cq) = (Address::of(sender.qp), Address::of(sender.cq));
            let element = region.element((SENDERS + index) * 8, 8);
            thread::spawn(move || {
                let sender = QueuePair {
                    qp: qp.get(),
                    cq: cq.get(),
                };
                for message in 0..MESSAGES {
                    sender.post(&[send(message, &[element])]).unwrap();
                    // If the receiver is behind, the message waits and completes later.
                    while sender.polled().is_empty() {
                        thread::yield_now();
                    }
                }
            })
        })
        .collect();
    let mut arrived = [0_u64; SENDERS];
    let began = std::time::Instant::now();
    while arrived.iter().any(|count| *count < MESSAGES) {
        for completion in poll(shared) {
            assert_eq!(completion.status, SUCCESS);
            let index = completion.wr_id as usize;
            assert_eq!(completion.qp_num, receivers[index].number());
            arrived[index] += 1;
            receivers[index]
                .receive(index as u64, &[region.element(index * 8, 8)])
                .unwrap();
        }
        assert!(began.elapsed() < PATIENCE, "{arrived:?}");
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(poll(shared).is_empty());
    senders.into_iter().chain(receivers).for_each(QueuePair::destroy);
    // SAFETY: the queue is there, its queue pairs are gone, and nothing uses it after this call.
    assert_eq!(unsafe { ibv_destroy_cq(shared) }, 0);
    region.release();
    assert_eq!(device.events(), []);
    device.close();
}

#[test]
fn s23_no_notice_is_lost_between_arming_and_sleeping() {
    let device = Device::open();
    // SAFETY: the device is open, and the channel is there as the queue is made on it. The context is a number that nobody reads through.
    let (channel, cq) = unsafe {
        let channel = ibv_create_comp_channel(device.context);
        let context = ptr::without_provenance_mut(4711);
        let cq = ibv_create_cq(device.context, 64, context, channel, 0);
        (channel, cq)
    };
    let mut wanted: ibv_qp_init_attr = zeroed();
    wanted.qp_type = ibv_qp_type::IBV_QPT_RC;
    (wanted.send_cq, wanted.recv_cq) = (cq, cq);
    wanted.cap.max_recv_wr = 8;
    let receiver = QueuePair {
        // SAFETY: the domain and the completion queue are there, and the attributes are whole.
        qp: unsafe { ibv_create_qp(device.pd, &raw mut wanted) },
        cq,
    };
    let sender = device.queue_pair(ptr::null_mut());
    sender.connect(receiver.number());
    receiver.connect(sender.number());
    for _ in 0..8 {
        receiver.receive(0, &[]).unwrap();
    }
    static SEEN: AtomicU64 = AtomicU64::new(0);
    let (qp, sends) = (Address::of(sender.qp), Address::of(sender.cq));
    let sending = thread::spawn(move || {
        let sender = QueuePair {
            qp: qp.get(),
            cq: sends.get(),
        };
        for message in 0..MESSAGES {
            sender.post(&[send(message, &[])]).unwrap();
            assert_eq!(sender.polled().len(), 1);
            // The next one only once this was seen: a lost notice ends in a sleep without end.
            while SEEN.load(Ordering::Acquire) <= message {
                thread::yield_now();
            }
        }
    });
    let (mut seen, mut notices) = (0, 0);
    while seen < MESSAGES {
        // SAFETY: the completion queue is there until the receiver is destroyed.
        assert_eq!(unsafe { ibv_req_notify_cq(cq, 0) }, 0);
        let mut arrived = poll(cq).len();
        if arrived == 0 {
            let mut entry = libc::pollfd {
                // SAFETY: the channel is there until the end of the test, and its descriptor never changes.
                fd: unsafe { (*channel).fd },
                events: libc::POLLIN,
                revents: 0,
            };
            let patience = PATIENCE.as_millis() as i32;
            assert_eq!(
                // SAFETY: the entry is one whole structure, and writable.
                unsafe { libc::poll(&raw mut entry, 1, patience) },
                1,
                "{seen}: lost"
            );
            let (mut about, mut context) = (ptr::null_mut(), ptr::null_mut());
            // SAFETY: the channel and its queue are there, both places are writable, and the event is acknowledged once.
            unsafe {
                assert_eq!(ibv_get_cq_event(channel, &raw mut about, &raw mut context), 0);
                ibv_ack_cq_events(about, 1);
            }
            assert_eq!((about, context.addr()), (cq, 4711));
            notices += 1;
            arrived = poll(cq).len();
        }
        for _ in 0..arrived {
            receiver.receive(0, &[]).unwrap();
        }
        seen += arrived as u64;
        SEEN.store(seen, Ordering::Release);
    }
    sending.join().unwrap();
    eprintln!("{notices} notices for {seen} messages");
    sender.destroy();
    receiver.destroy();
    // SAFETY: the channel is there, its queue is gone, and nothing uses it after this call.
    assert_eq!(unsafe { ibv_destroy_comp_channel(channel) }, 0);
    device.close();
}
