//! Output of a program about the ports that it goes without.

use crate::started::{Running, program};

/// On two devices, of which the second's port is down.
fn started(arguments: &[&str]) -> Running {
    let mut command = program(arguments);
    command
        .env("DOORBELL_FAKE_DEVICES", "2")
        .env("DOORBELL_FAKE_DOWN", "1");
    Running::start(command)
}

const WHAT: &str = "fake1 port 1: the port is DOWN, not ACTIVE";

#[test]
fn a_port_that_is_passed_over_is_said_aloud() {
    for command in [
        &["lat", "--listen", "127.0.0.1:0"][..],
        &["link", "--listen", "127.0.0.1:0"],
        &["xfer", "--listen", "127.0.0.1:0"],
        &["mesh", "--listen", "127.0.0.1:0", "--rank", "0", "--ranks", "2"],
    ] {
        let arguments = [command, &["--unauthenticated"]].concat();
        let said = started(&arguments).line_with("passed over");
        assert_eq!(said, format!("doorbell: passed over: {WHAT}"), "{command:?}");
    }
}

/// Not twice.
#[test]
fn where_a_log_tells_of_it_it_is_not_said_beside_that() {
    for (command, log) in [
        (&["lat", "--listen", "127.0.0.1:0"][..], "warn"),
        (
            &["mesh", "--listen", "127.0.0.1:0", "--rank", "0", "--ranks", "2"],
            "info",
        ),
    ] {
        let arguments = [command, &["--unauthenticated", "--log", log]].concat();
        let said = started(&arguments).line_with("passed over");
        let told = format!("doorbell: passed over what={WHAT}");
        assert!(said.contains("WARN") && said.ends_with(&told), "{said}");
    }
}
