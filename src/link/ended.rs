//! Links that are over, for peers that come back to one: so that they hear why.

use std::collections::VecDeque;

use doorbell_core::wire::RefusalReason;

use super::arrivals::Who;

/// How many are kept: those that ended last.
const KEPT: usize = 64;

/// Links that peers had begun and that are over, and why, as the peer is told.
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

    /// Why it is over, where it is known to be.
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
