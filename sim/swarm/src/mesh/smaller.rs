//! Cases of meshes made smaller, for shrinking.

use super::case::{CollectiveTrouble, MemberCase, MeshCase, MeshStep};

/// A member that differs from no other.
const PLAIN: MemberCase = MemberCase {
    depth: 16,
    retained: 32,
    ahead: 32,
    resend_after_ns: 500_000_000,
    acknowledge_after_ns: 10_000_000,
    hold_down_ns: 50_000_000,
    clock_ahead_ns: 0,
    is_seeking: false,
    takes: 100,
};

impl MeshCase {
    /// The case with one thing less: the first, the second and so on of those that there are; `None` behind the last.
    pub(crate) fn smaller(&self, nth: usize) -> Option<Self> {
        self.all_smaller().nth(nth)
    }

    fn all_smaller(&self) -> impl Iterator<Item = Self> {
        let steps = self.steps.len();
        // The second half, quarters, and each alone.
        let cuts = [2, 4, steps.max(1)].into_iter().flat_map(move |parts| {
            let length = steps.div_ceil(parts).max(1);
            (0..steps)
                .step_by(length)
                .rev()
                .map(move |at| at..(at + length).min(steps))
        });
        let fewer_steps = cuts.map(|cut| {
            let mut case = self.clone();
            case.steps.drain(cut);
            case
        });
        let last = self.ranks() - 1;
        let fewer_members = (last >= 2).then(|| self.without_last()).into_iter();
        let fewer_subnets = (0..self.subnets.len()).map(|subnet| {
            let mut case = self.clone();
            case.subnets.remove(subnet);
            case
        });
        let plain_members = (0..self.ranks()).map(|member| {
            let mut case = self.clone();
            case.members[member] = PLAIN;
            case
        });
        let values = [
            |case: &mut Self| case.has_keys = false,
            |case: &mut Self| case.hops_max = 62,
            |case: &mut Self| case.window = 4,
            |case: &mut Self| case.message_bytes_max = 1000,
            |case: &mut Self| case.fragment_bytes = 1000,
            |case: &mut Self| case.polls_every_ns = 50_000,
            |case: &mut Self| case.recover_within_ns = 300_000_000,
            |case: &mut Self| case.start_ahead_max_ns = 5_000_000_000,
            |case: &mut Self| case.backoff_ns = 200_000_000,
            |case: &mut Self| case.per_address = 8,
        ];
        let plain_values = values.into_iter().map(|make| {
            let mut case = self.clone();
            make(&mut case);
            case
        });
        let plain_steps = (0..steps).filter_map(|at| {
            let mut case = self.clone();
            case.steps[at] = smaller_step(case.steps[at])?;
            Some(case)
        });
        let all = fewer_steps.chain(fewer_members).chain(fewer_subnets);
        let all = all.chain(plain_members).chain(plain_values).chain(plain_steps);
        all.filter(move |case| case != self)
    }

    /// Without the member of the highest rank: steps that name it are passed over.
    fn without_last(&self) -> Self {
        let mut case = self.clone();
        case.members.pop();
        let rest = ((1_u16 << case.members.len()) - 1) as u8;
        case.subnets.iter_mut().for_each(|members| *members &= rest);
        case
    }
}

/// The step with less of what it does.
fn smaller_step(step: MeshStep) -> Option<MeshStep> {
    let smaller = match step {
        MeshStep::Pass { ns } => MeshStep::Pass { ns: ns / 2 },
        MeshStep::Send {
            from,
            to,
            count,
            bytes,
        } => MeshStep::Send {
            from,
            to,
            count: count.div_ceil(2),
            bytes: bytes.min(32),
        },
        MeshStep::Everyone { count, bytes } => MeshStep::Everyone {
            count: count.div_ceil(2),
            bytes: bytes.min(32),
        },
        MeshStep::Stop { member, ns } => MeshStep::Stop { member, ns: ns / 2 },
        MeshStep::Hold { member, ns } => MeshStep::Hold { member, ns: ns / 2 },
        MeshStep::Flow { to, ns } => MeshStep::Flow { to, ns: ns / 2 },
        MeshStep::Flood { target, streams } => MeshStep::Flood {
            target,
            streams: streams.div_ceil(2),
        },
        MeshStep::Collective(mut case) => {
            if case.lag_ns > 0 {
                case.lag_ns = 0;
            } else if case.elements > 1 {
                case.elements /= 2;
            } else if case.element_bytes > 1 {
                case.element_bytes = 1;
            } else {
                case.trouble = CollectiveTrouble::None;
            }
            MeshStep::Collective(case)
        }
        MeshStep::Cut { .. }
        | MeshStep::Crash { .. }
        | MeshStep::Restart { .. }
        | MeshStep::Stranger { .. } => return None,
    };
    (smaller != step).then_some(smaller)
}
