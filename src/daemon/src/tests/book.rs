//! The page of errors quotes each failure of a client and of a server exactly as it is printed.

use std::io;

use doorbell::WaitError;
use doorbell::interprocess::SharedMemoryError;
use doorbell::provider::ProviderError;

use crate::client::ClientError;
use crate::endpoint::EndpointRefusal;
use crate::reason::{AttachRefusal, CutReason, GoneReason, UndeliveredReason};
use crate::serving::{ServerError, StatusError};

const ERRORS: &str = include_str!("../../../../docs/when-it-fails/errors.md");

#[test]
fn each_reason_of_a_refusal_has_an_entry() {
    let reasons: Vec<_> = (0..64).filter_map(AttachRefusal::of).collect();
    assert_eq!(reasons.len(), 20);
    for reason in reasons {
        let entry = format!("\n- `{reason}` (`AttachRefusal::{reason:?}`)\n");
        assert!(ERRORS.contains(&entry), "{entry}");
    }
    assert_eq!(ERRORS.matches("(`AttachRefusal::").count(), 20);
}

#[test]
fn each_failure_of_a_client_has_an_entry() {
    let memory = ProviderError {
        call: "memfd_create",
        errno: 24,
    };
    let error = || io::Error::from_raw_os_error(111);
    let path = || std::path::PathBuf::from("/run/doorbell/socket");
    let connect = ClientError::Connect {
        path: path(),
        error: error(),
    };
    let stranger = ClientError::Stranger {
        path: path(),
        uid: 1000,
    };
    let system = ClientError::System {
        call: "sendmsg",
        error: error(),
    };
    let failures = [
        ("Refused", ClientError::Refused(AttachRefusal::Gone)),
        ("Cut", ClientError::Cut(CutReason::Index)),
        ("DaemonGone", ClientError::DaemonGone),
        ("TooLate", ClientError::TooLate),
        ("Memory", ClientError::Memory(SharedMemoryError::System(memory))),
        ("Broken", ClientError::Broken(EndpointRefusal::Broken)),
        ("Connect", connect),
        ("Stranger", stranger),
        ("System", system),
    ];
    for (name, failure) in failures {
        is_quoted(&failure.to_string(), &format!("ClientError::{name}"));
    }
}

#[test]
fn each_refusal_of_an_endpoint_has_an_entry() {
    let out_of_arena = |arena_bytes| EndpointRefusal::OutOfArena { arena_bytes };
    let too_long = EndpointRefusal::TooLong {
        bytes: 9000,
        bytes_max: 4096,
    };
    let refusals = [
        ("Full", EndpointRefusal::Full),
        ("TooLong", too_long),
        ("OutOfArena", out_of_arena(0)),
        ("OutOfArena", out_of_arena(1 << 20)),
        ("NoGrant", EndpointRefusal::NoGrant),
        ("TooManyGrants", EndpointRefusal::TooManyGrants),
        ("TooManyTransfers", EndpointRefusal::TooManyTransfers),
        ("Broken", EndpointRefusal::Broken),
    ];
    for (name, refusal) in &refusals {
        is_quoted(&refusal.to_string(), &format!("EndpointRefusal::{name}"));
    }
    assert_eq!(ERRORS.matches("(`EndpointRefusal::").count(), refusals.len());
}

#[test]
fn each_reason_of_an_event_of_an_endpoint_has_an_entry() {
    let cut = (0..64)
        .filter_map(CutReason::of)
        .map(|of| (of.to_string(), format!("CutReason::{of:?}")));
    let gone = (0..64)
        .filter_map(GoneReason::of)
        .map(|of| (of.to_string(), format!("GoneReason::{of:?}")));
    let undelivered = (0..64).filter_map(UndeliveredReason::of);
    let undelivered = undelivered.map(|of| (of.to_string(), format!("UndeliveredReason::{of:?}")));
    let reasons: Vec<_> = cut.chain(gone).chain(undelivered).collect();
    assert_eq!(reasons.len(), 6 + 4 + 11);
    for (printed, variant) in reasons {
        is_quoted(&printed, &variant);
    }
}

#[test]
fn each_failure_of_a_status_has_an_entry() {
    let memory = ProviderError {
        call: "memfd_create",
        errno: 24,
    };
    let path = || std::path::PathBuf::from("/run/doorbell/socket");
    let error = || io::Error::from_raw_os_error(111);
    let (missing, failed) = (error(), error());
    let failures = [
        (
            "NoDaemon",
            StatusError::NoDaemon {
                path: path(),
                error: missing,
            },
        ),
        ("NotPermitted", StatusError::NotPermitted { path: path() }),
        ("OtherVersion", StatusError::OtherVersion { path: path() }),
        ("Refused", StatusError::Refused(AttachRefusal::Arena)),
        ("TooLate", StatusError::TooLate),
        ("Memory", StatusError::Memory(SharedMemoryError::System(memory))),
        (
            "System",
            StatusError::System {
                call: "recvmsg",
                error: failed,
            },
        ),
    ];
    for (name, failure) in &failures {
        is_quoted(&failure.to_string(), &format!("StatusError::{name}"));
    }
    assert_eq!(ERRORS.matches("(`StatusError::").count(), failures.len());
}

/// Checks that an item of the page whose text is followed by this variant quotes this text.
fn is_quoted(printed: &str, variant: &str) {
    let end = format!("` (`{variant}`)");
    let items = ERRORS.lines().filter_map(|line| line.strip_suffix(&end));
    let mut quotes = items.filter_map(|line| line.strip_prefix("- `"));
    let is_it = |quote: &str| match quote.strip_suffix('…') {
        Some(beginning) => printed.starts_with(beginning),
        None => printed == quote,
    };
    assert!(quotes.any(is_it), "{variant} has no entry: {printed}");
}

#[test]
fn each_failure_of_a_server_has_an_entry() {
    let listen = |error| ServerError::Listen {
        path: "/run/doorbell.socket".into(),
        error,
    };
    let poll = ServerError::System {
        call: "poll",
        error: io::Error::from_raw_os_error(12),
    };
    let failures = [
        ("Listen", listen(io::ErrorKind::AddrInUse.into())),
        ("Listen", listen(io::ErrorKind::AlreadyExists.into())),
        ("Listen", listen(io::ErrorKind::TimedOut.into())),
        ("Listen", listen(io::ErrorKind::PermissionDenied.into())),
        ("Listen", listen(io::Error::from_raw_os_error(2))),
        ("System", poll),
        ("Peers", ServerError::Peers(WaitError::NeverNotified)),
    ];
    for (name, failure) in &failures {
        is_quoted(&failure.to_string(), &format!("ServerError::{name}"));
    }
    assert_eq!(ERRORS.matches("(`ServerError::").count(), failures.len());
}
