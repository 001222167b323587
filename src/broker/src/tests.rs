//! The page of errors quotes each failure of the broker exactly as it is printed.

#[path = "../../../tests/book/page.rs"]
mod page;

use std::io;
use std::path::PathBuf;

use doorbell_sandbox::{LaunchError, Step};

use crate::containers::ListenError;
use crate::limits::LimitsError;
use crate::policies::PoliciesError;
use crate::policy::{Policy, PolicyError};
use crate::supervisor::BrokerError;
use crate::topology::TopologyError;

const ERRORS: &str = include_str!("../../../docs/when-it-fails/errors.md");

fn errno(number: i32) -> io::Error {
    io::Error::from_raw_os_error(number)
}

/// Returns the error of this policy.
fn wrong(text: &str) -> PolicyError {
    let checked = Policy::parse(text).and_then(|policy| policy.check());
    checked.unwrap_err()
}

#[test]
fn each_failure_of_the_broker_has_an_entry() {
    let policies = [
        wrong("devices = ['rxe0']\ndevice = 'rxe1'"),
        wrong(""),
        wrong("devices = ['m*5']"),
        wrong("devices = ['rxe0']\ncontexts = 513"),
        wrong("devices = ['rxe0']\nqueue_pairs = 4"),
        wrong("devices = ['rxe0']\ntopology = 'run'"),
    ];
    let path = || PathBuf::from("policies/train.toml");
    let files = [
        PoliciesError::File {
            path: path(),
            error: errno(2),
        },
        PoliciesError::Policy {
            path: path(),
            error: PolicyError::NoDevice,
        },
        PoliciesError::Name("a/b".to_owned()),
        PoliciesError::OneForAll("train".to_owned()),
    ];
    let sockets = [errno(98), io::ErrorKind::AlreadyExists.into()].map(|error| {
        let path = PathBuf::from("/run/doorbell-broker.sock");
        ListenError::Socket { path, error }
    });
    let steps = [
        (Step::Cgroup, 13),
        (Step::Pinned, 1),
        (Step::Namespaces, 1),
        (Step::Users, 1),
        (Step::Mounts, 13),
        (Step::Tree, 2),
        (Step::Privileges, 1),
        (Step::Filter, 16),
        (Step::Listener, 24),
        (Step::Program, 2),
    ];
    let launches = steps.map(|(step, number)| {
        let error = errno(number);
        BrokerError::Launch(LaunchError { step, error })
    });
    let limits = [
        LimitsError::NoDevice,
        LimitsError::Controller {
            path: "/sys/fs/cgroup/cgroup.subtree_control".into(),
            error: errno(13),
        },
        LimitsError::Container {
            path: "/proc/4711/status".into(),
            error: errno(2),
        },
        LimitsError::Objects {
            device: "mlx5_0".to_owned(),
            expected: "mlx5_0 hca_handle=8 hca_object=64".to_owned(),
        },
        LimitsError::Pinned { limit: 256 << 20 },
        LimitsError::Privileges,
    ];
    let topologies = [
        TopologyError::File {
            path: "/run/rdma-topology".into(),
            error: errno(13),
        },
        TopologyError::TooLarge,
        TopologyError::Namespaces,
    ];
    let others = [
        BrokerError::OpenFiles {
            limit: 64,
            contexts: 8,
        },
        BrokerError::Host(errno(24)),
    ];
    let carried = policies.map(BrokerError::Policy).into_iter();
    let carried = carried
        .chain(launches)
        .chain(limits.map(BrokerError::Limits))
        .chain(topologies.map(BrokerError::Topology))
        .chain(others);
    let mut printed: Vec<_> = carried.map(|error| error.to_string()).collect();
    printed.extend(files.map(|error| error.to_string()));
    printed.extend(sockets.map(|error| error.to_string()));
    page::compare(ERRORS, "The broker", &printed);
}
