//! `doorbell config`: the settings in effect, each with its source.

use serde::Serialize;

use doorbell_operation::{SettingSource, SettingValues, Settings};

use crate::configured::Configured;
use crate::peers::Peers;
use crate::report::{Failure, print};

/// Show all settings in effect, each with its source
///
/// A setting has four sources. Each source overrides those above it:
///
///   Defaults          Built into doorbell and into the command (mesh has some of its own).
///   File              A TOML file, named by --config FILE or by DOORBELL_CONFIG.
///   Environment       DOORBELL_ and the name in capitals, with _ for each dot: DOORBELL_WORKER_SLOTS.
///   Command line      --set link.dead_after=200ms, and options such as --timeout.
///
/// The output is a valid settings file. Keys are never printed: key_file names their file. An unknown
/// name or an invalid value is an error that names its source.
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Arguments {
    #[command(flatten)]
    configured: Configured,

    #[command(flatten)]
    peers: Peers,

    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    settings: Vec<Row>,
    #[serde(skip)]
    text: String,
}

#[derive(Serialize)]
struct Row {
    key: &'static str,
    /// The value, in its type in a settings file; null if it is not set.
    value: Option<toml::Value>,
    /// The kind of source: default, file, environment, command-line or program.
    source: &'static str,
    /// The exact source: a line of a file, a variable, an option.
    place: Option<String>,
    variable: String,
}

/// Prints all settings in effect.
///
/// # Errors
/// A setting is invalid, or the output cannot be written.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let settings = arguments
        .configured
        .settings(SettingValues::default(), &arguments.peers.options())?;
    print("config", &report(&settings), arguments.json, |report| {
        report.text.clone()
    })
}

fn report(settings: &Settings) -> Report {
    let text = settings.to_toml();
    let file: toml::Table = text.parse().unwrap_or_default();
    let in_file = |key: &str| {
        let (first, rest) = key.split_once('.').unwrap_or((key, ""));
        let rest = rest.split('.').filter(|name| !name.is_empty());
        rest.fold(file.get(first), |value, name| value?.get(name))
            .cloned()
    };
    let rows = settings.iter().map(|setting| {
        let (source, is_place) = match setting.source {
            SettingSource::Default => ("default", false),
            SettingSource::File { .. } => ("file", true),
            SettingSource::Environment(_) => ("environment", true),
            SettingSource::Argument(_) => ("command-line", true),
            _ => ("program", false),
        };
        Row {
            key: setting.key,
            value: in_file(setting.key),
            source,
            place: is_place.then(|| setting.source.to_string()),
            variable: setting.variable,
        }
    });
    Report {
        settings: rows.collect(),
        text,
    }
}
