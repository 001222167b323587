//! Commands at their times: what is made to fail while the link carries messages, and when that was.

use core::time::Duration;
use std::io;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use doorbell::link::SESSION_RAILS_MAX;
use doorbell::provider::Instant;
use doorbell::within;

use crate::value::parse_seconds;

/// A command and its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Order {
    /// Time from when the link was up.
    pub(super) after: Duration,
    /// The rail that it makes fail, if the command line names one.
    pub(super) rail: Option<u8>,
    pub(super) command: String,
}

impl Order {
    /// Reads SECONDS=COMMAND, or SECONDS/RAIL=COMMAND.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let (after, command) = text.split_once('=').ok_or("not SECONDS=COMMAND")?;
        if command.trim().is_empty() {
            return Err("no command behind the equals sign".into());
        }
        let (after, rail) = match after.split_once('/') {
            Some((after, rail)) => (after, Some(parse_rail(rail)?)),
            None => (after, None),
        };
        Ok(Self {
            after: parse_seconds(after)?,
            rail,
            command: command.to_owned(),
        })
    }
}

fn parse_rail(text: &str) -> Result<u8, String> {
    let rail = text.parse().ok().filter(|rail| *rail < SESSION_RAILS_MAX);
    rail.ok_or_else(|| {
        format!(
            "`{text}` is no rail: they are 0 to {}",
            SESSION_RAILS_MAX.saturating_sub(1)
        )
    })
}

/// The begin or the end of a command. Notes are sent in the order of time.
#[derive(Debug)]
pub(super) enum Note {
    /// A command begins, which makes this rail fail.
    Begun {
        command: String,
        rail: Option<u8>,
        at: Instant,
    },
    /// It is over: how long it took, and what was wrong with it.
    Over { took: Duration, failure: Option<String> },
}

/// Carries out the orders on a thread of its own, which ends when the receiver is dropped.
pub(super) fn begin(mut orders: Vec<Order>) -> io::Result<Receiver<Note>> {
    orders.sort_by_key(|order| order.after);
    let (notes, noted) = channel();
    let began = now();
    let work = move || {
        for order in orders {
            let due = began.after(order.after);
            thread::sleep(Duration::from_nanos(due.to_ns().saturating_sub(now().to_ns())));
            if carry_out(order, &notes).is_none() {
                break;
            }
        }
    };
    thread::Builder::new().name("drill".into()).spawn(work)?;
    Ok(noted)
}

fn carry_out(order: Order, notes: &Sender<Note>) -> Option<()> {
    let Order { rail, command, .. } = order;
    let mut shell = Command::new("sh");
    // Standard output belongs to the report. With `-e`, the first failing command ends the shell, and its status is reported.
    shell
        .args(["-e", "-c", &command])
        .stdin(Stdio::null())
        .stdout(io::stderr());
    let at = now();
    notes.send(Note::Begun { command, rail, at }).ok()?;
    let failure = match shell.status() {
        Ok(status) if status.success() => None,
        Ok(status) => Some(status.to_string()),
        Err(error) => Some(error.to_string()),
    };
    let took = Duration::from_nanos(now().to_ns().saturating_sub(at.to_ns()));
    notes.send(Note::Over { took, failure }).ok()
}

/// The current time on the clock of the links.
fn now() -> Instant {
    within(Duration::ZERO).instant()
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::{Note, Order, begin, now};

    #[test]
    fn orders_are_times_and_commands() {
        let order = Order::parse("1.5=ip link set dev eth0 down # a=b").unwrap();
        assert_eq!(order.after, Duration::from_millis(1500));
        assert_eq!(order.command, "ip link set dev eth0 down # a=b");
        assert_eq!(order.rail, None);
        let order = Order::parse("2/1=ls /tmp").unwrap();
        assert_eq!((order.rail, order.command.as_str()), (Some(1), "ls /tmp"));
        let wrong = [
            "",
            "1",
            "1=",
            "1= ",
            "=true",
            "-1=true",
            "soon=true",
            "1/=true",
            "1/99=true",
            "/1=true",
        ];
        for wrong in wrong {
            assert!(Order::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn they_are_done_by_time_and_their_failures_told() {
        let orders = ["0.05=(exit 3); true", "0.001/1=true"].map(|text| Order::parse(text).unwrap());
        let before = now();
        let notes: Vec<Note> = begin(orders.to_vec()).unwrap().iter().collect();
        let [
            Note::Begun {
                command,
                rail: Some(1),
                at: first,
            },
            Note::Over { failure: None, .. },
            Note::Begun {
                rail: None,
                at: second,
                ..
            },
            Note::Over {
                failure: Some(failure),
                ..
            },
        ] = notes.as_slice()
        else {
            panic!("{notes:?}");
        };
        assert_eq!(command, "true");
        assert!(failure.contains('3'), "{failure}");
        // Each as late as this machine likes, and none too soon.
        assert!(*first >= before.after(Duration::from_millis(1)) && first < second);
        assert!(*second >= before.after(Duration::from_millis(50)));
    }
}
