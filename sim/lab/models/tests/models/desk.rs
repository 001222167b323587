//! The desk between handshakes and the thread that accepts: `src/connect/handshakes/places.rs`, as it is shipped, over loom's
//! locks, with the accept queue and the flag of a signal that it is used with.
//!
//! Each step and each lock that it needs is left out or done wrong once (`wrong.rs` in the package's build), and a model
//! has to fail then: the same models, over the same file but for that.

mod parts;

use std::env;
use std::process::Command;

/// The models, over one form of the file.
macro_rules! over {
    ($places:item) => {
        $places

        /// Where the file has its locks from.
        mod locks {
            #[expect(unused_imports, reason = "each form of the file takes some")]
            pub(super) use super::super::parts::{Torn, TornGuard, Unordered, UnorderedGuard};
            pub(super) use loom::sync::{Arc, Mutex, MutexGuard};
        }

        mod cases {
            include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/models/desk/cases.rs"));
        }
    };
}

mod shipped {
    over! {
        mod places {
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
        a_place_is_reserved_before_anybody_is_told_yes
        whoever_waits_hears_that_none_comes
        what_is_published_to_nobody_is_let_go
    }
}

/// Each form of the file with something wrong, and that a model fails of it.
macro_rules! wrong {
    ($($name:ident)*) => {
        $(
            mod $name {
                over! {
                    mod places {
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
            let made = env!("WRONG_PLACES").split(' ');
            assert_eq!(made.collect::<Vec<_>>(), [$(stringify!($name)),*]);
        }
    };
}

include!(concat!(env!("OUT_DIR"), "/wrong.rs"));

/// Which of the models the program is to try, where it calls itself.
const CASE_VARIABLE: &str = "DOORBELL_DESK_CASE";

/// One of the models fails. The program calls itself with each: a model that fails in the middle of something may take the
/// program with it.
fn fails(name: &str, cases: &[fn()]) {
    if let Ok(case) = env::var(CASE_VARIABLE) {
        return cases[case.parse::<usize>().unwrap()]();
    }
    let fails = |case: &usize| {
        let mut program = Command::new(env::current_exe().unwrap());
        program.args([&format!("desk::{name}::fails"), "--exact", "--nocapture"]);
        program.env(CASE_VARIABLE, case.to_string());
        !program.output().unwrap().status.success()
    };
    let failed = (0..cases.len()).find(fails);
    println!("{name}: {failed:?}");
    assert!(failed.is_some(), "no model fails");
}
