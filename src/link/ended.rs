//! Links that are over, so that a peer that comes back to one gets the reason.

use std::collections::VecDeque;

use doorbell_core::wire::RefusalReason;

use super::arrivals::Who;

/// Number of links kept, the last that ended.
const KEPT: usize = 64;

/// Links that peers had begun and that are over, each with the reason to send to its peer.
#[derive(Debug, Default)]
pub(super) struct Ended {
    list: VecDeque<(Who, RefusalReason)>,
}

impl Ended {
    pub(super) fn note(&mut self, who: Who, reason: RefusalReason) {
        if self.list.len() >= KEPT {
            self.list.pop_front();
        }
        self.list.push_back((who, reason));
    }

    /// Returns the reason of a link's end, if the link is known.
    pub(super) fn why(&self, who: Who) -> Option<RefusalReason> {
        let ended = self.list.iter().find(|(ended, _)| *ended == who);
        ended.map(|(_, reason)| *reason)
    }
}

#[cfg(test)]
mod tests {
    use super::{Ended, KEPT, Who};
    use doorbell_core::wire::{InstanceId, RefusalReason, SessionId};

    #[test]
    fn the_last_are_kept_and_no_more() {
        let who = |session| Who {
            session: SessionId::new(session).unwrap(),
            peer: InstanceId::new(7).unwrap(),
        };
        let mut ended = Ended::default();
        for session in 1..=KEPT as u64 + 1 {
            ended.note(who(session), RefusalReason(session as u8));
        }
        assert_eq!(ended.why(who(1)), None);
        assert_eq!(ended.why(who(2)), Some(RefusalReason(2)));
        assert_eq!(
            ended.why(who(KEPT as u64 + 1)),
            Some(RefusalReason(KEPT as u8 + 1))
        );
        // The same name is another session if another process uses it.
        let peer = InstanceId::new(8).unwrap();
        assert_eq!(ended.why(Who { peer, ..who(2) }), None);
    }
}
