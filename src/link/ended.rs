//! Record of links that are over: a peer that reconnects to such a link gets the reason of its end.

use std::collections::VecDeque;

use doorbell_core::wire::RefusalReason;

use super::arrivals::LinkOwner;

/// Minimum number of ended links that are recorded.
const KEPT_MIN: u32 = 64;

/// Links that peers had begun and that are over, each with the reason to send to its peer. All links may end at the same time, so
/// the record holds as many as the limit on links, of 24 bytes each. Its memory grows as links end.
#[derive(Debug)]
pub(super) struct Ended {
    list: VecDeque<(LinkOwner, RefusalReason)>,
    kept: usize,
}

impl Ended {
    pub(super) fn new(links_max: u32) -> Self {
        Self {
            list: VecDeque::new(),
            kept: links_max.max(KEPT_MIN) as usize,
        }
    }

    pub(super) fn note(&mut self, who: LinkOwner, reason: RefusalReason) {
        if self.list.len() >= self.kept {
            self.list.pop_front();
        }
        self.list.push_back((who, reason));
    }

    /// Returns the reason of a link's end, if the link is known.
    pub(super) fn why(&self, who: LinkOwner) -> Option<RefusalReason> {
        let ended = self.list.iter().find(|(ended, _)| *ended == who);
        ended.map(|(_, reason)| *reason)
    }
}

#[cfg(test)]
mod tests {
    use super::{Ended, KEPT_MIN, LinkOwner};
    use doorbell_core::wire::{InstanceId, RefusalReason, SessionId};

    #[test]
    fn as_many_are_kept_as_there_may_be_and_no_more() {
        let who = |session| LinkOwner {
            session: SessionId::new(session).unwrap(),
            peer: InstanceId::new(7).unwrap(),
        };
        for (links_max, kept) in [(1, KEPT_MIN), (64, 64), (65, 65), (1000, 1000)] {
            let mut ended = Ended::new(links_max);
            let reason = |session: u64| RefusalReason((session % 251) as u8);
            let sessions = 1..=u64::from(kept) + 1;
            sessions.for_each(|session| ended.note(who(session), reason(session)));
            assert_eq!(ended.why(who(1)), None, "{links_max}");
            for session in 2..=u64::from(kept) + 1 {
                assert_eq!(ended.why(who(session)), Some(reason(session)), "{links_max}");
            }
            // The same id of another process is another session.
            let peer = InstanceId::new(8).unwrap();
            assert_eq!(ended.why(LinkOwner { peer, ..who(2) }), None);
        }
    }

    #[test]
    fn one_has_as_many_bytes_as_is_said() {
        assert_eq!(size_of::<(LinkOwner, RefusalReason)>(), 24);
    }
}
