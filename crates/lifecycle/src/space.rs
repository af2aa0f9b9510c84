//! What lies in the data directory, and what of it could go.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::recover::children;
use crate::{Error, Layout, Lifecycle, files};

/// One kind of file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Space {
    /// What it is.
    pub kind: &'static str,
    /// How many there are.
    pub count: u64,
    /// What they take on disk.
    pub bytes: u64,
    /// How large they would be without their holes.
    pub apparent_bytes: u64,
    /// What `prune` would give back.
    pub reclaimable_bytes: u64,
}

/// All of it.
#[derive(Clone, Debug)]
pub struct Usage {
    /// Kind by kind.
    pub kinds: Vec<Space>,
    /// Free on that file system.
    pub free_bytes: u64,
    /// Its size.
    pub total_bytes: u64,
}

/// Blocks and length of a tree, without following links; a file with several names counts once.
pub(crate) fn measure(path: &Path, seen: &mut std::collections::HashSet<(u64, u64)>) -> (u64, u64) {
    let Ok(meta) = std::fs::symlink_metadata(path) else { return (0, 0) };
    if !meta.is_dir() {
        if meta.nlink() > 1 && !seen.insert((meta.dev(), meta.ino())) {
            return (0, 0);
        }
        return (meta.blocks() * 512, meta.len());
    }
    let own = meta.blocks() * 512;
    let below = children(path.to_owned()).into_iter().map(|child| measure(&child, seen));
    below.fold((own, own), |(blocks, length), (more, longer)| (blocks + more, length + longer))
}

impl Lifecycle {
    /// What lies in the data directory.
    ///
    /// # Errors
    /// If it cannot be read.
    pub async fn usage(&self) -> Result<Usage, Error> {
        let inner = &self.inner;
        let in_use: Vec<String> = inner.store.bases_in_use().await?.into_iter().map(|(_, base)| base).collect();
        let templates = inner.store.templates(None).await?.into_iter().filter_map(|template| template.base);
        let needed: std::collections::HashSet<String> = in_use.into_iter().chain(templates).collect();
        let layout = inner.layout.clone();
        files::blocking("look at the data directory", move || measured(&layout, &needed)).await
    }
}

fn measured(layout: &Layout, needed: &std::collections::HashSet<String>) -> std::io::Result<Usage> {
    let mut seen = std::collections::HashSet::new();
    let mut kinds = Vec::new();
    let goldens = || children(layout.golden_root()).into_iter().flat_map(children).flat_map(children);
    let all: [(&'static str, Vec<PathBuf>, bool); 11] = [
        ("sandboxes", children(layout.sandboxes()), false),
        ("snapshots", children(layout.snapshots()), false),
        ("bases", children(layout.bases()), false),
        ("golden snapshots", goldens().collect(), false),
        ("build steps", children(layout.layers()), true),
        ("image layers", children(layout.blobs().join("sha256")), true),
        ("uploads", children(layout.uploads()), true),
        ("builds", children(layout.builds()), false),
        ("packages", children(layout.package_cache().join("archives")), false),
        ("engines", children(layout.data().join("engines")), false),
        ("trash", children(layout.trash()), true),
    ];
    for (kind, paths, cache) in all {
        let (mut bytes, mut apparent_bytes, mut reclaimable_bytes) = (0, 0, 0);
        for path in &paths {
            let (blocks, length) = measure(path, &mut seen);
            bytes += blocks;
            apparent_bytes += length;
            let unneeded = || !path.file_name().is_some_and(|name| needed.contains(&*name.to_string_lossy()));
            if cache || kind == "bases" && unneeded() {
                reclaimable_bytes += blocks;
            }
        }
        kinds.push(Space { kind, count: paths.len() as u64, bytes, apparent_bytes, reclaimable_bytes });
    }
    let stat = rustix::fs::statvfs(layout.data())?;
    Ok(Usage { kinds, free_bytes: stat.f_bavail * stat.f_frsize, total_bytes: stat.f_blocks * stat.f_frsize })
}
