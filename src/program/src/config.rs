//! `doorbell config`: the settings that are in effect, and where each came from.

use serde::Serialize;

use doorbell_operation::{SettingSource, SettingValues, Settings};

use crate::configured::Configured;
use crate::peers::Peers;
use crate::report::{Failure, print};

/// Show all settings that are in effect, and where each came from
///
/// What is stronger stands further down here:
///
///   the defaults          of doorbell, and of the command (mesh has some of its own)
///   a file                --config FILE, or the one that DOORBELL_CONFIG names; TOML
///   the environment       DOORBELL_ and the name in capitals, _ for each dot: DOORBELL_LINK_DEAD_AFTER
///   the command line      --set link.dead_after=200ms, and options such as --timeout
///
/// What is printed is a file of settings. Keys are never printed: key_file names their file. A name that is no setting, and
/// a value that cannot be, is an error that says where it stands.
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
    /// Of the type that a file of settings has for it; null where nothing is set.
    value: Option<toml::Value>,
    /// What kind of place it came from.
    source: &'static str,
    /// Which: a line of a file, a variable, an option.
    place: Option<String>,
    variable: String,
}

/// Shows them.
///
/// # Errors
/// One is wrong.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let settings = arguments
        .configured
        .settings(SettingValues::default(), &arguments.peers.said())?;
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
