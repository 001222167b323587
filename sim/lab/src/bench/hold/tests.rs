use super::super::goal::Goal;
use super::*;

mod page;

const ROW: &str = "posting-channel-1";
const SHORT: &str = "handle-rail-ipv4";
const RUSTC: &str = "1.95.0 (59807616e 2026-04-14)";

fn recorded(rows: &[(&str, f64)]) -> Recorded {
    Recorded {
        rustc: RUSTC.to_owned(),
        rows: rows
            .iter()
            .map(|(name, figure)| ((*name).to_owned(), *figure))
            .collect(),
    }
}

fn judge(rows: &[(&str, f64)], figures: Vec<Figure>) -> Judged {
    recorded(rows).judge(RUSTC, || figures)
}

#[test]
fn a_row_holds_up_to_two_hundredths_and_not_past_them() {
    for here in [400.0, 408.0, 392.0] {
        let judged = judge(&[(ROW, 400.0)], vec![(ROW, Ok(here))]);
        assert!(judged.is_held, "{}", judged.text);
        assert!(
            judged.text.contains("all held, with rustc 1.95.0"),
            "{}",
            judged.text
        );
        assert!(!judged.text.contains("CHEAPER"), "{}", judged.text);
    }
    let judged = judge(&[(ROW, 400.0)], vec![(ROW, Ok(408.1))]);
    assert!(!judged.is_held);
    let said = "NOT HELD: posting-channel-1: 408.10 instructions here, 400.00 recorded: +2.0 %, where 2 % more are the most. \
                A cost that is meant is recorded by `cargo lab bench posting-channel-1 --record`\n";
    assert!(judged.text.ends_with(said), "{}", judged.text);
}

#[test]
fn one_instruction_is_no_difference_of_a_short_row() {
    for (here, is_held) in [(13.0, true), (13.1, false)] {
        let judged = judge(&[(SHORT, 12.0)], vec![(SHORT, Ok(here))]);
        assert_eq!(judged.is_held, is_held, "{}", judged.text);
    }
    let judged = judge(&[(SHORT, 12.0)], vec![(SHORT, Ok(11.0))]);
    assert!(!judged.text.contains("CHEAPER"), "{}", judged.text);
}

#[test]
fn a_gain_is_told_so_that_it_is_recorded() {
    let judged = judge(&[(ROW, 400.0)], vec![(ROW, Ok(391.9))]);
    assert!(judged.is_held, "{}", judged.text);
    let said = "CHEAPER: posting-channel-1: 391.90 instructions here, 400.00 recorded: -2.0 %. The gain is held once \
                `cargo lab bench posting-channel-1 --record` has recorded it\n";
    assert!(judged.text.contains(said), "{}", judged.text);
}

#[test]
fn with_another_compiler_nothing_is_compared_which_is_said() {
    let judged = recorded(&[(ROW, 400.0)]).judge("1.96.0 (0123456789 2026-06-01)", || panic!("measured"));
    assert!(judged.is_held);
    let said = format!("UNTESTED: recorded with rustc {RUSTC}, here 1.96.0 (0123456789 2026-06-01): ");
    assert!(judged.text.starts_with(&said), "{}", judged.text);
}

#[test]
fn a_row_without_a_record_or_a_figure_does_not_hold() {
    let judged = judge(
        &[],
        vec![(ROW, Ok(400.0)), (SHORT, Err("no valgrind".to_owned()))],
    );
    assert!(!judged.is_held);
    let said = "NOT HELD: posting-channel-1: 400.00 instructions here, and no record: ";
    assert!(judged.text.contains(said), "{}", judged.text);
    let said = "NOT HELD: handle-rail-ipv4: not measured: no valgrind\n";
    assert!(judged.text.contains(said), "{}", judged.text);
}

#[test]
fn a_record_of_no_row_does_not_hold() {
    for stranger in ["nosuch", "rate"] {
        let judged = judge(&[(ROW, 400.0), (stranger, 1.0)], vec![(ROW, Ok(400.0))]);
        assert!(!judged.is_held);
        let said = format!("has a record of {stranger}, and no such row is held");
        assert!(judged.text.contains(&said), "{}", judged.text);
    }
}

fn all(figure: f64) -> Vec<Figure> {
    held().map(|row| (row.name, Ok(figure))).collect()
}

#[test]
fn a_record_is_of_one_compiler_and_of_all_rows() {
    let whole = Recorded::renewed(None, RUSTC, all(7.126)).unwrap();
    assert_eq!(whole.rows.len(), held().count());
    assert!(whole.rows.values().all(|figure| *figure == 7.13));
    let mut earlier = whole.clone();
    earlier.rows.insert("nosuch".to_owned(), 1.0);
    let renewed = Recorded::renewed(Some(earlier.clone()), RUSTC, vec![(ROW, Ok(9.0))]).unwrap();
    assert_eq!((renewed.rows[ROW], renewed.rows[SHORT]), (9.0, 7.13));
    assert!(!renewed.rows.contains_key("nosuch"));
    let refused = Recorded::renewed(Some(earlier.clone()), "1.96.0", vec![(ROW, Ok(9.0))]).unwrap_err();
    assert!(refused.to_string().contains(SHORT), "{refused}");
    let renewed = Recorded::renewed(Some(earlier), "1.96.0", all(8.0)).unwrap();
    assert_eq!((renewed.rustc.as_str(), renewed.rows[SHORT]), ("1.96.0", 8.0));
    let unmeasured = vec![(ROW, Err("no valgrind".to_owned()))];
    assert!(Recorded::renewed(Some(whole), RUSTC, unmeasured).is_err());
}

/// A row that is new, or gone, shows before anything is measured.
#[test]
fn the_repository_has_a_record_of_each_row_that_is_held() {
    let recorded = Recorded::read().unwrap();
    let names: Vec<_> = recorded.rows.keys().map(String::as_str).collect();
    let mut rows: Vec<_> = held().map(|row| row.name).collect();
    rows.sort_unstable();
    assert_eq!(names, rows);
    assert!(recorded.rows.values().all(|figure| *figure >= 1.0));
    let text = format!("{HEAD}{}", toml::to_string(&recorded).unwrap());
    assert_eq!(fs::read_to_string(file().unwrap()).unwrap(), text);
}
