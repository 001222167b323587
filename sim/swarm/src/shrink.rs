//! A case that fails made smaller, as long as the same oracle speaks.

use crate::case::{Case, Scene, What};
use crate::crowd::case::CrowdCase;
use crate::failure::Failure;
use crate::full::case::LinkRoomCase;
use crate::hostile::case::HostileCase;
use crate::requests::case::{RequestAct, RequestsCase};
use crate::run::{Keep, run_caught};
use crate::sleepy::case::SleepCase;
use crate::transfers::case::{AnswerCase, BeginCase};

/// A smaller case, and what its run says. So many runs are tried at most.
pub(crate) fn shrink(case: &Case, failure: &Failure, runs_max: u32) -> (Case, Failure, u32) {
    let mut shrinker = Shrinker {
        best: case.clone(),
        failure: failure.clone(),
        runs: 0,
        runs_max,
    };
    loop {
        let before = shrinker.best.clone();
        shrinker.clauses();
        shrinker.lines();
        shrinker.operations();
        shrinker.values();
        shrinker.transfers();
        shrinker.limits();
        shrinker.rooms();
        shrinker.sleepers();
        shrinker.liars();
        shrinker.askers();
        shrinker.members();
        if shrinker.best == before || shrinker.runs >= runs_max {
            break;
        }
    }
    shrinker.unused();
    (shrinker.best, shrinker.failure, shrinker.runs)
}

struct Shrinker {
    best: Case,
    failure: Failure,
    runs: u32,
    runs_max: u32,
}

impl Shrinker {
    /// Takes a case where it fails alike.
    fn try_case(&mut self, case: Case) -> bool {
        if self.runs >= self.runs_max || case == self.best {
            return false;
        }
        self.runs += 1;
        match run_caught(&case, Keep::default()).verdict {
            Err(failure) if failure.oracle == self.failure.oracle => {
                (self.best, self.failure) = (case, failure);
                true
            }
            _ => false,
        }
    }

    /// Fewer faults.
    fn clauses(&mut self) {
        let mut at = 0;
        loop {
            let clauses: Vec<&str> = self
                .best
                .plan
                .split("; ")
                .filter(|clause| !clause.is_empty())
                .collect();
            if at >= clauses.len() {
                return;
            }
            let mut fewer = clauses.clone();
            fewer.remove(at);
            let mut case = self.best.clone();
            case.plan = fewer.join("; ");
            if !self.try_case(case) {
                at += 1;
            }
        }
    }

    /// Fewer lines that do anything.
    fn lines(&mut self) {
        for line in 0..self.best.lines.len() {
            let mut case = self.best.clone();
            case.operations.retain(|operation| operation.line != line);
            self.try_case(case);
        }
    }

    /// Fewer operations: runs of them, half as long each time.
    fn operations(&mut self) {
        let mut length = self.best.operations.len().div_ceil(2);
        while length > 0 {
            let mut at = 0;
            while at < self.best.operations.len() {
                let mut case = self.best.clone();
                let end = (at + length).min(case.operations.len());
                case.operations.drain(at..end);
                if !self.try_case(case) {
                    at = end;
                }
            }
            length /= 2;
        }
    }

    /// Plainer hosts and lines, a callback that never panics, and lines that both ends close.
    fn values(&mut self) {
        let mut case = self.best.clone();
        case.panics_every = 0;
        self.try_case(case);
        let mut case = self.best.clone();
        case.endings = None;
        self.try_case(case);
        let mut case = self.best.clone();
        (case.call_ns, case.handler_ns) = (0, 0);
        self.try_case(case);
        self.spans();
        for host in 0..self.best.hosts.len() {
            let mut case = self.best.clone();
            case.hosts[host].links = None;
            self.try_case(case);
            let mut case = self.best.clone();
            case.hosts[host].transfers = None;
            self.try_case(case);
            let mut case = self.best.clone();
            case.hosts[host].subnets = 1;
            self.try_case(case);
            let mut case = self.best.clone();
            case.hosts[host].shared_receives = None;
            self.try_case(case);
        }
        for line in 0..self.best.lines.len() {
            let mut case = self.best.clone();
            let values = &mut case.lines[line];
            (
                values.unsignaled_max,
                values.inline_bytes_max,
                values.inline_alone_bytes_max,
            ) = (0, 0, 0);
            // An invitation into a ring goes inline.
            values.rings = None;
            self.try_case(case);
            let mut case = self.best.clone();
            case.lines[line].rings = None;
            self.try_case(case);
            let mut case = self.best.clone();
            case.lines[line].listening = None;
            self.try_case(case);
        }
    }

    /// Shorter loads.
    fn spans(&mut self) {
        for at in 0..self.best.operations.len() {
            while let What::Load { ns, every_ns, bytes } = self.best.operations[at].what {
                let mut case = self.best.clone();
                let ns = ns / 2;
                case.operations[at].what = What::Load { ns, every_ns, bytes };
                if ns < every_ns || !self.try_case(case) {
                    break;
                }
            }
        }
    }

    /// Smaller transfers, without limits of time, and joined at once.
    fn transfers(&mut self) {
        let plainer: [fn(&mut BeginCase); 4] = [
            |begin| begin.offset = 0,
            |begin| begin.priority = 0,
            |begin| begin.within_ns = [0; 2],
            |begin| begin.answer = AnswerCase::Joins { after_ns: 0 },
        ];
        for at in 0..self.best.operations.len() {
            for plain in plainer {
                self.try_transfer(at, plain);
            }
            while self.try_transfer(at, |begin| begin.bytes = (begin.bytes / 2).max(1)) {}
        }
    }

    fn try_transfer(&mut self, at: usize, plain: impl FnOnce(&mut BeginCase)) -> bool {
        let mut case = self.best.clone();
        match &mut case.operations[at].what {
            What::Begin(begin) => plain(begin),
            _ => return false,
        }
        self.try_case(case)
    }

    /// Limits that nothing reaches.
    fn limits(&mut self) {
        let Some(Scene::Crowd(crowd)) = &self.best.scene else {
            return;
        };
        let rooms = crowd.rooms.len();
        let plainer: [fn(&mut CrowdCase); 6] = [
            |crowd| crowd.is_aside = false,
            |crowd| crowd.under_way = 64,
            |crowd| crowd.per_address = 64,
            |crowd| crowd.unaccepted = 64,
            |crowd| crowd.crowded_stage_ns = 1_000_000_000,
            |crowd| crowd.submissions_per_poll = 64,
        ];
        for plain in plainer {
            self.try_crowd(plain);
        }
        for room in 0..rooms {
            self.try_crowd(|crowd| crowd.rooms[room].completion_depth = 512);
            self.try_crowd(|crowd| crowd.rooms[room].channels_max = 64);
            self.try_crowd(|crowd| crowd.rooms[room].channels_per_address = u32::MAX);
            self.try_crowd(|crowd| crowd.rooms[room].lease_share_percent = 0);
        }
    }

    /// Limits of links that nothing reaches.
    fn rooms(&mut self) {
        let plainer: [fn(&mut LinkRoomCase); 3] = [
            |room| room.links_max = 64,
            |room| room.links_per_address = 64,
            |room| room.channels_max = 64,
        ];
        for host in 0..self.best.hosts.len() {
            let mut case = self.best.clone();
            case.hosts[host].slots = case.hosts[host].slots.max(600);
            if let Some(Scene::Full(_)) = &case.scene {
                self.try_case(case);
            }
            for plain in plainer {
                let mut case = self.best.clone();
                if let Some(Scene::Full(full)) = &mut case.scene {
                    plain(&mut full.rooms[host]);
                    self.try_case(case);
                }
            }
        }
    }

    /// Hosts that sleep in one way, with one way of submitting.
    fn sleepers(&mut self) {
        let plainer: [fn(&mut SleepCase); 6] = [
            |sleepy| sleepy.is_solicited = false,
            |sleepy| sleepy.probe_timeouts_ms = [0; 2],
            |sleepy| sleepy.probe_after_ns = 1_000_000_000,
            |sleepy| sleepy.lease_share_percent = 12,
            |sleepy| sleepy.submissions_per_poll = 64,
            |sleepy| sleepy.submitter = [16, 8],
        ];
        for plain in plainer {
            let mut case = self.best.clone();
            if let Some(Scene::Sleep(sleepy)) = &mut case.scene {
                plain(sleepy);
                self.try_case(case);
            }
        }
    }

    /// A host that lies and counts from zero.
    fn liars(&mut self) {
        let plainer: [fn(&mut HostileCase); 3] = [
            |hostile| hostile.start = 0,
            |hostile| hostile.receives = 8,
            |hostile| hostile.stage_ns = 1_500_000_000,
        ];
        for plain in plainer {
            let mut case = self.best.clone();
            if let Some(Scene::Hostile(hostile)) = &mut case.scene {
                plain(hostile);
                self.try_case(case);
            }
        }
    }

    /// Fewer requests at a time, and tables that hold many, of bodies of every length.
    fn askers(&mut self) {
        let Some(Scene::Requests(asking)) = &self.best.scene else {
            return;
        };
        let lines = asking.places.len();
        for at in 0..self.best.operations.len() {
            while let What::Request(RequestAct::Ask { count, question }) = self.best.operations[at].what {
                let mut case = self.best.clone();
                let count = count / 2;
                case.operations[at].what = What::Request(RequestAct::Ask { count, question });
                if count == 0 || !self.try_case(case) {
                    break;
                }
            }
        }
        for (line, end) in (0..lines).flat_map(|line| [(line, 0), (line, 1)]) {
            self.try_asking(|asking| asking.places[line][end] = 64);
        }
        self.try_asking(|asking| asking.body_bytes_max = 2000);
        self.try_asking(|asking| asking.kept_max = 32);
        self.try_asking(|asking| asking.probe_after_ns = 200_000_000);
    }

    fn try_asking(&mut self, plain: impl FnOnce(&mut RequestsCase)) {
        let mut case = self.best.clone();
        if let Some(Scene::Requests(asking)) = &mut case.scene {
            plain(asking);
            self.try_case(case);
        }
    }

    /// Fewer steps of members, fewer messages, shorter times, members that are alike, and fewer of them.
    fn members(&mut self) {
        let mut tried = 0;
        while let Some(Scene::Mesh(mesh)) = &self.best.scene {
            let Some(smaller) = mesh.smaller(tried) else { break };
            let mut case = self.best.clone();
            case.scene = Some(Scene::Mesh(smaller));
            if !self.try_case(case) {
                tried += 1;
            }
        }
    }

    fn try_crowd(&mut self, plain: impl FnOnce(&mut CrowdCase)) {
        let mut case = self.best.clone();
        if let Some(Scene::Crowd(crowd)) = &mut case.scene {
            plain(crowd);
            self.try_case(case);
        }
    }

    /// Lines and hosts that nothing names any more are left out, the others counted anew. Another numbering is another
    /// run, so it is kept only where that fails too.
    fn unused(&mut self) {
        // Its hosts and lines have limits by their number.
        if self.best.scene.is_some() {
            return;
        }
        let mut case = self.best.clone();
        for line in (0..case.lines.len()).rev() {
            if case.operations.iter().all(|operation| operation.line != line) {
                case.lines.remove(line);
                for operation in &mut case.operations {
                    operation.line -= usize::from(operation.line > line);
                }
            }
        }
        self.try_case(case.clone());
        while case.hosts.len() > 2 {
            let last = case.hosts.len() - 1;
            if case.lines.iter().any(|line| line.hosts.contains(&last)) {
                break;
            }
            case.hosts.pop();
        }
        self.try_case(case);
    }
}
