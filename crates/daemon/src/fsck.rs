//! Checks a data directory, for whoever holds it without a daemon.

use std::path::PathBuf;
use std::sync::Arc;

use serde::Serialize;
use wakeful_driver_gvisor::GvisorInspector;
use wakeful_driver_qemu::QemuInspector;
use wakeful_lifecycle::Layout;
use wakeful_lifecycle::fsck::{self, Scope};

pub use wakeful_lifecycle::fsck::{Checked, Finding, Kind, Listener, Progress, Repair, Status};

use crate::config::Config;
use crate::paths::Paths;
use crate::runtimes::{GVISOR, QEMU, gvisor_config, qemu_config};
use crate::wire;

/// Why it could not be checked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is nothing to check.
    #[error("there is no database in {0}")]
    Nothing(PathBuf),
    /// Somebody has it, or it cannot be opened.
    #[error(transparent)]
    Wire(#[from] wire::Error),
    /// The database cannot even be read.
    #[error("could not read the database")]
    Database(#[from] wakeful_store::Error),
    /// It stopped half-way.
    #[error("could not check {data_dir}")]
    Check {
        /// The directory.
        data_dir: PathBuf,
        /// Why.
        source: wakeful_lifecycle::Error,
    },
}

/// What was found in a data directory.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The directory.
    pub data_dir: PathBuf,
    /// All that came of it.
    #[serde(flatten)]
    pub found: fsck::Report,
}

/// Takes the data directory, reads all of it, and gives it back.
///
/// # Errors
/// If a daemon has it, or its database cannot be read.
pub async fn fsck(config: &Config, repair: Repair, progress: Listener<'_>) -> Result<Report, Error> {
    let data = Paths::of(&config.data_dir).data;
    if !data.join("wakeful.db").is_file() {
        return Err(Error::Nothing(data));
    }
    let taken = wire::take(config, "wakeful fsck").await?;
    progress(Progress { step: "database", fraction: None, line: None });
    let found = match taken.store().examine().await {
        Ok(database) => {
            let (data, run) = (taken.paths.data.clone(), taken.paths.run.clone());
            let scope = Scope {
                inspectors: vec![
                    (QEMU.to_owned(), Arc::new(QemuInspector::new(&qemu_config(config, &data, &run))) as Arc<_>),
                    (GVISOR.to_owned(), Arc::new(GvisorInspector::new(&gvisor_config(config, &data, &run))) as Arc<_>),
                ],
                layout: Layout::new(data.clone(), run),
                store: Arc::clone(taken.store()) as Arc<_>,
                database,
                network_tag: wire::network_tag(&taken.paths),
            };
            let checked = fsck::check(&scope, repair, progress).await;
            checked.map_err(|source| Error::Check { data_dir: data, source })
        }
        Err(error) => Err(error.into()),
    };
    taken.close().await;
    Ok(Report { data_dir: data, found: found? })
}
