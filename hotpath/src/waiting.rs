//! Waiting: when to poll, when to look at the clock, and the one order of arming and polling
//! that loses no wake-up.
//!
//! The queues, their notifications and the sleep are behind [`Waitable`], so a model drives the shipped code.
//! There is no clock and no system call here.

/// Polls between two looks at the clock, for every wait. A poll of two empty queues takes tens of nanoseconds, so
/// a deadline is noticed some ten microseconds late at most. The clock takes about as long as a poll, so this
/// many polls share one look.
const POLLS_PER_LOOK: u32 = 256;

/// How to wait for completions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wait {
    /// Polls without rest: no call into the kernel, the least latency, and a whole processor. The default, since
    /// a program that polls a device has a processor for it.
    ///
    /// Once in 256 polls it reads the clock, which makes no system call if the kernel's vDSO has the clock. A
    /// host whose clock source the vDSO cannot read (`hpet`, `acpi_pm`) makes a system call there, and only
    /// there.
    #[default]
    Busy,
    /// Polls for a while, then has the queues armed and sleeps. The queues must have been made
    /// with notification.
    SpinThenSleep {
        /// How often it polls again, in vain, before it arms and sleeps. 0 sleeps as soon as
        /// there is nothing. It is a count and no time, so that no clock is read.
        spins: u32,
    },
}

impl Wait {
    /// Spins 1,024 times, then sleeps. Arming, sleeping and waking take some ten microseconds. The spin takes
    /// once or twice that, so it never costs more than a few times the better of the two, whenever completions
    /// come.
    pub const SPIN_THEN_SLEEP: Self = Self::SpinThenSleep { spins: 1024 };
}

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Woken {
    /// Something happened, and was handed over.
    Progress,
    /// The deadline passed. The results of the last poll were handed over all the same, so a deadline holds in
    /// the middle of a flood, too. The next wait ends by [`Woken::Progress`] for it, since not all progress is an
    /// event: credits come without one.
    Deadline,
}

/// Object of a wait: queues that are polled, their notifications, and a deadline.
pub trait Waitable {
    /// Why one of these failed.
    type Error;

    /// Takes what happened and hands it over; says how much that was. Zero means nothing.
    ///
    /// # Errors
    /// The queues cannot be polled.
    fn poll(&mut self) -> Result<u32, Self::Error>;

    /// Takes the notifications that are waiting.
    ///
    /// # Errors
    /// The queues do not notify, or it failed.
    fn acknowledge(&mut self) -> Result<(), Self::Error>;

    /// Asks for one notification at the next completion of each queue.
    ///
    /// # Errors
    /// The queues do not notify, or it failed.
    fn arm(&mut self) -> Result<(), Self::Error>;

    /// Whether the deadline has passed.
    fn is_over(&mut self) -> bool;

    /// Sleeps until there is a notification that was not taken, or the deadline passes. It may
    /// end early.
    ///
    /// # Errors
    /// The queues do not notify, or it failed.
    fn sleep(&mut self) -> Result<(), Self::Error>;
}

/// Arms the queues to wake a sleeper: takes old notifications, arms, and polls once more. A caller may sleep only
/// if this poll found nothing, returned as zero.
///
/// # Errors
/// A call of the [`Waitable`] failed.
///
/// # Ordering
/// A completion before the arming is found by the poll; one after it notifies. A notification that is taken here
/// stands for a completion that was there before, and the poll finds that one, too. Any other order loses a
/// wake-up: taking after the poll loses the notification, arming after it loses the completion. Source:
/// `ibv_get_cq_event(3)`, `ibv_req_notify_cq(3)`.
#[inline]
pub fn prepare_sleep<W: Waitable>(what: &mut W) -> Result<u32, W::Error> {
    prepare(what)?;
    what.poll()
}

/// State of a thread that waits again and again at the same queues.
#[derive(Clone, Copy, Debug, Default)]
pub struct Waiter {
    /// Polls so far, wrapping. It goes on from wait to wait, so that the clock is looked at
    /// however many of them end at once.
    polls: u32,
    /// Progress that no wait has reported yet.
    owes_progress: bool,
}

impl Waiter {
    /// A new one.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            polls: 0,
            owes_progress: false,
        }
    }

    /// Waits until something happened, or the deadline passed.
    ///
    /// # Errors
    /// A call of the [`Waitable`] failed.
    #[inline]
    pub fn wait<W: Waitable>(&mut self, how: Wait, what: &mut W) -> Result<Woken, W::Error> {
        let mut spun = 0_u32;
        // Behind a poll that found nothing, and for one poll: what is there is found without arming.
        let mut is_sleepy = false;
        loop {
            if is_sleepy {
                prepare(what)?;
            }
            // Polled at one place: the proof that nothing panics has all of it in line.
            let happened = what.poll()? > 0 || self.owes_progress;
            self.polls = self.polls.wrapping_add(1);
            if self.polls % POLLS_PER_LOOK == 0 && what.is_over() {
                self.owes_progress = happened;
                return Ok(Woken::Deadline);
            }
            if happened {
                self.owes_progress = false;
                return Ok(Woken::Progress);
            }
            if is_sleepy {
                if doze(what)? {
                    return Ok(Woken::Deadline);
                }
                is_sleepy = false;
                continue;
            }
            is_sleepy = matches!(how, Wait::SpinThenSleep { spins } if spun >= spins);
            if !is_sleepy {
                spun = spun.wrapping_add(1);
                core::hint::spin_loop();
            }
        }
    }
}

/// Takes old notifications, and asks for new ones.
#[cold]
fn prepare<W: Waitable>(what: &mut W) -> Result<(), W::Error> {
    what.acknowledge()?;
    what.arm()
}

/// Sleeps behind a poll that found nothing, unless the deadline has passed; says whether it has.
#[cold]
fn doze<W: Waitable>(what: &mut W) -> Result<bool, W::Error> {
    let is_over = what.is_over();
    if !is_over {
        what.sleep()?;
    }
    Ok(is_over)
}

#[cfg(test)]
mod tests;
