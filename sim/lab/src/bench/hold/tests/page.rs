//! The pages with figures of recorded rows, beside the record: a figure that is recorded anew is brought to its pages.

use super::*;

const PERFORMANCE: &str = "docs/performance.md";
const PAGES: [&str; 3] = [PERFORMANCE, "docs/performance-causes.md", "docs/nccl.md"];

fn text(page: &str) -> String {
    fs::read_to_string(programs::workspace().unwrap().join(page)).unwrap()
}

/// A figure as a page shows it: 1,024 or 37.7.
fn figure(shown: &str) -> Option<f64> {
    shown.trim_matches(';').replace(',', "").parse().ok()
}

/// Whether the shown figure is the recorded one, to the places that are shown.
fn is(shown: &str, recorded: f64) -> bool {
    let places = shown.split_once('.').map_or(0, |(_, places)| places.len());
    let half = 0.5 / 10_f64.powi(i32::try_from(places).unwrap());
    figure(shown).is_some_and(|figure| (figure - recorded).abs() <= half + 1e-6)
}

/// The fault of a row's line in the table, if it has one.
fn fault(page: &str, row: &Row, recorded: f64) -> Option<String> {
    let head = format!("| `{}`", row.name);
    let lines: Vec<_> = page.lines().filter(|line| line.starts_with(&head)).collect();
    let [line] = lines[..] else {
        return Some(format!(
            "{}: {} lines begin with {head}, one is due",
            row.name,
            lines.len()
        ));
    };
    let cells: Vec<_> = line.split('|').map(str::trim).collect();
    let [_, _, ours, theirs, goal, met, command, _] = cells[..] else {
        return Some(format!("{}: six cells are due in {line}", row.name));
    };
    let ours = ours.split(' ').next().unwrap_or_default().trim_end_matches(',');
    if !is(ours, recorded) {
        return Some(format!("{}: {ours} is shown, {recorded} is recorded", row.name));
    }
    if goal != row.goal.to_string() {
        return Some(format!(
            "{}: the goal {goal} is shown, it is {}",
            row.name, row.goal
        ));
    }
    let is_met = match (&row.goal, theirs.rsplit(' ').next().and_then(figure)) {
        (Goal::AtMost(most), _) => recorded <= *most,
        (Goal::DifferenceAtMost(most), Some(theirs)) => recorded - theirs <= *most,
        _ => return None,
    };
    if met.starts_with("yes") != is_met || met.starts_with("no") == is_met {
        return Some(format!("{}: {met} is shown, met is {is_met}", row.name));
    }
    let pattern = command
        .trim_matches('`')
        .strip_prefix("cargo lab bench ")
        .unwrap_or("no command");
    (!row.name.starts_with(pattern)).then(|| format!("{}: {command} does not run it", row.name))
}

#[test]
fn each_recorded_row_stands_in_the_table_of_performance_as_it_is_recorded() {
    let (page, recorded) = (text(PERFORMANCE), Recorded::read().unwrap());
    let compiler = format!("rustc {}", recorded.rustc.split(' ').next().unwrap());
    assert!(page.contains(&compiler), "{PERFORMANCE} does not name {compiler}");
    let faults: Vec<_> = held()
        .filter_map(|row| fault(&page, row, recorded.rows[row.name]))
        .collect();
    assert!(faults.is_empty(), "{PERFORMANCE}:\n{}", faults.join("\n"));
}

/// A page that names a row in brackets behind a figure shows the recorded one.
#[test]
fn a_figure_with_its_row_in_brackets_is_the_recorded_one() {
    let recorded = Recorded::read().unwrap();
    let mut seen = 0;
    for page in PAGES {
        let text = text(page);
        for (name, recorded) in &recorded.rows {
            let row = format!("(`{name}`)");
            for (at, _) in text.match_indices(&row) {
                let shown = text[..at].split_whitespace().next_back().unwrap();
                assert!(
                    is(shown, *recorded),
                    "{page}: {shown} {row}, {recorded} is recorded"
                );
                seen += 1;
            }
        }
    }
    assert!(seen >= 7, "{seen}");
}

#[test]
fn a_stale_line_is_a_fault() {
    let row = held().find(|row| row.name == "posting-channel-1").unwrap();
    let line = |ours, goal, met| {
        format!(
            "| `posting-channel-1` | {ours} | by hand 63.0 | at most {goal} | {met} | `cargo lab bench posting-channel` |"
        )
    };
    let right = line("273.3", "+130", "no: +210");
    assert_eq!(fault(&right, row, 273.3), None);
    for (wrong, said) in [
        (line("273.4", "+130", "no: +210"), "273.4 is shown"),
        (line("273.3", "+30", "no: +210"), "the goal at most +30"),
        (line("273.3", "+130", "yes"), "yes is shown"),
        (format!("{right}\n{right}"), "2 lines"),
        (String::new(), "0 lines"),
    ] {
        let found = fault(&wrong, row, 273.3).unwrap();
        assert!(found.contains(said), "{found}");
    }
}
