//! A directory into an ext4 image, without mounting anything.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use wakeful_debian::Program;

use crate::Error;
use crate::build::Reporter;

const BLOCK: u64 = 4096;
const DEADLINE: Duration = Duration::from_secs(15 * 60);
/// The same for every base: a guest has one of them, and a fixed one makes images comparable.
const UUID: &str = "77616b65-6675-4c00-8000-6261736500e4";
pub(crate) const STEP: &str = "image";

/// What a tree needs in an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Need {
    bytes: u64,
    inodes: u64,
}

impl Need {
    /// Size of the image in blocks. It is sparse and only read, so what is too much costs nothing.
    fn blocks(self) -> u64 {
        (self.bytes + self.bytes / 8 + self.inodes * 512).div_ceil(BLOCK) + (64 << 20) / BLOCK
    }
}

/// Makes `image` with the contents of `root`.
pub(crate) async fn make(root: &Path, image: &Path, reporter: &Reporter<'_>) -> Result<(), Error> {
    let tree = root.to_owned();
    let walked = tokio::task::spawn_blocking(move || measure(&tree)).await;
    let need =
        walked.unwrap_or_else(|_| Err(io::Error::other("the task was stopped"))).map_err(Error::io("measure", root))?;
    Program::new("mke2fs")
        .args(["-q", "-F", "-t", "ext4", "-b", "4096", "-I", "256", "-m", "0", "-L", "wakeful-base"])
        .args(["-O", "^has_journal,^resize_inode", "-U", UUID])
        .arg("-E")
        .arg(format!("hash_seed={UUID},lazy_itable_init=0,nodiscard"))
        .args(["-N", &(need.inodes + 64).to_string(), "-d"])
        .arg(root)
        .arg(image)
        .arg(need.blocks().to_string())
        // it has no SOURCE_DATE_EPOCH before 1.47.1
        .env("E2FSPROGS_FAKE_TIME", "1")
        .deadline(DEADLINE)
        // It says where on the host it works, which is nobody's business.
        .follow(&|line| {
            if !line.starts_with("Creating regular file") {
                reporter.line(None, line);
            }
        })
        .await
        .map_err(Error::step_of(STEP))?;
    // For repairs that nobody makes; inside, it would be a directory that no image has.
    Program::new("debugfs")
        .args(["-w", "-R", "rmdir lost+found"])
        .arg(image)
        .env("E2FSPROGS_FAKE_TIME", "1")
        .deadline(DEADLINE)
        .text()
        .await
        .map_err(Error::step_of(STEP))
        .map(drop)
}

/// Walks a tree without following links.
fn measure(root: &Path) -> io::Result<Need> {
    let mut need = Need { bytes: 0, inodes: 16 };
    let mut dirs = vec![root.to_owned()];
    while let Some(dir) = dirs.pop() {
        need.bytes += BLOCK;
        need.inodes += 1;
        for entry in fs::read_dir(&dir)? {
            let entry = entry?;
            let meta = entry.metadata()?;
            if meta.is_dir() {
                // a directory's own size grows with its entries
                need.bytes += meta.len().next_multiple_of(BLOCK);
                dirs.push(entry.path());
            } else {
                need.bytes += meta.len().next_multiple_of(BLOCK);
                need.inodes += 1;
            }
        }
    }
    Ok(need)
}

/// Writes the image to the disk and tells its digest and how much of the disk it takes.
pub(crate) fn seal(image: &Path) -> io::Result<(String, u64)> {
    let file = File::open(image)?;
    file.set_permissions(fs::Permissions::from_mode(0o400))?;
    file.sync_all()?;
    Ok((digest(&file)?, file.metadata()?.blocks() * 512))
}

fn digest(file: &File) -> io::Result<String> {
    let mut hasher = blake3::Hasher::new();
    let mut reader = io::BufReader::with_capacity(1 << 20, file);
    io::copy(&mut reader, &mut hasher)?;
    Ok(hasher.finalize().to_hex().to_string())
}

/// Reads all of a base and tells whether it is what its digest says. Blocks.
///
/// # Errors
/// If it cannot be read.
pub fn is_intact(base: &Path, expected: &str) -> io::Result<bool> {
    Ok(digest(&File::open(base)?)? == expected)
}

/// Gives the directory `made` its name `place`, for good. If another build was first, its image stays: it may be in
/// use, and it is the same.
pub(crate) fn place(made: &Path, place: &Path) -> io::Result<()> {
    let parent = place.parent().ok_or_else(|| io::Error::other("a base has no parent directory"))?;
    fs::create_dir_all(parent)?;
    File::open(made)?.sync_all()?;
    match fs::rename(made, place) {
        Ok(()) => File::open(parent)?.sync_all(),
        Err(_) if place.join(crate::draft::FILE).is_file() => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_measured_in_blocks() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("a")).unwrap();
        fs::write(dir.path().join("a/one"), [1; 5000]).unwrap();
        std::os::unix::fs::symlink("/etc", dir.path().join("a/link")).unwrap();
        let need = measure(dir.path()).unwrap();
        assert_eq!(need.inodes, 16 + 4);
        assert!(need.bytes >= 2 * BLOCK + 8192 && need.bytes < 10 * BLOCK, "{need:?}");
    }

    #[test]
    fn the_first_image_stays() {
        let dir = tempfile::tempdir().unwrap();
        let make = |name: &str, text: &str| {
            let made = dir.path().join(name);
            fs::create_dir(&made).unwrap();
            fs::write(made.join(crate::draft::FILE), text).unwrap();
            made
        };
        let place_at = dir.path().join("bases/d1");
        place(&make("x", "first"), &place_at).unwrap();
        place(&make("y", "second"), &place_at).unwrap();
        assert_eq!(fs::read_to_string(place_at.join(crate::draft::FILE)).unwrap(), "first");
    }

    #[test]
    fn sealing_tells_the_digest() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        fs::write(&image, "abc").unwrap();
        let (digest, bytes) = seal(&image).unwrap();
        assert_eq!(digest, blake3::hash(b"abc").to_hex().to_string());
        assert!(bytes <= 8192);
        assert_eq!(fs::metadata(&image).unwrap().mode() & 0o777, 0o400);
        assert!(is_intact(&image, &digest).unwrap());
        fs::set_permissions(&image, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&image, b"abd").unwrap();
        assert!(!is_intact(&image, &digest).unwrap());
    }
}
