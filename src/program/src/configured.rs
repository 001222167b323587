//! The settings of a command: its own defaults, then a file, the environment, and the command line.

use core::error::Error;
use std::env;
use std::path::PathBuf;

use doorbell_operation::{SettingValues, Settings};

/// The variable that names the settings file, unless the command line does.
const FILE_VARIABLE: &str = "DOORBELL_CONFIG";

#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct Configured {
    /// Read settings from FILE, in TOML [default: the file that DOORBELL_CONFIG names, if any]. `doorbell config` lists all settings
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Set one setting, as in link.dead_after=200ms; may be given many times
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,

    /// Log to standard error: off, error, warn, info, debug or trace; each level includes those before it [default: off]
    #[arg(long, value_name = "LEVEL")]
    log: Option<String>,
}

/// An option that stands for a setting: its name, the name of the setting, and the given value.
pub(crate) type OptionValue = (&'static str, &'static str, Option<String>);

impl Configured {
    /// Returns the settings in effect. `options` are the command's own options that stand for settings; they override all other
    /// sources.
    ///
    /// # Errors
    /// The first invalid setting, with its source; or two settings that contradict each other.
    pub(crate) fn settings(
        &self,
        own: SettingValues,
        options: &[OptionValue],
    ) -> Result<Settings, Box<dyn Error>> {
        let named = self.config.clone();
        let named = named.or_else(|| {
            Some(env::var_os(FILE_VARIABLE)?.into()).filter(|path: &PathBuf| !path.as_os_str().is_empty())
        });
        let mut settings = Settings::new(own);
        if let Some(path) = named {
            settings.file(path)?;
        }
        settings.environment(env::vars_os())?;
        for setting in &self.set {
            let both = setting.split_once('=');
            let (key, value) = both.ok_or_else(|| format!("--set {setting}: not KEY=VALUE"))?;
            settings.argument("--set", key.trim(), value.trim())?;
        }
        let log = ("--log", "log", self.log.clone());
        for (option, key, value) in options.iter().chain([&log]) {
            if let Some(value) = value {
                settings.argument(option, key, value)?;
            }
        }
        settings.check()?;
        Ok(settings)
    }
}
