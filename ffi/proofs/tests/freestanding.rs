//! `core` and `hotpath` need neither std nor an allocator: a static library of them with a panic
//! handler of its own builds, links with libc alone and runs. With an allocation in it, or std, it
//! does not build.
#![expect(clippy::unwrap_used, reason = "tests")]

mod building;

use std::process::Command;

use building::{build, folder};

/// Exit code of the program after a good run.
const RAN: i32 = 77;

/// The static library with a feature.
fn build_with(feature: &str) -> (bool, String) {
    let library = ["--package", "doorbell-freestanding", "--crate-type", "staticlib"];
    // Aborting: unwinding is std's.
    let more = ["--features", feature, "--", "-C", "panic=abort"];
    build(&[], &library, &more)
}

#[test]
fn core_and_hotpath_link_without_std_and_without_an_allocator() {
    let (is_built, said) = build_with("freestanding");
    assert!(is_built, "{said}");
    let program = folder(&[]).join("freestanding");
    // The linker that rustc itself uses by default. The program takes from libc only `memcpy` and the start code
    // that calls `main`.
    let output = Command::new("cc")
        .args(["-nodefaultlibs", "-o"])
        .arg(&program)
        .arg(folder(&[]).join("libdoorbell_freestanding.a"))
        .arg("-lc")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let output = Command::new(&program).output().unwrap();
    assert_eq!(output.status.code(), Some(RAN), "{output:?}");

    for (feature, wanted) in [
        ("plant_alloc", "no global memory allocator found"),
        ("plant_std", "found duplicate lang item `panic_impl`"),
    ] {
        let (is_built, said) = build_with(feature);
        assert!(!is_built, "{feature}");
        assert!(said.contains(wanted), "it failed for another reason: {said}");
    }
}
