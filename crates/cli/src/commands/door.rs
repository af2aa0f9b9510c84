//! Where `key` and `tenant` do their work: the daemon that has the data directory, or, if none runs, the directory itself.
//!
//! ```text
//!   --data-dir, --config   that directory: through its daemon if one runs, else its store is opened here
//!   a server is named      (--api-url, WAKEFUL_URL, the user's file) that server
//!   neither                the configured directory, as above; who may not read it asks the server at the default address
//! ```
//!
//! A daemon keeps its keys in memory, so nobody else changes them while it runs: the lock on the directory sees to that.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use wakeful_client::Client;
use wakeful_client::types::{CreateKey, CreateTenant, CreatedKey, Key, LimitsRequest, Tenant};
use wakeful_daemon::config::{Config, Overrides};
use wakeful_daemon::paths::{self, Holder, Paths};
use wakeful_daemon::registry::{self, LastKey, LimitsChange, NewKey, Registry};
use wakeful_daemon::wire::{self, Taken};
use wakeful_model::{DEFAULT_TENANT, KeyId};

use crate::args::Global;
use crate::failure::Failure;
use crate::server;

/// How long a daemon may take from its lock to its first word.
const STARTING: Duration = Duration::from_secs(20);

/// Which data directory.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Data directory")]
pub(crate) struct Place {
    /// The configuration file [default: WAKEFUL_CONFIG, then /etc/wakeful/config.toml]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Work on the daemon of this directory, or on its store if none runs
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

/// Whether a directory that is not there shall be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Make {
    Yes,
    No,
}

/// The way in.
pub(crate) enum Door {
    /// By HTTP.
    Server(Client),
    /// The store is ours for as long as this is held.
    Here(Box<Taken>, Arc<Registry>),
}

impl Door {
    pub(crate) async fn open(global: &Global, place: &Place, make: Make) -> Result<Self, Failure> {
        let named_here = place.config.is_some() || place.data_dir.is_some();
        if !named_here && server::is_named(global)? {
            return Ok(Self::Server(server::connect(global)?));
        }
        let flags =
            Overrides { config: place.config.clone(), data_dir: place.data_dir.clone(), ..Overrides::default() };
        let config = Config::load(flags).map_err(|error| Failure::usage(Failure::chain(&error)))?.config;
        let paths = Paths::of(&config.data_dir);
        let there = paths.data.join("wakeful.db").exists();
        match paths.holder() {
            Ok(None) if !there && make == Make::No && !named_here => {
                return Ok(Self::Server(server::connect(global)?));
            }
            // Not ours to read: whoever runs there decides what we may.
            Err(paths::Error::Io { source, .. })
                if !named_here && source.kind() == std::io::ErrorKind::PermissionDenied =>
            {
                return Ok(Self::Server(server::connect(global)?));
            }
            Ok(None) if !there && make == Make::No => {
                return Err(Failure::refused(format!("there is no database in {}", paths.data.display())));
            }
            Ok(_) => {}
            Err(error) => return Err(Failure::refused(Failure::chain(&error))),
        }
        Self::take(global, &config, &paths.data).await
    }

    async fn take(global: &Global, config: &Config, data: &Path) -> Result<Self, Failure> {
        let until = Instant::now() + STARTING;
        loop {
            match wire::take(config, "wakeful key").await {
                Ok(taken) => {
                    let registry = taken.registry().await.map_err(|error| Failure::refused(Failure::chain(&error)))?;
                    return Ok(Self::Here(Box::new(taken), registry));
                }
                Err(wire::Error::Paths(paths::Error::Held { holder: Holder { url: Some(url), .. }, .. })) => {
                    return Ok(Self::Server(server::client_of(&url, global, data)?));
                }
                // It starts, or it is another command that will soon be done.
                Err(wire::Error::Paths(paths::Error::Held { .. })) if Instant::now() < until => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                Err(error) => {
                    return Err(Failure::refused(Failure::chain(&error))
                        .hint("run it as root on the server's machine, or name a server with --api-url"));
                }
            }
        }
    }

    /// Gives the directory up.
    pub(crate) async fn close(self) {
        if let Self::Here(taken, registry) = self {
            drop(registry);
            taken.close().await;
        }
    }

    pub(crate) async fn create_key(&self, new: &CreateKey) -> Result<CreatedKey, Failure> {
        match self {
            Self::Server(client) => Ok(client.create_key(new).await?),
            Self::Here(_, registry) => {
                let scopes = new.scopes.iter().map(|text| text.parse()).collect::<Result<_, _>>();
                let new = NewKey {
                    name: new.name.clone(),
                    tenant: new.tenant.clone().unwrap_or_else(|| DEFAULT_TENANT.to_owned()),
                    scopes: scopes.map_err(|error: wakeful_model::InvalidScope| Failure::usage(error.to_string()))?,
                };
                let (key, secret) = registry.create_key(new).await.map_err(refused)?;
                Ok(CreatedKey { about: key.into(), secret })
            }
        }
    }

    pub(crate) async fn keys(&self, tenant: Option<&str>) -> Result<Vec<Key>, Failure> {
        match self {
            Self::Server(client) => Ok(client.keys(tenant).await?.keys),
            Self::Here(_, registry) => {
                let keys = registry.keys().into_iter();
                Ok(keys.filter(|key| tenant.is_none_or(|tenant| key.tenant == tenant)).map(Into::into).collect())
            }
        }
    }

    pub(crate) async fn delete_key(&self, id: &str) -> Result<(), Failure> {
        match self {
            Self::Server(client) => Ok(client.delete_key(id).await?),
            // A daemon that listens where others reach it will not start without one.
            Self::Here(_, registry) => {
                let id: KeyId =
                    id.parse().map_err(|error: wakeful_model::InvalidId| Failure::usage(error.to_string()))?;
                registry.delete_key(&id, LastKey::MayGo).await.map_err(refused)
            }
        }
    }

    pub(crate) async fn create_tenant(&self, name: &str, limits: LimitsRequest) -> Result<Tenant, Failure> {
        match self {
            Self::Server(client) => Ok(client.create_tenant(&CreateTenant { name: name.to_owned(), limits }).await?),
            Self::Here(_, registry) => Ok(registry.create_tenant(name, change(limits)).await.map_err(refused)?.into()),
        }
    }

    pub(crate) async fn tenants(&self) -> Result<Vec<Tenant>, Failure> {
        match self {
            Self::Server(client) => Ok(client.tenants().await?.tenants),
            Self::Here(_, registry) => {
                Ok(registry.tenants().await.map_err(refused)?.into_iter().map(Into::into).collect())
            }
        }
    }

    pub(crate) async fn limit_tenant(&self, name: &str, limits: LimitsRequest) -> Result<Tenant, Failure> {
        match self {
            Self::Server(client) => Ok(client.limit_tenant(name, limits).await?),
            Self::Here(_, registry) => Ok(registry.limit_tenant(name, change(limits)).await.map_err(refused)?.into()),
        }
    }

    pub(crate) async fn delete_tenant(&self, name: &str) -> Result<(), Failure> {
        match self {
            Self::Server(client) => Ok(client.delete_tenant(name).await?),
            Self::Here(_, registry) => registry.delete_tenant(name).await.map_err(refused),
        }
    }
}

fn change(limits: LimitsRequest) -> LimitsChange {
    LimitsChange { sandboxes: limits.sandboxes, memory_mb: limits.memory_mb, disk_mb: limits.disk_mb }
}

/// As a server would have said it, but for our own faults: there is no log to look them up in.
fn refused(error: registry::Error) -> Failure {
    if error.code() == wakeful_model::Code::Internal {
        return Failure::refused(Failure::chain(&error));
    }
    wakeful_client::Error::Problem(Box::new(registry::problem_of(error))).into()
}
