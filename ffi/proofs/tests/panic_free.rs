//! The program whose hot functions must not be able to panic: it links and runs, and with a panic
//! planted in one of them it does not link.
#![expect(clippy::unwrap_used, reason = "tests")]

mod building;

use std::process::Command;

use building::{build, folder};

/// What no-panic has the linker say, and of whom.
const DETECTED: &str = "ERROR[no-panic]: detected panic in function ";

#[test]
fn the_hot_functions_cannot_panic() {
    let program = ["--package", "doorbell-proofs", "--bin", "panic_free"];
    let (is_built, said) = build("build", &program, &["--features", "panic_free"]);
    assert!(is_built, "{said}");
    let output = Command::new(folder().join("panic_free")).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(output.stdout, b"ran, and cannot panic\n");

    let (is_built, said) = build("build", &program, &["--features", "plant_panic"]);
    let detected: Vec<_> = said.split(DETECTED).skip(1).collect();
    assert!(!is_built, "{said}");
    assert!(!detected.is_empty(), "it failed for another reason: {said}");
    for function in detected {
        assert!(function.starts_with("`planted`"), "{said}");
    }
}
