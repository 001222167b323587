//! The messages between the lab and an agent, and their form on the wire.
//!
//! One frame is a line of JSON, `{"message": …, "bytes": N}`, and then N raw
//! bytes. The same frames go over a lab's control socket.

use std::io::{BufRead, Read, Write};
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail, ensure};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::network::{Plan, Realised};
use crate::cluster::{Exit, Input, Signal};

/// Longest line of one frame, in bytes.
pub(crate) const LINE_BYTES_MAX: u64 = 1 << 20;

/// Most raw bytes in one frame.
pub(crate) const PAYLOAD_BYTES_MAX: usize = 1 << 20;

/// Request of the lab to an agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Request {
    /// Make these hosts and links; once, first.
    Configure(Box<Plan>),
    /// Say [`Reply::Alive`].
    Pulse,
    /// Say [`Reply::Clock`].
    Clock,
    /// Start a command; the answer is [`Reply::Started`] or [`Reply::Refused`].
    Start(Start),
    /// The frame's bytes are for the command's standard input.
    Input(u64),
    /// Its standard input ends.
    CloseInput(u64),
    /// Its terminal has another size.
    Resize {
        /// The command.
        id: u64,
        /// Height.
        rows: u16,
        /// Width.
        columns: u16,
    },
    /// Signal its process group.
    Signal {
        /// The command.
        id: u64,
        /// Which.
        signal: Signal,
    },
}

/// A command to start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Start {
    /// Names the command in what follows; never used twice.
    pub(crate) id: u64,
    /// Namespace of the machine, or host of a lab, to run in; the machine itself if not given.
    pub(crate) host: Option<String>,
    /// Program and arguments.
    pub(crate) argv: Vec<String>,
    /// Variables added to the environment.
    pub(crate) env: Vec<(String, String)>,
    /// Working folder.
    pub(crate) cwd: Option<PathBuf>,
    /// Its standard input.
    pub(crate) input: InputKind,
}

/// [`Input`], on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum InputKind {
    /// At its end.
    Closed,
    /// A pipe.
    Pipe,
    /// A terminal.
    Terminal {
        /// Height.
        rows: u16,
        /// Width.
        columns: u16,
    },
}

/// Reply of an agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Reply {
    /// The agent is up; its kernel's release.
    Hello(String),
    /// The answer to [`Request::Pulse`].
    Alive,
    /// The machine's monotonic clock, in nanoseconds.
    Clock(u64),
    /// The configuration of [`Request::Configure`] stands.
    Configured(Realised),
    /// The configuration of [`Request::Configure`] failed, with the reason.
    Failed(String),
    /// The command runs.
    Started(u64),
    /// The command could not be started, and why.
    Refused {
        /// The command.
        id: u64,
        /// Why.
        why: String,
    },
    /// The frame's bytes were written to standard output.
    Stdout(u64),
    /// The frame's bytes were written to standard error.
    Stderr(u64),
    /// The command ended; nothing follows about it.
    Exited {
        /// The command.
        id: u64,
        /// How.
        exit: Exit,
    },
}

impl From<Input> for InputKind {
    fn from(input: Input) -> Self {
        match input {
            Input::Closed => Self::Closed,
            Input::Pipe => Self::Pipe,
            Input::Terminal { rows, columns } => Self::Terminal { rows, columns },
        }
    }
}

impl From<InputKind> for Input {
    fn from(kind: InputKind) -> Self {
        match kind {
            InputKind::Closed => Self::Closed,
            InputKind::Pipe => Self::Pipe,
            InputKind::Terminal { rows, columns } => Self::Terminal { rows, columns },
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Line<M> {
    message: M,
    #[serde(default)]
    bytes: usize,
}

/// Writes one frame and flushes it.
///
/// # Errors
///
/// The other side is gone, or the payload is too large.
pub(crate) fn send<M: Serialize>(to: &mut impl Write, message: &M, payload: &[u8]) -> Result<()> {
    ensure!(
        payload.len() <= PAYLOAD_BYTES_MAX,
        "a frame of {} bytes is too large",
        payload.len()
    );
    let mut frame = serde_json::to_vec(&Line {
        message,
        bytes: payload.len(),
    })?;
    frame.push(b'\n');
    frame.extend_from_slice(payload);
    // One write, so that frames of several threads do not mix under a lock held for each.
    to.write_all(&frame).context("the other side is gone")?;
    to.flush().context("the other side is gone")
}

/// Reads one frame; `None` where the stream ends between two.
///
/// # Errors
///
/// The stream ends within a frame, or holds something else.
pub(crate) fn receive<M: DeserializeOwned>(from: &mut impl BufRead) -> Result<Option<(M, Vec<u8>)>> {
    let mut line = Vec::new();
    let read = from.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
    if read == 0 {
        return Ok(None);
    }
    if line.last() != Some(&b'\n') {
        bail!("the stream ends, or runs on, within a frame");
    }
    let Line { message, bytes } = serde_json::from_slice::<Line<M>>(&line)
        .with_context(|| format!("not a frame: {}", String::from_utf8_lossy(&line).trim_end()))?;
    ensure!(
        bytes <= PAYLOAD_BYTES_MAX,
        "a frame of {bytes} bytes is too large"
    );
    let mut payload = vec![0; bytes];
    from.read_exact(&mut payload)
        .context("the stream ends within a frame")?;
    Ok(Some((message, payload)))
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    #[test]
    fn frames_keep_their_bytes_and_their_order() {
        let mut wire = Vec::new();
        send(&mut wire, &Reply::Stdout(7), b"one\n\0\xff{").unwrap();
        send(
            &mut wire,
            &Reply::Exited {
                id: 7,
                exit: Exit::Signal(9),
            },
            b"",
        )
        .unwrap();
        let mut wire = Cursor::new(wire);
        assert_eq!(
            receive(&mut wire).unwrap(),
            Some((Reply::Stdout(7), b"one\n\0\xff{".to_vec()))
        );
        assert_eq!(
            receive(&mut wire).unwrap(),
            Some((
                Reply::Exited {
                    id: 7,
                    exit: Exit::Signal(9)
                },
                vec![]
            ))
        );
        assert_eq!(receive::<Reply>(&mut wire).unwrap(), None);
    }

    #[test]
    fn every_truncation_but_the_empty_one_is_an_error() {
        let mut wire = Vec::new();
        send(&mut wire, &Request::Input(1), b"abc").unwrap();
        for end in 1..wire.len() {
            let mut cut = Cursor::new(wire.get(..end).unwrap());
            assert!(receive::<Request>(&mut cut).is_err(), "cut after {end} bytes");
        }
    }

    #[test]
    fn rubbish_and_giants_are_refused() {
        let mut bad = Cursor::new(b"not json\n".to_vec());
        assert!(format!("{:#}", receive::<Request>(&mut bad).unwrap_err()).contains("not json"));
        let mut giant = Cursor::new(b"{\"message\":{\"input\":1},\"bytes\":99999999}\n".to_vec());
        assert!(format!("{:#}", receive::<Request>(&mut giant).unwrap_err()).contains("too large"));
        assert!(
            send(
                &mut Vec::new(),
                &Request::Input(1),
                &vec![0; PAYLOAD_BYTES_MAX + 1]
            )
            .is_err()
        );
    }
}
