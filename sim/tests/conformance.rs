//! Promises of verbs, on the simulated fabric: by the book, and with the quirks of Soft-RoCE, which must then
//! show exactly the deviations named for it.

#[path = "conformance/rig.rs"]
mod rig;

use std::io;
use std::process::ExitCode;

use doorbell_conformance::{Options, Run, Trouble, run};
use doorbell_sim::Quirks;
use rig::{DOUBLED, SUBJECTS, Simulated};

/// Whether all passed.
fn conforms() -> Result<bool, Trouble> {
    let options = Options::of(std::env::args().skip(1))?;
    let (mut sum, mut out) = (Run::default(), io::stdout());
    for (subject, quirks) in SUBJECTS {
        run(&Simulated::new(quirks), subject, &options, &mut sum, &mut out)?;
    }
    let (subject, plan) = DOUBLED;
    run(
        &Simulated::with(Quirks::IBA, plan),
        subject,
        &options,
        &mut sum,
        &mut out,
    )?;
    Ok(sum.end(&options, &mut out)?)
}

fn main() -> ExitCode {
    match conforms() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(trouble) => {
            eprintln!("{trouble}");
            ExitCode::from(2)
        }
    }
}
