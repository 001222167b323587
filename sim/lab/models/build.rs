//! Writes copies of `src/connect/handshakes/accept_queue.rs` for the models of the accept queue: one as it is shipped, and others with one mistake each,
//! on which a model has to fail.
//!
//! The build fails if the text that a mistake replaces does not occur exactly once. The file has then changed, and the mistake has to be
//! adapted to it.

use core::error::Error;
use std::env;
use std::fs;
use std::path::Path;

include!("wrong.rs");

fn main() -> Result<(), Box<dyn Error>> {
    const SHIPPED: &str = "../../../src/connect/handshakes/accept_queue.rs";
    println!("cargo::rerun-if-changed={SHIPPED}");
    println!("cargo::rerun-if-changed=wrong.rs");
    let text = fs::read_to_string(SHIPPED)?;
    // Without its module doc: the text is included inside a module, where such a doc is an error.
    let shipped: String = text
        .split_inclusive('\n')
        .filter(|line| !line.starts_with("//!"))
        .collect();
    let out = env::var("OUT_DIR")?;
    fs::write(Path::new(&out).join("shipped.rs"), &shipped)?;
    for wrong in WRONG {
        let mut text = shipped.clone();
        for (right, instead) in wrong.steps {
            if text.matches(right).count() != 1 {
                return Err(format!("{}: {right:?} is not there once", wrong.name).into());
            }
            text = text.replace(right, instead);
        }
        fs::write(Path::new(&out).join(format!("{}.rs", wrong.name)), text)?;
    }
    let names: Vec<_> = WRONG.iter().map(|wrong| wrong.name).collect();
    fs::write(
        Path::new(&out).join("wrong.rs"),
        format!("wrong! {{ {} }}\n", names.join(" ")),
    )?;
    println!("cargo::rustc-env=WRONG_QUEUES={}", names.join(" "));
    Ok(())
}
