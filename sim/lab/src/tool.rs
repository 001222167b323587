//! Running the system's own tools to their end, with their words in the error.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use anyhow::{Context as _, Result, ensure};

/// Runs a tool in the current folder; gives what it printed.
pub(crate) fn output(program: &str, arguments: &[&str]) -> Result<String> {
    output_of(Command::new(program).args(arguments))
}

/// Runs a prepared command without input; gives what it printed.
pub(crate) fn output_of(command: &mut Command) -> Result<String> {
    let line = command_line(command);
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot run `{line}`"))?;
    check(&line, &output)?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs a tool with files as its standard input and output.
pub(crate) fn filter(program: &str, arguments: &[&str], from: &Path, to: &Path) -> Result<()> {
    let mut command = Command::new(program);
    let from_file = File::open(from).with_context(|| format!("cannot open {}", from.display()))?;
    let to_file = File::create(to).with_context(|| format!("cannot make {}", to.display()))?;
    command.args(arguments).stdin(from_file).stdout(to_file);
    let line = command_line(&command);
    let output = command.output().with_context(|| format!("cannot run `{line}`"))?;
    check(&line, &output)
}

/// Finds a program in `PATH`, or in the folders of system tools.
pub(crate) fn find(program: &str) -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/local/sbin", "/usr/sbin", "/sbin"].map(Into::into))
        .map(|folder| folder.join(program))
        .find(|file| rustix::fs::access(file, rustix::fs::Access::EXEC_OK).is_ok() && file.is_file())
}

fn check(line: &str, output: &Output) -> Result<()> {
    ensure!(
        output.status.success(),
        "`{line}` failed ({}): {}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}

fn command_line(command: &Command) -> String {
    let words = core::iter::once(command.get_program()).chain(command.get_args());
    let line = words
        .map(|word| word.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ");
    match line.char_indices().nth(300) {
        Some((end, _)) => format!("{}…", line.get(..end).unwrap_or_default()),
        None => line,
    }
}
