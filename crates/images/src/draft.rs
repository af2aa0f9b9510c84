//! A root file system that is being put together, until it is a base.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::build::Reporter;
use crate::workplace::Workplace;
use crate::{Error, Log, ext4};

/// Name of the image in its directory.
pub(crate) const FILE: &str = "base.ext4";
const DIGEST: &str = "digest";

/// A finished image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Base {
    /// BLAKE3 of the image, in hex.
    pub digest: String,
    /// The image. Shared by all sandboxes on it: it is never written.
    pub path: PathBuf,
    /// What it takes of the disk.
    pub bytes: u64,
}

/// A directory that is filled by whoever has it, and then becomes a base. Dropping it removes it in the background, on a
/// thread for blocking work, for which the end of the runtime waits.
#[derive(Debug)]
pub struct Draft(Workplace);

impl Draft {
    /// Makes an empty one in `work`, which must be on one file system with the bases.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn begin(work: &Path) -> Result<Self, Error> {
        let draft = Self(Workplace::make(work)?);
        let root = draft.root();
        // A root is open to all who are inside it, whatever lies around it.
        std::fs::DirBuilder::new().mode(0o755).create(&root).map_err(Error::io("make", &root))?;
        Ok(draft)
    }

    /// Where the root file system is put together.
    #[must_use]
    pub fn root(&self) -> PathBuf {
        self.dir().join("root")
    }

    /// Room beside it, which goes with it.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.0.path()
    }

    /// Makes a base of it, in `bases`.
    ///
    /// # Errors
    /// [`Error::Step`], [`Error::DiskFull`], [`Error::Io`]. Nothing is left then.
    ///
    /// # Cancel safety
    /// Dropping the future kills what runs.
    pub async fn finish(self, bases: &Path, log: &dyn Log) -> Result<Base, Error> {
        let reporter = Reporter::new(log);
        let made = self.seal(bases, &reporter, (0.0, 0.8)).await;
        if made.is_err() {
            self.abandon().await;
        } else {
            reporter.done();
        }
        made
    }

    /// Removes it, and waits for that.
    pub async fn abandon(self) {
        self.0.clear().await;
    }

    /// The image takes from `from` to `to` of the whole, the digest the rest.
    pub(crate) async fn seal(
        &self,
        bases: &Path,
        reporter: &Reporter<'_>,
        (from, to): (f32, f32),
    ) -> Result<Base, Error> {
        reporter.step(ext4::STEP, from, to);
        let made = self.dir().join("base");
        std::fs::create_dir(&made).map_err(Error::io("make", &made))?;
        ext4::make(&self.root(), &made.join(FILE), reporter).await?;

        reporter.step(DIGEST, to, 1.0);
        let bases = bases.to_owned();
        let sealed = tokio::task::spawn_blocking(move || {
            let (digest, bytes) = ext4::seal(&made.join(FILE)).map_err(Error::io("read", made.join(FILE)))?;
            let place = bases.join(&digest);
            ext4::place(&made, &place).map_err(Error::io("place the image at", &place))?;
            Ok(Base { digest, path: place.join(FILE), bytes })
        });
        let stopped = |_| Err(Error::Step { step: DIGEST, detail: "the task was stopped".to_owned() });
        let base = sealed.await.unwrap_or_else(stopped)?;
        reporter.line(None, &base.digest);
        Ok(base)
    }
}
