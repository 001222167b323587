//! Runs commands at given times that make rails fail while the link carries messages, and records when they ran.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::io;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use doorbell::link::SESSION_RAILS_MAX;
use doorbell::provider::Instant;
use doorbell::within;

use crate::value::parse_seconds;

/// Interval at which the command thread checks whether the link has the state that a command waits for.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A command and its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Order {
    /// Time after the link was connected.
    pub(super) after: Duration,
    /// The rail that the command makes fail, if the command line names one.
    pub(super) rail: Option<u8>,
    /// The state of the link that the command waits for.
    wanted: ExpectedState,
    pub(super) command: String,
}

/// The state of the link that a command waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ExpectedState {
    /// Exactly this number of rails is up.
    up: Option<u64>,
    /// At least this number of messages has arrived.
    came: Option<u64>,
}

/// The state of the link, shared with the command thread.
#[derive(Debug, Default)]
pub(super) struct ObservedState {
    pub(super) up: AtomicU64,
    pub(super) came: AtomicU64,
}

impl ExpectedState {
    /// Checks whether the link has this state. Otherwise returns a description of the difference.
    fn check(self, seen: &ObservedState) -> Result<(), String> {
        let (up, came) = (seen.up.load(Ordering::Relaxed), seen.came.load(Ordering::Relaxed));
        if self.up.is_none_or(|wanted| wanted == up) && self.came.is_none_or(|wanted| wanted <= came) {
            return Ok(());
        }
        let wanted = [self.up.map(|up| ("up", up)), self.came.map(|came| ("came", came))];
        let wanted: Vec<_> = wanted
            .into_iter()
            .flatten()
            .map(|(name, count)| format!("{name}={count}"))
            .collect();
        Err(format!(
            "{} is wanted, and {up} rails are up and {came} messages came",
            wanted.join(",")
        ))
    }
}

impl Order {
    /// Parses SECONDS=COMMAND, with an optional /RAIL, and with a list of ,up=N and ,came=N before the equals sign of the command.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let wrong = "not SECONDS=COMMAND";
        let (after, mut rest) = text.split_at(text.find(['=', ',']).ok_or(wrong)?);
        let mut wanted = ExpectedState::default();
        while let Some(condition) = rest.strip_prefix(',') {
            let (name, behind) = condition.split_once('=').ok_or(wrong)?;
            let (count, behind) = behind.split_at(behind.find(['=', ',']).ok_or(wrong)?);
            let number = count.parse().map_err(|_| format!("`{count}` is no count"))?;
            match name {
                "up" => wanted.up = Some(number),
                "came" => wanted.came = Some(number),
                _ => return Err(format!("`{name}` is no condition: `up` and `came` are")),
            }
            rest = behind;
        }
        let command = rest.strip_prefix('=').ok_or(wrong)?;
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
            wanted,
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

/// The begin or the end of a command. Notes are sent in chronological order.
#[derive(Debug)]
pub(super) enum Note {
    /// A command begins, which makes this rail fail.
    Begun {
        command: String,
        rail: Option<u8>,
        at: Instant,
    },
    /// The command has ended: its duration, and its error if it failed.
    Over { took: Duration, failure: Option<String> },
}

/// Runs the orders on a separate thread, which ends when the receiver is dropped. A command fails if the link does not reach the wanted
/// state within `patience`.
pub(super) fn begin(
    mut orders: Vec<Order>,
    seen: Arc<ObservedState>,
    patience: Duration,
) -> io::Result<Receiver<Note>> {
    orders.sort_by_key(|order| order.after);
    let (notes, noted) = channel();
    let began = now();
    let work = move || {
        for order in orders {
            let due = began.after(order.after);
            thread::sleep(Duration::from_nanos(due.to_ns().saturating_sub(now().to_ns())));
            let awaited = await_state(&order, &seen, patience);
            if carry_out(order, awaited, &notes).is_none() {
                break;
            }
        }
    };
    thread::Builder::new().name("drill".into()).spawn(work)?;
    Ok(noted)
}

/// Waits until the link has the state that the command waits for. Otherwise returns a description of the difference.
fn await_state(order: &Order, seen: &ObservedState, patience: Duration) -> Result<(), String> {
    let until = now().after(patience);
    loop {
        match order.wanted.check(seen) {
            Err(_) if now() < until => thread::sleep(LOOK_EVERY),
            Err(lacks) => return Err(format!("not begun within {} s: {lacks}", patience.as_secs_f64())),
            Ok(()) => return Ok(()),
        }
    }
}

fn carry_out(order: Order, awaited: Result<(), String>, notes: &Sender<Note>) -> Option<()> {
    let Order { rail, command, .. } = order;
    let mut shell = Command::new("sh");
    // Standard output belongs to the report. With `-e`, the shell exits at the first failing command, with its status.
    shell
        .args(["-e", "-c", &command])
        .stdin(Stdio::null())
        .stdout(io::stderr());
    let at = now();
    notes.send(Note::Begun { command, rail, at }).ok()?;
    let failure = match awaited.map(|()| shell.status()) {
        Ok(Ok(status)) if status.success() => None,
        Ok(Ok(status)) => Some(status.to_string()),
        Ok(Err(error)) => Some(error.to_string()),
        Err(lacks) => Some(lacks),
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
    use core::sync::atomic::Ordering;
    use core::time::Duration;
    use std::sync::Arc;
    use std::thread;

    use super::{ExpectedState, Note, ObservedState, Order, begin, now};

    #[test]
    fn orders_are_times_and_commands() {
        let order = Order::parse("1.5=ip link set dev eth0 down # a=b").unwrap();
        assert_eq!(order.after, Duration::from_millis(1500));
        assert_eq!(order.command, "ip link set dev eth0 down # a=b");
        assert_eq!(order.rail, None);
        let order = Order::parse("2/1=ls /tmp").unwrap();
        assert_eq!((order.rail, order.command.as_str()), (Some(1), "ls /tmp"));
        let order = Order::parse("2.5/1,up=2,came=30=x,y=z").unwrap();
        let wanted = ExpectedState {
            up: Some(2),
            came: Some(30),
        };
        assert_eq!(
            (order.rail, order.wanted, &*order.command),
            (Some(1), wanted, "x,y=z")
        );
        let wrong = [
            "1,up=true",
            "1,up=two=true",
            "1,up=-1=true",
            "1,down=1=true",
            "1,=true",
            "1,up=1,=true",
            "1,up=1=",
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
        let notes: Vec<Note> = begin(orders.to_vec(), Arc::default(), Duration::ZERO)
            .unwrap()
            .iter()
            .collect();
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
        // Each may be late on a busy machine, but not early.
        assert!(*first >= before.after(Duration::from_millis(1)) && first < second);
        assert!(*second >= before.after(Duration::from_millis(50)));
    }

    #[test]
    fn a_command_waits_for_its_state_of_the_link_and_what_lacks_is_told() {
        const LONG: Duration = Duration::from_secs(60);
        let order = |text: &str| vec![Order::parse(text).unwrap()];
        let seen = Arc::new(ObservedState::default());
        seen.up.store(1, Ordering::Relaxed);
        let notes = begin(order("0.001,up=2,came=3=true"), Arc::clone(&seen), LONG).unwrap();
        for (up, came) in [(3, 3), (1, 9), (2, 2)] {
            seen.came.store(came, Ordering::Relaxed);
            seen.up.store(up, Ordering::Relaxed);
            thread::sleep(Duration::from_millis(20));
            assert!(notes.try_recv().is_err());
        }
        seen.came.store(3, Ordering::Relaxed);
        assert!(matches!(notes.recv_timeout(LONG), Ok(Note::Begun { .. })));
        assert!(matches!(
            notes.recv_timeout(LONG),
            Ok(Note::Over { failure: None, .. })
        ));
        let late = begin(order("0.001,up=1=true"), seen, Duration::from_millis(10)).unwrap();
        let notes: Vec<Note> = late.iter().collect();
        let [
            Note::Begun { .. },
            Note::Over {
                failure: Some(lacks), ..
            },
        ] = notes.as_slice()
        else {
            panic!("{notes:?}");
        };
        assert_eq!(
            lacks,
            "not begun within 0.01 s: up=1 is wanted, and 2 rails are up and 3 messages came"
        );
    }
}
