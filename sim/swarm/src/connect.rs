//! How channels come and go: handshakes, closings, and Workers that are of no further use.

use doorbell::connect::Cause;
use doorbell::wire::RejectReason;
use doorbell::worker::CloseProgress;
use doorbell::{ChannelId, ConnectError, Deadline};

use crate::failure::{Verdict, ensure, failure};
use crate::line::{End, prepare_region};
use crate::run::Run;
use crate::station::{REGION_BYTES, Station, channel_config};

impl Run<'_> {
    /// Goes on with what a host connects and accepts.
    pub(crate) fn shake_hands(&mut self, host: usize) -> Verdict {
        for line in 0..self.lines.len() {
            let hosts = self.case.lines[line].hosts;
            let is_awaited = self.lines[line]
                .connection
                .as_ref()
                .is_some_and(|connection| !connection.was_accepted);
            if hosts[1] == host && (is_awaited || self.lines[line].listener.deadline().is_some()) {
                self.accept(line, host)?;
            }
            if hosts[0] == host && self.lines[line].attempt.is_some() {
                self.advance_attempt(line, host)?;
            }
        }
        Ok(())
    }

    fn advance_attempt(&mut self, line: usize, host: usize) -> Verdict {
        let Station { node, workers, .. } = &mut self.stations[host];
        let Some(outcome) = self.lines[line]
            .attempt
            .as_mut()
            .and_then(|attempt| attempt.poll(node, workers))
        else {
            return Ok(());
        };
        self.lines[line].attempt = None;
        let now_ns = self.fabric.now().to_ns();
        match outcome {
            Ok(made) => self.admit(line, 0, made.worker, made.channel),
            Err(error) => {
                self.trace
                    .note(now_ns, host, format_args!("line {line}: not connected: {error}"));
                self.excuse_connect(&error)?;
                if let Some(connection) = &mut self.lines[line].connection {
                    connection.is_ending = true;
                }
                self.forget_if_over(line)
            }
        }
    }

    fn accept(&mut self, at: usize, host: usize) -> Verdict {
        let Station { node, workers, .. } = &mut self.stations[host];
        let made = match self.lines[at].listener.poll_accept(node, workers) {
            Ok(Some(made)) => made,
            Ok(None) => return Ok(()),
            Err(error) => {
                // The port went with its host; what was under way at it goes, too.
                if matches!(error, ConnectError::Tcp(_)) {
                    if let Ok(listener) = self.stations[host].listen(at, &self.case.lines[at]) {
                        self.lines[at].listener = listener;
                    }
                }
                // The connector may already count this connection as established. From now on its end may fail.
                let connection = self.lines[at].connection.as_mut();
                if let Some(connection) = connection.filter(|connection| !connection.was_accepted) {
                    connection.is_ending = true;
                }
                return self.excuse_connect(&error);
            }
        };
        let number = workers[made.worker].channel(made.channel).and_then(|channel| {
            let bytes = channel.peer().private_data();
            Some(u32::from_le_bytes(*bytes.first_chunk()?))
        });
        let connection = self.lines[at].connection.as_ref();
        match connection.filter(|connection| Some(connection.number) == number && !connection.was_accepted) {
            Some(_) => self.admit(at, 1, made.worker, made.channel),
            None => {
                // The connector gave up in the meantime.
                let station = &mut self.stations[host];
                station.strays.push((made.worker, made.channel));
                let now = Deadline::at(self.fabric.now());
                let begun = station.workers[made.worker].begin_close(made.channel, now);
                begun.map_err(|error| failure("close", error.to_string()))
            }
        }
    }

    /// An end is there.
    fn admit(&mut self, line: usize, end: usize, worker: usize, id: ChannelId) -> Verdict {
        let host = self.case.lines[line].hosts[end];
        let now_ns = self.fabric.now().to_ns();
        self.trace
            .note(now_ns, host, format_args!("line {line}: end {end} is connected"));
        let seen = &mut self.stations[host].seen;
        ensure(!seen.contains(&(worker, id)), "owner", || {
            format!("{id:?} names a channel that is gone, too")
        })?;
        seen.push((worker, id));
        self.check_rail(line, end, worker)?;
        let channel = self.stations[host].workers[worker].channel(id);
        let of_peer = channel.map(|channel| channel.peer().qpn());
        let rings = self.begin_rings(line, end, worker, id)?;
        let is_attempted = self.lines[line].attempt.is_some();
        let Some(connection) = self.lines[line].connection.as_mut() else {
            return Err(failure("owner", "a connection that nobody began"));
        };
        connection.ends[end] = Some(End::new(worker, id, rings));
        connection.qpns[1 - end] = of_peer;
        connection.was_accepted |= end == 1;
        // A handshake that failed meanwhile was another one.
        let is_attempted = connection.ends[0]
            .as_ref()
            .map_or(is_attempted, |at| !at.is_leaving());
        if end == 1 && self.case.endings.is_some() && is_attempted {
            connection.is_ending = false;
        }
        let window = &mut self.stations[host].windows[worker];
        prepare_region(window, line * REGION_BYTES, connection, end)
    }

    /// Checks that the fastest of the subnets that both hosts are in was chosen. The slower end decides the speed of
    /// a subnet.
    fn check_rail(&self, line: usize, end: usize, worker: usize) -> Verdict {
        let hosts = self.case.lines[line].hosts;
        let device = self.stations[hosts[end]].workers[worker].device();
        let [a, b] = hosts.map(|host| &self.case.hosts[host]);
        let speed = |subnet: usize| a.speeds_mbps[subnet].min(b.speeds_mbps[subnet]);
        let both = (0..2).filter(|subnet| a.subnets & b.subnets & 1 << subnet != 0);
        let best = both.clone().map(speed).max();
        let chosen = both.clone().find(|subnet| device == format!("sim{subnet}"));
        let is_best = chosen.map(speed) == best;
        ensure(is_best || self.excuses.ports, "rail", || {
            format!("line {line} is on {device} of {a:?} and {b:?}")
        })
    }

    /// Whether an attempt to connect may come to this.
    pub(crate) fn excuse_connect(&self, error: &ConnectError) -> Verdict {
        let is_excused = match error {
            ConnectError::NoRoom { .. }
            | ConnectError::NoShare { .. }
            | ConnectError::NoSlots { .. }
            | ConnectError::NoMemory
            | ConnectError::TooManyChannels { .. } => true,
            ConnectError::Handshake(error) => match error.cause {
                // The peer had no room, and said so.
                Cause::RejectedByPeer(reject) | Cause::RejectedHere(reject) => {
                    reject.reason == RejectReason::BUSY
                }
                // A completion queue that was yet to overrun takes its Worker, and the handshakes under way there, with it.
                Cause::PeerClosed => self.excuses.overruns || self.excuses.drops,
                _ => false,
            },
            _ => false,
        };
        let excuses = self.excuses;
        let is_troubled = !self.is_calm && (excuses.may_fail() || excuses.clocks || excuses.receives);
        ensure(is_excused || is_troubled, "connect", || error.to_string())
    }

    /// Goes on with closings, and begins those that follow from what the other end did.
    pub(crate) fn tend_closings(&mut self, host: usize) -> Verdict {
        let now = Deadline::at(self.fabric.now());
        for line in 0..self.lines.len() {
            for end in 0..2 {
                if self.case.lines[line].hosts[end] != host {
                    continue;
                }
                let Some(connection) = self.lines[line].connection.as_mut() else {
                    continue;
                };
                let is_ending = connection.is_ending;
                let Some(at) = connection.ends[end].as_mut() else {
                    continue;
                };
                let (worker, id) = (at.worker, at.id);
                if at.is_closing {
                    self.follow_closing(line, end)?;
                    continue;
                }
                let is_due = match self.case.endings {
                    Some(_) => at.knows_end(),
                    None => is_ending || at.has_failed,
                };
                if !is_due {
                    continue;
                }
                at.is_closing = true;
                connection.is_ending = true;
                if !at.is_left(self.case.endings) {
                    let begun = self.stations[host].workers[worker].begin_close(id, now);
                    begun.map_err(|error| failure("close", error.to_string()))?;
                }
            }
        }
        let Station { strays, workers, .. } = &mut self.stations[host];
        strays.retain(|(worker, id)| workers[*worker].close_progress(*id) == CloseProgress::UnderWay);
        Ok(())
    }

    fn follow_closing(&mut self, line: usize, end: usize) -> Verdict {
        let host = self.case.lines[line].hosts[end];
        let Some(connection) = self.lines[line].connection.as_mut() else {
            return Ok(());
        };
        let Some(at) = &connection.ends[end] else {
            return Ok(());
        };
        match self.stations[host].workers[at.worker].close_progress(at.id) {
            CloseProgress::UnderWay => Ok(()),
            CloseProgress::Closed(outcome) => {
                let now_ns = self.fabric.now().to_ns();
                self.trace.note(
                    now_ns,
                    host,
                    format_args!("line {line}: end {end} closed: {outcome:?}"),
                );
                let left = at.posted.len();
                // A device may drop late requests. Completions that an overrun queue lost are never reported.
                let may_vanish = self.case.device.quirks().late_requests_vanish || self.excuses.overruns;
                // Requests behind the last signaled one are not reported. Neither is the accepted part of a batch
                // that was refused.
                let unsignaled_max = self.case.lines[line].end(end).unsignaled_max as usize;
                let is_untold = left <= unsignaled_max || self.excuses.posts;
                let may_be = may_vanish || is_untold && outcome.is_err();
                ensure(left == 0 || may_be, "told", || {
                    format!("line {line}: {left} requests ended, and nobody was told ({outcome:?})")
                })?;
                if at.receives_failed && !self.excuses.overruns {
                    connection.check_lost(1 - end)?;
                }
                let has_failed = at.has_failed || at.knows_end();
                connection.has_parted[end] = outcome.is_ok() && !has_failed;
                connection.ends[end] = None;
                self.check_parted(line)?;
                self.forget_if_over(line)
            }
            // The next poll begins to close it.
            _ if at.is_left(self.case.endings)
                && self.stations[host].workers[at.worker].channel(at.id).is_some() =>
            {
                Ok(())
            }
            _ => Err(failure("close", "a channel is gone, and was not closed")),
        }
    }

    /// A connection of which nothing is left.
    fn forget_if_over(&mut self, line: usize) -> Verdict {
        let line = &mut self.lines[line];
        let is_over = line
            .connection
            .as_ref()
            .is_some_and(|connection| connection.is_ending && connection.ends.iter().all(Option::is_none));
        if is_over && line.attempt.is_none() {
            line.connection = None;
        }
        Ok(())
    }

    /// Handles an overrun of a completion queue that works on. Only the device knows that completions were lost. So
    /// the application fails every channel of the Worker.
    pub(crate) fn give_up_channels(&mut self, host: usize, worker: usize) -> Verdict {
        self.excuse_overrun(host, worker)?;
        for line in 0..self.lines.len() {
            for end in 0..2 {
                if let Some(id) = self.channel_at(line, end, host, worker) {
                    self.shut_end(line, host, worker, id)?;
                }
            }
        }
        Ok(())
    }

    /// Handles a completion queue that fails. Its Worker is of no further use: the application drops it with its
    /// channels and makes another.
    pub(crate) fn replace_worker(&mut self, host: usize, worker: usize) -> Verdict {
        self.excuse_overrun(host, worker)?;
        self.drop_worker(host, worker)
    }

    /// A Worker is dropped with its channels, and another made.
    pub(crate) fn drop_worker(&mut self, host: usize, worker: usize) -> Verdict {
        for line in 0..self.lines.len() {
            let hosts = self.case.lines[line].hosts;
            for end in 0..2 {
                let is_there = self.channel_at(line, end, host, worker).is_some();
                if let Some(connection) = self.lines[line].connection.as_mut().filter(|_| is_there) {
                    connection.ends[end] = None;
                    connection.is_ending = true;
                    connection.is_dropped = true;
                }
            }
            // So are handshakes under way, whichever Worker they chose.
            if hosts[0] == host && self.lines[line].attempt.take().is_some() {
                if let Some(connection) = &mut self.lines[line].connection {
                    connection.is_ending = true;
                }
            }
            if hosts[1] == host {
                let config = channel_config(&self.case.lines[line], self.case.endings, 1, 0);
                let config = config.map_err(|error| failure("set-up", error.to_string()))?;
                self.lines[line].listener.reconfigure(&config);
                let connection = self.lines[line].connection.as_mut();
                if let Some(connection) = connection.filter(|connection| !connection.was_accepted) {
                    connection.is_ending = true;
                }
            }
        }
        let replaced = self.stations[host].replace_worker(self.case, host, worker);
        replaced.map_err(|error| failure("replace", format!("{error:#}")))?;
        (0..self.lines.len()).try_for_each(|line| self.forget_if_over(line))
    }

    fn excuse_overrun(&mut self, host: usize, worker: usize) -> Verdict {
        let now_ns = self.fabric.now().to_ns();
        self.trace.note(
            now_ns,
            host,
            format_args!("a completion queue of Worker {worker} overran"),
        );
        ensure(self.excuses.overruns, "excuse", || {
            format!("a completion queue of Worker {worker} of h{host} overran")
        })
    }

    /// The channel of an end, where that is on this Worker.
    fn channel_at(&self, line: usize, end: usize, host: usize, worker: usize) -> Option<ChannelId> {
        let at = self.lines[line].connection.as_ref()?.ends[end].as_ref()?;
        (self.case.lines[line].hosts[end] == host && at.worker == worker).then_some(at.id)
    }
}
