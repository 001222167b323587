//! Reports members that were not reached in time, with the reasons.

use core::fmt::{Display, Write as _};
use core::time::Duration;
use std::collections::BTreeMap;

use doorbell::connect::HandshakeCounts;
use doorbell::link::FinalReason;
use doorbell::mesh::{Mesh, Rank, Ranks};

/// Reasons why members are missing, in addition to those that the mesh knows.
#[derive(Default)]
pub(super) struct Missing {
    /// For each member whose handle could not be read, the reason.
    pub(super) unread: BTreeMap<Rank, String>,
    /// The reason for which the last link ended whose peer had not named its rank.
    pub(super) lost: Option<FinalReason>,
    /// The reason for which the last incoming handshake failed.
    refused: Option<String>,
}

impl Missing {
    /// Lists the members that are not reached, with all known reasons.
    pub(super) fn text(&mut self, mesh: &Mesh, waited: Duration) -> String {
        if let Some(why) = mesh.links().take_handshake_failure() {
            self.refused = Some(why.to_string());
        }
        let missing = Ranks::first(mesh.ranks()).and_not(mesh.reached());
        let mut text = describe(mesh.rank(), missing, waited, |rank| {
            let tried = mesh.not_linked(rank).map(|reason| reason.to_string());
            tried.chain(self.unread.get(&rank).cloned()).collect()
        });
        text.push_str(&self.of_who_connects(&mesh.links().handshakes()));
        text
    }

    /// Describes incoming connections, including those whose peers did not name their rank.
    fn of_who_connects(&self, counts: &HandshakeCounts) -> String {
        let mut text = format!(
            "\n  incoming connections: {} handshakes begun, {} done, {} failed, {} refused",
            counts.begun, counts.connected, counts.failed, counts.refused
        );
        // Writing to a String does not fail.
        if let Some(why) = &self.refused {
            let _ = write!(text, "; the last that failed: {why}");
        }
        if let Some(why) = &self.lost {
            let _ = write!(text, "; the last link without a rank is over: {why}");
        }
        text
    }
}

fn describe(own: Rank, missing: Ranks, waited: Duration, reasons: impl Fn(Rank) -> Vec<String>) -> String {
    let mut text = format!("after {} s no way leads to ranks {missing:?}", waited.as_secs());
    let mut add = |rank: Rank, what: &dyn Display| {
        // Writing to a String does not fail.
        let _ = write!(text, "\n  rank {rank}: {what}");
    };
    for rank in missing.iter() {
        let reasons = reasons(rank);
        for reason in &reasons {
            add(rank, reason);
        }
        if rank > own {
            add(rank, &"it has not connected to this member: see its own output");
        } else if reasons.is_empty() {
            add(
                rank,
                &"no attempt to connect has ended yet, or neither --peer nor --handles names its address",
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{Missing, describe};
    use core::time::Duration;
    use doorbell::connect::HandshakeCounts;
    use doorbell::link::FinalReason;
    use doorbell::mesh::{Rank, Ranks};

    #[test]
    fn of_each_that_is_missing_every_reason_is_told() {
        let rank = |number| Rank::new(number).unwrap();
        let missing = [0, 1, 3].map(rank);
        let missing = missing.into_iter().fold(Ranks::NONE, Ranks::with);
        let reasons = |rank: Rank| match rank.number() {
            0 => vec!["asked at 10.1.0.1:7500: refused".into(), "no rail".into()],
            _ => Vec::new(),
        };
        let text = describe(rank(2), missing, Duration::from_secs(30), reasons);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 5, "{text}");
        assert_eq!(lines[0], "after 30 s no way leads to ranks {0, 1, 3}");
        assert_eq!(
            lines[1..3],
            ["  rank 0: asked at 10.1.0.1:7500: refused", "  rank 0: no rail"]
        );
        assert!(
            lines[3].starts_with("  rank 1: ") && lines[3].contains("--peer"),
            "{text}"
        );
        assert!(
            lines[4].starts_with("  rank 3: it has not connected to this member"),
            "{text}"
        );
    }

    #[test]
    fn of_those_who_connect_the_last_is_told() {
        let mut missing = Missing::default();
        let mut counts = HandshakeCounts::default();
        (counts.begun, counts.failed) = (3, 2);
        let text = missing.of_who_connects(&counts);
        assert!(
            text.ends_with("3 handshakes begun, 0 done, 2 failed, 0 refused"),
            "{text}"
        );
        missing.refused = Some("no key".into());
        missing.lost = Some(FinalReason::Unreachable);
        let text = missing.of_who_connects(&counts);
        let both = "; the last that failed: no key; the last link without a rank is over: the peer could not be reached in time";
        assert!(text.ends_with(both), "{text}");
    }
}
