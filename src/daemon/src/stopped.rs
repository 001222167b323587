//! READs from other nodes that wait for their lane, and the requests behind them.

use core::ops::Bound::{Excluded, Unbounded};
use std::collections::{BTreeMap, VecDeque};

use crate::name::{EndpointAddress, NodeNumber};

/// A lane: the node at its other end, and its number.
pub(crate) type LaneKey = (NodeNumber, u32);

/// READs from other nodes whose response has no room in the lane back, and all later requests of the same pairs. Lanes take turns, and so do
/// the pairs of a lane.
///
/// A pair has at most as many requests as it has credits. No call looks at more than one pair, so that many stopped requests delay nothing.
#[derive(Debug)]
pub(crate) struct Stopped<T> {
    /// The requests by sender, in order.
    pairs: BTreeMap<EndpointAddress, VecDeque<T>>,
    /// The senders that wait for each lane.
    lanes: BTreeMap<LaneKey, VecDeque<EndpointAddress>>,
    /// The lane that had the last turn.
    last: Option<LaneKey>,
    count: usize,
}

impl<T> Stopped<T> {
    pub(crate) const fn new() -> Self {
        Self {
            pairs: BTreeMap::new(),
            lanes: BTreeMap::new(),
            last: None,
            count: 0,
        }
    }

    pub(crate) const fn count(&self) -> usize {
        self.count
    }

    /// Whether a request of this sender is stopped.
    pub(crate) fn has(&self, from: EndpointAddress) -> bool {
        self.pairs.contains_key(&from)
    }

    /// Adds a request of this sender after those of its pair. All requests of a pair wait for the same lane.
    pub(crate) fn push(&mut self, lane: LaneKey, from: EndpointAddress, request: T) {
        let pair = self.pairs.entry(from).or_insert_with(|| {
            self.lanes.entry(lane).or_default().push_back(from);
            VecDeque::new()
        });
        pair.push_back(request);
        self.count = self.count.saturating_add(1);
    }

    /// Takes all requests of the next pair whose lane has room.
    pub(crate) fn take_pair(&mut self, has_room: impl Fn(LaneKey) -> bool) -> Option<VecDeque<T>> {
        let after = self
            .lanes
            .range((self.last.map_or(Unbounded, Excluded), Unbounded));
        let mut keys = after.chain(&self.lanes).map(|(key, _)| *key);
        let key = keys.find(|key| has_room(*key))?;
        self.last = Some(key);
        let senders = self.lanes.get_mut(&key)?;
        let from = senders.pop_front()?;
        if senders.is_empty() {
            self.lanes.remove(&key);
        }
        let pair = self.pairs.remove(&from)?;
        self.count = self.count.saturating_sub(pair.len());
        Some(pair)
    }

    /// Removes the requests of a node, and passes each to `each`.
    pub(crate) fn lose_node(&mut self, node: NodeNumber, mut each: impl FnMut(&T)) {
        self.lanes.retain(|(of, _), _| *of != node);
        let count = &mut self.count;
        self.pairs.retain(|from, pair| {
            if from.node == node {
                *count = count.saturating_sub(pair.len());
                pair.iter().for_each(&mut each);
            }
            from.node != node
        });
    }

    /// The requests, in order for each pair.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.pairs.values().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::{EndpointAddress, LaneKey, NodeNumber, Stopped};

    const LANES: [LaneKey; 2] = [(NodeNumber(1), 0), (NodeNumber(2), 0)];

    fn sender(node: u32, endpoint: u32) -> EndpointAddress {
        EndpointAddress {
            node: NodeNumber(node),
            endpoint,
        }
    }

    /// Three pairs of the first lane and one of the second, with two requests each.
    fn stopped() -> Stopped<(u32, u32)> {
        let mut stopped = Stopped::new();
        for request in 0..2 {
            for (node, endpoint) in [(1, 7), (1, 8), (1, 9), (2, 7)] {
                let lane = LANES[node as usize - 1];
                stopped.push(lane, sender(node, endpoint), (10 * node + endpoint, request));
            }
        }
        stopped
    }

    fn take(stopped: &mut Stopped<(u32, u32)>, has_room: impl Fn(LaneKey) -> bool) -> Option<u32> {
        let pair = stopped.take_pair(has_room)?;
        let first = pair[0].0;
        assert_eq!(pair, [(first, 0), (first, 1)]);
        Some(first)
    }

    #[test]
    fn lanes_take_turns_and_so_do_the_pairs_of_a_lane() {
        let mut all = stopped();
        let taken: Vec<_> = core::iter::from_fn(|| take(&mut all, |_| true)).collect();
        assert_eq!(taken, [17, 27, 18, 19]);
        assert_eq!((all.count(), all.iter().count()), (0, 0));

        let mut all = stopped();
        assert_eq!(take(&mut all, |lane| lane == LANES[1]), Some(27));
        assert_eq!(take(&mut all, |lane| lane == LANES[1]), None);
        assert!(all.has(sender(1, 7)) && !all.has(sender(2, 7)));
        // A pair that is stopped again is the last of its lane.
        assert_eq!(take(&mut all, |_| true), Some(17));
        all.push(LANES[0], sender(1, 7), (17, 0));
        assert_eq!(take(&mut all, |_| true), Some(18));
        assert_eq!((all.count(), all.iter().count()), (3, 3));
    }

    #[test]
    fn a_lost_node_takes_all_its_requests_away_and_no_others() {
        let mut all = stopped();
        let mut lost = Vec::new();
        all.lose_node(NodeNumber(1), |request| lost.push(*request));
        assert_eq!(lost, [(17, 0), (17, 1), (18, 0), (18, 1), (19, 0), (19, 1)]);
        assert_eq!((all.count(), all.iter().count()), (2, 2));
        assert_eq!(take(&mut all, |_| true), Some(27));
        assert_eq!(take(&mut all, |_| true), None);
    }
}
