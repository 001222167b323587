//! The commands that README.md and the pages of docs show. For tests.

use std::fs;
use std::path::Path;

/// One command as a document shows it.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    /// The document.
    pub(crate) document: String,
    /// Its words, the program's name first; quotes are gone, and so is what stands behind a pipe or a comment.
    pub(crate) words: Vec<String>,
}

/// Every command of `program` that a document shows: in a block, at a prompt, or between backticks.
pub(crate) fn commands(program: &str) -> Vec<Shown> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut paths = vec![root.join("README.md")];
    let pages = fs::read_dir(root.join("docs")).unwrap();
    paths.extend(pages.map(|page| page.unwrap().path()));
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    paths.sort();
    let mut shown = Vec::new();
    for path in paths {
        let text = fs::read_to_string(&path).unwrap();
        let document = path.strip_prefix(root).unwrap().display().to_string();
        for command in in_blocks(&text).chain(in_line(&text)) {
            let words = words(command);
            if words.len() > 1 && words[0] == program {
                shown.push(Shown {
                    document: document.clone(),
                    words,
                });
            }
        }
    }
    shown
}

/// The lines of blocks that are no program text, without a prompt.
fn in_blocks(text: &str) -> impl Iterator<Item = &str> {
    let mut language = None;
    text.lines().filter_map(move |line| {
        if let Some(of) = line.trim_start().strip_prefix("```") {
            language = if language.is_none() { Some(of) } else { None };
            return None;
        }
        language.filter(|language| ["", "text", "sh"].contains(language))?;
        let behind = line.split_once("$ ").filter(|(prompt, _)| prompt.len() <= 1);
        Some(behind.map_or(line, |(_, command)| command))
    })
}

/// What stands between backticks in a line.
fn in_line(text: &str) -> impl Iterator<Item = &str> {
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("```"));
    lines.flat_map(|line| line.split('`').skip(1).step_by(2))
}

/// The words of a command: up to a comment, a pipe, or the words that explain it, which stand two blanks apart.
fn words(command: &str) -> Vec<String> {
    let mut words = Vec::new();
    let (mut word, mut quote, mut blanks) = (String::new(), None, 0);
    for character in command.trim_start().chars().chain(['\n']) {
        match (quote, character) {
            (Some(end), character) if character == end => quote = None,
            (None, '\'' | '"') => quote = Some(character),
            (None, '|' | '#' | '>' | '<' | '\u{2026}') if word.is_empty() => return words,
            (None, ';') => {
                words.push(word);
                return words;
            }
            (None, ' ' | '\n') => {
                if !word.is_empty() {
                    words.push(core::mem::take(&mut word));
                }
                blanks += 1;
                if blanks > 1 {
                    return words;
                }
                continue;
            }
            (_, character) => word.push(character),
        }
        blanks = 0;
    }
    words
}
