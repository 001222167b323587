//! The command lines by which scenarios start one of our programs, judged by that program's own parser. For tests.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use clap::Command as Parser;
use clap::builder::ValueParser;
use serde::Deserialize;
use toml::Spanned;

/// The parts of a scenario that are read here.
#[derive(Deserialize)]
struct File {
    #[serde(default)]
    vars: BTreeMap<String, String>,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
struct Step {
    command: Spanned<Line>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Words(Vec<String>),
    Shell(String),
}

/// Substitutions of the lab, by their first word, each with a text that fits where it stands.
const STAND_INS: &[(&str, &str)] = &[
    ("addr", "10.77.1.1"),
    ("dev", "rxe0"),
    ("gid_index", "1"),
    ("link", "a-b"),
    ("netdev", "eth0"),
    ("out", "/out"),
    ("prefix", "24"),
];

/// Ends a line and is not counted as one: a vertical tab.
const LINE_BREAK_OF_A_VARIABLE: &str = "\u{b}";

/// Every scenario of the repository: what is wrong with its commands of `program`, such as `{bin}/doorbell`, and how many there are.
pub(crate) fn faults(program: &str, parser: &Parser) -> (Vec<String>, usize) {
    parser.clone().debug_assert();
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut above = here.ancestors();
    let root = above
        .find(|folder| folder.join("sim/scenarios").is_dir())
        .unwrap();
    let files = fs::read_dir(root.join("sim/scenarios")).unwrap();
    let mut paths: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    paths.sort();
    let (mut faults, mut commands) = (Vec::new(), 0);
    for path in paths {
        let name = path.strip_prefix(root).unwrap().display().to_string();
        let (some, count) = faults_of(&name, &fs::read_to_string(&path).unwrap(), program, parser);
        faults.extend(some);
        commands += count;
    }
    (faults, commands)
}

/// The faults of one file, each behind its file and line, and the number of commands.
pub(crate) fn faults_of(file: &str, text: &str, program: &str, parser: &Parser) -> (Vec<String>, usize) {
    let text = &with_line_breaks(text);
    let scenario: File = toml::from_str(text).unwrap_or_else(|error| panic!("{file}: {error}"));
    let (mut faults, mut commands) = (Vec::new(), 0);
    for step in &scenario.steps {
        let begin = step.command.span().start;
        let mut line = 1 + text[..begin].matches('\n').count();
        let runs = match step.command.get_ref() {
            Line::Words(words) => {
                let words: Vec<_> = words.iter().map(|word| filled(word, &scenario.vars)).collect();
                of_words(&words, program, &BTreeMap::new())
            }
            Line::Shell(script) => {
                // The line break behind the quotes is no part of the text.
                let quotes = ["\"\"\"\n", "'''\n"];
                line += usize::from(quotes.iter().any(|quotes| text[begin..].starts_with(quotes)));
                let script = filled(script, &scenario.vars);
                let (found, named) = (of_script(&script, program), mentions(&script, program));
                if found.len() < named {
                    let found = found.len();
                    faults.push(format!(
                        "{file}:{line}: {found} of {named} commands are found in the script"
                    ));
                }
                found
            }
        };
        commands += runs.len();
        for (below, words) in runs {
            if let Some(why) = refused(&words, parser) {
                faults.push(format!("{file}:{}: {}: {why}", line + below, words.join(" ")));
            }
        }
    }
    (faults, commands)
}

/// Keeps each line break that a backslash removes from a TOML text, so that lines are counted right. The shell removes it later.
fn with_line_breaks(text: &str) -> String {
    let kept = |line: &str| {
        let is_continued = line.ends_with('\\') && !line.ends_with("\\\\");
        let more = if is_continued { "\\" } else { "" };
        format!("{line}{more}\n")
    };
    text.lines().map(kept).collect()
}

/// Returns the program's reason to refuse its arguments. If the shell has yet to expand a word, any value is accepted.
fn refused(words: &[String], parser: &Parser) -> Option<String> {
    let words: Vec<_> = words.iter().filter(|word| *word != "$@").collect();
    let mut parser = parser.clone();
    if words.iter().any(|word| word.contains('$')) {
        parser = taking_any_value(parser);
    }
    let error = parser.try_get_matches_from(words).err()?;
    // Help that is asked for is no mistake.
    if !error.use_stderr() {
        return None;
    }
    let text = error.to_string();
    Some(text.split("\n\n").next().unwrap_or_default().to_owned())
}

fn taking_any_value(parser: Parser) -> Parser {
    let parser = parser.mut_args(|argument| {
        if argument.get_action().takes_values() {
            argument.value_parser(ValueParser::os_string())
        } else {
            argument
        }
    });
    parser.mut_subcommands(taking_any_value)
}

/// With variables in the place of `{var.NAME}`, and a text in the place of what only a cluster knows.
fn filled(text: &str, vars: &BTreeMap<String, String>) -> String {
    let mut text = text.to_owned();
    for (name, value) in vars {
        // Its lines are none of the script's.
        let value = value.replace('\n', LINE_BREAK_OF_A_VARIABLE);
        text = text.replace(&format!("{{var.{name}}}"), &value);
    }
    for (first, stand_in) in STAND_INS {
        let mut rest = core::mem::take(&mut text);
        while let Some((before, behind)) = rest.split_once(&format!("{{{first}")) {
            text.push_str(before);
            match behind.split_once('}') {
                Some((more, behind)) if more.is_empty() || more.starts_with('.') => {
                    text.push_str(stand_in);
                    rest = behind.to_owned();
                }
                _ => {
                    text.push('{');
                    text.push_str(first);
                    rest = behind.to_owned();
                }
            }
        }
        text.push_str(&rest);
    }
    text.replace("[10.77.1.1]", "[fd00::1]")
}

/// How often a script names the program.
fn mentions(script: &str, program: &str) -> usize {
    let is_whole = |(at, _): &(usize, &str)| {
        let next = script[at + program.len()..].chars().next();
        next.is_none_or(|next| !next.is_alphanumeric() && next != '-')
    };
    script.match_indices(program).filter(is_whole).count()
}

/// The program's commands in a script, each with how many lines of the script stand above it.
fn of_script(script: &str, program: &str) -> Vec<(usize, Vec<String>)> {
    let mut found = Vec::new();
    let mut loops = BTreeMap::new();
    for (line, words) in simple_commands(script) {
        if let [keyword, variable, preposition, values @ ..] = &words[..] {
            if keyword == "for" && preposition == "in" {
                loops.insert(format!("${variable}"), values.to_vec());
            }
        }
        let runs = of_words(&words, program, &loops);
        found.extend(runs.into_iter().map(|(below, words)| (line + below, words)));
    }
    found
}

/// The program's commands in the words of one command: from its name on, and in each word that is a script itself. A command that takes the
/// variable of a loop stands once for each value.
fn of_words(
    words: &[String],
    program: &str,
    loops: &BTreeMap<String, Vec<String>>,
) -> Vec<(usize, Vec<String>)> {
    let scripts = words
        .iter()
        .filter(|word| word.contains(' ') && word.contains(program));
    let inner = |word: &String| {
        let substituted = word
            .split_once("$(")
            .map(|(_, behind)| behind.trim_end_matches(')'));
        of_script(substituted.unwrap_or(word), program)
    };
    let mut found: Vec<_> = scripts.flat_map(inner).collect();
    let Some(at) = words.iter().position(|word| word == program) else {
        return found;
    };
    let words = &words[at..];
    // A command that starts another has that behind two dashes.
    if let Some(end) = words.iter().position(|word| word == "--") {
        found.extend(of_words(&words[end..], program, loops));
    }
    let looped = words.iter().find_map(|word| Some((word, loops.get(word)?)));
    let Some((variable, values)) = looped else {
        found.push((0, words.to_vec()));
        return found;
    };
    for value in values {
        let mut put = Vec::new();
        for word in words {
            if word == variable {
                put.extend(value.split(' ').map(str::to_owned));
            } else {
                put.push(word.clone());
            }
        }
        found.push((0, put));
    }
    found
}

/// The commands of a shell's script up to the signs that end one, without redirections; `$( … )` is a word.
fn simple_commands(script: &str) -> Vec<(usize, Vec<String>)> {
    let mut commands = Vec::new();
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    // For each `$(` that is open, the quote that it stands in.
    let mut nested = Vec::new();
    let (mut line, mut first, mut is_target) = (0, 0, false);
    let mut characters = script.chars().chain(['\n']).peekable();
    while let Some(character) = characters.next() {
        line += usize::from(character == '\n');
        if words.is_empty() && word.is_none() && !character.is_whitespace() {
            first = line;
        }
        let is_nested = !nested.is_empty();
        let is_open = quote.is_some() || is_nested;
        match character {
            '\\' if quote != Some('\'') => {
                let next = characters.next().unwrap_or('\n');
                line += usize::from(next == '\n');
                if is_nested {
                    word.get_or_insert_default().push(character);
                }
                if is_nested || next != '\n' {
                    word.get_or_insert_default().push(next);
                }
                continue;
            }
            '\'' | '"' if quote.is_none_or(|open| open == character) => {
                quote = quote.xor(Some(character));
                let word = word.get_or_insert_default();
                if is_nested {
                    word.push(character);
                }
                continue;
            }
            '(' if (is_nested && quote.is_none())
                || (quote != Some('\'') && word.as_ref().is_some_and(|word| word.ends_with('$'))) =>
            {
                nested.push(quote.take());
            }
            ')' if is_nested && quote.is_none() => quote = nested.pop().flatten(),
            '#' if !is_open && word.is_none() => {
                while characters
                    .peek()
                    .is_some_and(|next| !['\n', '\u{b}'].contains(next))
                {
                    characters.next();
                }
                continue;
            }
            '<' | '>' if !is_open => {
                // The word in front of it is the number of a descriptor.
                word = None;
                is_target = true;
                characters.next_if(|next| ['>', '&'].contains(next));
                continue;
            }
            ' ' | '\t' | '\n' | '\u{b}' | ';' | '|' | '&' | '(' | ')' if !is_open => {
                if let Some(word) = word.take().filter(|_| !core::mem::take(&mut is_target)) {
                    words.push(word);
                }
                if ![' ', '\t'].contains(&character) && !words.is_empty() {
                    commands.push((first, core::mem::take(&mut words)));
                }
                continue;
            }
            _ => {}
        }
        word.get_or_insert_default().push(character);
    }
    commands
}
