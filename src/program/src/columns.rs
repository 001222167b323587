//! Tables in reports: columns as wide as their widest cell, separated by two spaces, without borders.

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, ContentArrangement, Table};

/// The alignment of all columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Align {
    Left,
    /// The first and the last column are text, and the columns between are numbers.
    Figures,
}

/// Formats rows of equal length, one per line, with `indent` at the beginning and no trailing spaces.
pub(crate) fn aligned<R>(indent: &str, align: Align, rows: impl IntoIterator<Item = R>) -> String
where
    R: IntoIterator<Item = String>,
{
    let mut table = Table::new();
    table
        .load_preset(NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled);
    for row in rows {
        table.add_row(row);
    }
    let last = table.column_count().saturating_sub(1);
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if align == Align::Figures && (1..last).contains(&index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let mut text = String::new();
    for line in table.lines() {
        text.push_str(indent);
        text.push_str(&line);
        text.truncate(text.trim_end_matches(' ').len());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{Align, aligned};

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["name", "count", ""], ["a", "7", ""], ["längst", "10000", "x"]];
        let rows = || rows.map(|row| row.map(str::to_owned));
        assert_eq!(
            aligned("  ", Align::Figures, rows()),
            "  name    count\n  a           7\n  längst  10000  x\n"
        );
        assert_eq!(
            aligned("", Align::Left, rows()),
            "name    count\na       7\nlängst  10000  x\n"
        );
        const NONE: [[String; 0]; 0] = [];
        assert_eq!(aligned("", Align::Left, NONE), "");
    }
}
