//! The status of a router: its jobs and endpoints. No code here runs on the path of a message.

use std::collections::BTreeMap;

use super::{ClientId, Credentials, JobKey, JobNumber, Router, RouterCounts, id_of};
use crate::client_state::Client;
use crate::name::NodeNumber;
use crate::status::{DaemonStatus, EndpointStatus, JobStatus, NodeStatus, Traffic};

/// The members of a job on this node.
#[derive(Debug)]
pub(super) struct Members {
    pub(super) key: JobKey,
    /// Bytes of their shared memory.
    pub(super) bytes: u64,
    /// Bytes of waiting messages and operations from other nodes.
    pub(super) kept_bytes: u64,
    pub(super) by_endpoint: BTreeMap<u32, usize>,
    /// The incarnation of the first member.
    first: u64,
    /// Traffic of members that have ended.
    ended: Traffic,
}

impl Members {
    pub(super) const fn new(key: JobKey, first: u64) -> Self {
        Self {
            key,
            bytes: 0,
            kept_bytes: 0,
            by_endpoint: BTreeMap::new(),
            first,
            ended: Traffic::NONE,
        }
    }

    /// Records the end of a client. Returns whether it was the last one of the job.
    pub(super) fn end(&mut self, client: &Client) -> bool {
        self.by_endpoint.remove(&client.address.endpoint);
        self.bytes = self.bytes.saturating_sub(client.layout.bytes());
        self.ended.add(&client.traffic());
        self.by_endpoint.is_empty()
    }
}

/// A client that was detached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The process.
    pub who: Credentials,
    /// The job.
    pub job: JobNumber,
    /// The number of its endpoint.
    pub endpoint: u32,
    /// Whether it was the last process of its job on this node.
    pub is_last: bool,
}

impl Router {
    /// Number of messages and operations from other nodes that have no outcome and do not wait. Anything but 0 is an error in the router.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        let open = self.counts.arrived.saturating_sub(self.counts.answered);
        open.saturating_sub(self.kept() as u64)
    }

    /// The state of this router as a user may see it, or complete. `since_s` returns the seconds since a client attached. A user does not see
    /// total traffic, since the difference to its own traffic is the traffic of others.
    pub(crate) fn status(
        &self,
        of_user: Option<u32>,
        since_s: impl Fn(ClientId) -> u64,
        mut nodes: Vec<NodeStatus>,
    ) -> DaemonStatus {
        let sees_all = of_user.is_none();
        for node in &mut nodes {
            if sees_all {
                (node.waiting_frames, node.waiting_bytes) = self.waiting_for(node.node);
                continue;
            }
            for link in &mut node.links {
                (link.sent_bytes, link.received_bytes) = (0, 0);
            }
        }
        let RouterCounts { attached, cut, .. } = self.counts;
        let without_traffic = RouterCounts {
            attached,
            cut,
            ..RouterCounts::default()
        };
        let mut status = DaemonStatus {
            node: self.node,
            epoch: 0,
            running_s: 0,
            sees_all,
            are_keys_of_file: self.job_keys.is_some(),
            processes: self.users.values().map(|user| user.clients as u64).sum(),
            counts: if sees_all { self.counts } else { without_traffic },
            kept: if sees_all { self.kept() as u64 } else { 0 },
            dropped: self.dropped(),
            refused: Vec::new(),
            cut: Vec::new(),
            nodes,
            jobs: Vec::new(),
            left_out: 0,
            endpoints: Vec::new(),
        };
        let (first, last) = of_user.map_or((0, u32::MAX), |user| (user, user));
        for ((uid, job), members) in self
            .jobs
            .range((first, JobNumber(0))..=(last, JobNumber(u64::MAX)))
        {
            let mut traffic = members.ended.clone();
            for (endpoint, index) in &members.by_endpoint {
                let Some(client) = self.client(*index) else {
                    continue;
                };
                let of_client = client.traffic();
                traffic.add(&of_client);
                status.endpoints.push(EndpointStatus {
                    uid: *uid,
                    job: *job,
                    endpoint: *endpoint,
                    pid: client.who.pid.map(core::num::NonZero::get),
                    incarnation: client.incarnation,
                    attached_s: since_s(id_of(*index, client)),
                    queued: client.queued().into(),
                    in_flight: client.without_outcome(),
                    waiting: client.waits_for_room(),
                    traffic: of_client,
                });
            }
            status.jobs.push(JobStatus {
                uid: *uid,
                job: *job,
                age: members.first,
                processes: members.by_endpoint.len() as u64,
                memory_bytes: members.bytes,
                traffic,
            });
        }
        status
    }

    /// Number and bytes of frames that wait for a link to a node.
    fn waiting_for(&self, node: NodeNumber) -> (u64, u64) {
        let lanes = self.out.range((node, 0)..=(node, u32::MAX));
        lanes.fold((0, 0), |(frames, bytes), (_, lane)| {
            let (more, more_bytes) = lane.waiting();
            (frames.saturating_add(more), bytes.saturating_add(more_bytes))
        })
    }
}
