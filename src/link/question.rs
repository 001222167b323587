//! The question to a peer for all its rails, if its handle has no room for them.

use core::net::SocketAddr;

use doorbell_core::network::{Network, Waited};
use doorbell_core::provider::Provider;
use doorbell_core::wire::Handle;
use doorbell_core::{Deadline, Instant};

use super::config::LinkConfig;
use super::moment::Moment;
use super::state::Link;
use crate::connect::asking::Asking;
use crate::connect::connecting::needs_interface;
use crate::connect::node::Node;
use crate::worker::Worker;

/// The state of the question, and when to ask next.
pub(super) struct Question<N: Network> {
    asking: Option<Asking<N>>,
    /// When to ask; `None` if there is nothing to ask, or the question is under way.
    next: Option<Deadline>,
    /// Number of consecutive questions without a useful answer. Each goes to another address.
    failed: u32,
    /// Whether the peer has answered, and the scan for pairs with the rails in the answer is not done.
    is_open: bool,
}

impl<N: Network> Default for Question<N> {
    fn default() -> Self {
        Self {
            asking: None,
            next: None,
            failed: 0,
            is_open: false,
        }
    }
}

impl<N: Network> Question<N> {
    pub(super) const fn is_asked(&self) -> bool {
        self.asking.is_some()
    }

    /// The stream to the peer, while it is being asked.
    pub(super) fn waited(&self) -> Option<Waited<'_, N::Stream>> {
        self.asking.as_ref().map(Asking::waited)
    }

    /// When to poll again at the latest.
    pub(super) fn wake(&self) -> Option<Deadline> {
        let answer = self.asking.as_ref().map(Asking::deadline);
        answer.or(self.next)
    }

    fn again(&mut self, Moment { now, random }: Moment, config: &LinkConfig) {
        self.failed = self.failed.saturating_add(1);
        let wait = config.session.backoff.wait(self.failed, random);
        self.next = Some(Deadline::after(now, wait));
    }
}

impl<P: Provider, N: Network> Link<P, N> {
    /// Schedules the question if the peer has more rails than its handle lists.
    pub(super) fn ask_for_rails(&mut self) {
        let question = &mut self.question;
        if self.handle.as_ref().is_some_and(Handle::has_more) {
            question.next = question.next.or(Some(Deadline::at(Instant::from_ns(0))));
        } else {
            *question = Question::default();
        }
    }

    /// Asks the peer if the question is due.
    pub(super) fn put_question(
        &mut self,
        node: &Node<P, N>,
        Moment { now, random }: Moment,
        config: &LinkConfig,
    ) {
        if self.session.over().is_some() {
            self.question = Question::default();
        }
        // The scan under way finds the addresses that a rail of this host reaches.
        let is_free = !self.question.is_asked() && self.finding.is_none();
        let is_due = self.question.next.is_some_and(|next| next.has_passed(now));
        let Some(handle) = self.handle.filter(|_| is_due && is_free) else {
            return;
        };
        // Addresses that a rail of this host reaches come first.
        let between = self.rails.iter().filter_map(|rail| rail.between.as_ref());
        let paired = between.map(|between| between.peer.address().address());
        let listed = handle.rails().iter().map(|rail| rail.address().address());
        let addresses: Vec<_> = paired
            .chain(listed)
            .filter(|address| !needs_interface(address))
            .collect();
        let turn = usize::try_from(self.question.failed).unwrap_or(0);
        let turn = turn.checked_rem(addresses.len()).unwrap_or(0);
        let within = Deadline::after(now, config.session.attach_within);
        // If no network reaches an address, the attempt fails at once, and the next address is used.
        let (before, from) = addresses.split_at(turn);
        let mut in_turn = from.iter().chain(before);
        let mut refused = None;
        let asking = in_turn.find_map(|address| {
            let to = SocketAddr::new(*address, handle.port().get());
            let begun = node.begin_ask(to, within);
            begun.map_err(|why| refused = Some(why)).ok()
        });
        match asking {
            Some(asking) => {
                self.question.asking = Some(asking);
                self.question.next = None;
            }
            None => {
                if let Some(why) = refused {
                    self.note_unreached(why);
                }
                self.question.again(Moment { now, random }, config);
            }
        }
    }

    /// Handles the peer's answer, and the result of the scan that follows.
    pub(super) fn hear_answer(
        &mut self,
        node: &Node<P, N>,
        workers: &[Worker<P>],
        Moment { now, random }: Moment,
        config: &LinkConfig,
    ) {
        if let Some(answer) = self.question.asking.as_mut().and_then(|asking| asking.poll(node)) {
            let instance = self.handle.map(|handle| handle.instance());
            let asked = self.question.asking.take();
            let is_its = match answer {
                Ok(handle) => Some(handle.instance()) == instance,
                Err(why) => {
                    self.note_unreached(why);
                    false
                }
            };
            match asked.filter(|_| is_its) {
                Some(asked) => {
                    self.find_rails(node, workers, asked.rails().to_vec(), now);
                    self.question.is_open = true;
                }
                // The peer did not answer in time, or another process answered.
                None => self.question.again(Moment { now, random }, config),
            }
        }
        if !self.take_found(node, workers, now) || !core::mem::take(&mut self.question.is_open) {
            return;
        }
        if self.rails.iter().any(|rail| rail.between.is_some()) {
            self.question.failed = 0;
        } else {
            // At present no rail of this host reaches one of the peer's.
            self.question.again(Moment { now, random }, config);
        }
    }
}

#[cfg(test)]
mod tests {
    use core::net::SocketAddr;
    use core::num::NonZeroU16;

    use doorbell_core::network::Stream as _;
    use doorbell_core::session::{Role, SessionId};
    use doorbell_core::wire::{AdvertisedRail, Fit, Handle, InstanceId, SpeedClass};
    use doorbell_core::{Deadline, Gid, Instant, IpPrefix};
    use doorbell_sim::{Fabric, Host, PortConfig};

    use super::{Link, LinkConfig, Moment};
    use crate::connect::node::Node;
    use crate::link::rail::Between;
    use crate::trust::Trust;
    use crate::worker::config::WorkerConfig;

    fn prefix(last: u8) -> IpPrefix {
        IpPrefix::new([10, 0, 0, last].into(), 24).unwrap()
    }

    fn rail(last: u8) -> AdvertisedRail {
        let gid = Gid::from_ip(prefix(last).address());
        AdvertisedRail::new(prefix(last), gid, SpeedClass(7)).unwrap()
    }

    #[test]
    fn each_address_is_asked_in_its_turn_until_an_answer_leads_to_a_rail() {
        let fabric = Fabric::builder().driven().build();
        let host = fabric
            .host("a", vec![PortConfig::new("sim0", &[prefix(1)])])
            .unwrap();
        let node = Node::simulated(host, Trust::unauthenticated_on_purpose()).unwrap();
        let workers = node.workers(&WorkerConfig::default()).unwrap();
        let config = LinkConfig::default();
        let id = SessionId::new(7).unwrap();
        let mut link: Link<Host, Host> = Link::new(&config, Role::Initiator, id, fabric.now()).unwrap();
        let mut handle = Handle::builder(NonZeroU16::MAX, InstanceId::new(9).unwrap());
        for last in [8, 9] {
            assert_eq!(handle.push(&rail(last)), Fit::Included);
        }
        link.handle = Some(handle.finish().unwrap());
        link.question.next = Some(Deadline::at(Instant::from_ns(0)));
        // Nobody is at either address.
        for (failed, last) in (0..).zip([8, 9, 8, 9]) {
            let now = link.question.next.unwrap().instant().max(fabric.now());
            fabric.run_until(now);
            link.put_question(&node, Moment { now, random: 0 }, &config);
            let to = link.question.waited().unwrap().stream.peer_address();
            let expected = SocketAddr::new(prefix(last).address(), u16::MAX);
            assert_eq!((to, link.question.failed), (Some(expected), failed));
            fabric.run_for(config.session.attach_within);
            let now = fabric.now();
            link.hear_answer(&node, &workers, Moment { now, random: 0 }, &config);
            assert!(!link.question.is_asked());
            assert!(link.question.next.is_some_and(|next| !next.has_passed(now)));
        }
        // Answers of the peer: the first leads to no rail, and the second to one.
        let moment = Moment {
            now: fabric.now(),
            random: 0,
        };
        link.question.is_open = true;
        link.hear_answer(&node, &workers, moment, &config);
        assert_eq!(link.question.failed, 5);
        link.question.is_open = true;
        link.rails[0].between = Some(Between {
            device: "sim0".into(),
            port: 1,
            peer: rail(9),
        });
        link.hear_answer(&node, &workers, moment, &config);
        assert_eq!(link.question.failed, 0);
    }
}
