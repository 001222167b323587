//! Waiting: when to poll, when to read the clock, and the only order of arming and polling
//! that loses no wake-up.
//!
//! The queues, their notifications and the sleep are behind [`Waitable`], so that models run the shipped code. This
//! module uses no clock and makes no system call.

/// The number of polls between two reads of the clock, in every wait. A poll of two empty queues takes tens of
/// nanoseconds, so a deadline is noticed at most some ten microseconds late. Reading the clock takes about as long as a
/// poll, so many polls share one read.
const POLLS_PER_LOOK: u32 = 256;

/// How to wait for completions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wait {
    /// Polls without pause: no system calls, the least latency, and a whole processor. The default, since a program
    /// that polls a device has a processor for it.
    ///
    /// Once in 256 polls it reads the clock, usually by the vDSO and without a system call. Only on a host whose
    /// clock source the vDSO cannot read (`hpet`, `acpi_pm`) this is a system call.
    #[default]
    Busy,
    /// Polls for a while, then arms the queues and sleeps. The queues must have been made with
    /// notification.
    SpinThenSleep {
        /// The number of empty polls before it arms and sleeps. With 0 it sleeps after the first
        /// empty poll. It is a count and not a time, so that no clock is read.
        spins: u32,
    },
}

impl Wait {
    /// Spins 1,024 times, then sleeps. Arming, sleeping and waking take some ten microseconds. The spin takes one or
    /// two times as long. So the total never exceeds a few times the cost of the better choice, whenever completions
    /// come.
    pub const SPIN_THEN_SLEEP: Self = Self::SpinThenSleep { spins: 1024 };
}

/// The end of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Woken {
    /// Something happened, and was reported.
    Progress,
    /// The deadline passed. The results of the last poll were reported, too, so a deadline also holds under constant
    /// load. If that poll made progress, the next wait ends with [`Woken::Progress`], since some progress, such as
    /// new credits, is not an event.
    Deadline,
}

/// The object of a wait: queues to poll, their notifications, and a deadline.
pub trait Waitable {
    /// The error of these calls.
    type Error;

    /// Polls the queues and reports what happened. Returns how much that was; zero means nothing.
    ///
    /// # Errors
    /// The queues cannot be polled.
    fn poll(&mut self) -> Result<u32, Self::Error>;

    /// Takes the waiting notifications.
    ///
    /// # Errors
    /// The queues do not notify, or it failed.
    fn acknowledge(&mut self) -> Result<(), Self::Error>;

    /// Requests one notification at the next completion of each queue.
    ///
    /// # Errors
    /// The queues do not notify, or it failed.
    fn arm(&mut self) -> Result<(), Self::Error>;

    /// Whether the deadline has passed.
    fn is_over(&mut self) -> bool;

    /// Sleeps until there is a notification that was not taken, or until the deadline passes. It may
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
/// The poll finds a completion from before the arming, and a later completion notifies. A notification that is taken
/// here is for an earlier completion, which the poll finds, too. Any other order loses a wake-up: taking after the poll
/// loses a notification, and arming after the poll loses a completion. Source:
/// `ibv_get_cq_event(3)`, `ibv_req_notify_cq(3)`.
#[inline]
pub fn prepare_sleep<W: Waitable>(what: &mut W) -> Result<u32, W::Error> {
    prepare(what)?;
    what.poll()
}

/// The state of a thread that waits repeatedly at the same queues.
#[derive(Clone, Copy, Debug, Default)]
pub struct Waiter {
    /// The number of polls so far, wrapping. It continues from wait to wait, so that the clock is
    /// read even if many waits end at once.
    polls: u32,
    /// Whether there was progress that no wait has reported yet.
    owes_progress: bool,
}

impl Waiter {
    /// A new waiter.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            polls: 0,
            owes_progress: false,
        }
    }

    /// Waits until something happens, or the deadline passes.
    ///
    /// # Errors
    /// A call of the [`Waitable`] failed.
    #[inline]
    pub fn wait<W: Waitable>(&mut self, how: Wait, what: &mut W) -> Result<Woken, W::Error> {
        let mut spun = 0_u32;
        // Set after empty polls, and only for one poll: events that exist already are found without arming.
        let mut is_sleepy = false;
        loop {
            if is_sleepy {
                prepare(what)?;
            }
            // Called at one place only, since the proof that nothing panics inlines all of it.
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

/// Takes old notifications, and requests new ones.
#[cold]
fn prepare<W: Waitable>(what: &mut W) -> Result<(), W::Error> {
    what.acknowledge()?;
    what.arm()
}

/// Sleeps after an empty poll, unless the deadline has passed. Returns whether it has passed.
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
