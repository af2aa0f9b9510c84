//! What engines begin from: the image of a base, or its tree (`wakeful_images::ensure_tree`), which is made once, when the
//! first engine needs it or at the end of a build.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use tokio::sync::Mutex as Turn;
use tracing::info;
use wakeful_driver::{DiskKind, Driver};

use crate::lifecycle::{Inner, error_chain};
use crate::{Error, Layout, files};

/// Trees that are being made, by the digests of their bases: whoever needs the same one waits for it.
#[derive(Default)]
pub(crate) struct Trees(Mutex<HashMap<String, Arc<Turn<()>>>>);

impl Trees {
    fn turn(&self, digest: &str) -> Arc<Turn<()>> {
        let mut turns = self.0.lock().expect("no panic while it is held");
        Arc::clone(turns.entry(digest.to_owned()).or_default())
    }

    /// Whether somebody may be making the tree of this base.
    fn is_made(&self, digest: &str) -> bool {
        let turns = self.0.lock().expect("no panic while it is held");
        turns.get(digest).is_some_and(|turn| turn.try_lock().is_err())
    }
}

impl Inner {
    /// What the driver's engines begin from, of the base of this digest.
    pub(crate) async fn base_for(&self, driver: &dyn Driver, digest: &str) -> Result<PathBuf, Error> {
        match driver.capabilities().disk {
            DiskKind::Block => Ok(self.layout.base(digest)),
            DiskKind::Directory => self.tree(digest).await,
        }
    }

    async fn tree(&self, digest: &str) -> Result<PathBuf, Error> {
        let dir = self.layout.bases().join(digest);
        let root = wakeful_images::tree_of(&dir);
        if root.is_dir() {
            return Ok(root);
        }
        let turn = self.trees.turn(digest).lock_owned().await;
        let base = digest.to_owned();
        let made = tokio::task::spawn_blocking(move || {
            // It goes on if nobody waits any more, and the next still waits for it.
            let _turn = turn;
            let began = std::time::Instant::now();
            let there = wakeful_images::tree_of(&dir).is_dir();
            let root = wakeful_images::ensure_tree(&dir)?;
            if !there {
                info!(base, took_ms = began.elapsed().as_millis(), "tree of a base made");
            }
            Ok::<_, wakeful_images::Error>(root)
        });
        match made.await {
            Ok(Ok(root)) => Ok(root),
            Ok(Err(wakeful_images::Error::DiskFull { .. })) => {
                Err(wakeful_driver::Error::DiskFull { doing: "make a base's tree" }.into())
            }
            Ok(Err(error)) => Err(Error::Internal(error_chain(&error))),
            Err(panic) => Err(Error::Internal(format!("making a base's tree: {panic}"))),
        }
    }

    /// Removes what is left of trees that nobody is making.
    pub(crate) async fn clear_trees(&self) -> Result<(), Error> {
        let (layout, trash) = (self.layout.clone(), self.layout.trash());
        let left = files::blocking("look for half-made trees", move || Ok(half_made(&layout))).await?;
        let abandoned = left.into_iter().filter(|(digest, _)| !self.trees.is_made(digest));
        let abandoned: Vec<PathBuf> = abandoned.map(|(_, path)| path).collect();
        files::blocking("remove half-made trees", move || {
            abandoned.iter().try_for_each(|path| files::discard_dir(path, &trash))
        })
        .await
    }
}

/// Half-made trees, and the digests of their bases. Blocks.
pub(crate) fn half_made(layout: &Layout) -> Vec<(String, PathBuf)> {
    let bases = crate::recover::children(layout.bases());
    let trees = bases.iter().flat_map(|dir| {
        let digest = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
        wakeful_images::half_made_trees(dir).into_iter().map(move |path| (digest.clone(), path))
    });
    trees.collect()
}
