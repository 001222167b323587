//! Two programs whose hot functions must not be able to panic. One links and runs; the other has a panic planted
//! in such a function and does not link.
#![expect(clippy::unwrap_used, reason = "tests")]

mod building;

use std::process::Command;

use building::{build, folder};

/// Message that no-panic makes the linker print, in front of the function's name.
const DETECTED: &str = "ERROR[no-panic]: detected panic in function ";

/// If a function drops a value on the way, the optimiser infers whether it can unwind before it has simplified
/// the function. Inlining everything makes it do both at once.
const INLINE_ALL: &str = "llvm-args=-inline-threshold=60000 -inlinehint-threshold=60000 -inlinecold-threshold=60000 \
                          -inline-cold-callsite-threshold=60000";

/// Every function of every crate can be in line, which needs an option of nightly compilers. Optimising at link time would do, too, and
/// would have connecting and destruction in line for minutes.
const INLINABLE: [(&str, &str); 3] = [
    ("CARGO_PROFILE_PROOF_LTO", "off"),
    ("RUSTC_BOOTSTRAP", "1"),
    (
        "RUSTFLAGS",
        "-Zcross-crate-inline-threshold=always --cfg doorbell_in_line",
    ),
];

/// A program with a feature.
fn build_with(program: &str, feature: &str) -> (bool, String) {
    let program = ["--package", "doorbell-proofs", "--bin", program];
    build(
        &INLINABLE,
        &program,
        &["--features", feature, "--", "-C", INLINE_ALL],
    )
}

#[test]
fn the_hot_functions_cannot_panic() {
    let (is_built, said) = build_with("panic_free", "panic_free");
    assert!(is_built, "{said}");
    let output = Command::new(folder(&INLINABLE).join("panic_free"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(output.stdout, b"ran, and cannot panic\n");
}

#[test]
fn a_function_that_can_panic_is_found() {
    let (is_built, said) = build_with("planted_panic", "panic_free");
    assert!(is_built, "{said}");

    let (is_built, said) = build_with("planted_panic", "plant_panic");
    let detected: Vec<_> = said.split(DETECTED).skip(1).collect();
    assert!(!is_built, "{said}");
    assert!(!detected.is_empty(), "it failed for another reason: {said}");
    for function in detected {
        assert!(function.starts_with("`planted`"), "{said}");
    }
}
