//! Any bytes as a plan: refused with a place, or understood and written in a way that reads back the same.

use doorbell_sim::Plan;

/// Panics where reading `bytes` as a plan breaks a promise.
pub(crate) fn check(bytes: &[u8]) {
    let Ok(text) = core::str::from_utf8(bytes) else {
        return;
    };
    match text.parse::<Plan>() {
        Ok(plan) => {
            let written = plan.to_string();
            assert_eq!(written.parse(), Ok(plan), "{text:?} is written {written:?}");
        }
        Err(error) => {
            assert!(text.contains(&error.clause), "{error}: {text:?}");
            assert!(error.clause.contains(&error.found), "{error}: {text:?}");
            assert!(!error.to_string().is_empty());
        }
    }
}
