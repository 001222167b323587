//! `doorbell completions` and `doorbell man`: shell completions and manual pages, generated from the definitions of the
//! commands.

use std::fs;
use std::io::{self, Write as _};
use std::path::PathBuf;

use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::report::Failure;

/// Print completions for a shell
///
/// Source them, or leave them where the shell looks for completions.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    source <(doorbell completions bash)\n  \
    doorbell completions zsh > ~/.zfunc/_doorbell\n  \
    doorbell completions fish > ~/.config/fish/completions/doorbell.fish")]
pub(crate) struct CompletionsArguments {
    /// The shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

/// Print the manual page, or write one for each command to a folder
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    doorbell man | man -l -\n  \
    doorbell man /usr/local/share/man/man1")]
pub(crate) struct ManArguments {
    /// The folder to write doorbell.1, doorbell-lat.1 and so on to; without it the page of `doorbell` is printed
    #[arg(value_name = "DIR")]
    folder: Option<PathBuf>,
}

/// Prints the completions of a shell.
///
/// # Errors
/// The completions cannot be printed.
pub(crate) fn completions(arguments: &CompletionsArguments) -> Result<(), Failure> {
    let mut text = Vec::new();
    clap_complete::generate(
        arguments.shell,
        &mut crate::Arguments::command(),
        "doorbell",
        &mut text,
    );
    print!("{}", String::from_utf8_lossy(&text));
    Ok(())
}

/// Prints the manual page, or writes all manual pages.
///
/// # Errors
/// The folder cannot be written to.
pub(crate) fn man(arguments: &ManArguments) -> Result<(), Failure> {
    let Some(folder) = &arguments.folder else {
        let mut text = Vec::new();
        clap_mangen::Man::new(crate::Arguments::command()).render(&mut text)?;
        print!("{}", String::from_utf8_lossy(&text));
        return Ok(());
    };
    let written = fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(crate::Arguments::command(), folder));
    written.map_err(|error| format!("{}: {error}", folder.display()))?;
    writeln!(io::stderr(), "doorbell: manual pages are in {}", folder.display())?;
    Ok(())
}
