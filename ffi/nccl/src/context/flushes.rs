//! Flushes of device memory. After a flush the GPU can see the received bytes.

use doorbell::connect::{Flush, Flusher};

use super::Context;
use super::loans::ENDED_WITHIN;
use super::sending::no_request;
use crate::abi::NcclResult;
use crate::failure::Failure;
use crate::frame::RECEIVES_MAX;
use crate::log;
use crate::places::{Key, Places};

/// The flushes of a context.
#[derive(Debug)]
pub(super) struct Flushes {
    /// Created with the first device memory, and again after a failure, or when a missing device has come up.
    flusher: Option<Flusher>,
    /// Number of flushers created. Flushes of an earlier flusher are started again.
    made: u32,
    requests: Places<Request>,
}

impl Default for Flushes {
    fn default() -> Self {
        Self {
            flusher: None,
            made: 0,
            requests: Places::new(),
        }
    }
}

/// A request, whose memories are flushed one after the other.
#[derive(Clone, Copy, Debug)]
struct Request {
    comm: Key,
    memories: [Key; RECEIVES_MAX],
    /// The index of the next memory.
    at: usize,
    /// The flush in progress, and the number of its flusher.
    under_way: Option<(u32, Flush)>,
    /// Whether it was restarted after a failure of the flusher.
    is_again: bool,
}

impl Request {
    /// The memory to flush next, if there is one.
    fn next(&self) -> Option<Key> {
        self.memories.get(self.at).copied()
    }
}

impl Flushes {
    /// Drops the requests of a comm that is closed.
    pub(super) fn forget(&mut self, comm: Key) {
        let of_comm = self.requests.iter().filter(|(_, request)| request.comm == comm);
        let keys: Vec<_> = of_comm.map(|(key, _)| key).collect();
        let is_read = |key: &Key| {
            self.requests
                .get(*key)
                .is_some_and(|request| self.is_under_way(request))
        };
        // A flush in progress reads memory that may be freed now, so its queue pairs are destroyed.
        if keys.iter().any(is_read) {
            self.flusher = None;
        }
        for key in keys {
            self.requests.remove(key);
        }
    }

    /// Polls for completed flushes. A flusher that fails is dropped.
    fn poll(&mut self) -> Result<(), Failure> {
        let polled = self.flusher.as_mut().map_or(Ok(()), Flusher::poll);
        polled.map_err(|error| {
            let status = self.flusher.take().and_then(|flusher| flusher.failure());
            match status {
                Some(status) => Failure::system(format_args!("memory of a GPU was not flushed: {status:?}")),
                None => Failure::system(format_args!("memory of a GPU was not flushed: {error}")),
            }
        })
    }

    fn is_under_way(&self, request: &Request) -> bool {
        let of_this = request.under_way.filter(|(made, _)| *made == self.made);
        let flusher = self.flusher.as_ref().zip(of_this);
        flusher.is_some_and(|(flusher, (_, flush))| !flusher.is_done(flush))
    }
}

impl Context {
    /// Creates a flusher if necessary, provided that device memory can be registered at all.
    pub(crate) fn open_flusher(&mut self) -> Result<(), Failure> {
        self.check_devices_memory()?;
        let has_new = self.state.has_new_rails;
        let flusher = self.flushes.flusher.as_ref();
        if flusher.is_some_and(|flusher| flusher.is_complete() || !has_new) {
            return Ok(());
        }
        let flusher = self
            .node
            .flusher(&self.workers)
            .map_err(|error| Failure::system(format_args!("memory of a GPU cannot be flushed: {error}")))?;
        self.state.has_new_rails = false;
        self.flushes.flusher = Some(flusher);
        self.flushes.made = self.flushes.made.wrapping_add(1);
        Ok(())
    }

    /// Flushes memory of a completed receive. Returns `None` if no device memory is among it. A request is never refused for lack of room,
    /// since NCCL would treat that as the completion of the flush.
    pub(crate) fn flush(&mut self, comm: Key, keys: [Key; RECEIVES_MAX]) -> Result<Option<Key>, Failure> {
        self.check_receives(comm)?;
        let memories = &self.state.memories;
        let is_of_device = |key: &Key| memories.get(*key).is_some_and(|memory| memory.target.is_some());
        let mut request = Request {
            comm,
            memories: [Key::NONE; RECEIVES_MAX],
            at: RECEIVES_MAX,
            under_way: None,
            is_again: false,
        };
        // Filled from the end, so that the remaining memories are always the last entries.
        for key in keys.iter().filter(|key| is_of_device(key)) {
            request.at = request.at.saturating_sub(1);
            if let Some(place) = request.memories.get_mut(request.at) {
                *place = *key;
            }
        }
        if request.next().is_none() {
            return Ok(None);
        }
        self.go_on_flushing(&mut request)?;
        let full = || Failure::system("the limit of open flushes is reached: test some");
        self.flushes.requests.add(request).map(Some).ok_or_else(full)
    }

    /// Advances a request. Returns whether everything is flushed.
    fn go_on_flushing(&mut self, request: &mut Request) -> Result<bool, Failure> {
        while let Some(key) = request.next() {
            self.open_flusher()?;
            if let Err(error) = self.flushes.poll() {
                // Memory of another request or a port that went down may be the cause, so each request is restarted once.
                if core::mem::replace(&mut request.is_again, true) {
                    return Err(error);
                }
                continue;
            }
            let made = self.flushes.made;
            let Some(flusher) = &mut self.flushes.flusher else {
                return Ok(false);
            };
            if let Some((_, flush)) = request.under_way.filter(|(of, _)| *of == made) {
                if !flusher.is_done(flush) {
                    return Ok(false);
                }
                request.at = request.at.saturating_add(1);
                request.under_way = None;
                continue;
            }
            let memory = self.state.memories.get(key);
            let target = memory.and_then(|memory| memory.target.as_ref());
            let gone = || {
                Failure::new(
                    NcclResult::INVALID_USAGE,
                    "the memory was deregistered under its flush",
                )
            };
            match flusher.begin(target.ok_or_else(gone)?) {
                Ok(Some(flush)) => request.under_way = Some((made, flush)),
                Ok(None) => return Ok(false),
                Err(error) => {
                    self.flushes.flusher = None;
                    return Err(Failure::system(format_args!(
                        "memory of a GPU was not flushed: {error}"
                    )));
                }
            }
        }
        Ok(true)
    }

    /// Returns whether a flush is complete.
    #[inline(never)]
    pub(crate) fn test_flush(&mut self, key: Key) -> Result<bool, Failure> {
        self.poll()?;
        let mut request = *self.flushes.requests.get(key).ok_or_else(no_request)?;
        let gone_on = self.go_on_flushing(&mut request);
        match gone_on {
            Ok(false) => {
                if let Some(place) = self.flushes.requests.get_mut(key) {
                    *place = request;
                }
            }
            Ok(true) | Err(_) => {
                self.flushes.requests.remove(key);
            }
        }
        gone_on
    }

    /// Waits for flushes of memory that is deregistered: its key must not be used afterwards. If this takes too long, the queue pairs are
    /// destroyed.
    pub(super) fn end_flushes(&mut self, memory: Key) {
        let until = self.node.within(ENDED_WITHIN);
        let is_open = |flushes: &Flushes| {
            let mut requests = flushes.requests.iter().map(|(_, request)| request);
            requests.any(|request| request.next() == Some(memory) && flushes.is_under_way(request))
        };
        while is_open(&self.flushes) {
            if until.has_passed(doorbell::now()) {
                log::warn("flushes of memory that was deregistered did not end in time");
                self.flushes.flusher = None;
            } else if self.flushes.poll().is_err() {
                return;
            }
            // Polls the links meanwhile: otherwise their peers would lose rails.
            self.pass();
        }
    }
}
