//! The handshakes at the door of a listener, and which of them makes room for another.
//!
//! Source: the documentation of `HandshakeLimits`.

use crate::crowd::case::CrowdCase;

/// How far a guest is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Its Connect has not come.
    Unproven,
    /// It waits until others of its address are done.
    InLine { until_ns: u64 },
    /// It has a place on the Worker.
    Holding,
}

/// A handshake that is under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Guest {
    pub(crate) number: u32,
    pub(crate) host: usize,
    pub(crate) began_ns: u64,
    pub(crate) standing: Standing,
    /// When the stage is over that it is in.
    pub(crate) stage_ends_ns: u64,
}

/// Why a guest has to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It makes room, or has waited for long enough.
    Busy,
    /// A stage took too long.
    Late,
}

/// All of them, the oldest first.
#[derive(Clone, Debug)]
pub(crate) struct Door {
    under_way: usize,
    per_address: usize,
    crowded_stage_ns: u64,
    pub(crate) guests: Vec<Guest>,
}

impl Door {
    pub(crate) const fn new(case: &CrowdCase) -> Self {
        Self {
            under_way: case.under_way,
            per_address: case.per_address,
            crowded_stage_ns: case.crowded_stage_ns,
            guests: Vec::new(),
        }
    }

    pub(crate) fn of_host(&self, host: usize) -> usize {
        self.guests.iter().filter(|guest| guest.host == host).count()
    }

    /// Whether there is a place for so many more of a host without anybody making room.
    pub(crate) fn has_place(&self, host: usize, of_host: usize, all: usize) -> bool {
        self.of_host(host) + of_host <= self.per_address && self.guests.len() + all <= self.under_way
    }

    /// The guest that makes room for one more of a host.
    ///
    /// # Errors
    /// None does, and the new one is turned away.
    pub(crate) fn enter(&self, host: usize) -> Result<Option<u32>, ()> {
        let own = self.of_host(host);
        let oldest = |is_among: &dyn Fn(usize) -> bool| {
            let mut guests = self.guests.iter();
            guests.find(|guest| is_among(guest.host) && guest.standing == Standing::Unproven)
        };
        if own >= self.per_address {
            return oldest(&|of| of == host).map(|guest| Some(guest.number)).ok_or(());
        }
        if self.guests.len() < self.under_way {
            return Ok(None);
        }
        // Several hosts may have the most guests. The documentation leaves open which of them makes room, and this
        // takes any.
        let most = self.guests.iter().map(|guest| self.of_host(guest.host)).max();
        let most = most.filter(|most| *most > own + 1);
        let has_most = |of: usize| Some(self.of_host(of)) == most;
        let in_line = || {
            let mut guests = self.guests.iter();
            guests.find(|guest| has_most(guest.host) && matches!(guest.standing, Standing::InLine { .. }))
        };
        let others = || oldest(&|of| own == 0 || of == host);
        let found = oldest(&has_most).or_else(in_line).or_else(others);
        found.map(|guest| Some(guest.number)).ok_or(())
    }

    /// Whether several hosts have most, so that it is open which of them makes room.
    pub(crate) fn is_tied(&self) -> bool {
        let counts = || self.guests.iter().map(|guest| self.of_host(guest.host));
        let most = counts().max().unwrap_or(0);
        most > 0 && counts().filter(|count| *count == most).count() > most
    }

    fn is_crowded_for(&self, host: usize) -> bool {
        self.guests.len() > self.under_way / 2 || self.of_host(host) > self.per_address / 2
    }

    /// Returns the first guest that has to leave by now, with the reason.
    pub(crate) fn due(&self, now_ns: u64) -> Option<(Guest, Fate)> {
        let is_impatient = |guest: &&Guest| {
            guest.standing == Standing::Unproven
                && guest.began_ns + self.crowded_stage_ns <= now_ns
                && self.is_crowded_for(guest.host)
        };
        if let Some(guest) = self.guests.iter().find(is_impatient) {
            return Some((*guest, Fate::Busy));
        }
        self.guests.iter().find_map(|guest| match guest.standing {
            Standing::InLine { until_ns } if until_ns <= now_ns => Some((*guest, Fate::Busy)),
            _ if guest.stage_ends_ns <= now_ns => Some((*guest, Fate::Late)),
            _ => None,
        })
    }

    /// When somebody has to go next.
    pub(crate) fn next_ns(&self) -> u64 {
        let next = |guest: &Guest| match guest.standing {
            Standing::InLine { until_ns } => until_ns.min(guest.stage_ends_ns),
            Standing::Unproven if self.is_crowded_for(guest.host) => {
                guest.stage_ends_ns.min(guest.began_ns + self.crowded_stage_ns)
            }
            _ => guest.stage_ends_ns,
        };
        self.guests.iter().map(next).min().unwrap_or(u64::MAX)
    }

    pub(crate) fn leave(&mut self, number: u32) {
        self.guests.retain(|guest| guest.number != number);
    }
}
