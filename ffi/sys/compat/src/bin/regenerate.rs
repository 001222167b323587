//! Writes `../src/bindings.rs`, `../src/layout_table.rs` and `../tests/signatures/table.rs` from the headers of an
//! installed rdma-core, or compares them with what is committed (`--check`).
//!
//! Run on x86-64 Debian 12 (libibverbs-dev 44.0, libclang) with the arm64 C
//! library headers beside it; see the README of this package. Nothing of this
//! takes part in the build of the product.

#[path = "../signatures.rs"]
mod signatures;
#[path = "../table.rs"]
mod table;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use bindgen::callbacks::{DeriveTrait, ImplementsTrait, ParseCallbacks};

const X86_64: &str = "x86_64-unknown-linux-gnu";
const AARCH64: &str = "aarch64-unknown-linux-gnu";

/// Types with unions inside, written by hand in `../src/unions.rs` under the names rdma-sys 0.3 gave their
/// parts; bindgen would call those `__bindgen_anon_1` and the like.
const BY_HAND: &[&str] = &[
    "ibv_async_event",
    "ibv_flow_spec",
    "ibv_gid",
    "ibv_ops_wr",
    "ibv_send_wr",
    "ibv_wc",
];

/// Types of the C library, taken from the `libc` crate.
const FROM_LIBC: &str =
    "pthread_.*|timespec|in6_addr|sockaddr.*|__pthread.*|__atomic_wide_counter.*|__time_t|__syscall_slong_t";

/// Objects the library owns and hands out by pointer: a copy of one would be of no use, and would read a
/// mutex another thread may hold.
const OWNED_BY_LIBRARY: &str =
    "ibv_context|ibv_cq|ibv_cq_ex|ibv_qp|ibv_qp_ex|ibv_srq|ibv_wq|verbs_context|ibv_device";

/// Enumerations of bits: these get the bit operators.
const FLAGS: &[&str] = &[
    "ib_uverbs_access_flags",
    "ibv_.*[^m]_mask",
    "ibv_.*_flags",
    "ibv_.*_flags2",
    "ibv_.*_caps?_bits",
    "ibv_odp_general_caps",
    "ibv_pci_atomic_op_size",
    "ibv_raw_packet_caps",
    "ibv_rx_hash_fields",
];

/// How the generated file begins.
const HEADER: &str = "\
// Generated from <infiniband/verbs.h> of rdma-core 44.0 (Debian 12, libibverbs-dev 44.0-2) by bindgen. Do not edit.
//
// Regenerate: cd ffi/sys/compat && cargo run --bin regenerate
// Compare:    cd ffi/sys/compat && cargo run --bin regenerate -- --check

use libc::{pthread_cond_t, pthread_mutex_t, timespec};

use crate::unions::*;
";

#[derive(Debug)]
struct HandWritten;

impl ParseCallbacks for HandWritten {
    fn blocklisted_type_implements_trait(&self, name: &str, derive: DeriveTrait) -> Option<ImplementsTrait> {
        let bare = name.trim_start_matches("struct ").trim_start_matches("union ");
        let known = BY_HAND.contains(&bare)
            || bare.starts_with("pthread_")
            || matches!(bare, "timespec" | "in6_addr");
        match derive {
            DeriveTrait::Copy | DeriveTrait::Debug if known => Some(ImplementsTrait::Yes),
            _ => None,
        }
    }
}

fn builder(include: Option<&Path>, target: &str) -> bindgen::Builder {
    let mut builder = bindgen::Builder::default().clang_arg(format!("--target={target}"));
    if let Some(dir) = include {
        builder = builder.clang_arg(format!("-I{}", dir.display()));
    }
    if target.starts_with("aarch64") {
        // Debian's cross headers; without them clang would read x86-64's pthread types.
        builder = builder
            .clang_arg("-nostdinc")
            .clang_arg(format!("-I{}", clang_resource_include()))
            .clang_arg("-I/usr/aarch64-linux-gnu/include")
            .clang_arg("-idirafter/usr/include");
    }
    for flags in FLAGS {
        builder = builder.bitfield_enum(flags);
    }
    builder
        .header_contents("doorbell.h", "#include <infiniband/verbs.h>\n")
        .ignore_functions()
        .allowlist_type("_?ibv_.*|verbs_.*|ib_uverbs_access_flags|ib_uverbs_advise_mr_advice")
        .allowlist_var("IBV_.*|IB_ROCE_.*|IB_GRH_.*|ETHERNET_LL_SIZE")
        .blocklist_type(FROM_LIBC)
        .no_copy(OWNED_BY_LIBRARY)
        .default_enum_style(bindgen::EnumVariation::NewType {
            is_bitfield: false,
            is_global: false,
        })
        .constified_enum("_bindgen_ty_.*")
        .newtype_global_enum("ibv_dm_mask|ibv_fork_status|ibv_gid_type|ib_uverbs_flow_action_esp_.*")
        .prepend_enum_name(false)
        .derive_copy(true)
        .derive_debug(true)
        .derive_default(false)
        .generate_comments(false)
        .layout_tests(false)
        .size_t_is_usize(true)
        .use_core()
        .ctypes_prefix("::core::ffi")
        .rust_target(bindgen::RustTarget::stable(85, 0).unwrap_or_default())
        .rust_edition(bindgen::RustEdition::Edition2024)
        .formatter(bindgen::Formatter::Prettyplease)
        .disable_header_comment()
}

fn clang_resource_include() -> String {
    let version = bindgen::clang_version();
    let major = version.parsed.map_or(14, |(major, _)| major);
    format!(
        "/usr/lib/llvm-{major}/lib/clang/{}/include",
        version
            .full
            .split_whitespace()
            .find(|w| w.starts_with(|c: char| c.is_ascii_digit()))
            .unwrap_or("14.0.6")
    )
}

/// The bindings as they are committed.
fn bindings(include: Option<&Path>, target: &str) -> Result<String, Box<dyn Error>> {
    let mut builder = builder(include, target)
        .raw_line(HEADER)
        .parse_callbacks(Box::new(HandWritten));
    for name in BY_HAND {
        builder = builder.blocklist_type(format!("{name}(__bindgen_ty_.*)?"));
    }
    Ok(builder.generate()?.to_string())
}

/// Bindings of every type, with bindgen's layout assertions: where the numbers come from.
fn with_layout(include: Option<&Path>, target: &str) -> Result<String, Box<dyn Error>> {
    Ok(builder(include, target)
        .layout_tests(true)
        .generate()?
        .to_string())
}

/// Declarations of the functions alone, with or without the inline ones.
fn functions(include: Option<&Path>, inline: bool) -> Result<String, Box<dyn Error>> {
    let mut builder = bindgen::Builder::default().clang_arg(format!("--target={X86_64}"));
    if let Some(dir) = include {
        builder = builder.clang_arg(format!("-I{}", dir.display()));
    }
    let builder = builder
        .header_contents("doorbell.h", "#include <infiniband/verbs.h>\n")
        .with_codegen_config(bindgen::CodegenConfig::FUNCTIONS)
        .allowlist_function("_*ibv_.*|mult_to_ibv_rate|mbps_to_ibv_rate")
        .allowlist_recursively(false)
        // The C file that bindgen writes beside this is of no interest; the declarations are.
        .wrap_static_fns(inline)
        .wrap_static_fns_path(std::env::temp_dir().join(format!("doorbell-static-{}", std::process::id())))
        .default_enum_style(bindgen::EnumVariation::NewType {
            is_bitfield: false,
            is_global: false,
        })
        .generate_comments(false)
        .size_t_is_usize(true)
        .use_core()
        .ctypes_prefix("::core::ffi");
    let text = builder.generate()?.to_string();
    let wrapper = std::env::temp_dir().join(format!("doorbell-static-{}.c", std::process::id()));
    if inline && wrapper.exists() {
        std::fs::remove_file(wrapper)?;
    }
    Ok(text)
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("regenerate: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let mut check = false;
    let mut include: Option<PathBuf> = None;
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--check" => check = true,
            "--include" => include = Some(args.next().ok_or("--include needs a directory")?.into()),
            _ => return Err(format!("unknown argument {arg}; known: --check, --include DIR").into()),
        }
    }
    let include = include.as_deref();

    println!("libclang: {}", bindgen::clang_version().full);
    let text = bindings(include, X86_64)?;
    if text != bindings(include, AARCH64)? {
        return Err("the bindings differ between x86_64 and aarch64: one file cannot serve both".into());
    }
    let layout = table::write(
        &text,
        &with_layout(include, X86_64)?,
        &with_layout(include, AARCH64)?,
    )?;

    let signatures = signatures::write(&functions(include, false)?, &functions(include, true)?)?;

    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut stale = 0;
    for (name, new) in [
        ("src/bindings.rs", &text),
        ("src/layout_table.rs", &layout),
        ("tests/signatures/table.rs", &signatures),
    ] {
        let path = package.join(name);
        if !check {
            std::fs::write(&path, new)?;
            println!("wrote {name}: {} lines", new.lines().count());
            continue;
        }
        let committed = std::fs::read_to_string(&path)?;
        match committed
            .lines()
            .zip(new.lines())
            .position(|(old, new)| old != new)
        {
            _ if committed == *new => println!("{name}: {} lines, the same", new.lines().count()),
            line => {
                stale += 1;
                let at = line.unwrap_or_else(|| committed.lines().count().min(new.lines().count()));
                println!("{name}: DIFFERS from line {} on", at + 1);
                println!("  committed: {}", committed.lines().nth(at).unwrap_or("(end)"));
                println!("  generated: {}", new.lines().nth(at).unwrap_or("(end)"));
            }
        }
    }
    if stale > 0 {
        Err("the committed files are not what the headers give".into())
    } else {
        Ok(())
    }
}
