//! Any bytes as a scenario file: what must hold. Tests and the fuzzer run it.

use std::path::Path;

use super::check;
use super::model::{ROUNDS_MAX, Scenario};

/// Reads `bytes` as a scenario. Returns whether they are one.
///
/// # Panics
/// The reading breaks a promise.
pub fn check(bytes: &[u8]) -> bool {
    let Ok(text) = core::str::from_utf8(bytes) else {
        return false;
    };
    let first = check::parse(Path::new("t.toml"), text);
    // As another parser writes what it understood: keys in another order, other quotes, no remarks.
    if let Ok(table) = text.parse::<toml::Table>() {
        let written = toml::to_string(&table).expect("what was read can be written");
        let again = check::parse(Path::new("t.toml"), &written);
        match (&first, &again) {
            (Ok(first), Ok(again)) => {
                assert_eq!(
                    format!("{first:?}"),
                    format!("{again:?}"),
                    "{text}\nis not\n{written}"
                );
            }
            (Err(_), Err(_)) => {}
            _ => panic!("{first:?} of\n{text}\nand {again:?} of\n{written}"),
        }
        if let Ok(scenario) = &first {
            agrees(scenario, &table);
        }
    } else {
        assert!(first.is_err(), "no TOML, and yet a scenario: {text}");
    }
    match first {
        Ok(scenario) => {
            is_sound(&scenario);
            true
        }
        Err(error) => {
            names_a_line(&format!("{error:#}"), text);
            false
        }
    }
}

/// The plain reading: what stands in the file in so many words.
fn agrees(scenario: &Scenario, table: &toml::Table) {
    let text = |key: &str| table.get(key).and_then(toml::Value::as_str);
    assert_eq!(text("name"), Some(scenario.name.as_str()));
    assert_eq!(text("about").map(str::trim), Some(scenario.about.as_str()));
    let list = |key: &str| table.get(key).and_then(toml::Value::as_array);
    let count = |key: &str| list(key).map_or(0, Vec::len);
    let hosts = list("hosts").into_iter().flatten().map(toml::Value::as_str);
    assert!(hosts.eq(scenario.topology.hosts.iter().map(|host| Some(host.as_str()))));
    assert_eq!(count("links"), scenario.topology.links.len());
    assert_eq!(count("compare"), scenario.comparisons.len());
    assert_eq!(count("test_on"), scenario.test_on.len());
    // An entry for each link stands for one step, or row, of each.
    let many = |entry: &toml::Value| {
        let is_each = entry.get("for_each").is_some();
        if is_each { scenario.topology.links.len() } else { 1 }
    };
    let steps: usize = list("steps").into_iter().flatten().map(many).sum();
    assert_eq!(steps, scenario.steps.len(), "steps");
    assert_eq!(count("tables"), scenario.tables.len());
    for (entry, table) in list("tables").into_iter().flatten().zip(&scenario.tables) {
        let rows = entry.get("rows").and_then(toml::Value::as_array);
        let rows = rows.map_or(0, Vec::len) * many(entry);
        assert_eq!(rows, table.rows.len(), "rows");
    }
}

/// The runner relies on these properties.
fn is_sound(scenario: &Scenario) {
    let mut run = vec![0_usize; scenario.steps.len()];
    for block in &scenario.blocks {
        assert!((1..=ROUNDS_MAX).contains(&block.rounds) && block.warmup_rounds <= ROUNDS_MAX);
        for step in block.variants.iter().flat_map(|variant| &variant.steps) {
            run[*step] += 1;
        }
    }
    assert!(
        run.iter().all(|count| *count == 1),
        "each step is of one block: {run:?}"
    );
    for (place, step) in scenario.steps.iter().enumerate() {
        assert!(scenario.topology.hosts.contains(&step.host), "{step:?}");
        assert!(step.after.is_none_or(|after| after < place), "{step:?}");
        assert!(
            step.background || step.deadline.is_some(),
            "{step:?} may never end"
        );
        let others = &scenario.steps[..place];
        assert!(
            others.iter().all(|other| other.id != step.id),
            "{} twice",
            step.id
        );
    }
    // A step runs next if all steps it waits for have run; in the end all have run.
    let mut has_run = vec![false; scenario.steps.len()];
    for _ in 0..scenario.steps.len() {
        for (place, step) in scenario.steps.iter().enumerate() {
            let mut awaited = step.wait_for.iter().map(|wait| wait.step).chain(step.after);
            has_run[place] = awaited.all(|other| has_run[other]);
        }
    }
    assert!(
        has_run.iter().all(|has| *has),
        "steps wait for each other for ever"
    );
    for metric in &scenario.metrics {
        assert!(metric.step < scenario.steps.len() && metric.scale.is_finite());
    }
    for comparison in &scenario.comparisons {
        assert!(comparison.metric.max(comparison.to) < scenario.metrics.len());
    }
    for table in &scenario.tables {
        assert!(table.rows.iter().all(|row| row.len() == table.columns.len()));
    }
}

/// A refusal begins with the file and a line of it.
fn names_a_line(said: &str, text: &str) {
    let line = said
        .strip_prefix("t.toml:")
        .and_then(|rest| rest.split_once(':'))
        .and_then(|(line, _)| line.parse::<usize>().ok());
    let line = line.unwrap_or_else(|| panic!("no line is named: {said}\n{text}"));
    assert!((1..=text.lines().count() + 1).contains(&line), "{said}\n{text}");
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::check::load;
    use super::check;
    use crate::programs;
    use crate::replay::{folder, replay};

    #[test]
    fn scenarios() {
        replay("scenario", |bytes| {
            let _ = check(bytes);
        });
        // Some are, and some are refused.
        let folder = folder("scenario");
        for (name, is_one) in [
            ("small", true),
            ("links", true),
            ("wide", true),
            ("rounds", true),
            ("circle", false),
            ("unfinished", false),
        ] {
            let read = load(&folder.join(name));
            assert_eq!(read.is_ok(), is_one, "{name}: {read:?}");
        }
    }

    #[test]
    fn the_repositorys_own_are_scenarios() {
        let folder = programs::workspace().unwrap().join("sim/scenarios");
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "toml") {
                assert!(check(&fs::read(&path).unwrap()), "{}", path.display());
            }
        }
    }
}
