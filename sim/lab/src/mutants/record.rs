//! The list of mutants that nothing catches, each with the reason: `sim/mutations/survivors.toml`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

use super::tool::Mutant;

/// Its path, from the workspace on.
pub(crate) const FILE: &str = "sim/mutations/survivors.toml";

/// The pattern of the line that says when all mutants were last tried. The commit that changed it is where changed lines begin.
pub(crate) const TRIED: &str = "^tried = ";

/// All that are known.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Record {
    /// The day when they were last tried, for people.
    #[expect(dead_code, reason = "git reads it")]
    tried: String,
    #[serde(default)]
    survivor: Vec<Survivor>,
}

/// A mutant that nothing catches.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Survivor {
    file: PathBuf,
    /// The line that is changed, without its indentation.
    line: String,
    /// The change, as `cargo mutants` names it.
    change: String,
    /// Why nothing catches it.
    why: String,
}

impl Record {
    /// Reads it.
    pub(crate) fn read(workspace: &Path) -> Result<Self> {
        let path = workspace.join(FILE);
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let record: Self = toml::from_str(&text).with_context(|| format!("in {}", path.display()))?;
        for Survivor {
            line, change, why, ..
        } in &record.survivor
        {
            ensure!(
                !why.is_empty(),
                "in {}: `{line}`, {change}: no reason",
                path.display()
            );
        }
        Ok(record)
    }

    /// Whether a mutant is in it, wherever its line stands by now.
    pub(crate) fn has(&self, mutant: &Mutant, line: &str) -> bool {
        self.survivor.iter().any(|survivor| {
            survivor.file == Path::new(&mutant.file)
                && survivor.line == line
                && survivor.change == mutant.change()
        })
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.survivor.len()
    }
}

/// Returns the entry of a mutant, but for the reason.
pub(crate) fn entry(mutant: &Mutant, line: &str) -> String {
    let text = |text: &str| toml::Value::from(text).to_string();
    format!(
        "[[survivor]]\nfile = {}\nline = {}\nchange = {}\nwhy = \"\"\n",
        text(&mutant.file),
        text(line),
        text(mutant.change())
    )
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::Record;

    /// A line that is gone says nothing any more, and without a reason nobody knows whether it is equivalent.
    #[test]
    fn every_survivor_stands_in_the_tree_with_its_reason() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let record = Record::read(&root).unwrap();
        for survivor in &record.survivor {
            let text = std::fs::read_to_string(root.join(&survivor.file)).unwrap();
            let is_there = text.lines().any(|line| line.trim() == survivor.line);
            assert!(is_there, "{}: {}", survivor.file.display(), survivor.line);
            assert!(survivor.why.len() >= 10, "{}: {}", survivor.line, survivor.change);
        }
    }
}
