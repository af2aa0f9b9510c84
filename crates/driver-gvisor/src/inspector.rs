//! The driver's eyes and broom for whoever checks a data directory: nothing here needs runsc.

use std::path::{Path, PathBuf};

use async_trait::async_trait;
use wakeful_confine::cgroup::{self, Cgroups};
use wakeful_confine::{blocking, files, place as places, range};
use wakeful_driver::{Error, Image, Inspector, Place, Stray, StrayKind};

use crate::{GvisorConfig, disk, snapshot};

/// Looks after what the driver's engines wrote and left.
#[derive(Debug)]
pub struct GvisorInspector {
    data_dir: PathBuf,
}

impl GvisorInspector {
    /// For what a driver with this configuration leaves.
    #[must_use]
    pub fn new(config: &GvisorConfig) -> Self {
        Self { data_dir: config.data_dir.clone() }
    }
}

#[async_trait]
impl Inspector for GvisorInspector {
    fn disk_file(&self) -> &'static str {
        disk::DISK
    }

    async fn verify(&self, _data: &Path, dir: &Path, image: &Image) -> Result<(), Error> {
        let (dir, image) = (dir.to_owned(), image.clone());
        blocking(move || snapshot::verify(&dir, &image)).await
    }

    async fn lives(&self, place: &Place) -> Result<bool, Error> {
        let run = place.run.clone();
        blocking(move || Ok(!Cgroups::open().members(&run).is_empty())).await
    }

    async fn strays(&self, run: &Path) -> Result<Vec<Stray>, Error> {
        let (run, data) = (run.to_owned(), self.data_dir.clone());
        blocking(move || {
            let of = |kind, paths: Vec<PathBuf>| paths.into_iter().map(move |path| Stray { kind, path });
            let half_made = ["engines", "disks"].iter().flat_map(|name| files::half_made(&data.join(name)));
            let half_made = of(StrayKind::HalfMade, half_made.collect());
            let ranges = of(StrayKind::Uid, range::stale(Path::new(range::RANGES)));
            Ok(of(StrayKind::Cgroup, cgroup::orphans(&run)).chain(ranges).chain(half_made).collect())
        })
        .await
    }

    async fn remove(&self, stray: &Stray) -> Result<(), Error> {
        let Stray { kind, path } = stray.clone();
        blocking(move || {
            let removed = match kind {
                StrayKind::Cgroup => cgroup::empty_and_remove(&path),
                StrayKind::Uid => range::remove_stale(&path),
                StrayKind::HalfMade => files::remove_any(&path),
            };
            removed.map_err(|source| Error::io("remove what an engine left", source))
        })
        .await
    }

    async fn reap(&self, place: &Place) -> Result<(), Error> {
        let cgroups = blocking(|| Ok(Cgroups::open())).await?;
        places::clear(&place.run, &cgroups, None).await
    }
}
