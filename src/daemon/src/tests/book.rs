//! The page of errors has each failure of a client as it is printed.

use std::io;

use doorbell::interprocess::SharedMemoryError;
use doorbell::provider::ProviderError;

use crate::client::ClientError;
use crate::endpoint::EndpointRefusal;
use crate::reason::{AttachRefusal, CutReason};

const ERRORS: &str = include_str!("../../../../docs/when-it-fails/errors.md");

#[test]
fn each_reason_of_a_refusal_has_an_entry() {
    let reasons: Vec<_> = (0..64).filter_map(AttachRefusal::of).collect();
    assert_eq!(reasons.len(), 17);
    for reason in reasons {
        let entry = format!("\n- `{reason}` (`AttachRefusal::{reason:?}`)\n");
        assert!(ERRORS.contains(&entry), "{entry}");
    }
    assert_eq!(ERRORS.matches("(`AttachRefusal::").count(), 17);
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
        let end = format!("` (`ClientError::{name}`)");
        let entry = ERRORS.lines().find_map(|line| line.strip_suffix(&end));
        let quote = entry.and_then(|line| line.strip_prefix("- `")).unwrap();
        let printed = failure.to_string();
        match quote.strip_suffix('…') {
            Some(beginning) => assert!(printed.starts_with(beginning), "{printed}"),
            None => assert_eq!(printed, quote),
        }
    }
}
