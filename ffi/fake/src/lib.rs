//! A fake libibverbs, on which `ffi` runs if there is no RDMA device.
//!
//! The shared object exports every function that `rdma_sys` looks up, over the same structures, and
//! is loaded in place of the real one (`rdma_sys::LIBRARY_ENV`, `rdma_sys::load_from`). The Rust side
//! of this crate is [`library_path`], which says where the shared object lies, [`NULL_QPN`], and [`Control`], by
//! which a test makes calls fail, values odd and contexts short. A file of [`memory_file`] stands for a dma-buf.
//!
//! It offers devices, each with one RoCEv2 port whose GIDs are the addresses of a network interface
//! of this machine. Queue pairs find each other by number within the process. There are two kinds of
//! connection:
//!
//! 1. **loopback**, to another queue pair of the process. Requests are carried out when they are posted, with the
//!    checks that a device makes. A request that must wait (no receive, no peer yet) waits in the send queue, in
//!    order.
//! 2. **null**, to itself or to [`NULL_QPN`]. Signaled requests complete at once, and nothing is looked at or
//!    delivered: only the cost of the caller's own side remains.
//!
//! A null queue pair posts without a lock. A loopback one takes a flag of its own for each post call and one of
//! its peer's for each request, as providers with a spin lock per queue do. The data path does not allocate. It
//! makes a system call only if a completion queue was armed, whose descriptor is then written.
//!
//! As with a thread domain and a completion queue made for a single thread, and as `ffi` promises:
//! **one thread at a time posts to a queue, and one polls a completion queue**.
//!
//! Differences from a device:
//!
//! 1. Retry timers run out only while the send completion queue is polled or the queue pair posted to. A
//!    receiver-not-ready timer takes 50 ms at least.
//! 2. There are reliable connections and datagrams only, no extended queues and no memory windows of type 1 or 2.
//! 3. A datagram arrives if there is a receive for it, in order and once. A send of one that fails brings the
//!    queue pair to SQE, as verbs say.
//! 4. Completions of a destroyed queue pair may still be polled, as on rxe.
//! 5. An overrun completion queue drops a completion that does not fit, reports it by an event and goes on, as
//!    rxe's.
//! 6. A failed completion holds rubbish in every field that means nothing then (S7), on purpose.
//! 7. Closing a device with anything left on it is refused (`EBUSY`), where a kernel would clean up.
//! 8. A memory file (memfd) that is sealed against shrinking is registered as a dma-buf is.
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `DOORBELL_FAKE_DEVICES` | how many devices there are | 1 |
//! | `DOORBELL_FAKE_DOWN` | how many of them, the last ones, have a port that is down | 0 |
//! | `DOORBELL_FAKE_INTERFACE` | the network interface they are on | the first with an address that is no loopback; else the loopback |
//! | `DOORBELL_FAKE_ORDER` | `relaxed`: bytes of a WRITE land in no order, and the device says so | in order |

mod address;
mod channel;
mod completion_queue;
mod context;
mod control;
mod copy;
mod datagram;
mod device;
mod dmabuf;
mod domain;
mod engine;
mod errno;
mod events;
mod exports;
mod faults;
mod flag;
mod handle;
mod interfaces;
mod memory;
mod modify;
mod path;
mod port;
mod queue_pair;
mod receive;
mod registry;
mod ring;
mod send;
mod settings;
mod shared_receive;
mod signal;
mod words;

pub use control::{Call, Control, NotLoaded, Value, Without};
pub use dmabuf::memory_file;
pub use path::{NotBuilt, library_path};
pub use registry::NULL_QPN;
