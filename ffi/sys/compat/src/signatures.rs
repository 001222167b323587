//! The signatures of all functions of verbs.h, as coercions that compile only where ours are the same:
//! `../tests/signatures/table.rs`.

use std::collections::BTreeSet;
use std::error::Error;
use std::fmt::Write as _;

/// Inline functions that touch no memory: safe here.
const SAFE: &[&str] = &[
    "ibv_flow_label_to_udp_sport",
    "ibv_inc_rkey",
    "ibv_is_qpt_supported",
];

/// Functions that C hides behind a macro of the same name, which ours is: the C signature, save that the
/// structure is the whole one.
const MACROS: &[&str] = &["ibv_query_port", "ibv_reg_mr", "ibv_reg_mr_iova"];

/// Inline functions of C that cannot say that the operation is missing, and here return an errno value.
fn returns_nothing_in_c(name: &str) -> bool {
    name.starts_with("ibv_wr_") && name != "ibv_wr_complete"
}

/// Writes the file from bindgen's declarations without and with the inline functions.
pub(crate) fn write(exported: &str, all: &str) -> Result<String, Box<dyn Error>> {
    let exported: BTreeSet<String> = functions(exported).map(|(name, _)| name).collect();
    let mut out = String::from("// Generated with bindings.rs, from the same headers. Do not edit.\n\n");
    let (mut count, mut inline) = (0_u32, 0_u32);
    for (name, signature) in functions(all) {
        // libibverbs exports the function of that name to the macro, which is what a program calls.
        let signature = if MACROS.contains(&name.as_str()) {
            signature.replace("_compat_ibv_port_attr", "ibv_port_attr")
        } else {
            signature
        };
        let is_inline = !exported.contains(&name);
        let kind = match () {
            () if SAFE.contains(&name.as_str()) => "fn",
            () if is_inline || MACROS.contains(&name.as_str()) => "unsafe fn",
            () => "unsafe extern \"C\" fn",
        };
        let result = if is_inline && returns_nothing_in_c(&name) {
            " -> c_int"
        } else {
            ""
        };
        writeln!(out, "const _: {kind}{signature}{result} = {name};")?;
        count += 1;
        inline += u32::from(is_inline);
    }
    if count < 120 || inline < 60 {
        return Err(format!("only {count} functions, {inline} inline: bindgen's output changed").into());
    }
    write!(
        out,
        "\nconst FUNCTIONS: usize = {count};\nconst INLINE_IN_C: usize = {inline};\n"
    )?;
    Ok(out)
}

/// Name and `(types) -> type` of each declared function.
fn functions(text: &str) -> impl Iterator<Item = (String, String)> {
    let flat = text
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
        .replace("::core::ffi::", "");
    let mut found = Vec::new();
    for piece in flat.split("pub fn ").skip(1) {
        let Some((declaration, _)) = piece.split_once(';') else {
            continue;
        };
        let Some((name, rest)) = declaration.split_once('(') else {
            continue;
        };
        let Some((arguments, result)) = rest.rsplit_once(')') else {
            continue;
        };
        let types: Vec<&str> = arguments
            .split(", ")
            .filter_map(|argument| argument.trim().trim_end_matches(',').split_once(": "))
            .map(|(_, of)| of)
            .collect();
        found.push((
            name.to_owned(),
            format!("({}){}", types.join(", "), result.trim_end()),
        ));
    }
    found.sort();
    found.dedup();
    found.into_iter()
}
