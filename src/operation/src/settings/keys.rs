//! The table of settings: name, range and field of each setting.

use core::time::Duration;

use doorbell::link::SESSION_WINDOW_MAX;
use doorbell::provider::{RECEIVE_DEPTH_MAX, SLOTS_MAX};
use doorbell::worker::{CLASSES_MAX, Classes};

use super::SettingValues;
use super::error::SettingsFault;
use super::field::SettingField;
use super::value::{Kind, Value};

/// A setting.
#[derive(Debug)]
pub(super) struct Key {
    /// The full name: sections and name, separated by dots.
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) read: fn(&SettingValues) -> Value,
    pub(super) write: fn(&mut SettingValues, &Value) -> Result<(), SettingsFault>,
}

/// Longest duration of any setting.
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// Shortest duration of any setting.
const MICROSECOND: Duration = Duration::from_micros(1);
const SPAN: Kind = Kind::span(MICROSECOND, DAY);
/// Range of queue depths, and of counts that are kept for peers.
const DEPTH: Kind = Kind::count(1, 1 << 20);
/// Range of send depths: limited by the number of request slots, one of which is for announcing receives.
const SENDS: Kind = Kind::count(1, SLOTS_MAX as u64 - 1);
/// Range of receive depths: limited by the handshake.
const RECEIVES: Kind = Kind::count(1, RECEIVE_DEPTH_MAX as u64);
/// Range of class numbers.
const CLASS: Kind = Kind::count(0, CLASSES_MAX as u64 - 1);
/// Range of the number of entries that a link keeps.
const PLACES: Kind = Kind::count(1, SESSION_WINDOW_MAX as u64);
const U32: u64 = u32::MAX as u64;

macro_rules! keys {
    ($table:ident, $prefix:literal, $root:tt { $($name:literal: $kind:expr => $($field:ident).+;)+ }) => {
        static $table: &[Key] = &[$(Key {
            name: concat!($prefix, $name),
            kind: $kind,
            read: |values| keys!(@place values, $root, $($field).+).show(),
            write: |values, value| keys!(@place values, $root, $($field).+).put(value),
        }),+];
    };
    (@place $values:ident, [], $($field:ident).+) => { $values.$($field).+ };
    (@place $values:ident, [$($root:ident).+], $($field:ident).+) => { $values.$($root).+.$($field).+ };
}

/// Settings of channels, for channels of the application and for channels of links.
macro_rules! channel_keys {
    ($table:ident, $prefix:literal, $($root:ident).+) => {
        keys!($table, $prefix, [$($root).+] {
            "send_depth": SENDS => send_depth;
            "receive_depth": RECEIVES => receive_depth;
            "gather_max": Kind::count(1, 4) => gather_max;
            "inline_bytes_max": Kind::bytes(0, 1 << 16) => inline_bytes_max;
            "inline_alone_bytes_max": Kind::bytes(0, 1 << 16) => inline_alone_bytes_max;
            "cell_bytes": Kind::bytes(0, 1 << 20) => cell_bytes;
            "unsignaled_max": Kind::count(0, 1 << 20) => unsignaled_max;
            "repost_batch": RECEIVES => repost_batch;
            "rd_atomic_max": Kind::count(0, 255) => rd_atomic_max;
            "timeout": Kind::count(1, 31) => timeout;
            "retry_count": Kind::count(0, 7) => retry_count;
            "rnr_retry": Kind::count(0, 7) => rnr_retry;
            "min_rnr_timer": Kind::count(0, 31) => min_rnr_timer;
            "handshake_stage": SPAN => handshake_stage;
            "mtu_max": Kind::count(256, 4096) => mtu_max;
            "traffic_class": Kind::count(0, 255) => traffic_class;
            "flow_label": Kind::count(0, (1 << 20) - 1) => flow_label;
            "service_level": Kind::count(0, 15) => service_level;
            "hop_limit": Kind::count(1, 255) => hop_limit;
            "class": CLASS => class;
        });
    };
}

keys!(GENERAL, "", [] {
    "rails": Kind::Text("rules for rails in quotes, as in \"mlx5_*,^mlx5_3\"") => rails;
    "key_file": Kind::Text("the name of a file in quotes") => key_file;
    "job_keys": Kind::Text("the name of a file in quotes") => job_keys;
    "unauthenticated": Kind::Flag => unauthenticated;
    "only_from": Kind::Text("subnets in quotes, as in \"10.1.0.0/16,fd00::/64\"") => only_from;
    "timeout": Kind::span(Duration::from_millis(1), DAY) => timeout;
    "metrics": Kind::Text("an address and a port in quotes, as in \"127.0.0.1:9400\"") => metrics;
    "log": Kind::Text("a level in quotes: off, error, warn, info, debug or trace") => log;
});

keys!(WORKER, "worker.", [worker] {
    "slots": DEPTH => slots;
    "lease_share_percent": Kind::count(0, 100) => lease_share_percent;
    "slot_bytes": Kind::bytes(64, 1 << 30) => slot_bytes;
    "completion_depth": DEPTH => completion_depth;
    "channels_max": DEPTH => channels_max;
    "channels_per_address": Kind::count(1, U32) => channels_per_address;
    "shared_receives": Kind::count(0, 1 << 16) => shared_receives;
    "notify": Kind::Text("\"never\", \"every\" or \"solicited\"") => notify;
    "submissions_per_poll": Kind::count(1, U32) => submissions_per_poll;
});

/// Settings of the classes of a Worker. Classes are in use if one of these settings differs from its
/// default.
macro_rules! class_keys {
    ($table:ident { $($prefix:literal, $class:literal;)+ }) => {
        static $table: &[Key] = &[
            Key {
                name: "worker.class.bytes_ahead_max",
                kind: Kind::bytes(1, U32),
                read: |values| classes(values).bytes_ahead_max.show(),
                write: |values, value| change_classes(values, |classes| classes.bytes_ahead_max.put(value)),
            },
            $(
                class_keys!(@one $prefix, $class, "priority", Kind::count(0, 255), priority),
                class_keys!(@one $prefix, $class, "weight", Kind::count(1, 65_535), weight),
                class_keys!(@one $prefix, $class, "bytes_per_second_max", Kind::bytes(0, 1 << 40), bytes_per_second_max),
                class_keys!(@one $prefix, $class, "burst_bytes", Kind::bytes(0, U32), burst_bytes),
                class_keys!(@one $prefix, $class, "traffic_class", Kind::count(0, 255), traffic_class),
                class_keys!(@one $prefix, $class, "service_level", Kind::count(0, 15), service_level),
            )+
        ];
    };
    (@one $prefix:literal, $class:literal, $name:literal, $kind:expr, $field:ident) => {
        Key {
            name: concat!($prefix, $name),
            kind: $kind,
            read: |values| classes(values).class($class).$field.show(),
            write: |values, value| {
                change_classes(values, |classes| match classes.table.get_mut($class) {
                    Some(class) => class.$field.put(value),
                    None => Err(SettingsFault::Unknown(None)),
                })
            },
        }
    };
}

class_keys!(CLASSES {
    "worker.class.0.", 0;
    "worker.class.1.", 1;
    "worker.class.2.", 2;
    "worker.class.3.", 3;
    "worker.class.4.", 4;
    "worker.class.5.", 5;
    "worker.class.6.", 6;
    "worker.class.7.", 7;
});
const _: () = assert!(CLASSES_MAX == 8, "each has a section");

fn classes(values: &SettingValues) -> Classes {
    values.worker.classes.unwrap_or_default()
}

fn change_classes(
    values: &mut SettingValues,
    change: impl FnOnce(&mut Classes) -> Result<(), SettingsFault>,
) -> Result<(), SettingsFault> {
    let mut changed = classes(values);
    change(&mut changed)?;
    if changed != classes(values) {
        values.worker.classes = Some(changed);
    }
    Ok(())
}

channel_keys!(CHANNEL, "channel.", channel);

keys!(LINK, "link.", [link] {
    "heartbeat_idle": SPAN => session.heartbeat_idle;
    "suspect_after": SPAN => session.suspect_after;
    "dead_after": SPAN => session.dead_after;
    "attach_within": SPAN => session.attach_within;
    "stalled_after": SPAN => session.stalled_after;
    "acknowledge_after": SPAN => session.acknowledge_after;
    "acknowledge_fragments": DEPTH => session.acknowledge_fragments;
    "fail_back_proofs": Kind::count(1, 255) => session.fail_back_proofs;
    "fail_back_interval": SPAN => session.fail_back_interval;
    "reconnect_first": SPAN => session.backoff.first;
    "reconnect_longest": SPAN => session.backoff.longest;
    "recover_within": SPAN => session.recover_within;
    "fragment_bytes": Kind::bytes(64, 1 << 30) => session.fragment_bytes;
    "retained": PLACES => retained;
    "ahead": PLACES => ahead;
    "message_bytes_max": Kind::bytes(1, U32) => message_bytes_max;
    "links_max": DEPTH => links_max;
    "links_per_address": DEPTH => links_per_address;
    "requests": PLACES => requests;
    "request_bytes_max": Kind::bytes(0, U32) => request_bytes_max;
    "long_requests": Kind::count(0, SESSION_WINDOW_MAX as u64) => long_requests;
});

channel_keys!(LINK_CHANNEL, "link.channel.", link.channel);

keys!(MESH, "mesh.", [mesh] {
    "window": Kind::count(1, 1 << 16) => window;
    "message_bytes_max": Kind::bytes(1, U32) => message_bytes_max;
    "hops_max": Kind::count(1, 64) => hops_max;
    "resend_after": SPAN => resend_after;
    "acknowledge_after": SPAN => acknowledge_after;
    "hold_down": SPAN => hold_down;
    "start_ahead_max": SPAN => start_ahead_max;
});

keys!(HANDSHAKES, "handshakes.", [link.handshakes] {
    "under_way": DEPTH => under_way;
    "per_address": DEPTH => per_address;
    "crowded_stage": SPAN => crowded_stage;
    "unaccepted": DEPTH => unaccepted;
    "making": Kind::count(1, 256) => making;
});

/// All settings, by section; settings without a section come first.
pub(super) fn all() -> impl Iterator<Item = &'static Key> {
    let tables = [
        GENERAL,
        WORKER,
        CLASSES,
        CHANNEL,
        LINK,
        LINK_CHANNEL,
        MESH,
        HANDSHAKES,
    ];
    tables.into_iter().flatten()
}

/// The setting with this name.
pub(super) fn find(name: &str) -> Option<&'static Key> {
    all().find(|key| key.name == name)
}

/// Whether this is the name of a section, or of a parent of sections.
pub(super) fn is_section(name: &str) -> bool {
    all().any(|key| {
        key.name
            .strip_prefix(name)
            .is_some_and(|rest| rest.starts_with('.'))
    })
}

/// The environment variable of a setting.
pub(super) fn variable(key: &Key) -> String {
    format!("{PREFIX}{}", key.name.replace('.', "_").to_ascii_uppercase())
}

/// Prefix of our environment variables.
pub(super) const PREFIX: &str = "DOORBELL_";

/// A setting with a similar name: the same last part, or one or two different letters.
pub(super) fn meant(name: &str) -> Option<&'static str> {
    // No setting has such a long name.
    let name = Some(name).filter(|name| name.len() < 64)?;
    let last = name.rsplit('.').next().filter(|last| last.len() > 3);
    let same_last = all().find(|key| key.name.rsplit('.').next() == last);
    // In a short name, two different letters are too many.
    let most = 2.min(name.len() / 4);
    let near = || all().find(|key| distance(key.name, name) <= most);
    same_last.or_else(near).map(|key| key.name)
}

/// The edit distance of two words: the number of letters to insert, delete or replace.
fn distance(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.chars().count()).collect();
    for (index, letter) in one.chars().enumerate() {
        let mut diagonal = index;
        let mut left = index.saturating_add(1);
        if let Some(first) = row.first_mut() {
            *first = left;
        }
        for (above, of_other) in row.iter_mut().skip(1).zip(other.chars()) {
            let changed = diagonal.saturating_add(usize::from(letter != of_other));
            diagonal = *above;
            left = changed.min(above.saturating_add(1)).min(left.saturating_add(1));
            *above = left;
        }
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{Kind, SettingValues, all, distance, find, is_section, meant, variable};

    #[test]
    fn no_two_have_one_name_or_one_variable() {
        let count = all().count();
        assert!(count > 70, "{count}");
        assert_eq!(all().map(|key| key.name).collect::<BTreeSet<_>>().len(), count);
        assert_eq!(all().map(variable).collect::<BTreeSet<_>>().len(), count);
        assert_eq!(
            variable(find("link.dead_after").unwrap()),
            "DOORBELL_LINK_DEAD_AFTER"
        );
    }

    #[test]
    fn each_is_kept_where_no_other_is_and_every_bound_fits() {
        for key in all() {
            let mut values = SettingValues::default();
            let default = (key.read)(&values);
            // The default value can be written as a setting.
            (key.write)(&mut values, &default).unwrap();
            assert_eq!(values, SettingValues::default(), "{}", key.name);
            let other: Vec<super::Value> = match key.kind {
                Kind::Count { least, most } | Kind::Bytes { least, most } => {
                    [least, most].map(super::Value::Number).into()
                }
                Kind::Span { least, most } => [least, most].map(super::Value::Span).into(),
                Kind::Flag => [true, false].map(super::Value::Flag).into(),
                Kind::Text(_) => continue,
            };
            for value in other {
                let mut values = SettingValues::default();
                (key.write)(&mut values, &value).unwrap_or_else(|fault| panic!("{}: {fault}", key.name));
                let changed: Vec<_> = all()
                    .filter(|key| (key.read)(&values) != (key.read)(&SettingValues::default()))
                    .map(|key| key.name)
                    .collect();
                assert!(changed.is_empty() || changed == [key.name], "{changed:?}");
                assert_eq!((key.read)(&values), value, "{}", key.name);
            }
        }
    }

    /// A bound that is accepted here, and refused where the value is used, would let a connect fail much
    /// later.
    #[test]
    fn every_bound_is_accepted_where_it_is_for_and_one_more_is_not() {
        use doorbell_core::in_flight::storage_for;

        let most = |name: &str| match find(name).unwrap().kind {
            Kind::Count { most, .. } => u32::try_from(most).unwrap(),
            other => panic!("{name}: {other:?}"),
        };
        for section in ["channel", "link.channel"] {
            let own = SettingValues::default();
            let sends = most(&format!("{section}.send_depth"));
            let depth = |send_depth| {
                let mut channel = own.channel;
                channel.send_depth = send_depth;
                channel.sends_in_flight()
            };
            assert!(storage_for(depth(sends)).is_some() && storage_for(depth(sends + 1)).is_none());
            let receives = most(&format!("{section}.receive_depth"));
            assert!(storage_for(receives).is_some() && storage_for(receives + 1).is_none());
            assert!(receives <= doorbell::provider::RECEIVE_DEPTH_MAX);
            assert_eq!(most(&format!("{section}.repost_batch")), receives);
        }
        for name in ["link.retained", "link.ahead", "link.requests"] {
            let places = most(name);
            assert_eq!(places, doorbell::link::SESSION_WINDOW_MAX, "{name}");
        }
    }

    #[test]
    fn every_bound_is_one_that_the_library_accepts() {
        for key in all() {
            let (Kind::Count { least, most } | Kind::Bytes { least, most }) = key.kind else {
                continue;
            };
            for bound in [least, most] {
                let mut values = SettingValues::default();
                (key.write)(&mut values, &super::Value::Number(bound)).unwrap();
                let of_channels = [values.channel.check(), values.link.channel.check()];
                assert!(
                    of_channels.iter().all(Result::is_ok),
                    "{}: {of_channels:?}",
                    key.name
                );
                let of_worker = values.worker.check();
                assert!(of_worker.is_ok(), "{}: {of_worker:?}", key.name);
            }
        }
    }

    #[test]
    fn no_setting_is_taken_for_what_others_set() {
        for key in all() {
            assert!(!super::super::is_of_others(&variable(key)), "{}", key.name);
        }
    }

    #[test]
    fn what_was_meant_is_found() {
        assert_eq!(meant("dead_after"), Some("link.dead_after"));
        assert_eq!(meant("link.dead_aftr"), Some("link.dead_after"));
        assert_eq!(meant("rail"), Some("rails"));
        assert_eq!(meant("something.else"), None);
        assert_eq!((distance("", "ab"), distance("kitten", "sitting")), (2, 3));
        assert!(
            is_section("link") && is_section("link.channel") && !is_section("rails") && !is_section("lin")
        );
    }
}
