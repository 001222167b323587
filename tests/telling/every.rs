//! Checks that the tests cover every event in the sources.

use std::fs;
use std::path::Path;

/// Events that no world here makes happen.
const NOT_HELD: [(&str, &str); 7] = [
    (
        "WARN doorbell: not connected .. reason=",
        "on a simulated fabric a Node has no threads to look at ports, and connecting does not begin",
    ),
    (
        "WARN doorbell: our ports are not looked at: once more, later .. reason=",
        "a simulated device answers at once",
    ),
    (
        "WARN doorbell: the ports are not looked at in time: once more",
        "a simulated device answers at once",
    ),
    (
        "ERROR doorbell: channel not closed .. channel= .. reason=",
        "a simulated device destroys what it is asked to",
    ),
    (
        "WARN doorbell: memory is registered for each use and not cached .. reason= .. bytes=",
        "registrations are cached for devices of rdma-core alone",
    ),
    (
        "WARN doorbell: no memory for long messages .. reason=",
        "a simulated device registers what it is asked to",
    ),
    (
        "ERROR doorbell: a drop panicked",
        "nothing of a simulated host panics in its drop; tests of the reaper have things that do",
    ),
];

/// An event as it stands in a source: what each line of it has.
struct LogCall {
    head: String,
    fields: Vec<String>,
    place: String,
}

impl LogCall {
    /// Reads it from the text behind `log!(`.
    fn read(text: &str, place: String) -> Self {
        let (level, rest) = text.split_once(',').unwrap();
        let (words, rest) = rest.trim_start()[1..].split_once('"').unwrap();
        let mut depth = 1;
        let end = rest.find(|letter| {
            depth += match letter {
                '(' => 1,
                ')' => -1,
                _ => 0,
            };
            depth == 0
        });
        let fields = &rest[..end.unwrap()];
        let name = |part: &str| Some(format!("{}=", part.split_once(" = ")?.0.trim()));
        Self {
            head: format!("{} doorbell: {words}", level.trim().to_uppercase()),
            fields: fields.split(',').filter_map(name).collect(),
            place,
        }
    }

    /// Whether what a test holds against a log is this event, with all its fields.
    fn is(&self, held: &str) -> bool {
        let mut parts = held.split(" .. ");
        parts.next() == Some(&self.head)
            && parts.clone().count() == self.fields.len()
            && self
                .fields
                .iter()
                .zip(parts)
                .all(|(field, part)| part.starts_with(field))
    }
}

fn read_all(folder: &Path, each: &mut impl FnMut(&Path, &str)) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read_all(&path, each);
        } else {
            each(&path, &fs::read_to_string(&path).unwrap());
        }
    }
}

#[test]
fn every_event_in_the_sources_is_held_to_be_told() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut told = Vec::new();
    read_all(&root.join("src"), &mut |path, text| {
        if path.ends_with("src/machine/log.rs") || path.ends_with("src/daemon/src/log.rs") {
            return;
        }
        let place = path.strip_prefix(root).unwrap().display();
        let events = text.split("log!(").skip(1);
        told.extend(events.map(|event| LogCall::read(event, place.to_string())));
    });
    assert!(told.len() > 45, "{}", told.len());
    let mut held = Vec::new();
    for folder in ["tests/telling", "src/daemon/tests/telling"] {
        read_all(&root.join(folder), &mut |path, text| {
            if !path.ends_with("every.rs") {
                held.extend(text.split('"').map(str::to_owned));
            }
        });
    }
    for event in &told {
        let is_excused = NOT_HELD.iter().any(|(what, _)| event.is(what));
        let is_held = held.iter().any(|held| event.is(held));
        let (place, head, fields) = (&event.place, &event.head, &event.fields);
        assert!(
            is_held != is_excused,
            "{place}: {head} {fields:?}: held {is_held}, excused {is_excused}"
        );
    }
    for (what, why) in NOT_HELD {
        assert!(told.iter().any(|event| event.is(what)), "{what}: {why}");
    }
}
