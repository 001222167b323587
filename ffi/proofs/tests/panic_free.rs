//! The program whose hot functions must not be able to panic: it links and runs; and one with a panic planted in such a function, which
//! does not link.
#![expect(clippy::unwrap_used, reason = "tests")]

mod building;

use std::process::Command;

use building::{build, folder};

/// What no-panic has the linker say, and of whom.
const DETECTED: &str = "ERROR[no-panic]: detected panic in function ";

/// The optimiser infers what cannot unwind before it has simplified what it is inferred of, where
/// something is to be dropped on the way: so all is to be inlined, where it does both at once.
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
