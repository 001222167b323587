//! Sentences of comments, documentation and texts that users read: openers that hide the subject, and length. The counts only fall.

use std::fs;
use std::path::PathBuf;

use crate::root;

/// A sentence does not open with these: its subject is a noun that names the thing.
const OPENERS: [&str; 8] = [
    "who", "whoever", "what", "whatever", "those", "that", "of", "where",
];

const WORDS_MAX: usize = 35;

/// Sentences that open so, and sentences that are longer. To be lowered whenever there are fewer.
const OPENERS_LEFT: usize = 0;
const LONG_LEFT: usize = 0;

/// Documentation that opens with a pronoun in place of the item's name. To be lowered whenever there is less.
const PRONOUNS_LEFT: usize = 207;

/// Every Rust and Markdown file of the repository, but for generated ones.
fn documents() -> Vec<PathBuf> {
    let (mut folders, mut found) = (vec![root()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let entry = entry.unwrap();
            let path = entry.path();
            let name = path.file_name().unwrap().to_str().unwrap();
            // A link is not followed: it may lead back.
            if entry.file_type().unwrap().is_dir() {
                if !name.starts_with('.') && name != "target" {
                    folders.push(path);
                }
            } else if (name.ends_with(".rs") || name.ends_with(".md")) && !name.contains("bindings") {
                found.push(path);
            }
        }
    }
    found
}

/// The paragraphs of a page, without code, tables and headings. An item of a list is a sentence of its own.
fn of_page(text: &str) -> Vec<String> {
    let (mut blocks, mut block, mut is_code) = (Vec::new(), String::new(), false);
    for line in text.lines() {
        let trimmed = line.trim();
        // A block may be all of an item, too.
        if trimmed.trim_start_matches("- ").starts_with("```") {
            is_code = !is_code;
            continue;
        }
        if is_code {
            continue;
        }
        if trimmed.is_empty() {
            blocks.push(core::mem::take(&mut block));
            continue;
        }
        let item = trimmed.split_once(' ').filter(|(mark, _)| {
            let number = mark
                .strip_suffix('.')
                .is_some_and(|number| number.chars().all(|c| c.is_ascii_digit()));
            ["-", "*"].contains(mark) || (number && mark.len() > 1)
        });
        match item {
            Some((_, rest)) => blocks.push(core::mem::replace(&mut block, format!(" {rest}"))),
            None => block += &format!(" {trimmed}"),
        }
    }
    blocks.push(block);
    blocks.retain(|block| !block.trim_start().starts_with(['|', '#']));
    blocks
}

/// The comments of a source file, without code and tables.
fn of_source(text: &str) -> Vec<String> {
    let (mut blocks, mut block, mut is_code) = (Vec::new(), String::new(), false);
    for line in text.lines() {
        let comment = line.trim_start().strip_prefix("//");
        let Some(comment) = comment.map(|rest| rest.trim_start_matches(['/', '!']).trim()) else {
            blocks.push(core::mem::take(&mut block));
            is_code = false;
            continue;
        };
        if comment.starts_with("```") {
            is_code = !is_code;
        } else if !is_code && (comment.is_empty() || comment.starts_with(['|', '#'])) {
            blocks.push(core::mem::take(&mut block));
        } else if !is_code {
            block += " ";
            block += comment;
        }
    }
    blocks.push(block);
    blocks
}

/// Splits where a sentence ends and another begins.
fn sentences(block: &str) -> Vec<Vec<&str>> {
    let (mut all, mut one) = (Vec::new(), Vec::new());
    let mut words = block.split_whitespace().peekable();
    while let Some(word) = words.next() {
        one.push(word);
        let begins = |next: &&str| next.starts_with(|c: char| c.is_ascii_uppercase() || "`[".contains(c));
        if word.ends_with(['.', '!', '?']) && words.peek().is_none_or(begins) {
            all.push(core::mem::take(&mut one));
        }
    }
    all.push(one);
    all
}

fn is_word(word: &&&str) -> bool {
    word.contains(|c: char| c.is_ascii_alphanumeric() || "_'`:.-".contains(c))
}

fn opens_badly(first: &str) -> bool {
    let bare = first
        .trim_matches(|c: char| !c.is_ascii_alphanumeric())
        .to_lowercase();
    OPENERS.contains(&bare.as_str())
}

/// The literals of a line that are texts: several words, and not the text of a test.
fn texts(line: &str) -> impl Iterator<Item = &str> {
    let is_text = |text: &&str| text.split(' ').count() > 2 && !text.starts_with('{');
    line.split('"').skip(1).step_by(2).filter(is_text)
}

/// Whether a file is a test, or of tools whose texts only we read.
fn is_ours_alone(name: &str) -> bool {
    let apart = [
        "tests",
        "examples",
        "benches",
        "mutations",
        "swarm",
        "conformance",
        "models",
        "proofs",
        "rivals",
        "compat",
        "hostile",
        "oracle",
    ];
    name.split(['/', '.']).any(|part| apart.contains(&part))
}

#[test]
fn sentences_name_their_subject_and_are_short() {
    let (mut all, mut openers, mut long) = (0, Vec::new(), Vec::new());
    for path in documents() {
        let text = fs::read_to_string(&path).unwrap();
        let is_page = path.extension().is_some_and(|extension| extension == "md");
        let blocks = if is_page { of_page(&text) } else { of_source(&text) };
        for sentence in blocks.iter().flat_map(|block| sentences(block)) {
            let count = sentence.iter().filter(is_word).count();
            if count < 3 {
                continue;
            }
            all += 1;
            let said = || format!("{}: {}", path.display(), sentence.join(" "));
            if opens_badly(sentence[0]) {
                openers.push(said());
            }
            if count > WORDS_MAX {
                long.push(said());
            }
        }
    }
    println!(
        "{all} sentences, {} open badly, {} are long",
        openers.len(),
        long.len()
    );
    assert!(all > 10_000, "{all}");
    // Fewer fail, too, so that the numbers here fall with them.
    assert!(
        openers.len() == OPENERS_LEFT,
        "{} open badly, and OPENERS_LEFT is {OPENERS_LEFT}: {openers:#?}",
        openers.len()
    );
    assert!(
        long.len() == LONG_LEFT,
        "{} are long, and LONG_LEFT is {LONG_LEFT}: {long:#?}",
        long.len()
    );
}

/// The first lines of documentation that open with `It` or `Its`.
fn opened_by_pronouns(text: &str) -> impl Iterator<Item = &str> {
    let is_documentation = |line: &str| line.trim_start().starts_with("///");
    let lines = text.lines().zip(core::iter::once("").chain(text.lines()));
    let first = lines.filter(move |(line, before)| is_documentation(line) && !is_documentation(before));
    first
        .map(|(line, _)| line.trim_start().trim_start_matches('/').trim())
        .filter(|line| ["It", "Its"].contains(&line.split(' ').next().unwrap_or_default()))
}

#[test]
fn documentation_names_its_item() {
    assert_eq!(
        opened_by_pronouns("/// Its port.\n/// It is one.\nfn port() {}\n").count(),
        1
    );
    let mut found = Vec::new();
    for path in documents() {
        let text = fs::read_to_string(&path).unwrap();
        let here = opened_by_pronouns(&text).map(|line| format!("{}: {line}", path.display()));
        found.extend(here);
    }
    assert!(
        found.len() <= PRONOUNS_LEFT,
        "{} open with a pronoun, and PRONOUNS_LEFT is {PRONOUNS_LEFT}: {found:#?}",
        found.len()
    );
}

#[test]
fn texts_of_errors_name_their_subject() {
    let mut openers = Vec::new();
    for path in documents()
        .iter()
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
    {
        let name = path.strip_prefix(root()).unwrap().to_str().unwrap();
        if is_ours_alone(name) {
            continue;
        }
        let text = fs::read_to_string(path).unwrap();
        let code = text.split("\n#[cfg(test)]\nmod ").next().unwrap();
        for line in code
            .lines()
            .filter(|line| !line.trim_start().starts_with("//") && !line.contains("reason = "))
        {
            let bad = texts(line).filter(|text| text.split(' ').next().is_some_and(opens_badly));
            openers.extend(bad.map(|text| format!("{name}: {text}")));
        }
    }
    assert!(openers.is_empty(), "{openers:#?}");
}

#[test]
fn sentences_are_found_in_both_kinds_of_files() {
    let page = "# What it is\n\nOne thing is here. Where it is, matters.\n- two of it\n\n| of | a table |\n\n```sh\nof no page\n```\n\n\
        - ```text\n  of no item\n  ```\n  It ends.\n";
    let source =
        "//! One thing is here.\n//! Of it, two.\n\n/// ```\n/// of no comment\n/// ```\nfn of_code() {}\n";
    let found = |blocks: Vec<String>| -> Vec<String> {
        let sentences = blocks.iter().flat_map(|block| sentences(block));
        sentences
            .filter(|one| !one.is_empty())
            .map(|one| one.join(" "))
            .collect()
    };
    assert_eq!(
        found(of_page(page)),
        [
            "One thing is here.",
            "Where it is, matters.",
            "two of it",
            "It ends."
        ]
    );
    assert_eq!(found(of_source(source)), ["One thing is here.", "Of it, two."]);
    assert!(opens_badly("`Where`") && opens_badly("Of") && !opens_badly("Often"));
}
