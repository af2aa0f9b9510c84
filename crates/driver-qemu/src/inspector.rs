//! The driver's eyes and broom for whoever checks a data directory: nothing here needs QEMU, a kernel or KVM.

use std::path::{Path, PathBuf};

use async_trait::async_trait;
use wakeful_confine::claim::UIDS;
use wakeful_confine::{blocking, cgroup, claim, files, range};
use wakeful_driver::{Error, Image, Inspector, Place, Stray, StrayKind};

use crate::jail::Jail;
use crate::{QemuConfig, place, snapshot};

/// Looks after what the driver's engines wrote and left.
#[derive(Debug)]
pub struct QemuInspector {
    data_dir: PathBuf,
    engine_uid: u32,
}

impl QemuInspector {
    /// For what a driver with this configuration leaves.
    #[must_use]
    pub fn new(config: &QemuConfig) -> Self {
        Self { data_dir: config.data_dir.clone(), engine_uid: config.engine_uid }
    }
}

#[async_trait]
impl Inspector for QemuInspector {
    fn disk_file(&self) -> &'static str {
        snapshot::OVERLAY
    }

    async fn verify(&self, data: &Path, dir: &Path, image: &Image) -> Result<(), Error> {
        let (data, dir, image) = (data.to_owned(), dir.to_owned(), image.clone());
        blocking(move || snapshot::verify(&data, &dir, &image)).await
    }

    async fn lives(&self, place: &Place) -> Result<bool, Error> {
        place::is_locked(&place.run).map_err(|source| Error::io("look for an engine", source))
    }

    async fn strays(&self, run: &Path) -> Result<Vec<Stray>, Error> {
        let (run, data) = (run.to_owned(), self.data_dir.clone());
        blocking(move || {
            let of = |kind, paths: Vec<PathBuf>| paths.into_iter().map(move |path| Stray { kind, path });
            let half_made = ["engines", "kernels"].iter().flat_map(|name| files::half_made(&data.join(name)));
            let half_made = of(StrayKind::HalfMade, half_made.collect());
            let uids = of(StrayKind::Uid, claim::unclaimed(Path::new(UIDS)));
            let ranges = of(StrayKind::Uid, range::stale(Path::new(range::RANGES)));
            Ok(of(StrayKind::Cgroup, cgroup::orphans(&run)).chain(uids).chain(ranges).chain(half_made).collect())
        })
        .await
    }

    async fn remove(&self, stray: &Stray) -> Result<(), Error> {
        let Stray { kind, path } = stray.clone();
        let engine_uid = self.engine_uid;
        blocking(move || {
            let removed = match kind {
                StrayKind::Cgroup => cgroup::empty_and_remove(&path),
                StrayKind::Uid if path.parent() == Some(Path::new(range::RANGES)) => range::remove_stale(&path),
                // Under its lock, and only if nobody has taken it meanwhile.
                StrayKind::Uid => claim::Claims::new(Path::new(UIDS), engine_uid).map(|claims| {
                    if let Some(uid) = path.file_name().and_then(|name| name.to_str()?.parse().ok()) {
                        claims.release(uid);
                    }
                }),
                StrayKind::HalfMade => files::remove_any(&path),
            };
            removed.map_err(|source| Error::io("remove what an engine left", source))
        })
        .await
    }

    async fn reap(&self, place: &Place) -> Result<(), Error> {
        let engine_uid = self.engine_uid;
        let opened = blocking(move || {
            Jail::open(engine_uid, None).map_err(|source| Error::io("look at what confines engines", source))
        });
        place::clear(&place.run, &opened.await?).await
    }
}
