//! An application whose callback panics in some of its polls, and that polls again.

use core::panic::AssertUnwindSafe;
use std::panic::{catch_unwind, resume_unwind};

use doorbell::{Event, Turn};
use doorbell_sim::Host;

/// When the callback panics.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Panics {
    /// At every nth event. Zero turns this off.
    every: u32,
    events: u32,
}

/// The payload that the callback panics with.
struct OwnPanic;

impl Panics {
    pub(crate) const fn every(every: u32) -> Self {
        Self { every, events: 0 }
    }

    /// Ends the callback, by a panic where one is due. No hook is called for it, so nothing is printed.
    pub(crate) fn event(&mut self) {
        self.events = self.events.wrapping_add(1);
        if self.every > 0 && self.events % self.every == 0 {
            resume_unwind(Box::new(OwnPanic));
        }
    }

    /// Tells of an event, and ends the callback. The application keeps the memory of some messages, and copies others where there is
    /// memory for that: a panic then strikes while it has the message.
    pub(crate) fn hear<C>(
        &mut self,
        turn: &mut Turn<'_, Host, C>,
        event: Event<'_, Host>,
        mut tell: impl FnMut(Event<'static, Host>),
    ) {
        let copy = match &event {
            Event::Received { message, .. } if message.len_bytes() % 2 == 0 => {
                let copy = turn.lease();
                copy.filter(|copy| copy.capacity_bytes() >= message.len_bytes())
            }
            _ => None,
        };
        match (event, copy) {
            (Event::Received { message, immediate }, Some(mut copy)) => {
                if copy.fill(message.payload()).is_ok() {
                    let message = copy.into();
                    tell(Event::Received { message, immediate });
                }
                self.event();
                drop(message);
            }
            (event, _) => {
                tell(event.keep());
                self.event();
            }
        }
    }

    /// Polls, and again where the callback panicked: what is left then comes. Another panic goes on its way.
    pub(crate) fn through<T>(&mut self, mut poll: impl FnMut(&mut Self) -> T) -> T {
        loop {
            match catch_unwind(AssertUnwindSafe(|| poll(self))) {
                Ok(polled) => return polled,
                Err(panic) if panic.is::<OwnPanic>() => {}
                Err(panic) => resume_unwind(panic),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Panics;

    #[test]
    fn it_polls_until_nothing_is_left() {
        let mut panics = Panics::every(2);
        let (mut left, mut told, mut polls) = (vec![5, 4, 3, 2, 1], Vec::new(), 0);
        panics.through(|panics| {
            polls += 1;
            while let Some(event) = left.pop() {
                told.push(event);
                panics.event();
            }
        });
        assert_eq!((told, polls), (vec![1, 2, 3, 4, 5], 3));
    }
}
