//! What builds keep for the next: the disk after a step, by the key of all that decided it, and which base came of what.
//!
//! ```text
//!   DATA/layers/<key>/{its disk,layer.json}         a step's disk, whole or not there; the key tells of which runtime
//!   DATA/images/<key>.json                          a key or an image's digest → the base that was made of it
//! ```
//!
//! All of it can be removed at any time: the next build makes it again. The time of the small file is the last use.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::{Error, Layout, files};

/// What came of an image or of a whole build.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Known {
    /// Digest of the base.
    pub(crate) base: String,
    /// What it takes on disk.
    pub(crate) bytes: u64,
}

/// What is kept beside a step's disk.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Layer {
    /// The base that it lies over.
    pub(crate) base: String,
    /// Its size.
    pub(crate) disk_mb: u32,
    /// The step, in its own words.
    pub(crate) step: String,
}

const ACCOUNT: &str = "layer.json";

fn touch(path: &Path) -> io::Result<()> {
    std::fs::File::options().write(true).open(path)?.set_modified(SystemTime::now())
}

/// The base of a key, if it is still there.
pub(super) async fn known(layout: &Layout, key: &str) -> Result<Option<Known>, Error> {
    let (file, layout) = (layout.images().join(format!("{key}.json")), layout.clone());
    files::blocking("look for what was built before", move || {
        let text = match std::fs::read(&file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        // Half of one, or of another version: as if it were not there.
        let Ok(known) = serde_json::from_slice::<Known>(&text) else { return Ok(None) };
        if !layout.base(&known.base).is_file() {
            return Ok(None);
        }
        touch(&file)?;
        Ok(Some(known))
    })
    .await
}

/// Remembers the base of a key.
pub(super) async fn remember(layout: &Layout, key: &str, known: &Known) -> Result<(), Error> {
    let (dir, name) = (layout.images(), format!("{key}.json"));
    let text = serde_json::to_vec(known).expect("plain data");
    files::blocking("remember what was built", move || {
        files::make_private_dir(&dir)?;
        let new = dir.join(format!(".{name}"));
        std::fs::write(&new, text)?;
        std::fs::rename(new, dir.join(name))
    })
    .await
}

/// The disk after the step of this key.
pub(super) async fn layer(layout: &Layout, key: &str) -> Result<Option<(PathBuf, Layer)>, Error> {
    let (dir, layout) = (layout.layers().join(key), layout.clone());
    files::blocking("look for a step's disk", move || {
        let text = match std::fs::read(dir.join(ACCOUNT)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        let Ok(account) = serde_json::from_slice::<Layer>(&text) else { return Ok(None) };
        if !layout.base(&account.base).is_file() {
            return Ok(None);
        }
        touch(&dir.join(ACCOUNT))?;
        Ok(Some((dir, account)))
    })
    .await
}

/// A directory for a step's disk, until it is [kept](keep).
pub(super) async fn begin(layout: &Layout, key: &str) -> Result<PathBuf, Error> {
    let dir = layout.layers().join(format!("{}{key}", crate::golden::HALF_MADE));
    let made = dir.clone();
    files::blocking("make room for a step's disk", move || {
        files::remove_dir(&made)?;
        files::make_private_dir(&made)
    })
    .await?;
    Ok(dir)
}

/// Gives a complete one its name.
pub(super) async fn keep(layout: &Layout, key: &str, half: PathBuf, account: &Layer) -> Result<PathBuf, Error> {
    let (place, text) = (layout.layers().join(key), serde_json::to_vec(account).expect("plain data"));
    let kept = place.clone();
    files::blocking("keep a step's disk", move || {
        files::write_new(&half.join(ACCOUNT), &text)?;
        files::sync_files(&half)?;
        match files::publish_dir(&half, &place) {
            Err(_) if place.join(ACCOUNT).is_file() => files::remove_dir(&half),
            other => other,
        }
    })
    .await?;
    Ok(kept)
}

/// What a sweep of the cache took away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Swept {
    pub(crate) count: u64,
    pub(crate) bytes: u64,
}

/// Removes what was not used for so long. Blocks.
pub(crate) fn sweep(layout: &Layout, unused: Duration) -> io::Result<Swept> {
    let (mut swept, trash) = (Swept::default(), layout.trash());
    let old = |path: &Path| {
        let used = std::fs::metadata(path).and_then(|meta| meta.modified());
        // Without an account it is nobody's.
        used.is_ok_and(|used| used.elapsed().unwrap_or_default() >= unused) || !path.exists()
    };
    for dir in crate::recover::children(layout.layers()) {
        if old(&dir.join(ACCOUNT)) {
            swept.bytes += files::blocks(&dir);
            swept.count += 1;
            files::discard_dir(&dir, &trash)?;
        }
    }
    for file in crate::recover::children(layout.images()) {
        if old(&file) {
            files::gone(std::fs::remove_file(&file))?;
        }
    }
    Ok(swept)
}

/// Bases that the cache stands on. Blocks.
pub(crate) fn bases(layout: &Layout) -> Vec<String> {
    let known = crate::recover::children(layout.images()).into_iter().filter_map(|file| {
        let known: Known = serde_json::from_slice(&std::fs::read(file).ok()?).ok()?;
        Some(known.base)
    });
    let layers = crate::recover::children(layout.layers()).into_iter().filter_map(|dir| {
        let layer: Layer = serde_json::from_slice(&std::fs::read(dir.join(ACCOUNT)).ok()?).ok()?;
        Some(layer.base)
    });
    known.chain(layers).collect()
}
