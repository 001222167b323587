//! Admission of processes: keys of jobs, limits, and names.

use super::{Credentials, JobKeys, Router};
use crate::packet::AttachRequest;
use crate::reason::AttachRefusal;

impl Router {
    /// Sets the jobs that processes may attach to from now on, with their keys. Attached processes stay. While some of them have another key
    /// of a job, processes with the new key are refused, so that two keys of a job never meet.
    pub fn set_job_keys(&mut self, keys: JobKeys) {
        self.job_keys = Some(keys);
    }

    /// Checks whether a process may attach, before its memory is mapped.
    ///
    /// # Errors
    /// The file of job keys does not list the job, or not for this user; a limit is reached, the key is not the job's key, or the endpoint
    /// number is taken.
    pub fn admit(&self, who: Credentials, request: &AttachRequest) -> Result<(), AttachRefusal> {
        if let Some(keys) = &self.job_keys {
            keys.check(who.uid, request.job, request.key)?;
        }
        let clients = self.users.values().map(|user| user.clients);
        if clients.fold(0, usize::saturating_add) >= self.limits.clients_max {
            return Err(AttachRefusal::TooManyClients);
        }
        let user = self.users.get(&who.uid).copied().unwrap_or_default();
        if user.clients >= self.limits.clients_of_user_max {
            return Err(AttachRefusal::TooManyOfUser);
        }
        let bytes = request.layout.bytes();
        if user.bytes.saturating_add(bytes) > self.limits.bytes_of_user_max {
            return Err(AttachRefusal::MemoryOfUser);
        }
        let members = self.jobs.get(&(who.uid, request.job));
        if members.is_some_and(|members| members.key != request.key) {
            return Err(AttachRefusal::JobKey);
        }
        if members.is_some_and(|members| members.by_endpoint.len() >= self.limits.clients_of_job_max) {
            return Err(AttachRefusal::TooManyOfJob);
        }
        let of_job = members.map_or(0, |members| members.bytes);
        if of_job.saturating_add(bytes) > self.limits.bytes_of_job_max {
            return Err(AttachRefusal::MemoryOfJob);
        }
        let Some(members) = members else {
            return Ok(());
        };
        if members.by_endpoint.contains_key(&request.endpoint) {
            return Err(AttachRefusal::NameTaken);
        }
        Ok(())
    }
}
