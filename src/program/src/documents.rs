//! Extracts the commands in README.md and the pages of docs. For tests.

use std::fs;
use std::path::Path;

/// A command in a document.
#[derive(Clone, Debug)]
pub(crate) struct DocumentedCommand {
    /// The document.
    pub(crate) document: String,
    /// Its words, beginning with the program's name, without quotes, and without anything after a pipe or a comment.
    pub(crate) words: Vec<String>,
}

/// Every command in the documents: each line of a block of `sh`; and in other text, at a prompt or between backticks, the commands of
/// `doorbell` and `cargo`.
pub(crate) fn commands() -> Vec<DocumentedCommand> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = here
        .ancestors()
        .find(|folder| folder.join("docs").is_dir())
        .unwrap();
    let (mut folders, mut paths) = (vec![root.join("docs")], vec![root.join("README.md")]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                paths.push(path);
            }
        }
    }
    paths.sort();
    let mut shown = Vec::new();
    for path in paths {
        let text = fs::read_to_string(&path).unwrap();
        let document = path.strip_prefix(root).unwrap().display().to_string();
        // A quotation that continues in the next line would not be found.
        if let Some(line) = torn_line(&text) {
            panic!("{document}:{line}: a quotation has no end in its line");
        }
        for (is_shell, command) in in_blocks(&text).chain(in_line(&text)) {
            let command = command.split(" #").next().unwrap();
            for command in command.split("; ") {
                let words = words(command);
                let is_ours = words.len() > 1 && ["cargo", "doorbell"].contains(&words[0].as_str());
                if is_ours || (is_shell && !words.is_empty()) {
                    let document = document.clone();
                    shown.push(DocumentedCommand { document, words });
                }
            }
        }
    }
    shown
}

/// The lines of shell and plain-text blocks, without a prompt, and whether the block is of `sh`.
fn in_blocks(text: &str) -> impl Iterator<Item = (bool, &str)> {
    let mut language = None;
    text.lines().filter_map(move |line| {
        if let Some(of) = fence(line) {
            language = if language.is_none() { Some(of) } else { None };
            return None;
        }
        let language = language.filter(|language| ["", "text", "sh"].contains(language))?;
        let behind = line.split_once("$ ").filter(|(prompt, _)| prompt.len() <= 1);
        Some((language == "sh", behind.map_or(line, |(_, command)| command)))
    })
}

/// The text after the fence of a code block in this line, which may be the beginning of a list item.
fn fence(line: &str) -> Option<&str> {
    let line = line.trim_start();
    line.strip_prefix("- ").unwrap_or(line).strip_prefix("```")
}

/// Whether a quotation of this line does not end in it. A quotation ends with as many backticks as it begins with.
fn is_torn(line: &str) -> bool {
    let runs = line.split(|character| character != '`');
    let mut open = None;
    for run in runs.map(str::len).filter(|length| *length > 0) {
        open = match open {
            None => Some(run),
            Some(opened) if opened == run => None,
            opened => opened,
        };
    }
    open.is_some()
}

/// The number of the first line outside code blocks in which a quotation has no end.
pub(crate) fn torn_line(text: &str) -> Option<usize> {
    let mut is_block = false;
    let torn = text.lines().position(|line| {
        let is_fence = fence(line).is_some();
        is_block ^= is_fence;
        !is_fence && !is_block && is_torn(line)
    });
    torn.map(|at| at + 1)
}

/// The text between backticks in a line.
fn in_line(text: &str) -> impl Iterator<Item = (bool, &str)> {
    let lines = text.lines().filter(|line| fence(line).is_none());
    let quoted = lines.flat_map(|line| line.split('`').skip(1).step_by(2));
    quoted.map(|quoted| (false, quoted))
}

/// The words of a command, without variable assignments at its beginning: up to a comment, a pipe, or an explanation, which two spaces
/// separate.
fn words(command: &str) -> Vec<String> {
    let mut words = Vec::new();
    let (mut word, mut quote, mut blanks) = (String::new(), None, 0);
    for character in command.trim_start().chars().chain(['\n']) {
        match (quote, character) {
            (Some(end), character) if character == end => quote = None,
            (None, '\'' | '"') => quote = Some(character),
            (None, '|' | '#' | '>' | '<' | '\u{2026}') if word.is_empty() => return words,
            (None, ' ' | '\n') => {
                let is_variable = words.is_empty() && word.starts_with("DOORBELL_") && word.contains('=');
                if is_variable {
                    word.clear();
                } else if !word.is_empty() {
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
