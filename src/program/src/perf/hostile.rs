//! Checks the parsing of control messages with arbitrary bytes. Tests and the fuzzer use it.

use super::message::{CONTROL_BYTES_MAX, Message, Purpose};
use super::test::{Role, Test};

/// Parses `bytes` as a message, and as the purpose of a connection.
///
/// # Panics
/// The parser violates a guarantee.
pub fn check(bytes: &[u8]) {
    match Purpose::parse(bytes) {
        Ok(purpose) => assert_eq!(purpose.encode()[..], *bytes),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    let message = match Message::parse(bytes) {
        Ok(message) => message,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let again = message.encode();
    assert_eq!(again.len(), bytes.len());
    assert!(bytes.len() <= CONTROL_BYTES_MAX as usize);
    // Parsing removes control characters from texts and drops fields that are marked as absent. Another round changes
    // nothing.
    assert_eq!(Message::parse(&again).as_ref(), Ok(&message));
    match &message {
        Message::Setup(setup) => {
            assert_eq!(again, bytes);
            check_test(&setup.test);
        }
        Message::Ready(_) | Message::Finished => assert_eq!(again, bytes),
        Message::Refused(reason) => assert!(!reason.contains(char::is_control)),
        Message::Verdict(verdict) => {
            assert_eq!(verdict.first_fault.is_some(), verdict.faults > 0);
            let reason = verdict.gave_up.as_deref().unwrap_or_default();
            assert!(!reason.contains(char::is_control));
        }
    }
}

/// Checks everything that a listener derives from a requested test.
pub(crate) fn check_test(test: &Test) {
    assert_eq!(test.check(), Ok(()));
    assert_eq!(test.total(), test.iterations + test.warmup);
    for role in [Role::Client, Role::Listener] {
        if let Some((bytes, _)) = test.window(role) {
            assert!(
                (1..=1 << 30).contains(&bytes),
                "{test:?}: a window of {bytes} bytes"
            );
        }
        assert!(test.planted(role).is_none_or(|sequence| sequence < test.total()));
    }
    let Some(first) = test.rounds().next() else {
        panic!("{test:?}: nothing to be done");
    };
    assert_eq!(first.first, 0);
    assert!(test.checkable(first).end <= test.total());
    assert!(test.place_of(0, 0) <= test.place_of(1, 0) || test.iterations == 1);
}

#[cfg(test)]
mod tests {
    use doorbell::RemoteWindow;
    use doorbell::provider::Rkey;

    use super::check;
    use crate::perf::message::{Message, Purpose, Ready};
    use crate::replay::replay;

    #[test]
    fn seeds_keep_every_promise() {
        replay("perf_message", check);
    }

    /// Each bit of each byte of the valid messages is flipped.
    #[test]
    fn changed_messages_keep_every_promise() {
        let ready = Message::Ready(Ready {
            token: 1,
            window: RemoteWindow::new(8, 64, Rkey(1)),
        });
        let refused = Message::Refused("no memory".into());
        let purpose = Purpose::UnderTest(7).encode().to_vec();
        for good in [
            ready.encode(),
            refused.encode(),
            Message::Finished.encode(),
            purpose,
        ] {
            for at in 0..good.len() * 8 {
                let mut bytes = good.clone();
                bytes[at / 8] ^= 1 << (at % 8);
                check(&bytes);
                check(&good[..at / 8]);
            }
        }
    }
}
