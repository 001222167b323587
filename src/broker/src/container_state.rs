//! The container process state that a runtime sends: JSON, with the listener of the container's seccomp filter.
//!
//! Source: the OCI runtime specification, `config-linux.md`, "The Container Process State".

use core::fmt;
use core::mem::MaybeUninit;
use core::time::Duration;
use std::io::{self, IoSliceMut, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};
use serde::Deserialize;

/// Maximum length of a state in bytes. Annotations of the container make up most of it.
const STATE_BYTES_MAX: usize = 1 << 20;

/// Maximum number of descriptors of a message. The specification has one.
const DESCRIPTORS_MAX: usize = 16;

/// Longest time between the connection and the first bytes: a runtime connects when it creates a container, and sends when it
/// starts the container.
const CREATED: Duration = Duration::from_secs(60 * 60);

/// Longest time for receiving the rest of a state.
const REST: Duration = Duration::from_secs(10);

/// The state of a container. Other fields are ignored.
#[derive(Debug, Deserialize)]
pub(crate) struct ContainerState {
    #[serde(default)]
    fds: Vec<String>,
    pid: u32,
    #[serde(default)]
    metadata: Option<String>,
    state: State,
}

#[derive(Debug, Deserialize)]
struct State {
    id: String,
}

impl ContainerState {
    /// The ID of the container.
    pub(crate) fn container(&self) -> &str {
        &self.state.id
    }

    /// The ID of its first process, as the runtime sees it.
    pub(crate) const fn process(&self) -> u32 {
        self.pid
    }

    /// The value of `listenerMetadata`, or the empty string.
    pub(crate) fn metadata(&self) -> &str {
        self.metadata.as_deref().unwrap_or_default()
    }
}

/// Reason why no valid container process state was received.
#[derive(Debug)]
#[non_exhaustive]
pub enum StateError {
    /// The connection failed, or the runtime did not send in time.
    Connection(io::Error),
    /// The runtime closed the connection before it sent a complete state.
    Closed {
        /// Number of received bytes.
        bytes: usize,
    },
    /// The state is too long.
    TooLong,
    /// The text is not valid JSON, or lacks a field. The message names the line.
    Syntax(String),
    /// The number of names in `fds` differs from the number of received descriptors.
    Descriptors {
        /// Number of names in `fds`.
        named: usize,
        /// Number of received descriptors.
        came: usize,
    },
    /// No descriptor has the name `seccompFd`.
    NoListener,
}

impl fmt::Display for StateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connection(error) => write!(f, "no container process state came: {error}"),
            Self::Closed { bytes } => {
                write!(
                    f,
                    "the runtime closed the connection after {bytes} bytes of a container process state"
                )
            }
            Self::TooLong => write!(f, "a container process state has {STATE_BYTES_MAX} bytes at most"),
            Self::Syntax(text) => write!(f, "this is no container process state: {text}"),
            Self::Descriptors { named, came } => {
                write!(
                    f,
                    "the container process state names {named} descriptors, and {came} came"
                )
            }
            Self::NoListener => f.write_str("the container process state has no descriptor `seccompFd`"),
        }
    }
}

impl core::error::Error for StateError {}

/// Receives a state, and the listener that it names.
pub(crate) fn receive(stream: &UnixStream) -> Result<(ContainerState, OwnedFd), StateError> {
    receive_within(stream, CREATED, REST)
}

fn receive_within(
    stream: &UnixStream,
    created: Duration,
    rest: Duration,
) -> Result<(ContainerState, OwnedFd), StateError> {
    let failed = StateError::Connection;
    stream.set_read_timeout(Some(created)).map_err(failed)?;
    let (mut text, mut descriptors) = (vec![0; 4096], Vec::new());
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(
        stream,
        &mut [IoSliceMut::new(&mut text)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )
    .map_err(|error| failed(error.into()))?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(came) = message {
            descriptors.extend(came);
        }
    }
    if received.flags.contains(ReturnFlags::CTRUNC) {
        return Err(StateError::Descriptors {
            named: 0,
            came: DESCRIPTORS_MAX.saturating_add(1),
        });
    }
    text.truncate(received.bytes);
    let state = rest_of(stream, text, rest)?;
    if state.fds.len() != descriptors.len() {
        return Err(StateError::Descriptors {
            named: state.fds.len(),
            came: descriptors.len(),
        });
    }
    let named = state.fds.iter().zip(descriptors);
    let listener = named.into_iter().find(|(name, _)| *name == "seccompFd");
    let (_, listener) = listener.ok_or(StateError::NoListener)?;
    Ok((state, listener))
}

/// Reads until the JSON text is complete. Some runtimes keep the connection open afterwards.
fn rest_of(
    mut stream: &UnixStream,
    mut text: Vec<u8>,
    patience: Duration,
) -> Result<ContainerState, StateError> {
    let begun = std::time::Instant::now();
    loop {
        // Parses only if the text ends with a brace, which an incomplete text seldom does.
        if text.trim_ascii_end().last() == Some(&b'}') {
            match serde_json::from_slice(&text) {
                Ok(state) => return Ok(state),
                Err(error) if !error.is_eof() => return Err(StateError::Syntax(error.to_string())),
                Err(_) => {}
            }
        }
        if text.len() >= STATE_BYTES_MAX {
            return Err(StateError::TooLong);
        }
        let left = patience
            .saturating_sub(begun.elapsed())
            .max(Duration::from_millis(1));
        stream
            .set_read_timeout(Some(left))
            .map_err(StateError::Connection)?;
        let mut more = [0; 4096];
        match stream.read(&mut more) {
            Ok(0) if text.is_empty() => return Err(StateError::Closed { bytes: 0 }),
            Ok(0) => {
                return Err(match serde_json::from_slice::<ContainerState>(&text) {
                    Err(error) if !error.is_eof() => StateError::Syntax(error.to_string()),
                    _ => StateError::Closed { bytes: text.len() },
                });
            }
            Ok(bytes) => text.extend(more.get(..bytes).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(StateError::Connection(error)),
        }
        if begun.elapsed() > patience {
            return Err(StateError::Connection(io::ErrorKind::TimedOut.into()));
        }
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;
    use std::fs::File;
    use std::io::{IoSlice, Write as _};
    use std::os::fd::AsFd as _;
    use std::os::unix::net::UnixStream;

    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

    use super::{STATE_BYTES_MAX, StateError, receive_within};

    const LONG: Duration = Duration::from_secs(60);

    /// Reads the state that these pieces form. The first piece carries this many descriptors.
    fn of(pieces: &[&[u8]], descriptors: usize) -> Result<(String, String, u32), StateError> {
        let (mut theirs, ours) = UnixStream::pair().unwrap();
        let file = File::open("/dev/null").unwrap();
        let rights = vec![file.as_fd(); descriptors];
        let mut space = vec![core::mem::MaybeUninit::uninit(); 256];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if descriptors > 0 {
            control.push(SendAncillaryMessage::ScmRights(&rights));
        }
        let (first, rest) = pieces.split_first().unwrap();
        let rest: Vec<Vec<u8>> = rest.iter().map(|piece| piece.to_vec()).collect();
        sendmsg(&theirs, &[IoSlice::new(first)], &mut control, SendFlags::NOSIGNAL).unwrap();
        let sender = std::thread::spawn(move || {
            for piece in rest {
                // The state is refused before its end.
                let _ = theirs.write_all(&piece);
            }
        });
        let received = receive_within(&ours, LONG, LONG);
        drop(ours);
        sender.join().unwrap();
        received.map(|(state, _)| (state.container().into(), state.metadata().into(), state.process()))
    }

    const STATE: &str = r#"{"ociVersion": "1.0.2", "fds": ["seccompFd"], "pid": 4422, "metadata": "train",
        "state": {"ociVersion": "1.0.2", "id": "one", "status": "creating", "pid": 4422, "bundle": "/b", "annotations": {"a": "}"}}}"#;

    #[test]
    fn a_state_comes_whole_in_any_pieces() {
        let whole = Ok(("one".to_owned(), "train".to_owned(), 4422));
        let text = STATE.as_bytes();
        for cut in 1..text.len() {
            let (head, tail) = text.split_at(cut);
            assert_eq!(of(&[head, tail], 1).map_err(drop), whole, "cut at {cut}");
        }
        let without = STATE.replace(r#""metadata": "train","#, "");
        let expected = ("one".to_owned(), String::new(), 4422);
        assert_eq!(of(&[without.as_bytes()], 1).unwrap(), expected);
    }

    #[test]
    fn a_state_that_is_none_is_refused_with_the_reason() {
        let no_name = STATE.replace("seccompFd", "other");
        let no_pid = STATE.replace(r#""pid": 4422, "metadata""#, r#""metadata""#);
        let no_names = STATE.replace(r#""fds": ["seccompFd"],"#, "");
        let two = STATE.replace(r#"["seccompFd"]"#, r#"["other", "seccompFd"]"#);
        let long = vec![b' '; STATE_BYTES_MAX];
        assert!(of(&[two.as_bytes()], 2).is_ok());
        let half = STATE.split_at(40).0;
        for (text, descriptors, said) in [
            (STATE, 0, "names 1 descriptors, and 0 came"),
            (STATE, 2, "names 1 descriptors, and 2 came"),
            (STATE, 40, "names 0 descriptors, and 17 came"),
            (no_names.as_str(), 1, "names 0 descriptors, and 1 came"),
            (no_names.as_str(), 0, "no descriptor `seccompFd`"),
            (no_name.as_str(), 1, "no descriptor `seccompFd`"),
            (no_pid.as_str(), 1, "missing field `pid`"),
            ("{}", 1, "missing field `pid`"),
            ("[]", 1, "no container process state"),
            ("hello}", 1, "line 1 column 1"),
            (half, 1, "after 40 bytes"),
        ] {
            let error = of(&[text.as_bytes()], descriptors).unwrap_err().to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
        assert!(matches!(of(&[b"{", &long], 1), Err(StateError::TooLong)));
    }

    #[test]
    fn a_runtime_that_sends_nothing_is_not_waited_for_for_ever() {
        let (theirs, ours) = UnixStream::pair().unwrap();
        let soon = Duration::from_millis(1);
        let late = receive_within(&ours, soon, soon);
        assert!(matches!(late, Err(StateError::Connection(_))));
        (&theirs).write_all(b"{").unwrap();
        let late = receive_within(&ours, LONG, soon);
        assert!(matches!(late, Err(StateError::Connection(_))));
        drop(theirs);
        assert!(matches!(
            receive_within(&ours, LONG, LONG),
            Err(StateError::Closed { bytes: 0 })
        ));
    }
}
