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

#[cfg(test)]
mod tests {
    use core::num::NonZeroU32;
    use core::time::Duration;

    use super::{AttachRequest, Credentials, Packet, Pending, Server};
    use crate::endpoint::Endpoint;
    use crate::layout::EndpointLayout;
    use crate::name::{JobKey, JobNumber};
    use crate::serving::ServerConfig;
    use crate::serving::pending::Share;
    use crate::serving::socket::{Came, PacketSocket};

    /// Asks as this process, and returns the answer.
    fn ask(server: &mut Server, endpoint: &Endpoint, pid: Option<u32>) -> Packet {
        let request = AttachRequest {
            job: JobNumber(1),
            key: JobKey([7; 16]),
            endpoint: 1,
            layout: EndpointLayout::new(4, 64).unwrap(),
        };
        let (socket, other) = PacketSocket::pair().unwrap();
        other
            .send(&Packet::Attach(request), &endpoint.descriptors())
            .unwrap();
        let who = Credentials {
            uid: 1,
            gid: 1,
            pid: pid.and_then(NonZeroU32::new),
        };
        let until = doorbell::within(Duration::from_secs(600));
        let share = Share::Job(request.job);
        let pending = Pending {
            socket,
            who,
            until,
            share,
        };
        server.ask_to_attach(pending, request);
        while !server.helpers.is_free(who.uid, share) {
            std::thread::yield_now();
            server.helpers.advance();
            server.take_adopted();
        }
        match other.receive().unwrap() {
            Came::Packet(answer) => answer.unwrap(),
            came => panic!("{came:?}"),
        }
    }

    /// The client sends the same memory again, and sealed memory would be refused for good.
    #[test]
    fn the_memory_of_a_process_without_a_pidfd_is_not_sealed() {
        let folder = std::env::temp_dir().join(format!("doorbell-attaching-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let mut server = Server::bind(&ServerConfig::new(folder.join("socket"))).unwrap();
        let endpoint = Endpoint::new(EndpointLayout::new(4, 64).unwrap()).unwrap();
        // No process has this number.
        let answer = ask(&mut server, &endpoint, Some(i32::MAX as u32));
        assert!(matches!(answer, Packet::Refused(_)), "{answer:?}");
        assert!(!endpoint.is_sealed());
        let answer = ask(&mut server, &endpoint, None);
        assert!(matches!(answer, Packet::Attached { .. }), "{answer:?}");
        assert!(endpoint.is_sealed());
        drop(server);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
