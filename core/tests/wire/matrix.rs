//! Every stage against every frame: what is awaited goes on, a Reject ends it, all else is out of turn.

use doorbell_core::Instant;
use doorbell_core::handshake::{Cause, Initiator, Responder, Stage, Step, Timing};
use doorbell_core::wire::{FrameBuffer, FrameKind};

use crate::oracle::handshake::{REJECT, endpoint, initiator, responder, sent_by};
use crate::oracle::keys::Keys;
use crate::pipe::{End, Lane};

enum Machine {
    Initiator(Box<Initiator<Keys>>),
    Responder(Box<Responder<Keys>>),
}

impl Machine {
    fn feed(&mut self, frame: Option<FrameBuffer>) -> Step {
        let mut incoming = Lane::default();
        incoming
            .bytes
            .extend(frame.iter().flat_map(|frame| frame.as_bytes()));
        let mut outgoing = Lane::default();
        let mut io = End {
            incoming: &mut incoming,
            outgoing: &mut outgoing,
        };
        let now = Instant::from_ns(0);
        match self {
            Self::Initiator(machine) => machine.poll(now, &mut io),
            Self::Responder(machine) => machine.poll(now, &mut io),
        }
    }

    /// A machine that waits at `stage`; the stages of both sides are there once for each.
    fn at(stage: Stage, is_initiator: bool) -> Self {
        let now = Instant::from_ns(0);
        if is_initiator {
            let mut machine = Self::Initiator(Box::new(initiator(Timing::default())));
            for (reached, frame) in [
                (Stage::Welcome, None),
                (Stage::ChooseRail, Some(sent_by(2, FrameKind::Welcome))),
                (Stage::Accept, None),
                (Stage::Prepare, Some(sent_by(2, FrameKind::Accept))),
                (Stage::Ready, None),
            ] {
                if let Self::Initiator(machine) = &mut machine {
                    match reached {
                        Stage::Accept => machine.offer(now, endpoint(1), 0).unwrap(),
                        Stage::Ready => machine.ready(now).unwrap(),
                        _ => {}
                    }
                }
                let _ = machine.feed(frame);
                if reached == stage {
                    return machine;
                }
            }
        } else {
            let mut machine = Self::Responder(Box::new(responder(Timing::default())));
            for (reached, frame) in [
                (Stage::Hello, None),
                (Stage::Connect, Some(sent_by(1, FrameKind::Hello))),
                (Stage::Prepare, Some(sent_by(1, FrameKind::Connect))),
                (Stage::Ready, None),
            ] {
                if let (Self::Responder(machine), Stage::Ready) = (&mut machine, reached) {
                    machine.accept(now, endpoint(2)).unwrap();
                }
                let _ = machine.feed(frame);
                if reached == stage {
                    return machine;
                }
            }
        }
        panic!("no machine waits at {stage}");
    }
}

const KINDS: [FrameKind; 6] = [
    FrameKind::Hello,
    FrameKind::Welcome,
    FrameKind::Connect,
    FrameKind::Accept,
    FrameKind::Ready,
    FrameKind::Reject,
];

#[test]
fn every_stage_takes_its_frame_and_no_other() {
    let mut table = String::new();
    for (side, is_initiator, stages) in [
        (
            "initiator",
            true,
            &[
                Stage::Welcome,
                Stage::ChooseRail,
                Stage::Accept,
                Stage::Prepare,
                Stage::Ready,
            ][..],
        ),
        (
            "responder",
            false,
            &[Stage::Hello, Stage::Connect, Stage::Prepare, Stage::Ready][..],
        ),
    ] {
        for stage in stages {
            table += &format!("{side:9} {:10}", format!("{stage:?}"));
            for kind in KINDS {
                let mut machine = Machine::at(*stage, is_initiator);
                let step = machine.feed(Some(sent_by(if is_initiator { 2 } else { 1 }, kind)));
                let outcome = match step {
                    Step::Pending => "pending",
                    Step::ChooseRail => "choose",
                    Step::Prepare(_) => "prepare",
                    Step::Connected(_) => "connected",
                    Step::Failed(error) => match error.cause {
                        Cause::UnexpectedFrame(found) if found == kind => "-",
                        Cause::RejectedByPeer(REJECT) => "rejected",
                        other => panic!("{stage} {kind}: {other}"),
                    },
                    other => panic!("{other:?}"),
                };
                table += &format!(" {outcome:9}");
            }
            table.truncate(table.trim_end().len());
            table.push('\n');
        }
    }
    let expected = "\
initiator Welcome    -         choose    -         -         -         rejected
initiator ChooseRail -         -         -         -         -         rejected
initiator Accept     -         -         -         prepare   -         rejected
initiator Prepare    -         -         -         -         -         rejected
initiator Ready      -         -         -         -         connected rejected
responder Hello      pending   -         -         -         -         rejected
responder Connect    -         -         prepare   -         -         rejected
responder Prepare    -         -         -         -         -         rejected
responder Ready      -         -         -         -         connected rejected
";
    assert_eq!(table, expected, "\n{table}");
}
