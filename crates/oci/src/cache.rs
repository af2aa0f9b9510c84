//! Content by digest, so that nothing is fetched twice.
//!
//! ```text
//! DIRECTORY/sha256/<hex>           a blob: whole, checked, synced, renamed into place
//! DIRECTORY/sha256/<hex>.partial   what has come so far; whoever fetches it holds a lock on the file
//! DIRECTORY/tmp/…                  archives being read
//! ```
//!
//! Several tasks and processes may use one directory at once: a name either is not there or is the whole blob, and the lock on
//! a partial file goes with its descriptor, so a process that dies lets go of it and the next one continues. A blob's time of
//! modification is that of its last use.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use sha2::{Digest as _, Sha256};

use crate::{Digest, Error};

/// A directory of blobs.
#[derive(Clone, Debug)]
pub struct Cache {
    directory: Arc<PathBuf>,
}

/// What a sweep removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// How many.
    pub files: u64,
    /// What they took on disk.
    pub bytes: u64,
}

/// What became of a wish for a blob.
pub(crate) enum Claim {
    /// It is here.
    Present,
    /// It is ours to fetch.
    Ours(Partial),
    /// Somebody fetches it; so much is there.
    Theirs(u64),
}

impl Cache {
    /// Makes the directory, for its owner only, if it is not there.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn open(directory: &Path) -> Result<Self, Error> {
        for path in [directory.join("sha256"), directory.join("tmp")] {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&path)
                .map_err(Error::io("make the cache directory", &path))?;
        }
        Ok(Self { directory: Arc::new(directory.into()) })
    }

    /// What all of it takes on disk.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn bytes(&self) -> Result<u64, Error> {
        let mut sum = 0;
        self.each_blob(|_, metadata| {
            sum += metadata.blocks() * 512;
            Ok(())
        })?;
        Ok(sum)
    }

    /// Removes downloads that nobody has continued and blobs that nobody has used for so long. What is being fetched stays.
    /// An image that was pulled but not yet unpacked needs its blobs: let the second be days.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn sweep(&self, partials_older: Duration, blobs_unused: Duration) -> Result<Swept, Error> {
        let now = SystemTime::now();
        let old = |metadata: &fs::Metadata, limit: Duration| {
            metadata.modified().ok().and_then(|then| now.duration_since(then).ok()).is_some_and(|age| age >= limit)
        };
        let mut swept = Swept::default();
        let mut count = |metadata: &fs::Metadata| {
            swept.files += 1;
            swept.bytes += metadata.blocks() * 512;
        };
        self.each_blob(|path, metadata| {
            let partial = path.extension().is_some_and(|extension| extension == "partial");
            if !old(metadata, if partial { partials_older } else { blobs_unused }) {
                return Ok(());
            }
            // The lock is kept until the name is gone, so that nobody continues a file without one unknowingly.
            let _lock = if partial {
                match File::open(path).map(|file| file.try_lock().map(|()| file)) {
                    Ok(Ok(file)) => Some(file),
                    _ => return Ok(()),
                }
            } else {
                None
            };
            match fs::remove_file(path) {
                Ok(()) => count(metadata),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(Error::io("remove", path)(error)),
            }
            Ok(())
        })?;
        let tmp = self.directory.join("tmp");
        for entry in fs::read_dir(&tmp).map_err(Error::io("read", &tmp))?.flatten() {
            if entry.metadata().is_ok_and(|metadata| old(&metadata, partials_older.max(Duration::from_secs(24 * 3600))))
            {
                // Somebody else may sweep too.
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        Ok(swept)
    }

    fn each_blob(&self, mut visit: impl FnMut(&Path, &fs::Metadata) -> Result<(), Error>) -> Result<(), Error> {
        let directory = self.blobs();
        for entry in fs::read_dir(&directory).map_err(Error::io("read", &directory))? {
            let entry = entry.map_err(Error::io("read", &directory))?;
            match entry.metadata() {
                Ok(metadata) if metadata.is_file() => visit(&entry.path(), &metadata)?,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(Error::io("look at", entry.path())(error)),
            }
        }
        Ok(())
    }

    fn blobs(&self) -> PathBuf {
        self.directory.join("sha256")
    }

    pub(crate) fn path(&self, digest: &Digest) -> PathBuf {
        self.blobs().join(digest.hex())
    }

    /// A directory of one's own that goes when it is dropped.
    pub(crate) fn scratch(&self) -> Result<tempfile::TempDir, Error> {
        let tmp = self.directory.join("tmp");
        tempfile::tempdir_in(&tmp).map_err(Error::io("make a directory in", tmp))
    }

    /// Whether the blob is here. One of another size is damaged and is removed.
    pub(crate) fn has(&self, digest: &Digest, size: u64) -> Result<bool, Error> {
        let path = self.path(digest);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(Error::io("open", path)(error)),
        };
        let length = file.metadata().map_err(Error::io("look at", &path))?.len();
        if length != size {
            self.remove(digest)?;
            return Ok(false);
        }
        file.set_modified(SystemTime::now()).map_err(Error::io("mark the use of", &path))?;
        Ok(true)
    }

    /// A blob for reading, if it is here.
    pub(crate) fn blob(&self, digest: &Digest) -> Result<Option<File>, Error> {
        let path = self.path(digest);
        match File::open(&path) {
            Ok(file) => {
                file.set_modified(SystemTime::now()).map_err(Error::io("mark the use of", &path))?;
                Ok(Some(file))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::io("open", path)(error)),
        }
    }

    /// All of a small blob, checked again. One that is damaged is removed, and `None` is answered as if it had never been.
    pub(crate) fn read(&self, digest: &Digest, size: u64) -> Result<Option<Vec<u8>>, Error> {
        let Some(file) = self.blob(digest)? else { return Ok(None) };
        let mut bytes = Vec::new();
        file.take(size + 1).read_to_end(&mut bytes).map_err(Error::io("read", self.path(digest)))?;
        if Digest::of(&bytes) == *digest {
            return Ok(Some(bytes));
        }
        self.remove(digest)?;
        Ok(None)
    }

    /// Reads a blob again after something was wrong with it, and removes it if the fault is the cache's.
    pub(crate) fn damaged(&self, digest: &Digest) -> Result<bool, Error> {
        let Some(mut file) = self.blob(digest)? else { return Ok(true) };
        let (found, _) = hash(&mut file).map_err(Error::io("read", self.path(digest)))?;
        if found == *digest {
            return Ok(false);
        }
        self.remove(digest)?;
        Ok(true)
    }

    fn remove(&self, digest: &Digest) -> Result<(), Error> {
        let path = self.path(digest);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::io("remove", path)(error)),
            _ => Ok(()),
        }
    }

    /// Takes a whole file from a scratch directory in; its content was hashed when it was written.
    pub(crate) fn adopt(&self, file: &Path, digest: &Digest) -> Result<(), Error> {
        let synced = File::open(file).and_then(|open| {
            open.set_permissions(fs::Permissions::from_mode(0o600))?;
            open.sync_all()
        });
        synced.map_err(Error::io("sync", file))?;
        self.publish(file, digest)
    }

    fn publish(&self, file: &Path, digest: &Digest) -> Result<(), Error> {
        let (path, blobs) = (self.path(digest), self.blobs());
        fs::rename(file, &path).map_err(Error::io("put in its place", &path))?;
        File::open(&blobs).and_then(|directory| directory.sync_all()).map_err(Error::io("sync", blobs))
    }

    /// Asks for the right to fetch a blob. Does not wait.
    pub(crate) fn claim(&self, digest: &Digest, size: u64) -> Result<Claim, Error> {
        let path = self.blobs().join(format!("{}.partial", digest.hex()));
        loop {
            if self.has(digest, size)? {
                return Ok(Claim::Present);
            }
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(&path)
                .map_err(Error::io("open", &path))?;
            let found = file.metadata().map_err(Error::io("look at", &path))?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(Claim::Theirs(found.len())),
                Err(TryLockError::Error(error)) => return Err(Error::io("lock", &path)(error)),
            }
            // Between opening and locking the one before us may have finished, or a sweep come by: then this is no longer
            // the file of that name.
            let same = fs::metadata(&path).is_ok_and(|now| now.ino() == found.ino() && now.dev() == found.dev());
            if !same {
                continue;
            }
            if self.has(digest, size)? {
                let _ = fs::remove_file(&path);
                return Ok(Claim::Present);
            }
            let mut partial = Partial { cache: self.clone(), file, path, hasher: Sha256::new(), length: 0 };
            partial.recover(size)?;
            return Ok(Claim::Ours(partial));
        }
    }
}

/// A blob that is being fetched. Its lock goes with it.
pub(crate) struct Partial {
    cache: Cache,
    file: File,
    path: PathBuf,
    hasher: Sha256,
    length: u64,
}

impl Partial {
    /// Reads what an earlier attempt left.
    fn recover(&mut self, size: u64) -> Result<(), Error> {
        let length = self.file.metadata().map_err(Error::io("look at", &self.path))?.len();
        if length > size {
            return self.restart();
        }
        let hasher = &mut self.hasher;
        let mut buffer = vec![0; 1 << 20];
        loop {
            let read = self.file.read(&mut buffer).map_err(Error::io("read", &self.path))?;
            if read == 0 {
                return Ok(());
            }
            hasher.update(&buffer[..read]);
            self.length += read as u64;
        }
    }

    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.file.write_all(bytes).map_err(Error::io("write", &self.path))?;
        self.hasher.update(bytes);
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// From the beginning.
    pub(crate) fn restart(&mut self) -> Result<(), Error> {
        self.file.set_len(0).map_err(Error::io("empty", &self.path))?;
        self.file.seek(SeekFrom::Start(0)).map_err(Error::io("rewind", &self.path))?;
        self.hasher = Sha256::new();
        self.length = 0;
        Ok(())
    }

    /// What the bytes so far are.
    pub(crate) fn digest(&self) -> Digest {
        Digest::from_hasher(self.hasher.clone())
    }

    /// Gives the whole blob its name. The caller has compared the digest.
    pub(crate) fn publish(self, digest: &Digest) -> Result<(), Error> {
        self.file.sync_all().map_err(Error::io("sync", &self.path))?;
        self.cache.publish(&self.path, digest)
    }

    /// Forgets what came.
    pub(crate) fn discard(self) -> Result<(), Error> {
        fs::remove_file(&self.path).map_err(Error::io("remove", &self.path))
    }
}

/// The digest and length of what a reader gives.
pub(crate) fn hash(reader: &mut impl io::Read) -> io::Result<(Digest, u64)> {
    copy(reader, &mut io::sink())
}

/// The same, while it is written somewhere.
pub(crate) fn copy(reader: &mut impl io::Read, writer: &mut impl io::Write) -> io::Result<(Digest, u64)> {
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 256 << 10];
    let mut length = 0;
    loop {
        let read = match reader.read(&mut buffer) {
            Ok(0) => return Ok((Digest::from_hasher(hasher), length)),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        hasher.update(&buffer[..read]);
        writer.write_all(&buffer[..read])?;
        length += read as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ours(cache: &Cache, digest: &Digest, size: u64) -> Partial {
        match cache.claim(digest, size).unwrap() {
            Claim::Ours(partial) => partial,
            Claim::Present => panic!("present"),
            Claim::Theirs(_) => panic!("theirs"),
        }
    }

    #[test]
    fn a_download_is_continued_and_published() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::open(directory.path()).unwrap();
        let digest = Digest::of(b"hello world");
        let mut first = ours(&cache, &digest, 11);
        first.write(b"hello ").unwrap();
        assert!(matches!(cache.claim(&digest, 11), Ok(Claim::Theirs(6))), "one at a time");
        drop(first);
        let mut second = ours(&cache, &digest, 11);
        assert_eq!(second.length(), 6);
        second.write(b"world").unwrap();
        assert_eq!(second.digest(), digest);
        second.publish(&digest).unwrap();
        assert!(matches!(cache.claim(&digest, 11), Ok(Claim::Present)));
        assert_eq!(cache.read(&digest, 11).unwrap().as_deref(), Some(&b"hello world"[..]));
        assert!(cache.bytes().unwrap() > 0);
        assert_eq!(fs::read_dir(cache.blobs()).unwrap().count(), 1);
    }

    #[test]
    fn damage_is_noticed() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::open(directory.path()).unwrap();
        let digest = Digest::of(b"right");
        fs::write(cache.path(&digest), b"wrong").unwrap();
        assert!(cache.has(&digest, 5).unwrap(), "by name and size only");
        assert!(cache.damaged(&digest).unwrap());
        assert!(!cache.has(&digest, 5).unwrap());
        fs::write(cache.path(&digest), b"wrong").unwrap();
        assert_eq!(cache.read(&digest, 5).unwrap(), None);
        fs::write(cache.path(&digest), b"too long").unwrap();
        assert!(!cache.has(&digest, 5).unwrap());
        fs::write(cache.blobs().join(format!("{}.partial", digest.hex())), b"too long").unwrap();
        assert_eq!(ours(&cache, &digest, 5).length(), 0);
    }

    #[test]
    fn sweeping_spares_what_is_used() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::open(directory.path()).unwrap();
        let (old, new, partial) = (Digest::of(b"old"), Digest::of(b"new"), Digest::of(b"partial"));
        let day = Duration::from_secs(24 * 3600);
        for digest in [&old, &new] {
            fs::write(cache.path(digest), b"blob").unwrap();
            File::open(cache.path(digest)).unwrap().set_modified(SystemTime::now() - 3 * day).unwrap();
        }
        assert!(cache.has(&new, 4).unwrap());
        let held = ours(&cache, &partial, 10);
        held.file.set_modified(SystemTime::now() - 3 * day).unwrap();
        assert_eq!(cache.sweep(day, day).unwrap().files, 1);
        assert!(!cache.path(&old).exists() && cache.path(&new).exists() && held.path.exists());
        let path = held.path.clone();
        drop(held);
        assert_eq!(cache.sweep(day, day).unwrap().files, 1);
        assert!(!path.exists());
    }

    #[test]
    fn many_want_the_same() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::open(directory.path()).unwrap();
        let content = vec![7; 100_000];
        let digest = Digest::of(&content);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    loop {
                        match cache.claim(&digest, content.len() as u64).unwrap() {
                            Claim::Present => return,
                            Claim::Theirs(_) => std::thread::yield_now(),
                            Claim::Ours(mut partial) => {
                                assert_eq!(partial.length(), 0);
                                partial.write(&content).unwrap();
                                partial.publish(&digest).unwrap();
                                return;
                            }
                        }
                    }
                });
            }
        });
        assert_eq!(cache.read(&digest, content.len() as u64).unwrap(), Some(content));
    }
}
