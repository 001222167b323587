//! The desk between handshakes and the thread that accepts: `src/connect/handshakes/accept_queue.rs` as it is shipped, over loom's
//! locks. The signal's flag is the shipped one, too.
//!
//! The build also makes copies of the file, in each of which one step or one lock is missing or wrong (`wrong.rs`). The same
//! models run over each copy, and one of them has to fail.

mod parts;

use std::env;
use std::process::Command;

/// The models, over one form of the file.
macro_rules! over {
    ($queue:item) => {
        #[expect(dead_code, reason = "its users call more of it than the models do")]
        $queue

        /// The locks that the included file imports.
        mod locks {
            #[allow(unused_imports, reason = "each form of the file takes some")]
            pub(super) use super::super::parts::{Torn, TornGuard};
            pub(super) use loom::sync::{Arc, Mutex, MutexGuard};
        }

        mod cases {
            include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/models/accept_queue/cases.rs"));
        }
    };
}

mod shipped {
    over! {
        mod accept_queue {
            include!(concat!(env!("OUT_DIR"), "/shipped.rs"));
        }
    }

    macro_rules! tests {
        ($($case:ident)*) => {
            $(
                #[test]
                fn $case() {
                    cases::$case();
                }
            )*

            #[test]
            fn all_cases_are_tried() {
                assert_eq!(cases::ALL.len(), [$(stringify!($case)),*].len());
            }
        };
    }

    tests! {
        what_is_asked_for_is_granted_and_accepted
        of_two_that_ask_each_gets_its_own
        whoever_is_late_leaves_nothing
        where_one_gives_up_the_other_is_served
        a_place_is_reserved_before_anybody_is_accepted
        whoever_waits_hears_that_none_comes
        what_is_published_to_nobody_is_let_go
    }
}

/// Each copy of the file with a mistake, and a test that a model fails on it.
macro_rules! wrong {
    ($($name:ident)*) => {
        $(
            mod $name {
                over! {
                    mod accept_queue {
                        include!(concat!(env!("OUT_DIR"), "/", stringify!($name), ".rs"));
                    }
                }

                #[test]
                fn fails() {
                    super::fails(stringify!($name), cases::ALL);
                }
            }
        )*

        #[test]
        fn all_that_is_made_wrong_is_tried() {
            let made = env!("WRONG_QUEUES").split(' ');
            assert_eq!(made.collect::<Vec<_>>(), [$(stringify!($name)),*]);
        }
    };
}

include!(concat!(env!("OUT_DIR"), "/wrong.rs"));

/// Index of the model to run, for the program that the test starts.
const CASE_VARIABLE: &str = "DOORBELL_ACCEPT_QUEUE_CASE";

/// Asserts that one of the models fails. Each runs in a process of its own, since a model that fails halfway may abort its process.
fn fails(name: &str, cases: &[fn()]) {
    if let Ok(case) = env::var(CASE_VARIABLE) {
        return cases[case.parse::<usize>().unwrap()]();
    }
    let fails = |case: &usize| {
        let mut program = Command::new(env::current_exe().unwrap());
        program.args([&format!("accept_queue::{name}::fails"), "--exact", "--nocapture"]);
        program.env(CASE_VARIABLE, case.to_string());
        !program.output().unwrap().status.success()
    };
    let failed = (0..cases.len()).find(fails);
    println!("{name}: {failed:?}");
    assert!(failed.is_some(), "no model fails");
}
