//! Names in plans that the fabric does not have: found when a clause is due, or when the fabric goes.

use super::World;
use super::faults::Faults;
use crate::link::fault::PortName;
use crate::plan::{Action, Clause, End, UnknownName};

impl World {
    /// Checks that there is all that an action is about.
    pub(crate) fn check_action(&self, action: &Action) -> Result<(), UnknownName> {
        self.check_ends(action, &action.ends())
    }

    /// Checks that there is all that the clauses of every plan are about, those that are over included.
    pub(crate) fn check_plan(&self) -> Result<(), UnknownName> {
        if let Some(unknown) = self.unknown.first() {
            return Err(unknown.clone());
        }
        let clauses = self.faults.clauses();
        clauses.iter().try_for_each(|clause| self.check_clause(clause))
    }

    /// Reports that a clause is about something that is not there.
    pub(super) fn report_unknown(&mut self, clause: &Clause) {
        let Err(unknown) = self.check_clause(clause) else {
            return;
        };
        if !self.unknown.contains(&unknown) {
            if !self.allows_unknown_names {
                eprintln!("doorbell-sim: a fault cannot happen: {unknown}");
            }
            self.unknown.push(unknown);
        }
    }

    /// Reports all that clauses are about and that is not there.
    pub(super) fn report_all_unknown(&mut self, clauses: &[Clause]) {
        clauses.iter().for_each(|clause| self.report_unknown(clause));
    }

    fn check_clause(&self, clause: &Clause) -> Result<(), UnknownName> {
        self.check_ends(clause, &clause.ends())
    }

    fn check_ends(&self, said: &impl ToString, ends: &[End]) -> Result<(), UnknownName> {
        match ends.iter().find_map(|end| self.unknown_in(end)) {
            None => Ok(()),
            Some((name, known)) => Err(UnknownName {
                clause: said.to_string(),
                name,
                known,
            }),
        }
    }

    /// The shortest part of an end that nothing has, and what there is instead.
    fn unknown_in(&self, end: &End) -> Option<(String, Vec<String>)> {
        let End { host, device, port } = end;
        if !host.is_any() && !self.hosts.iter().any(|known| host.means(&known.name)) {
            let known = self.hosts.iter().map(|known| known.name.clone());
            return Some((host.to_string(), known.collect()));
        }
        let on_device = End {
            port: None,
            ..end.clone()
        };
        let of_host = || self.port_names().filter(|name| host.means(name.host));
        if device.is_some() && !of_host().any(|name| name.is(&on_device)) {
            let mut known: Vec<_> = of_host()
                .map(|name| format!("{}/{}", name.host, name.device))
                .collect();
            known.dedup();
            return Some((on_device.to_string(), known));
        }
        if port.is_some() && !of_host().any(|name| name.is(end)) {
            let on_it = of_host().filter(|name| name.is(&on_device));
            let known = on_it.map(|name| format!("{}/{}:{}", name.host, name.device, name.port));
            return Some((end.to_string(), known.collect()));
        }
        None
    }

    fn port_names(&self) -> impl Iterator<Item = PortName<'_>> {
        // There is no memory for 2^32 ports.
        let all = 0..u32::try_from(self.ports.len()).unwrap_or(u32::MAX);
        all.filter_map(|port| self.name_of(port))
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // A test that failed may have made only some of its hosts.
        if !std::thread::panicking() {
            let clauses = self.faults.clauses();
            self.report_all_unknown(&clauses);
        }
    }
}

impl Faults {
    /// The steps of every plan, and the rules that are in force.
    fn clauses(&self) -> Vec<Clause> {
        let steps = self.steps.iter().cloned().map(Clause::At);
        steps.chain(self.rules()).collect()
    }
}
