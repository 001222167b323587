//! Every call fails once, at every place where a life makes it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use doorbell_fake::Call;
use doorbell_ffi::leaks;

use crate::Bench;
use crate::life::{End, life};

/// An error number that nothing here gives by itself: EDQUOT.
const ERRNO: i32 = 122;

#[test]
fn a_life_makes_every_call_and_leaves_nothing() {
    let bench = Bench::new();
    let before = leaks();
    life(&bench.rdma).unwrap();
    assert_eq!(leaks(), before);
    for call in Call::ALL {
        assert!(bench.control.calls(*call) > 0, "{} is not tested", call.name());
    }
}

/// All that is in the sources of a folder, comments apart.
fn code(folder: &Path) -> String {
    let mut found = String::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.push_str(&code(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(path).unwrap();
            let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
            lines.for_each(|line| found.extend([line, "\n"]));
        }
    }
    found
}

/// Calls of libibverbs in this code: its functions, and the operations of a context.
fn called(code: &str) -> BTreeSet<String> {
    let words: Vec<_> = code
        .split_inclusive(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .collect();
    let mut called = BTreeSet::new();
    for (before, word) in words.iter().zip(&words[1..]) {
        if let Some(name) = word.strip_suffix('(').filter(|name| name.starts_with("ibv_")) {
            called.insert(name.to_owned());
        }
        if *before == "ops." {
            let operation: String = word
                .chars()
                .filter(|c| c.is_ascii_lowercase() || *c == '_')
                .collect();
            called.insert(format!("ibv_{operation}"));
        }
    }
    called
}

/// Whether the bindings have a function of this name that can say that it failed.
fn can_fail(bindings: &str, name: &str) -> bool {
    let declared = bindings.split_once(&format!("fn {name}("));
    declared.is_some_and(|(_, rest)| {
        let signature = rest.split(['{', ';']).next().unwrap_or(rest);
        signature
            .split(", else")
            .next()
            .unwrap_or(signature)
            .contains("->")
    })
}

#[test]
fn every_call_that_can_fail_can_be_made_to() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (ours, bindings) = (code(&here.join("src")), code(&here.join("sys/src")));
    let mut failing = called(&ours);
    failing.retain(|name| can_fail(&bindings, name));
    let known: BTreeSet<_> = Call::ALL.iter().map(|call| call.name().to_owned()).collect();
    assert_eq!(
        failing, known,
        "of what `ffi` calls, and of what the fake can make fail"
    );
}

#[test]
fn each_call_that_fails_is_reported_and_leaks_nothing() {
    let bench = Bench::new();
    // Calls that destroy something are in `destroys`.
    for call in Call::ALL.iter().filter(|call| !call.destroys()) {
        // As often as a life makes it: those that poll or sleep until something comes do so any number of times.
        for place in 0.. {
            bench.control.heal();
            bench.control.fail(*call, place, ERRNO);
            let before = leaks();
            let end = life(&bench.rdma);
            let at = format!("{} at place {place}: {end:?}", call.name());
            if bench.control.calls(*call) <= place {
                assert!(end.is_ok() && place > 0, "{at}");
                break;
            }
            match (call, end) {
                // Another user of the library may have settled it; a query without an answer promises nothing.
                (Call::ForkInit | Call::QueryQpDataInOrder, Ok(())) => {}
                // A device without a name is none; opened by it, it is gone.
                (Call::GetDeviceName, Err(End::NoPort)) => {}
                (Call::GetDeviceName, Err(End::Call(error))) => assert_eq!(error.errno, libc::ENODEV, "{at}"),
                // sysfs is asked then, which knows no such device.
                (Call::QueryGidTable, Err(End::NoPort)) => {}
                // The device is looked at once more, for its report.
                (Call::QueryGidTable, Ok(())) if place > 0 => {}
                (_, Err(End::Call(error))) => {
                    assert_eq!(error.errno, ERRNO, "{at}");
                    assert!(error.call.starts_with(call.name()), "{at}");
                }
                _ => panic!("{at}"),
            }
            assert_eq!(leaks(), before, "{at}");
        }
        bench.control.heal();
        life(&bench.rdma).unwrap();
    }
}
