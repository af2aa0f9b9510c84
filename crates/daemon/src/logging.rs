//! Where log lines go: to standard error, as text or as JSON.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

use crate::config::{Config, LogFormat};

/// Starts logging for this process.
///
/// # Errors
/// If the filter of the configuration is none, or logging was started before.
pub fn start(config: &Config) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    // Libraries speak up only when something is wrong; ours at the level that was asked for.
    let filter = if config.log.contains(['=', ',']) {
        EnvFilter::try_new(&config.log)?
    } else {
        EnvFilter::try_new(format!("{},hyper=warn,h2=warn,sqlx=warn,tower_http=warn", config.log))?
    };
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    match config.log_format {
        LogFormat::Json => subscriber.json().flatten_event(true).try_init(),
        LogFormat::Text => {
            subscriber.with_ansi(std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none()).try_init()
        }
    }
}
