//! Completions of receives whose channel is not admitted to the Worker yet. The peer knows earlier than this side that the
//! connection is established, and may send at once. The Worker keeps such completions until the channel is admitted or given up.
//!
//! Peers that withhold the end of their handshakes decide how many completions are kept. So polls do not look at them: only the first
//! poll after an admission does. Each reservation drops those of connections that were given up, and so does the upkeep. No place and no
//! share of theirs is given to another connection before that. Devices give the numbers of queue pairs in turn, so these do not come again
//! before that, either.

use std::collections::VecDeque;

use doorbell_core::in_place;
use doorbell_core::provider::Provider;

/// Completions that were polled before their channel was admitted, in the order of polling.
pub(super) struct Early<P: Provider> {
    waiting: VecDeque<P::Completion>,
    /// Whether a channel was admitted whose completions may be kept.
    is_due: bool,
}

impl<P: Provider> Default for Early<P> {
    fn default() -> Self {
        Self {
            waiting: VecDeque::new(),
            is_due: false,
        }
    }
}

impl<P: Provider> Early<P> {
    /// Whether the next poll has to look at the kept completions.
    #[inline]
    pub(super) const fn is_due(&self) -> bool {
        self.is_due
    }

    /// Notes that a channel was admitted. The next poll handles its completions before newer ones.
    pub(super) fn note_admitted(&mut self) {
        self.is_due |= !self.waiting.is_empty();
    }

    /// Notes that a poll has looked at all kept completions. After one that a panic of a callback ended, the next poll looks again.
    pub(super) const fn note_passed(&mut self) {
        self.is_due = false;
    }

    /// Makes room for so many completions in addition to the kept ones, so that polling never allocates.
    pub(super) fn make_room(&mut self, completions: usize) {
        let wanted = completions.saturating_add(self.waiting.len());
        if self.waiting.capacity() >= wanted {
            return;
        }
        // The new memory is touched here, so that a poll meets no page fault.
        let mut room = Vec::with_capacity(wanted);
        in_place::touch(room.spare_capacity_mut());
        room.extend(self.waiting.drain(..));
        self.waiting = room.into();
    }

    /// Whether another completion can be kept. There is room for all receives of the connections in progress.
    pub(super) fn has_room(&self) -> bool {
        self.waiting.len() < self.waiting.capacity()
    }

    /// Keeps a completion. Callers check [`Early::has_room`] before; without room the completion is dropped.
    pub(super) fn keep(&mut self, completion: P::Completion) {
        if self.waiting.len() < self.waiting.capacity() {
            self.waiting.push_back(completion);
        }
    }

    /// Begins another pass over the kept completions. The caller takes each one, and keeps it again if its channel is still not
    /// admitted.
    pub(super) fn pass_again(&mut self) -> SecondPass<'_, P> {
        let left = self.waiting.len();
        SecondPass { early: self, left }
    }
}

/// Another pass over early completions. Their order is preserved, even if the pass ends before the last one.
pub(super) struct SecondPass<'e, P: Provider> {
    early: &'e mut Early<P>,
    /// How many completions this pass has not taken yet.
    left: usize,
}

impl<P: Provider> SecondPass<'_, P> {
    /// Takes the earliest completion that this pass has not taken yet.
    pub(super) fn take(&mut self) -> Option<P::Completion> {
        self.left = self.left.checked_sub(1)?;
        self.early.waiting.pop_front()
    }

    /// Returns the list, to keep a completion again.
    pub(super) const fn early(&mut self) -> &mut Early<P> {
        self.early
    }
}

impl<P: Provider> Drop for SecondPass<'_, P> {
    /// Restores the order after a callback panicked. The completions that were not taken are in front of the ones that were kept
    /// again, but are younger.
    fn drop(&mut self) {
        if self.left <= self.early.waiting.len() {
            self.early.waiting.rotate_left(self.left);
        }
    }
}

#[cfg(test)]
mod tests {
    use core::net::SocketAddr;
    use core::time::Duration;

    use doorbell_core::IpPrefix;
    use doorbell_core::provider::Operation;
    use doorbell_sim::{Fabric, Host, LinkConfig, PortConfig};

    use crate::connect::connecting::Connecting;
    use crate::connect::listener::Listener;
    use crate::connect::node::Node;
    use crate::trust::Trust;
    use crate::worker::Worker;
    use crate::worker::config::{ChannelConfig, SharedReceivesConfig, WorkerConfig};
    use crate::worker::event::Event;

    const LATENCY: Duration = Duration::from_millis(1);
    const RECEIVES: u32 = 16;

    fn config() -> ChannelConfig {
        ChannelConfig {
            send_depth: RECEIVES,
            receive_depth: RECEIVES,
            repost_batch: 4,
            ..ChannelConfig::default()
        }
    }

    fn node(fabric: &Fabric, last: u8) -> Node<Host, Host> {
        let prefix = IpPrefix::new([10, 0, 0, last].into(), 24).unwrap();
        let host = fabric.host(&format!("h{last}"), vec![PortConfig::new("sim0", &[prefix])]);
        Node::simulated(host.unwrap(), Trust::unauthenticated_on_purpose()).unwrap()
    }

    /// A host that connects to another. The other has accepted, and has sent as much as it may.
    struct Sent {
        fabric: Fabric,
        node: Node<Host, Host>,
        workers: Vec<Worker<Host>>,
        connecting: Option<Connecting<Host, Host>>,
        /// Kept, so that the connection stays.
        _peer: (Node<Host, Host>, Vec<Worker<Host>>),
    }

    impl Sent {
        fn new(shared: Option<SharedReceivesConfig>) -> Self {
            let wire = LinkConfig {
                latency_ns: LATENCY.as_nanos() as u64,
                bandwidth_mbps: None,
            };
            let fabric = Fabric::builder().link(wire).driven().build();
            let [peer, node] = [1, 2].map(|last| node(&fabric, last));
            let mut theirs = peer.workers(&WorkerConfig::default()).unwrap();
            let own = WorkerConfig {
                slots: 64,
                shared_receives: shared,
                ..WorkerConfig::default()
            };
            let mut workers = node.workers(&own).unwrap();
            let at = SocketAddr::from(([10, 0, 0, 1], 7000));
            let mut listener = Listener::bind(&peer, &theirs, at, &config()).unwrap();
            let until = node.within(Duration::from_secs(10));
            let begun = node.begin_connect(&workers, listener.handle(), &config(), until);
            let mut connecting = begun.unwrap();
            let accepted = loop {
                assert!(connecting.poll(&node, &mut workers).is_none());
                match listener.poll_accept(&peer, &mut theirs).unwrap() {
                    Some(accepted) => break accepted,
                    None => fabric.run_for(LATENCY),
                }
            };
            theirs[0].poll(|_, event| panic!("{event:?}")).unwrap();
            let channel = theirs[0].channel(accepted.channel).unwrap();
            let sent = (0..).take_while(|_| channel.post_inline(Operation::Send, b"early").is_ok());
            assert_eq!(sent.count(), RECEIVES as usize);
            let mut sent = Self {
                fabric,
                node,
                workers,
                connecting: Some(connecting),
                _peer: (peer, theirs),
            };
            for _ in 0..64 {
                sent.fabric.run_for(LATENCY / 16);
                assert_eq!(sent.poll(), 0);
            }
            assert_eq!(sent.kept(), (RECEIVES as usize, false));
            sent
        }

        /// Polls once, and returns the number of messages.
        fn poll(&mut self) -> u32 {
            let mut received = 0;
            let polled = self.workers[0].poll(|_, event| match event {
                Event::Received { .. } => received += 1,
                other => panic!("{other:?}"),
            });
            polled.unwrap();
            received
        }

        /// How many completions are kept, and whether the next poll looks at them.
        fn kept(&self) -> (usize, bool) {
            let early = &self.workers[0].receives.early;
            (early.waiting.len(), early.is_due())
        }
    }

    /// Receives of its own for a channel, and a share of as many as there are.
    fn own_and_shared() -> [Option<SharedReceivesConfig>; 2] {
        let shared = SharedReceivesConfig {
            depth: RECEIVES,
            repost_batch: 4,
            limit: 0,
        };
        [None, Some(shared)]
    }

    #[test]
    fn the_poll_after_an_admission_looks_at_kept_completions_and_no_other_does() {
        for shared in own_and_shared() {
            let mut sent = Sent::new(shared);
            let Sent {
                node,
                workers,
                connecting,
                ..
            } = &mut sent;
            let outcome = connecting.as_mut().unwrap().poll(node, workers);
            outcome.unwrap().unwrap();
            assert_eq!(sent.kept(), (RECEIVES as usize, true));
            assert_eq!(sent.poll(), RECEIVES);
            assert_eq!(sent.kept(), (0, false));
        }
    }

    #[test]
    fn a_place_and_a_share_are_given_to_others_without_completions_of_their_last_connection() {
        for shared in own_and_shared() {
            let mut sent = Sent::new(shared);
            sent.connecting = None;
            assert_eq!(sent.poll(), 0);
            assert_eq!(sent.kept(), (RECEIVES as usize, false));
            let worker = &mut sent.workers[0];
            let first = worker.reserve(RECEIVES + 1, RECEIVES, None);
            assert_eq!(first.is_err(), shared.is_some(), "{first:?}");
            drop(first);
            assert_eq!(sent.kept(), (0, false));
            assert_eq!(sent.poll(), 0);
            let worker = &mut sent.workers[0];
            let reserved = worker.reserve(RECEIVES + 1, RECEIVES, None).unwrap();
            let _supply = worker.supply(&reserved, 0, &config()).unwrap();
            if let Some(counts) = worker.shared_receives() {
                assert_eq!((counts.posted, counts.granted), (RECEIVES, RECEIVES));
            }
            assert_eq!(worker.statistics().orphaned.value(), u64::from(RECEIVES));
        }
    }
}
