//! The table of sizes, offsets and constants, read out of what bindgen prints: `../src/layout_table.rs`.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write as _;

/// The parts of the hand-written types: bindgen's name, ours, and how C reaches the same part ("" where it
/// has no way to).
const PARTS: &[(&str, &str, &str)] = &[
    (
        "ibv_async_event__bindgen_ty_1",
        "ibv_async_event_element_t",
        "struct ibv_async_event.element",
    ),
    ("ibv_flow_spec__bindgen_ty_1", "ibv_flow_spec_union_t", ""),
    (
        "ibv_flow_spec__bindgen_ty_1__bindgen_ty_1",
        "hdr_t",
        "struct ibv_flow_spec.hdr",
    ),
    (
        "ibv_gid__bindgen_ty_1",
        "ibv_gid_global_t",
        "union ibv_gid.global",
    ),
    (
        "ibv_odp_caps__bindgen_ty_1",
        "ibv_odp_caps__bindgen_ty_1",
        "struct ibv_odp_caps.per_transport_caps",
    ),
    ("ibv_ops_wr__bindgen_ty_1", "tm_t", "struct ibv_ops_wr.tm"),
    (
        "ibv_ops_wr__bindgen_ty_1__bindgen_ty_1",
        "add_t",
        "struct ibv_ops_wr.tm.add",
    ),
    ("ibv_send_wr__bindgen_ty_2", "wr_t", "struct ibv_send_wr.wr"),
    (
        "ibv_send_wr__bindgen_ty_2__bindgen_ty_1",
        "rdma_t",
        "struct ibv_send_wr.wr.rdma",
    ),
    (
        "ibv_send_wr__bindgen_ty_2__bindgen_ty_2",
        "atomic_t",
        "struct ibv_send_wr.wr.atomic",
    ),
    (
        "ibv_send_wr__bindgen_ty_2__bindgen_ty_3",
        "ud_t",
        "struct ibv_send_wr.wr.ud",
    ),
    (
        "ibv_send_wr__bindgen_ty_3",
        "qp_type_t",
        "struct ibv_send_wr.qp_type",
    ),
    (
        "ibv_send_wr__bindgen_ty_3__bindgen_ty_1",
        "xrc_t",
        "struct ibv_send_wr.qp_type.xrc",
    ),
    ("ibv_send_wr__bindgen_ty_4", "bind_mw_tso_union_t", ""),
    (
        "ibv_send_wr__bindgen_ty_4__bindgen_ty_1",
        "bind_mw_t",
        "struct ibv_send_wr.bind_mw",
    ),
    (
        "ibv_send_wr__bindgen_ty_4__bindgen_ty_2",
        "tso_t",
        "struct ibv_send_wr.tso",
    ),
    ("ibv_wc__bindgen_ty_1", "imm_data_invalidated_rkey_union_t", ""),
];

/// The unions without a name, of which bindgen asserts no offset: the type, our field, the member by which C
/// reaches the place, and the offset.
const UNNAMED: &[(&str, &str, &str, u64)] = &[
    ("ibv_flow_spec", "ibv_flow_spec_union", "hdr", 0),
    ("ibv_send_wr", "imm_data_invalidated_rkey_union", "imm_data", 36),
    ("ibv_send_wr", "bind_mw_tso_union", "bind_mw", 80),
    ("ibv_wc", "imm_data_invalidated_rkey_union", "imm_data", 24),
];

/// Parts that need no row: opaque types, and a second name for a union that has a row.
const LEFT_OUT: &[&str] = &[
    "_compat_ibv_port_attr",
    "ib_uverbs_flow_action_esp_encap__bindgen_ty_1",
    "ib_uverbs_flow_action_esp_encap__bindgen_ty_2",
    "ibv_send_wr__bindgen_ty_1",
    "verbs_ex_private",
];

/// The fields whose Rust name is not the C one, being a keyword there.
const RENAMED: &[(&str, &str)] = &[("type_", "type"), ("priv_", "priv")];

#[derive(Default)]
struct Shape {
    size: u64,
    align: u64,
    fields: Vec<(String, u64)>,
}

/// Writes the table from the committed bindings and the layout assertions of both architectures.
pub(crate) fn write(bindings: &str, x86_64: &str, aarch64: &str) -> Result<String, Box<dyn Error>> {
    let mut out = String::from(
        "// Generated with bindings.rs, from the same headers. Do not edit.\n\
         //\n\
         // Each row: the type in C (\"\" where C has no way to name it), in Rust, its size and alignment. Then\n\
         // for each field the C member, the Rust one and its offset. Values that differ stand in by_arch!(x86_64, aarch64).\n\n",
    );
    let (shapes, other) = (shapes(x86_64)?, shapes(aarch64)?);
    if shapes.keys().ne(other.keys()) {
        return Err("x86_64 and aarch64 do not have the same types".into());
    }
    out.push_str("layout! {\n");
    for (name, shape) in &shapes {
        if LEFT_OUT.contains(&name.as_str()) {
            continue;
        }
        let there = &other[name];
        let (rust, c) = names(name, x86_64)?;
        let (size, align) = (both(shape.size, there.size), both(shape.align, there.align));
        writeln!(out, "    {c:?} {rust} [{size}, {align}] {{")?;
        for ((field, offset), (_, offset_there)) in shape.fields.iter().zip(&there.fields) {
            let c = RENAMED
                .iter()
                .find(|(rust, _)| rust == field)
                .map_or(field.as_str(), |(_, c)| *c);
            writeln!(out, "        {c:?} {field} {};", both(*offset, *offset_there))?;
        }
        for (_, rust, c, offset) in UNNAMED.iter().filter(|(of, ..)| of == name) {
            writeln!(out, "        {c:?} {rust} {offset};")?;
        }
        out.push_str("    }\n");
    }
    out.push_str("}\n\nconstants! {\n");
    for (of, constants) in constants(bindings) {
        writeln!(out, "    {of} {{")?;
        for (name, value) in constants {
            writeln!(out, "        {name} = {value};")?;
        }
        out.push_str("    }\n");
    }
    out.push_str("}\n");
    Ok(out)
}

fn both(x86_64: u64, aarch64: u64) -> String {
    if x86_64 == aarch64 {
        x86_64.to_string()
    } else {
        format!("by_arch!({x86_64}, {aarch64})")
    }
}

/// The Rust and the C name of a type.
fn names(name: &str, text: &str) -> Result<(String, String), Box<dyn Error>> {
    if let Some((_, rust, c)) = PARTS.iter().find(|(bindgen, ..)| *bindgen == name) {
        return Ok(((*rust).to_owned(), (*c).to_owned()));
    }
    if name.contains("__bindgen_") {
        return Err(format!("{name} has no row in PARTS").into());
    }
    let keyword = if text.contains(&format!("pub union {name} {{")) {
        "union"
    } else {
        "struct"
    };
    Ok((name.to_owned(), format!("{keyword} {name}")))
}

/// Reads the assertions, each of the form `["Size of T"][size_of::<T>() - 8usize];`.
fn shapes(text: &str) -> Result<BTreeMap<String, Shape>, Box<dyn Error>> {
    let mut shapes: BTreeMap<String, Shape> = BTreeMap::new();
    let flat = text
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
        .replace("[ \"", "[\"");
    for piece in flat.split("[\"").skip(1) {
        let (title, rest) = piece.split_once('"').ok_or("an assertion without a title")?;
        let Some((number, _)) = rest.split_once("usize]") else {
            continue;
        };
        let value: u64 = number
            .rsplit("- ")
            .next()
            .ok_or("an assertion without a number")?
            .trim()
            .parse()?;
        if let Some(name) = title.strip_prefix("Size of ") {
            shapes.entry(name.to_owned()).or_default().size = value;
        } else if let Some(name) = title.strip_prefix("Alignment of ") {
            shapes.entry(name.to_owned()).or_default().align = value;
        } else if let Some(path) = title.strip_prefix("Offset of field: ") {
            let (name, field) = path.split_once("::").ok_or("a field without a type")?;
            shapes
                .entry(name.to_owned())
                .or_default()
                .fields
                .push((field.to_owned(), value));
        }
    }
    if shapes.len() < 100 {
        return Err(format!(
            "only {} types have layout assertions: bindgen's output changed",
            shapes.len()
        )
        .into());
    }
    Ok(shapes)
}

/// The constants by the newtype they belong to: `plain` for those that are integers, `global` for newtype
/// values outside an `impl`.
fn constants(text: &str) -> BTreeMap<String, Vec<(String, String)>> {
    let mut by_type: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    let flat: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for piece in flat.split("pub const ").skip(1) {
        let Some((name, rest)) = piece.split_once(": ") else {
            continue;
        };
        let Some((of, value)) = rest.split_once(" = ") else {
            continue;
        };
        let Some((value, _)) = value.split_once(';') else {
            continue;
        };
        let inner = value
            .strip_prefix(of)
            .map(|v| v.trim_matches(|c: char| "() ,".contains(c)));
        let group = match inner {
            None => "plain".to_owned(),
            // Inside `impl T { .. }` the constant is reached through its type.
            Some(_) if text.contains(&format!("    pub const {name}: {of}")) => of.to_owned(),
            Some(_) => "global".to_owned(),
        };
        by_type
            .entry(group)
            .or_default()
            .push((name.to_owned(), inner.unwrap_or(value).to_owned()));
    }
    by_type
}
