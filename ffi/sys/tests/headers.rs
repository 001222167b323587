//! The layout table against the C compiler: sizes, offsets and constants as real headers of rdma-core give them.
//! They are the installed headers and any that `DOORBELL_RDMA_HEADERS` names: `dir[:dir]`, each an include
//! directory that holds `infiniband/verbs.h`.

#![expect(
    clippy::panic,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

use core::fmt::Write as _;
use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Names the header directories beside the installed one.
const HEADERS_ENV: &str = "DOORBELL_RDMA_HEADERS";

/// The structures that grew after rdma-core 44, and at which end. Each is given to the library with its
/// size, or comes from the library with its size, or (`ibv_qp_ex`) has a flag for its new field.
const GROWN: &[(&str, End)] = &[
    ("struct ibv_port_attr", End::Back),
    ("struct ibv_qp_ex", End::Back),
    ("struct verbs_context", End::Front),
];

/// Constants that `src/newer.rs` has by hand: the name in C, and our value.
const NEWER: &[(&str, i64)] = &[
    ("IBV_WC_FLUSH", rdma_sys::ibv_wc_opcode::IBV_WC_FLUSH.0 as i64),
    ("IBV_WR_FLUSH", rdma_sys::ibv_wr_opcode::IBV_WR_FLUSH.0 as i64),
    (
        "IBV_EVENT_DEVICE_SPEED_CHANGE",
        rdma_sys::ibv_event_type::IBV_EVENT_DEVICE_SPEED_CHANGE.0 as i64,
    ),
    (
        "IBV_ACCESS_FLUSH_GLOBAL",
        rdma_sys::ibv_access_flags::IBV_ACCESS_FLUSH_GLOBAL.0 as i64,
    ),
    (
        "IBV_ACCESS_FLUSH_PERSISTENT",
        rdma_sys::ibv_access_flags::IBV_ACCESS_FLUSH_PERSISTENT.0 as i64,
    ),
    (
        "IBV_QP_EX_WITH_FLUSH",
        rdma_sys::ibv_qp_create_send_ops_flags::IBV_QP_EX_WITH_FLUSH.0 as i64,
    ),
    ("IBV_FLUSH_GLOBAL", rdma_sys::IBV_FLUSH_GLOBAL as i64),
    ("IBV_FLUSH_PERSISTENT", rdma_sys::IBV_FLUSH_PERSISTENT as i64),
    ("IBV_FLUSH_RANGE", rdma_sys::IBV_FLUSH_RANGE as i64),
    ("IBV_FLUSH_MR", rdma_sys::IBV_FLUSH_MR as i64),
    (
        "IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS",
        rdma_sys::IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS as i64,
    ),
    (
        "IBV_QUERY_QP_DATA_IN_ORDER_WHOLE_MSG",
        rdma_sys::IBV_QUERY_QP_DATA_IN_ORDER_WHOLE_MSG as i64,
    ),
    (
        "IBV_QUERY_QP_DATA_IN_ORDER_ALIGNED_128_BYTES",
        rdma_sys::IBV_QUERY_QP_DATA_IN_ORDER_ALIGNED_128_BYTES as i64,
    ),
];

#[derive(Clone, Copy, PartialEq)]
enum End {
    Front,
    Back,
}

struct Type {
    c: &'static str,
    size: usize,
    align: usize,
    fields: &'static [(&'static str, usize)],
}

macro_rules! by_arch {
    ($x86_64:literal, $aarch64:literal) => {
        if cfg!(target_arch = "aarch64") {
            $aarch64
        } else {
            $x86_64
        }
    };
}

macro_rules! layout {
    ($($c_type:literal $name:ident [$size:expr, $align:expr] {
        $($c_field:literal $field:ident $offset:expr;)*
    })*) => {
        const TYPES: &[Type] = &[$(
            Type { c: $c_type, size: $size, align: $align, fields: &[$(($c_field, $offset)),*] },
        )*];
    };
}

macro_rules! constants {
    ($($of:ident { $($name:ident = $value:literal;)* })*) => {
        const CONSTANTS: &[(&str, i64)] = &[$($((stringify!($name), $value)),*),*];
    };
}

include!("../src/layout_table.rs");

/// Says something past libtest's capture, so that it is seen of a test that passes.
fn say(text: &str) {
    let mut stderr = std::io::stderr();
    writeln!(stderr, "{text}").unwrap();
}

/// Says why a test does nothing, so that it is counted as skipped.
fn skip(why: &str) {
    say(&format!("SKIPPED: {why}"));
}

fn compiler() -> String {
    std::env::var("CC").unwrap_or_else(|_| "cc".to_owned())
}

fn compiler_works() -> bool {
    Command::new(compiler())
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// The file that `#include <infiniband/verbs.h>` includes, as the preprocessor reports it.
fn installed_header() -> Option<PathBuf> {
    let dir = tempdir("probe");
    let source = dir.join("probe.c");
    std::fs::write(&source, "#include <infiniband/verbs.h>\n").unwrap();
    let output = Command::new(compiler()).arg("-M").arg(&source).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    std::fs::remove_dir_all(&dir).unwrap();
    let path = text
        .split_whitespace()
        .find(|word| word.ends_with("infiniband/verbs.h"))?;
    output.status.success().then(|| PathBuf::from(path))
}

fn tempdir(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

/// The place that a row names, as an operand of `__typeof__`.
fn c_operand(c: &str) -> String {
    match c.split_once('.') {
        Some((of, member)) => format!("((({of} *)0)->{member})"),
        None => c.to_owned(),
    }
}

fn program(newer: &[(&str, i64)]) -> String {
    let mut c = String::from(
        "#include <infiniband/verbs.h>\n#include <stddef.h>\n#include <stdio.h>\n\
         #define TYPE(name, t) { typedef __typeof__(t) T; \\\n\
         printf(\"%s|%zu|%zu\\n\", name, sizeof(T), _Alignof(T)); }\n\
         #define FIELD(name, t, f) { typedef __typeof__(t) T; printf(\"%s|%zu\\n\", name, offsetof(T, f)); }\n\
         #define VALUE(v) printf(\"%s|%lld\\n\", #v, (long long)(v));\n\
         int main(void) {\n",
    );
    for row in TYPES.iter().filter(|row| !row.c.is_empty()) {
        let operand = c_operand(row.c);
        writeln!(c, "TYPE(\"{}\", {operand})", row.c).unwrap();
        for (field, _) in row.fields {
            writeln!(c, "FIELD(\"{}::{field}\", {operand}, {field})", row.c).unwrap();
        }
    }
    if !newer.is_empty() {
        c.push_str("FIELD(\"struct ibv_qp_ex::wr_flush\", struct ibv_qp_ex, wr_flush)\n");
    }
    for (name, _) in CONSTANTS.iter().chain(newer) {
        writeln!(c, "VALUE({name})").unwrap();
    }
    c.push_str("return 0; }\n");
    c
}

/// Compiles and runs the program; each line it prints, by its name.
fn ask_c(name: &str, include: Option<&Path>, newer: &[(&str, i64)]) -> BTreeMap<String, Vec<i64>> {
    let dir = tempdir(name);
    let (source, binary) = (dir.join("layout.c"), dir.join("layout"));
    std::fs::write(&source, program(newer)).unwrap();
    let mut cc = Command::new(compiler());
    if let Some(include) = include {
        cc.arg("-I").arg(include);
    }
    let output = cc.arg("-w").arg("-o").arg(&binary).arg(&source).output().unwrap();
    assert!(
        output.status.success(),
        "the headers lack something of the table, or are not headers:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let output = Command::new(&binary).output().unwrap();
    assert!(output.status.success(), "the compiled program failed");
    std::fs::remove_dir_all(&dir).unwrap();
    String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| {
            let mut words = line.split('|');
            let name = words.next().expect("a name").to_owned();
            (name, words.map(|word| word.parse().expect("a number")).collect())
        })
        .collect()
}

/// Compares the whole table; returns how many numbers agreed, or every disagreement.
fn compare(c: &BTreeMap<String, Vec<i64>>, newer: &[(&str, i64)]) -> Result<usize, String> {
    let mut agreed = 0_usize;
    let mut wrong = String::new();
    let mut check = |what: &str, ours: i64, theirs: i64| {
        if ours == theirs {
            agreed += 1;
        } else {
            writeln!(wrong, "{what}: {ours} here, {theirs} in C").unwrap();
        }
    };
    let number = |value: usize| i64::try_from(value).expect("a small number");
    for row in TYPES.iter().filter(|row| !row.c.is_empty()) {
        let [size, align] = c[row.c][..] else {
            panic!("{} has no size and alignment", row.c)
        };
        let growth = size - number(row.size);
        let end = GROWN.iter().find(|(name, _)| *name == row.c).map(|(_, end)| *end);
        let shift = if end == Some(End::Front) { growth } else { 0 };
        if end.is_none() || growth < 0 {
            check(row.c, number(row.size), size);
        }
        check(&format!("alignment of {}", row.c), number(row.align), align);
        for (field, offset) in row.fields {
            let name = format!("{}::{field}", row.c);
            check(&name, number(*offset) + shift, c[&name][0]);
        }
    }
    for (name, ours) in CONSTANTS.iter().chain(newer) {
        check(name, *ours, c[*name][0]);
    }
    if !newer.is_empty() {
        let ours = core::mem::offset_of!(rdma_sys::ibv_qp_ex_with_flush, wr_flush);
        check(
            "ibv_qp_ex::wr_flush",
            number(ours),
            c["struct ibv_qp_ex::wr_flush"][0],
        );
    }
    if wrong.is_empty() { Ok(agreed) } else { Err(wrong) }
}

/// Runs the comparison for the headers at `header`; `include` says how the compiler gets there.
fn compare_with(name: &str, header: &Path, include: Option<&Path>) -> usize {
    let text = std::fs::read_to_string(header).unwrap();
    let newer: Vec<(&str, i64)> = NEWER
        .iter()
        .filter(|(name, _)| has_word(&text, name))
        .copied()
        .collect();
    let c = ask_c(name, include, &newer);
    match compare(&c, &newer) {
        Ok(agreed) => {
            say(&format!(
                "{}: {agreed} sizes, offsets and constants agree ({} of them newer than rdma-core 44)",
                header.display(),
                newer.len()
            ));
            newer.len()
        }
        Err(wrong) => panic!("{} disagrees:\n{wrong}", header.display()),
    }
}

fn has_word(text: &str, word: &str) -> bool {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .any(|token| token == word)
}

#[test]
fn the_installed_headers_agree() {
    if !compiler_works() {
        return skip(&format!("no C compiler ({} --version fails)", compiler()));
    }
    match installed_header() {
        Some(header) => _ = compare_with("installed", &header, None),
        None => skip("no infiniband/verbs.h on this machine (Debian: libibverbs-dev)"),
    }
}

#[test]
fn the_headers_named_by_the_environment_agree() {
    let Some(dirs) = std::env::var_os(HEADERS_ENV) else {
        return skip(&format!(
            "{HEADERS_ENV} names no other rdma-core (see ffi/sys/README.md)"
        ));
    };
    assert!(
        compiler_works(),
        "{HEADERS_ENV} is set, but there is no C compiler"
    );
    for (index, dir) in std::env::split_paths(&dirs).enumerate() {
        let header = dir.join("infiniband/verbs.h");
        assert!(
            header.is_file(),
            "{HEADERS_ENV} names {}, which has no infiniband/verbs.h",
            dir.display()
        );
        compare_with(&format!("env-{index}"), &header, Some(&dir));
    }
}

/// The comparison itself: it must see a wrong size, a wrong offset, a wrong constant, and growth of a
/// structure that may not grow.
#[test]
fn a_planted_difference_is_seen() {
    let mut c: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    let number = |value: usize| i64::try_from(value).unwrap();
    for row in TYPES.iter().filter(|row| !row.c.is_empty()) {
        c.insert(row.c.to_owned(), vec![number(row.size), number(row.align)]);
        for (field, offset) in row.fields {
            c.insert(format!("{}::{field}", row.c), vec![number(*offset)]);
        }
    }
    for (name, value) in CONSTANTS {
        c.insert((*name).to_owned(), vec![*value]);
    }
    let agreed = compare(&c, &[]).expect("the table agrees with itself");
    assert!(agreed > 1300, "only {agreed} numbers compared");

    for (name, message) in [
        ("struct ibv_wc", "struct ibv_wc: 48 here, 49 in C"),
        (
            "struct ibv_wc::byte_len",
            "struct ibv_wc::byte_len: 20 here, 21 in C",
        ),
        ("struct verbs_context::sz", "struct verbs_context::sz"),
        ("IBV_QPS_RTS", "IBV_QPS_RTS: 3 here, 4 in C"),
    ] {
        let mut planted = c.clone();
        planted.get_mut(name).expect("a name of the table")[0] += 1;
        let wrong = compare(&planted, &[]).expect_err(name);
        assert!(wrong.contains(message), "{wrong}");
    }

    // A context that grew at the front moves every field; one that grew at the back is not a context.
    let mut grown = c.clone();
    grown.get_mut("struct verbs_context").unwrap()[0] += 16;
    assert!(compare(&grown, &[]).is_err());
    for (name, values) in &mut grown {
        if name.starts_with("struct verbs_context::") {
            values[0] += 16;
        }
    }
    assert!(compare(&grown, &[]).is_ok());
}
