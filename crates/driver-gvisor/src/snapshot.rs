//! Images: what a sentry has written, its account, and whether it is still that.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use serde::{Deserialize, Serialize};
use wakeful_confine::files;
use wakeful_driver::{Error, Image, ImageFile, Machine};

use crate::control::{INDEX, PAGES, STATE};

/// The longest state and index that are read: both grow with what is inside, not with its memory.
const LARGEST: u64 = 256 << 20;

/// What only this driver understands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Detail {
    /// Name of the kept engine.
    pub(crate) engine: String,
    pub(crate) machine: Machine,
}

impl Detail {
    pub(crate) fn of(image: &Image) -> Result<Self, Error> {
        serde_json::from_value(image.detail.clone())
            .map_err(|error| Error::Unfit { reason: format!("it is not an image of this driver: {error}") })
    }
}

fn damaged(file: &str, reason: impl std::fmt::Display) -> Error {
    Error::Damaged { file: file.to_owned(), reason: reason.to_string() }
}

/// The account of what was just written: digests of it all. Read from the page cache, beside its way to the disk.
pub(crate) fn account([state, index, pages]: &[File; 3]) -> io::Result<Vec<ImageFile>> {
    let small = |name: &str, file: &File| -> io::Result<ImageFile> {
        Ok(ImageFile {
            name: name.to_owned(),
            bytes: file.metadata()?.size(),
            digest: digest(file)?,
            bulk_digest: None,
        })
    };
    let bulk = digest(pages)?;
    Ok(vec![
        small(STATE, state)?,
        small(INDEX, index)?,
        ImageFile {
            name: PAGES.to_owned(),
            bytes: pages.metadata()?.size(),
            // At a load only its length is looked at.
            digest: String::new(),
            bulk_digest: Some(bulk),
        },
    ])
}

fn digest(file: &File) -> io::Result<String> {
    use std::os::unix::fs::FileExt as _;
    let (mut hasher, mut buffer, mut at) = (blake3::Hasher::new(), vec![0; 1 << 20], 0);
    loop {
        let read = file.read_at(&mut buffer, at)?;
        if read == 0 {
            return Ok(hasher.finalize().to_hex().to_string());
        }
        hasher.update(&buffer[..read]);
        at += read as u64;
    }
}

fn open(dir: &Path, image: &Image, name: &str) -> Result<(File, ImageFile), Error> {
    let account = image.files.iter().find(|file| file.name == name);
    let account = account.ok_or_else(|| damaged(name, "the account does not name it"))?;
    let file = files::open_regular(&dir.join(name), false).map_err(|error| damaged(name, error))?;
    if file.metadata().map_err(|error| damaged(name, error))?.len() != account.bytes {
        return Err(damaged(name, "its length is wrong"));
    }
    Ok((file, account.clone()))
}

/// Looks at what a load depends on: state and index whole, of the pages the length. Gives the index.
pub(crate) fn check(dir: &Path, image: &Image) -> Result<Vec<u8>, Error> {
    let small = |name: &str| -> Result<Vec<u8>, Error> {
        let (file, account) = open(dir, image, name)?;
        if account.bytes > LARGEST {
            return Err(damaged(name, "it is too long"));
        }
        let mut content = Vec::new();
        file.take(LARGEST).read_to_end(&mut content).map_err(|error| damaged(name, error))?;
        if blake3::hash(&content).to_hex().as_str() != account.digest {
            return Err(damaged(name, "its digest is wrong"));
        }
        Ok(content)
    };
    small(STATE)?;
    open(dir, image, PAGES)?;
    small(INDEX)
}

/// Reads all of an image and compares it with its account. Blocks.
pub(crate) fn verify(dir: &Path, image: &Image) -> Result<(), Error> {
    Detail::of(image)?;
    check(dir, image)?;
    let (pages, account) = open(dir, image, PAGES)?;
    let found = digest(&pages).map_err(|error| damaged(PAGES, error))?;
    if account.bulk_digest.as_deref() != Some(found.as_str()) {
        return Err(damaged(PAGES, "the digest of its content is wrong"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn an_image_is_what_its_account_says() {
        let dir = tempfile::tempdir().expect("can be made");
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).expect("can be written");
        for name in [STATE, INDEX, PAGES] {
            write(name, name);
        }
        let open = |name: &str| File::open(dir.path().join(name)).expect("is there");
        let files = account(&[open(STATE), open(INDEX), open(PAGES)]).expect("can be read");
        let machine = Machine { cpu: 1, memory_mb: 256, disk_mb: 512 };
        let detail = serde_json::to_value(Detail { engine: "runsc-1".into(), machine }).expect("plain data");
        let image = Image { engine: "k".into(), files, base: None, detail };
        verify(dir.path(), &image).expect("it is sound");
        assert_eq!(check(dir.path(), &image).expect("it is sound"), INDEX.as_bytes());
        for (name, flipped, loads) in
            [(STATE, "Checkpoint.img", false), (INDEX, "Pages_meta.img", false), (PAGES, "Pages.img", true)]
        {
            write(name, flipped);
            assert!(matches!(verify(dir.path(), &image), Err(Error::Damaged { .. })), "{name}");
            assert_eq!(check(dir.path(), &image).is_ok(), loads, "{name}");
            write(name, "short");
            assert!(matches!(check(dir.path(), &image), Err(Error::Damaged { .. })), "{name}");
            write(name, name);
        }
        fs::remove_file(dir.path().join(PAGES)).expect("is there");
        assert!(matches!(check(dir.path(), &image), Err(Error::Damaged { .. })));
    }
}
