//! Events of a session: the difference between its state and the last reported state. So the number of events is bounded,
//! and a change that is undone between two calls is not reported.

use super::{FinalReason, Phase, Session, SessionEvent};
use crate::session::{Kept, Retained, Sequence};

/// The last reported state.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reported {
    connection: Connection,
    /// A bit for each rail that was reported as up.
    rails_up: u8,
    is_stalled: bool,
    /// All fragments below this number were reported as done.
    done: Sequence,
    /// After the end of the session: all fragments below this number were reported.
    ended: Sequence,
    /// Whether a fragment of the message at `ended` was sent.
    was_sent: bool,
    is_over: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Connection {
    #[default]
    None,
    There,
    Lost,
}

impl<O, I> Session<O, I>
where
    O: AsRef<[Retained]> + AsMut<[Retained]>,
    I: AsRef<[Kept]> + AsMut<[Kept]>,
{
    /// Returns the next event, until there is none.
    pub fn poll_event(&mut self) -> Option<SessionEvent> {
        if self.reported.is_over {
            return None;
        }
        self.report_connection()
            .or_else(|| self.report_rails())
            .or_else(|| self.report_done())
            .or_else(|| self.report_stalled())
            .or_else(|| self.report_end())
    }

    fn report_connection(&mut self) -> Option<SessionEvent> {
        let (now, event) = match (self.reported.connection, self.phase) {
            (Connection::None, Phase::Connected) => (Connection::There, SessionEvent::Connected),
            (Connection::There, Phase::Recovering { .. }) => (Connection::Lost, SessionEvent::Recovering),
            (Connection::Lost, Phase::Connected) => (Connection::There, SessionEvent::Recovered),
            _ => return None,
        };
        self.reported.connection = now;
        if now == Connection::Lost {
            // `Recovering` supersedes `Stalled`: no `Resumed` follows it.
            self.reported.is_stalled = false;
        }
        Some(event)
    }

    fn report_rails(&mut self) -> Option<SessionEvent> {
        for index in 0..self.rails_end {
            let is_up = self
                .rails
                .get(usize::from(index))
                .is_some_and(crate::session::rail::Rail::is_up);
            let bit = 1_u8.checked_shl(u32::from(index)).unwrap_or(0);
            let was_up = self.reported.rails_up & bit != 0;
            if is_up != was_up {
                self.reported.rails_up ^= bit;
                let rail = index;
                return Some(if is_up {
                    SessionEvent::RailUp { rail }
                } else {
                    SessionEvent::RailDown { rail }
                });
            }
        }
        None
    }

    fn report_done(&mut self) -> Option<SessionEvent> {
        let done = self.outbox.oldest();
        if done == self.reported.done {
            return None;
        }
        self.reported.done = done;
        self.reported.ended = done;
        Some(SessionEvent::Done {
            through: done.before(),
        })
    }

    fn report_stalled(&mut self) -> Option<SessionEvent> {
        if self.is_stalled == self.reported.is_stalled {
            return None;
        }
        self.reported.is_stalled = self.is_stalled;
        Some(if self.is_stalled {
            SessionEvent::Stalled
        } else {
            SessionEvent::Resumed
        })
    }

    fn report_end(&mut self) -> Option<SessionEvent> {
        let Phase::Over(reason) = self.phase else {
            return None;
        };
        if let Some(event) = self.report_unknown(reason) {
            return Some(event);
        }
        self.reported.is_over = true;
        Some(SessionEvent::Final { reason })
    }

    /// Returns the next message for which it cannot be known whether the peer has it.
    fn report_unknown(&mut self, reason: FinalReason) -> Option<SessionEvent> {
        loop {
            let fragment = self.outbox.get(self.reported.ended)?;
            // A message whose first fragments are acknowledged was sent.
            let is_begun = !fragment.is_first && self.reported.ended == self.outbox.oldest();
            let was_sent = self.reported.was_sent || fragment.was_sent || is_begun;
            self.reported.ended = fragment.sequence.plus(1);
            self.reported.was_sent = was_sent && !fragment.is_last;
            if fragment.is_last {
                return Some(SessionEvent::Unknown {
                    sequence: fragment.sequence,
                    was_sent,
                    reason,
                });
            }
        }
    }
}
