//! Attaches processes. A helper thread adopts the memory of a process, since sealing it may block.

use std::os::fd::OwnedFd;

use doorbell::now;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::{Attached, Server};
use crate::layout::EndpointMemory;
use crate::name::Credentials;
use crate::packet::{AttachRequest, Packet};
use crate::reason::AttachRefusal;
use crate::serving::helpers::{Adopted, Wanted, Work};
use crate::serving::pending::Pending;
use crate::serving::shortage::shortage;

impl Server {
    /// Has the memory of an admitted process adopted.
    pub(super) fn ask_to_attach(&mut self, pending: Pending, request: AttachRequest) {
        let owner = (pending.who.uid, pending.share);
        // The pidfd comes first: after `NoDescriptors` the client sends the same memory again, so it must not be sealed by then.
        match process_of(pending.who) {
            Ok(process) => {
                self.pace.attached(owner, request.layout.bytes(), now());
                let asked = (pending, Wanted::Attach(request, process));
                self.helpers.give(owner, Work::Adopt(Box::new(asked)));
            }
            Err(refusal) => self.refuse(pending, refusal),
        }
    }

    /// Answers the connections whose memory was adopted or refused.
    pub(super) fn take_adopted(&mut self) {
        while let Some((pending, adopted)) = self.helpers.take_adopted() {
            match adopted {
                Adopted::Attach(request, process, Ok(memory)) => {
                    self.take_attach(pending, &request, process, memory);
                }
                Adopted::Attach(_, _, Err(refusal)) => self.refuse(pending, refusal),
                Adopted::Status(memory) => self.take_status(pending, memory),
            }
        }
    }

    fn take_attach(
        &mut self,
        pending: Pending,
        request: &AttachRequest,
        process: Option<OwnedFd>,
        memory: EndpointMemory,
    ) {
        match self.router.attach(pending.who, request, memory) {
            Ok(id) => {
                // All descriptors in the queue are of memfds, and the mappings keep them alive. So closing them does not block.
                pending.socket.pass();
                let answer = Packet::Attached {
                    node: self.router.node(),
                    epoch: self.epoch,
                    incarnation: id.incarnation(),
                };
                // A send error is ignored: the end of the process is noticed at its socket.
                let _ = pending.socket.send(&answer, &[]);
                self.watch.attached(pending.who, request.job, request.endpoint);
                let client = Attached {
                    socket: pending.socket,
                    user: pending.who.uid,
                    since_s: self.watch.seconds(),
                    sleeps_before: self.sleeps,
                    wakes: 0,
                    process,
                };
                self.attached.insert(id, client);
            }
            Err(refusal) => self.refuse(pending, refusal),
        }
    }
}

/// Opens a pidfd of the process. If the process died and its ID was reused meanwhile, the end of its socket is noticed instead.
fn process_of(who: Credentials) -> Result<Option<OwnedFd>, AttachRefusal> {
    let Some(pid) = who
        .pid
        .and_then(|pid| Pid::from_raw(i32::try_from(pid.get()).ok()?))
    else {
        return Ok(None);
    };
    let process = pidfd_open(pid, PidfdFlags::empty());
    let refusal = |errno: rustix::io::Errno| shortage(errno.raw_os_error()).unwrap_or(AttachRefusal::Gone);
    process.map(Some).map_err(refusal)
}
