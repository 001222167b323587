//! Busy processes: what a machine that is not ours alone does to a test.

use std::process::Command;

use anyhow::Result;

use crate::leash::{self, Leashed};

/// Processes that compute without a pause until this is dropped.
#[derive(Debug)]
pub(crate) struct Busy {
    processes: Vec<Leashed>,
}

impl Busy {
    /// Starts so many.
    ///
    /// # Errors
    ///
    /// One cannot be started.
    pub(crate) fn start(count: usize) -> Result<Self> {
        let mut command = Command::new("sh");
        command.args(["-c", "while :; do :; done"]);
        let log = std::path::Path::new("/dev/null");
        let started = (0..count).map(|_| leash::spawn_logging(&command, log));
        let processes = started.collect::<Result<_>>()?;
        Ok(Self { processes })
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        for process in &mut self.processes {
            process.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_processes_run_until_they_are_dropped() {
        let mut busy = Busy::start(2).unwrap();
        assert_eq!(busy.processes.len(), 2);
        assert!(busy.processes.iter_mut().all(|process| !process.has_ended()));
    }
}
