//! Bytes that a build will need: the context of a Dockerfile, an archive of an image, a root file system.
//!
//! ```text
//!   DATA/uploads/<id>/{data,upload.json}    there when it is complete and synced; nobody's after a day
//!   DATA/builds/<template>/source           what a template was made of, linked from there and kept for its next build
//! ```

use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use serde::{Deserialize, Serialize};
use tokio::io::AsyncWriteExt as _;
use wakeful_model::{Code, TemplateId, UploadId};

use crate::lifecycle::Inner;
use crate::{Error, Lifecycle, files};

/// How long one that no template was made of is kept.
const KEPT: Duration = Duration::from_secs(24 * 3600);
/// How long one is kept in any case.
const JUST_MADE: Duration = Duration::from_secs(600);
const HALF_MADE: &str = "new-";
const DATA: &str = "data";

/// Something uploaded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Upload {
    /// Its id.
    pub id: UploadId,
    /// Whose it is.
    pub tenant: String,
    /// How much.
    pub bytes: u64,
    /// BLAKE3 of it, in hex.
    pub digest: String,
}

impl Lifecycle {
    /// Takes bytes for a build to come. Nothing remains of them if `bytes` fails or they are too many.
    ///
    /// # Errors
    /// [`Error::Invalid`] with `body_too_large`; what the stream failed with.
    ///
    /// # Cancel safety
    /// Dropped, the next start removes what there is.
    pub async fn upload<S>(&self, tenant: &str, mut bytes: S) -> Result<Upload, Error>
    where
        S: Stream<Item = io::Result<Bytes>> + Unpin + Send,
    {
        self.refuse_if_draining()?;
        let inner = &self.inner;
        let (id, most) = (UploadId::random(), inner.builds.settings.upload_bytes);
        let half = inner.layout.uploads().join(format!("{HALF_MADE}{}", id.bare()));
        let made = half.clone();
        files::blocking("make room for an upload", move || files::make_private_dir(&made)).await?;
        let written = async {
            let failed = |source| Error::Io { doing: "write an upload".into(), source };
            let file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(half.join(DATA));
            let mut file = tokio::fs::File::from_std(file.map_err(failed)?);
            let (mut count, mut hasher) = (0u64, blake3::Hasher::new());
            while let Some(piece) = bytes.next().await {
                let piece = piece.map_err(|source| Error::Io { doing: "read an upload".into(), source })?;
                count += piece.len() as u64;
                if count > most {
                    let detail = format!("an upload may have {most} bytes, and this one has more");
                    return Err(Error::Invalid { code: Code::BodyTooLarge, field: None, detail });
                }
                hasher.update(&piece);
                file.write_all(&piece).await.map_err(failed)?;
            }
            file.flush().await.map_err(failed)?;
            let digest = hasher.finalize().to_hex().to_string();
            Ok(Upload { id: id.clone(), tenant: tenant.to_owned(), bytes: count, digest })
        };
        let written = written.await;
        let (place, trash) = (inner.layout.uploads().join(id.as_str()), inner.layout.trash());
        let kept = written.as_ref().ok().cloned();
        files::blocking("keep an upload", move || match kept {
            Some(upload) => {
                files::write_new(&half.join("upload.json"), &serde_json::to_vec(&upload).expect("plain data"))?;
                files::sync_files(&half)?;
                files::publish_dir(&half, &place)
            }
            None => files::discard_dir(&half, &trash),
        })
        .await?;
        written
    }
}

impl Inner {
    /// Where the bytes of a template's source are.
    pub(super) fn source_of(&self, template: &TemplateId) -> PathBuf {
        self.layout.build(template).join("source")
    }

    /// Gives a template what was uploaded for it. It stays the uploader's, for another template, until its day is over.
    pub(super) async fn take_upload(&self, tenant: &str, id: &UploadId, template: &TemplateId) -> Result<(), Error> {
        let (from, build, to) =
            (self.layout.uploads().join(id.as_str()), self.layout.build(template), self.source_of(template));
        let tenant = tenant.to_owned();
        let taken = files::blocking("take an upload", move || {
            let Some(upload) = read(&from)?.filter(|upload| upload.tenant == tenant) else { return Ok(false) };
            files::make_private_dir(&build)?;
            let new = build.join("source.new");
            files::gone(std::fs::remove_file(&new))?;
            std::fs::hard_link(from.join(DATA), &new)?;
            std::fs::rename(new, to)?;
            files::sync_dir(&build)?;
            Ok(upload.bytes > 0)
        });
        if taken.await? {
            return Ok(());
        }
        Err(Error::invalid(Code::InvalidField, "source.upload", format!("there is no upload {id}, or nothing in it")))
    }

    /// Removes uploads that are older than a day, or than what is said if that is less, and at a start what was never
    /// complete. One that was just made may be about to be used.
    pub(crate) async fn sweep_uploads(&self, at_start: bool, unused: Duration) -> Result<(), Error> {
        let (root, trash, kept) = (self.layout.uploads(), self.layout.trash(), unused.clamp(JUST_MADE, KEPT));
        files::blocking("remove old uploads", move || {
            for dir in crate::recover::children(root) {
                let half = dir.file_name().is_some_and(|name| name.to_string_lossy().starts_with(HALF_MADE));
                let age = std::fs::metadata(&dir).and_then(|meta| meta.modified()).map(|at| at.elapsed());
                let old = age.is_ok_and(|age| age.unwrap_or_default() > kept);
                if old && !half || half && at_start {
                    files::discard_dir(&dir, &trash)?;
                }
            }
            Ok(())
        })
        .await
    }
}

fn read(dir: &Path) -> io::Result<Option<Upload>> {
    match std::fs::read(dir.join("upload.json")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        other => Ok(serde_json::from_slice(&other?).ok()),
    }
}
