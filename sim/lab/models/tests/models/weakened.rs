//! Weakens each ordering in turn; a model has to fail each time.
//!
//! The program calls itself with the name of the ordering in `DOORBELL_WEAKEN`. Nothing is built again, so the failure comes
//! from a model. The ordering prints a line when it is used weakened, and the models pass when none is weakened: both show that
//! the ordering is the cause.
//!
//! The next weaker ordering of acquire or release is relaxed. For acquire with release the two next weaker ones are tried, acquire
//! alone and release alone. For sequential consistency it is acquire with release. Orderings that are weaker still allow
//! everything that these allow, so they need no run.

use std::process::{Command, Output};

use doorbell_core::sync::{NamedOrdering, WEAKEN_VARIABLE};

/// The models that judge some orderings.
struct Judged {
    orderings: &'static [NamedOrdering],
    /// Prefix of the names of the orderings judged.
    prefix: &'static str,
    /// The modules of models, each of which must fail by itself.
    models: &'static [&'static str],
}

const JUDGED: &[Judged] = &[
    Judged {
        orderings: doorbell_core::ordering::ALL,
        prefix: "FREE_LIST_",
        models: &["free_list::", "reporting::"],
    },
    Judged {
        orderings: doorbell_core::ordering::ALL,
        prefix: "REGISTRATION_",
        models: &["registrations::"],
    },
    Judged {
        orderings: doorbell_core::ordering::ALL,
        prefix: "DETACH",
        models: &["detached::"],
    },
    Judged {
        orderings: doorbell_core::ordering::ALL,
        prefix: "ATTACH",
        models: &["detached::"],
    },
    Judged {
        orderings: doorbell_hotpath::ordering::ALL,
        prefix: "CREDITS_",
        models: &["credits::"],
    },
    Judged {
        orderings: doorbell_hotpath::ordering::ALL,
        prefix: "NOTIFY_",
        models: &["due::", "signal::"],
    },
    Judged {
        orderings: doorbell_hotpath::ordering::ALL,
        prefix: "SLEEP_",
        models: &["sleeping::", "shared_ring::"],
    },
    Judged {
        orderings: doorbell_hotpath::ordering::ALL,
        prefix: "INDEX_",
        models: &["shared_ring::"],
    },
    Judged {
        orderings: doorbell_hotpath::ordering::ALL,
        prefix: "RING_",
        models: &["spsc::", "mpsc::"],
    },
    Judged {
        orderings: doorbell_hotpath::ordering::ALL,
        prefix: "SPSC_",
        models: &["spsc::"],
    },
    Judged {
        orderings: doorbell_hotpath::ordering::ALL,
        prefix: "MPSC_",
        models: &["mpsc::"],
    },
];

/// Runs the models of a module with an ordering weakened.
fn run(models: &str, weakened: &str) -> Output {
    Command::new(std::env::current_exe().unwrap())
        .args([models, "--test-threads", "2", "--nocapture"])
        .env(WEAKEN_VARIABLE, weakened)
        .output()
        .unwrap()
}

/// Returns an error unless a model failed because of the ordering.
fn verdict(models: &str, weakened: &str, output: &Output) -> Result<(), String> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    let used = err
        .lines()
        .any(|line| line.trim() == format!("weakened: {weakened}"));
    match output.status.code() {
        _ if !used => Err(format!("{weakened}: the models of {models} do not use it")),
        Some(0) => Err(format!("{weakened}: the models of {models} pass without it")),
        Some(101) if out.contains("test result: FAILED") => Ok(()),
        _ => Err(format!(
            "{weakened}: {models} ended with {}\n{out}\n{err}",
            output.status
        )),
    }
}

#[test]
fn each_weakened_ordering_fails_a_model() {
    if std::env::var_os(WEAKEN_VARIABLE).is_some() {
        // Called by hand with one weakened: the models answer for that one.
        return;
    }
    let mut wrong = Vec::new();
    for judged in JUDGED {
        for ordering in judged.orderings {
            if !ordering.name().starts_with(judged.prefix) {
                continue;
            }
            for weaker in ordering.weaker() {
                let weakened = format!("{ordering}={weaker:?}");
                for models in judged.models {
                    let output = run(models, &weakened);
                    wrong.extend(verdict(models, &weakened, &output).err());
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_ordering_is_judged() {
    for ordering in [doorbell_core::ordering::ALL, doorbell_hotpath::ordering::ALL].concat() {
        let judges = JUDGED.iter().filter(|judged| {
            judged.orderings.contains(&ordering) && ordering.name().starts_with(judged.prefix)
        });
        assert_eq!(judges.count(), 1, "{ordering}");
    }
}

#[test]
fn a_name_that_no_ordering_has_is_not_taken_for_a_failure() {
    for wrong in ["FREE_LIST_PUTT", "FREE_LIST_PUT=Relax"] {
        let output = run("free_list::", wrong);
        let said = verdict("free_list::", wrong, &output).unwrap_err();
        assert!(said.contains("do not use it"), "{said}");
    }
}

#[test]
fn the_ordering_to_weaken_is_known() {
    let known = [doorbell_core::ordering::ALL, doorbell_hotpath::ordering::ALL].concat();
    if let Ok(name) = std::env::var(WEAKEN_VARIABLE) {
        let name = name.split('=').next();
        assert!(
            known.iter().any(|ordering| Some(ordering.name()) == name),
            "{WEAKEN_VARIABLE}: no ordering is called {name:?}"
        );
    }
}
