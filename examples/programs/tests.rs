//! Each program over simulated hosts; and that each is short.

use super::{both, gateway, graceful_end, hundred_channels, key_value, large_object, ping_pong};

#[test]
fn all_messages_come_back() {
    let rounds = ping_pong::ROUNDS;
    assert_eq!(both(ping_pong::serve, ping_pong::call).unwrap(), (rounds, rounds));
}

#[test]
fn each_order_ends_once() {
    let (orders, counts) = both(gateway::serve, gateway::trade).unwrap();
    let muted = u64::from(gateway::ORDERS / gateway::MUTE_EVERY);
    assert_eq!((orders, counts.sent), (gateway::ORDERS, gateway::ORDERS.into()));
    assert_eq!(counts.answered + counts.timed_out, counts.sent);
    // Beside those without an answer, a machine with much to do may be late with some.
    assert!(counts.timed_out >= muted);
    assert_eq!(counts.unasked, 0);
}

#[test]
fn what_was_counted_under_a_lock_is_in_the_window() {
    assert_eq!(both(key_value::serve, key_value::use_it).unwrap(), (10, 10));
}

#[test]
fn a_large_object_arrives_as_it_was() {
    let bytes = large_object::OBJECT_BYTES;
    assert_eq!(
        both(large_object::serve, large_object::fetch).unwrap(),
        (bytes, true)
    );
}

#[test]
fn each_of_a_hundred_channels_has_its_answer() {
    let channels = hundred_channels::CHANNELS;
    assert_eq!(
        both(hundred_channels::serve, hundred_channels::call).unwrap(),
        (channels, channels)
    );
}

#[test]
fn an_end_loses_nothing() {
    let messages = graceful_end::MESSAGES;
    let (came, sent) = both(graceful_end::serve, graceful_end::call).unwrap();
    assert_eq!((came, sent), ((messages, true), messages));
}

#[test]
fn each_program_has_at_most_sixty_lines_of_code() {
    for (name, text) in [
        ("gateway", include_str!("gateway.rs")),
        ("graceful_end", include_str!("graceful_end.rs")),
        ("hundred_channels", include_str!("hundred_channels.rs")),
        ("key_value", include_str!("key_value.rs")),
        ("large_object", include_str!("large_object.rs")),
        ("ping_pong", include_str!("ping_pong.rs")),
        (
            "service",
            include_str!("../../ffi/tokio/examples/service/service.rs"),
        ),
    ] {
        let program = text.split("#[cfg(test)]").next().unwrap();
        let is_code = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with("//");
        let lines = program.lines().filter(is_code).count();
        assert!(lines <= 60, "{name} has {lines} lines of code");
    }
}
