//! What the daemon is told: one file, some environment variables, a few flags.
//!
//! Everyone asks for settings here and nowhere else. They are merged in [`Config::load`] only:
//!
//! ```text
//!   flags  >  environment (ENVIRONMENT)  >  file  >  default
//! ```
//!
//! A key that nobody knows is an error, and so is a value that would fail later: a daemon that starts has a
//! configuration that makes sense. `serve --print-config` prints [`Config::to_toml`].

mod builds;
mod sections;
mod span;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use builds::{Builds, Registries};
pub use sections::{Accel, Defaults, Gvisor, Limits, LogFormat, Network, Pool, Pressure, Qemu, RuntimeChoice, Tls};
pub use span::Span;

pub(crate) use builds::settings as build_settings;

/// The file that is read when no other is named.
pub const DEFAULT_FILE: &str = "/etc/wakeful/config.toml";

/// An environment variable that the daemon listens to.
#[derive(Clone, Copy, Debug)]
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// The key of the file that it overrides; `None` for the file's own name.
    pub key: Option<&'static str>,
    /// Stores its text.
    set: fn(&mut Overrides, String),
}

/// The registry: every variable that the daemon reads.
pub const ENVIRONMENT: &[Variable] = &[
    Variable { name: "WAKEFUL_CONFIG", key: None, set: |to, text| to.config = Some(text.into()) },
    Variable {
        name: "WAKEFUL_LISTEN",
        key: Some("listen"),
        set: |to, text| to.listen = text.split(',').map(|part| part.trim().to_owned()).collect(),
    },
    Variable { name: "WAKEFUL_DATA_DIR", key: Some("data_dir"), set: |to, text| to.data_dir = Some(text.into()) },
    Variable { name: "WAKEFUL_DATABASE", key: Some("database"), set: |to, text| to.database = Some(text) },
    Variable { name: "WAKEFUL_RUNTIME", key: Some("runtime"), set: |to, text| to.runtime = Some(text) },
    Variable { name: "WAKEFUL_LOG", key: Some("log"), set: |to, text| to.log = Some(text) },
    Variable { name: "WAKEFUL_LOG_FORMAT", key: Some("log_format"), set: |to, text| to.log_format = Some(text) },
];

/// Why a configuration is refused.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read.
    #[error("could not read the configuration file {path}")]
    Read {
        /// Which file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The file is no TOML, has an unknown key or a value of the wrong type.
    #[error("{path}: {detail}")]
    Parse {
        /// Which file.
        path: PathBuf,
        /// Where and why.
        detail: String,
    },
    /// A value makes no sense.
    #[error("{key} (from {from}): {reason}")]
    Invalid {
        /// The key, as `defaults.timeout`.
        key: String,
        /// Who said it: a flag, a variable, the file.
        from: String,
        /// Why it is refused.
        reason: String,
    },
    /// An environment variable is not UTF-8.
    #[error("{name} is not UTF-8")]
    NotUtf8 {
        /// The variable.
        name: &'static str,
    },
}

/// What flags or environment say; everything left out keeps its value.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// The file to read.
    pub config: Option<PathBuf>,
    /// Addresses to listen on; empty for "not given".
    pub listen: Vec<String>,
    /// Where everything is kept.
    pub data_dir: Option<PathBuf>,
    /// Which database.
    pub database: Option<String>,
    /// Which runtime.
    pub runtime: Option<String>,
    /// What is logged.
    pub log: Option<String>,
    /// How it is logged.
    pub log_format: Option<String>,
}

/// The whole configuration: CONTRACT section 8.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Addresses to listen on.
    #[serde(with = "sections::addresses")]
    pub listen: Vec<SocketAddr>,
    /// Where everything is kept.
    pub data_dir: PathBuf,
    /// Empty: SQLite in `data_dir`.
    pub database: String,
    /// Which runtime new sandboxes get.
    pub runtime: RuntimeChoice,
    /// Previews are `<port>-<id>.<domain>`.
    pub domain: String,
    /// What is logged: a level, or directives as `info,wakeful_api=debug`.
    pub log: String,
    /// How it is logged.
    pub log_format: LogFormat,
    /// Certificate and key, for https.
    #[serde(skip_serializing_if = "Tls::is_empty")]
    pub tls: Tls,
    /// What a request that leaves something out gets.
    pub defaults: Defaults,
    /// What the host gives away at most.
    pub limits: Limits,
    /// When the host counts as short of memory.
    pub pressure: Pressure,
    /// How templates are built.
    pub builds: Builds,
    /// Where images come from.
    pub registries: Registries,
    /// Sandbox networks.
    pub network: Network,
    /// Sandboxes made before they are asked for.
    pub pool: Pool,
    /// The QEMU driver.
    pub qemu: Qemu,
    /// The gVisor driver.
    pub gvisor: Gvisor,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: vec![SocketAddr::from(([127, 0, 0, 1], 8080)), SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], 8080))],
            data_dir: "/var/lib/wakeful".into(),
            database: String::new(),
            runtime: RuntimeChoice::Auto,
            domain: "localhost".into(),
            log: "info".into(),
            log_format: LogFormat::Text,
            tls: Tls::default(),
            defaults: Defaults::default(),
            limits: Limits::default(),
            pressure: Pressure::default(),
            builds: Builds::default(),
            registries: Registries::default(),
            network: Network::default(),
            pool: Pool::default(),
            qemu: Qemu::default(),
            gvisor: Gvisor::default(),
        }
    }
}

/// A configuration and where it came from.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The effective configuration.
    pub config: Config,
    /// The file that was read, if there was one.
    pub file: Option<PathBuf>,
    /// Nobody said where to listen: an address that this host does not have (IPv6) is then left out with a warning
    /// instead of being an error.
    pub listen_by_default: bool,
}

impl Config {
    /// Merges flags, the process's environment, the file and the defaults, and checks the result.
    ///
    /// # Errors
    /// If the file cannot be read or understood, or a value makes no sense; the text says which and who gave it.
    pub fn load(flags: Overrides) -> Result<Loaded, Error> {
        Self::load_from(flags, |name| std::env::var_os(name), Path::new(DEFAULT_FILE))
    }

    /// As [`Config::load`], with the environment and the default file's place given: how tests run side by side.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn load_from(
        flags: Overrides,
        variable: impl Fn(&str) -> Option<OsString>,
        default_file: &Path,
    ) -> Result<Loaded, Error> {
        let mut environment = Overrides::default();
        for known in ENVIRONMENT {
            // an empty variable is how a shell or a unit file says "not set"
            if let Some(text) = variable(known.name).filter(|text| !text.is_empty()) {
                (known.set)(&mut environment, text.into_string().map_err(|_| Error::NotUtf8 { name: known.name })?);
            }
        }
        let (file, text) = match flags.config.clone().or_else(|| environment.config.clone()) {
            Some(named) => {
                let text = read(&named)?;
                (Some(named), Some(text))
            }
            None => match read(default_file) {
                Ok(text) => (Some(default_file.to_owned()), Some(text)),
                Err(Error::Read { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => (None, None),
                Err(other) => return Err(other),
            },
        };
        let (mut config, listen_in_file) = match (&file, &text) {
            (Some(path), Some(text)) => parse(path, text)?,
            _ => (Self::default(), false),
        };
        let listen_by_default = !listen_in_file && flags.listen.is_empty() && environment.listen.is_empty();
        config.validate(file.as_deref())?;
        // the weaker one first, so that the stronger one has the last word
        config.apply(environment, Source::Environment)?;
        config.apply(flags, Source::Flags)?;
        Ok(Loaded { config, file, listen_by_default })
    }

    /// The effective file.
    ///
    /// # Panics
    /// Never: all keys are strings and all values are TOML's.
    #[must_use]
    pub fn to_toml(&self) -> String {
        toml::to_string_pretty(self).expect("all of it is strings, numbers and tables")
    }

    /// The first address that is not a loopback one: without a key in the store the daemon must refuse to start.
    #[must_use]
    pub fn exposed(&self) -> Option<SocketAddr> {
        self.listen.iter().copied().find(|address| !address.ip().is_loopback())
    }

    /// Puts what one source said over what is there, and checks each value so that the error can name the source.
    fn apply(&mut self, from: Overrides, source: Source) -> Result<(), Error> {
        let Overrides { config: _, listen, data_dir, database, runtime, log, log_format } = from;
        if !listen.is_empty() {
            self.listen = sections::parse_addresses(&listen).map_err(|reason| source.invalid("listen", reason))?;
        }
        if let Some(path) = data_dir {
            self.data_dir = path;
            self.check_data_dir().map_err(|reason| source.invalid("data_dir", reason))?;
        }
        if let Some(text) = database {
            self.database = text;
            self.check_database().map_err(|reason| source.invalid("database", reason))?;
        }
        if let Some(text) = runtime {
            self.runtime = text.parse().map_err(|reason| source.invalid("runtime", reason))?;
        }
        if let Some(text) = log {
            self.log = text;
            self.check_log().map_err(|reason| source.invalid("log", reason))?;
        }
        if let Some(text) = log_format {
            self.log_format = text.parse().map_err(|reason| source.invalid("log_format", reason))?;
        }
        Ok(())
    }

    /// Checks what the types alone let through.
    fn validate(&self, file: Option<&Path>) -> Result<(), Error> {
        let from = file.map_or_else(|| "default".to_owned(), |path| path.display().to_string());
        let mut checks = vec![
            ("listen", if self.listen.is_empty() { Err("names no address".into()) } else { Ok(()) }),
            ("data_dir", self.check_data_dir()),
            ("database", self.check_database()),
            ("domain", sections::check_domain(&self.domain)),
            ("log", self.check_log()),
        ];
        checks.extend(self.tls.check());
        checks.extend(self.defaults.check());
        checks.extend(self.limits.check());
        checks.extend(self.pressure.check());
        checks.extend(self.builds.check());
        checks.extend(self.registries.check());
        checks.extend(self.network.check());
        checks.extend(self.pool.check());
        checks.extend(self.qemu.check());
        checks.extend(self.gvisor.check());
        match checks.into_iter().find_map(|(key, check)| Some((key, check.err()?))) {
            Some((key, reason)) => Err(Error::Invalid { key: key.into(), from, reason }),
            None => Ok(()),
        }
    }

    fn check_data_dir(&self) -> Result<(), String> {
        if self.data_dir.as_os_str().is_empty() { Err("must name a directory".into()) } else { Ok(()) }
    }

    fn check_database(&self) -> Result<(), String> {
        if self.database.is_empty() {
            return Ok(());
        }
        // the text may hold a password: it is not repeated
        Err("only the SQLite database in data_dir is supported by this version; leave it empty".into())
    }

    fn check_log(&self) -> Result<(), String> {
        tracing_subscriber::EnvFilter::builder()
            .parse(&self.log)
            .map(|_| ())
            .map_err(|error| format!("{:?} is no log filter such as \"info\" ({error})", self.log))
    }
}

/// Who said something.
#[derive(Clone, Copy)]
enum Source {
    Flags,
    Environment,
}

impl Source {
    fn invalid(self, key: &str, reason: String) -> Error {
        let from = match self {
            Self::Flags => format!("--{}", key.replace('_', "-")),
            Self::Environment => ENVIRONMENT
                .iter()
                .find(|known| known.key == Some(key))
                .map_or_else(|| "the environment".to_owned(), |known| known.name.to_owned()),
        };
        Error::Invalid { key: key.into(), from, reason }
    }
}

fn read(path: &Path) -> Result<String, Error> {
    std::fs::read_to_string(path).map_err(|source| Error::Read { path: path.to_owned(), source })
}

/// The file's configuration, and whether it says where to listen.
fn parse(path: &Path, text: &str) -> Result<(Config, bool), Error> {
    let wrong =
        |error: &toml::de::Error| Error::Parse { path: path.to_owned(), detail: error.to_string().trim().to_owned() };
    let table: toml::Table = toml::from_str(text).map_err(|error| wrong(&error))?;
    let config = toml::from_str(text).map_err(|error| wrong(&error))?;
    Ok((config, table.contains_key("listen")))
}

#[cfg(test)]
mod tests;
