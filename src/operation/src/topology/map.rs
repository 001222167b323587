//! Several hosts, and the routes between them: by rails, or through other hosts if no rails pair.

use std::collections::VecDeque;

use doorbell::rails::{Candidate, LocalRail, NotChosen, PairedRails, Verdict, pairs};

use super::Topology;

/// Hosts, and the pairs of rails between them.
#[derive(Clone, Debug)]
pub struct Map<'t> {
    hosts: Vec<Host<'t>>,
    /// For each ordered pair of hosts: the pairs of rails as the first host sees them.
    reaches: Vec<Vec<Reach>>,
}

#[derive(Clone, Debug)]
struct Host<'t> {
    topology: &'t Topology,
    rails: Vec<(LocalRail, Candidate)>,
}

/// The rails by which one host reaches another. Rails are identified by their index in [`Map::rails`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reach {
    /// The pairs, the best first.
    pub pairs: Vec<PairedRails>,
    /// The rails of the first host that are in no pair, and the reason.
    pub without: Vec<(usize, NotChosen)>,
}

impl<'t> Map<'t> {
    /// Pairs the rails of every two hosts.
    #[must_use]
    pub fn new(topologies: &'t [Topology]) -> Self {
        let hosts: Vec<Host<'t>> = topologies
            .iter()
            .map(|topology| Host {
                topology,
                rails: topology.candidates(),
            })
            .collect();
        let candidates: Vec<Vec<Candidate>> = hosts
            .iter()
            .map(|host| host.rails.iter().map(|(_, candidate)| *candidate).collect())
            .collect();
        let from = |ours: &Vec<Candidate>| candidates.iter().map(|peers| reach(ours, peers)).collect();
        let reaches = candidates.iter().map(from).collect();
        Self { hosts, reaches }
    }

    /// The number of hosts.
    #[must_use]
    pub fn hosts(&self) -> usize {
        self.hosts.len()
    }

    /// The topology of a host.
    #[must_use]
    pub fn topology(&self, host: usize) -> Option<&'t Topology> {
        self.hosts.get(host).map(|host| host.topology)
    }

    /// The usable rails of a host, in the order in which they are offered.
    pub fn rails(&self, host: usize) -> impl Iterator<Item = &LocalRail> {
        let host = self.hosts.get(host);
        host.into_iter()
            .flat_map(|host| &host.rails)
            .map(|(rail, _)| rail)
    }

    /// The pairs of rails from one host to another.
    #[must_use]
    pub fn reach(&self, from: usize, to: usize) -> Option<&Reach> {
        self.reaches.get(from)?.get(to)
    }

    /// The shortest route from one host to another, including both, through other hosts if no rails pair. Among routes of
    /// the same length, hosts with lower indices are preferred.
    #[must_use]
    pub fn route(&self, from: usize, to: usize) -> Option<Vec<usize>> {
        let mut before: Vec<Option<usize>> = vec![None; self.hosts()];
        *before.get_mut(from)? = Some(from);
        let mut next = VecDeque::from([from]);
        while let Some(at) = next.pop_front() {
            if at == to {
                break;
            }
            for other in 0..self.hosts() {
                let is_near = self.reach(at, other).is_some_and(|reach| !reach.pairs.is_empty());
                let Some(place) = before.get_mut(other) else {
                    continue;
                };
                if is_near && place.is_none() {
                    *place = Some(at);
                    next.push_back(other);
                }
            }
        }
        let mut route = vec![to];
        let mut at = to;
        while at != from {
            at = before.get(at).copied().flatten()?;
            route.push(at);
        }
        route.reverse();
        Some(route)
    }
}

fn reach(ours: &[Candidate], peers: &[Candidate]) -> Reach {
    let pairing = pairs(ours, peers);
    let without = pairing
        .local_verdicts()
        .enumerate()
        .filter_map(|(index, (_, verdict))| match verdict {
            Verdict::NotChosen(reason) => Some((index, reason)),
            Verdict::Chosen(_) => None,
        })
        .collect();
    Reach {
        pairs: pairing.pairs().to_vec(),
        without,
    }
}
