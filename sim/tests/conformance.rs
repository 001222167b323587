//! What verbs promise, on the simulated fabric: by the book, and with the quirks of Soft-RoCE, which must
//! then be exactly those that are named of it.

#[path = "conformance/rig.rs"]
mod rig;

use std::process::ExitCode;

use doorbell_conformance::{Options, Run, run};
use doorbell_sim::Quirks;
use rig::{DOUBLED, SUBJECTS, Simulated};

fn main() -> ExitCode {
    let options = match Options::of(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(trouble) => {
            eprintln!("{trouble}");
            return ExitCode::from(2);
        }
    };
    let mut sum = Run::default();
    for (subject, quirks) in SUBJECTS {
        run(&Simulated::new(quirks), subject, &options, &mut sum);
    }
    let (subject, plan) = DOUBLED;
    run(&Simulated::with(Quirks::IBA, plan), subject, &options, &mut sum);
    sum.end(&options)
}
