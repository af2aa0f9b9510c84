//! `wakeful serve`.

use std::path::PathBuf;

use clap::Args;
use wakeful_daemon::config::{Config, Error, Loaded, LogFormat, Overrides};

use super::many_threads;
use crate::failure::Failure;
use crate::output;

/// What every command takes that works on this machine's daemon.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Local {
    /// The configuration file [default: WAKEFUL_CONFIG, then /etc/wakeful/config.toml]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where everything is kept [default: WAKEFUL_DATA_DIR, then the file's, then /var/lib/wakeful]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// auto, qemu, gvisor or firecracker [default: WAKEFUL_RUNTIME, then the file's, then auto]
    #[arg(long, value_name = "NAME")]
    runtime: Option<String>,
}

impl Local {
    /// For a command that says otherwise which runtime it means.
    pub(crate) fn of(config: Option<PathBuf>, data_dir: Option<PathBuf>) -> Self {
        Self { config, data_dir, runtime: None }
    }

    /// The effective configuration.
    pub(crate) fn load(self, more: Overrides) -> Result<Loaded, Failure> {
        let flags = Overrides { config: self.config, data_dir: self.data_dir, runtime: self.runtime, ..more };
        Config::load(flags).map_err(|error| {
            let failure = Failure::usage(Failure::chain(&error));
            match error {
                Error::Parse { .. } => {
                    failure.hint("`wakeful serve --print-config` with a correct file shows all keys")
                }
                Error::Read { .. } | Error::Invalid { .. } | Error::NotUtf8 { .. } => failure,
            }
        })
    }
}

/// Run the daemon
#[derive(Args, Debug)]
#[command(after_help = "\
It runs until SIGTERM or ^C. Sandboxes outlive it: the next one finds them running or asleep.
Flags beat the environment (WAKEFUL_LISTEN, WAKEFUL_DATA_DIR, WAKEFUL_RUNTIME, WAKEFUL_DATABASE,
WAKEFUL_LOG, WAKEFUL_LOG_FORMAT, WAKEFUL_CONFIG), which beats the file.

Examples:
  wakeful serve
  wakeful serve --listen 127.0.0.1:9090 --data-dir /srv/wakeful
  wakeful serve --print-config > /etc/wakeful/config.toml")]
pub(crate) struct Serve {
    // as an attribute: brackets in a doc comment are links
    #[arg(long, value_name = "ADDRESS")]
    #[arg(help = "An address to listen on (repeatable) [default: 127.0.0.1:8080 and [::1]:8080]")]
    listen: Vec<String>,
    #[command(flatten)]
    local: Local,
    /// Print the effective configuration and end
    #[arg(long)]
    print_config: bool,
}

impl Serve {
    pub(crate) fn run(self) -> Result<u8, Failure> {
        let loaded = self.local.load(Overrides { listen: self.listen, ..Overrides::default() })?;
        if self.print_config {
            output::bytes(loaded.config.to_toml().as_bytes())?;
            return Ok(0);
        }
        wakeful_daemon::logging::start(&loaded.config)
            .map_err(|error| Failure::refused(format!("could not start logging: {error}")))?;
        wakeful_daemon::settle_in();
        many_threads()?.block_on(async {
            let signals = wakeful_daemon::signals(&loaded.config)
                .map_err(|error| Failure::refused(format!("could not listen to signals: {error}")))?;
            let listening = |addresses: &[std::net::SocketAddr]| {
                // a log of objects stays one
                if loaded.config.log_format == LogFormat::Json {
                    return;
                }
                let scheme = if loaded.config.tls.cert.is_some() { "https" } else { "http" };
                let urls: Vec<String> = addresses.iter().map(|address| format!("{scheme}://{address}")).collect();
                output::say(&format!("wakeful listens on {}", urls.join(" and ")));
            };
            wakeful_daemon::serve(&loaded, listening, signals).await.map_err(|error| refused(&error))
        })?;
        Ok(0)
    }
}

fn refused(error: &wakeful_daemon::ServeError) -> Failure {
    use wakeful_daemon::{ServeError, paths, wire};
    let failure = Failure::refused(Failure::chain(error));
    match error {
        ServeError::Exposed(_) => failure.hint(
            "make a key first: `wakeful key create --name admin --scope admin`; or listen on 127.0.0.1 or [::1] only",
        ),
        ServeError::Listen { .. } => failure.hint("is another daemon running? choose another address with --listen"),
        ServeError::Wire(wire::Error::Paths(paths::Error::Held { .. })) => {
            failure.hint("stop it first, or give this one another --data-dir")
        }
        ServeError::Wire(wire::Error::Paths(paths::Error::Io { .. })) => failure.hint("the daemon must run as root"),
        ServeError::Tls(_) => failure.hint("[tls] cert and key name PEM files: the whole chain, and its private key"),
        ServeError::Wire(_) | ServeError::Paths(_) | ServeError::Late => failure,
    }
}
