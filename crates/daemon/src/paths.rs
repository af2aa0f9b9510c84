//! Where the daemon keeps things, and the lock that makes it the only one there.
//!
//! ```text
//!   DATA/ (0700)                 the configuration's data_dir
//!   DATA/lock                    flock: one daemon; its text says who
//!   /run/wakeful/<hash>/ (0700)  sockets and pid files of this data directory; a reboot empties it
//! ```
//!
//! The run directory is named by a hash of the data directory's real path, so that two daemons with different data do
//! not meet, and so that socket paths stay far below the 108 bytes that the kernel takes.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{Read, Seek as _, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

const RUN: &str = "/run/wakeful";

/// How long [`Paths::holder`] of another process may hold the lock: a few microseconds in truth.
const A_LOOK: Duration = Duration::from_millis(20);

/// How long a child that a killed daemon was just starting may hold its lock: until it has become another program.
const LAST_CHILD: Duration = Duration::from_secs(5);

/// What a lock file may hold at most; it is ours, but it lies on a disk.
const LOCK_TEXT: u64 = 4096;

/// Why a directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A directory or file could not be made, read or changed.
    #[error("could not {doing} {path}")]
    Io {
        /// What was under way.
        doing: &'static str,
        /// With which file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// Another daemon has the data directory.
    #[error("{data_dir} is in use by {holder}")]
    Held {
        /// The directory.
        data_dir: PathBuf,
        /// Who has it.
        holder: Holder,
    },
}

impl Error {
    pub(crate) fn io(doing: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { doing, path, source }
    }
}

/// Who holds the lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// Its process id.
    pub pid: Option<u32>,
    /// What it does with the directory: `wakeful serve`, `wakeful setup`.
    pub what: Option<String>,
    /// Where it can be reached, once it listens.
    pub url: Option<String>,
}

impl Holder {
    /// Whether the process that wrote this is known to have ended, reaped or not.
    fn is_gone(&self) -> bool {
        self.pid.is_some_and(|pid| std::fs::read_link(format!("/proc/{pid}/exe")).is_err())
    }
}

#[expect(clippy::disallowed_methods, reason = "there is no runtime yet")]
fn pause() {
    std::thread::sleep(Duration::from_millis(5));
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.what.as_deref().unwrap_or("another process"))?;
        match (self.pid, &self.url) {
            (Some(pid), Some(url)) => write!(f, " (process {pid}, {url})"),
            (Some(pid), None) => write!(f, " (process {pid})"),
            (None, _) => Ok(()),
        }
    }
}

/// The two directories.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    /// The data directory's real path.
    pub data: PathBuf,
    /// Its run directory.
    pub run: PathBuf,
}

impl Paths {
    /// Makes both directories, each for its owner alone.
    ///
    /// # Errors
    /// If one cannot be made.
    pub fn open(data_dir: &Path) -> Result<Self, Error> {
        Self::open_under(data_dir, Path::new(RUN))
    }

    fn open_under(data_dir: &Path, run: &Path) -> Result<Self, Error> {
        let data = private_dir(data_dir)?;
        let run = run_of(&data, run);
        private_dir(&run)?;
        Ok(Self { data, run })
    }

    /// The directories' names, without making anything: for those who only look.
    #[must_use]
    pub fn of(data_dir: &Path) -> Self {
        let data = data_dir.canonicalize().or_else(|_| std::path::absolute(data_dir)).unwrap_or(data_dir.to_owned());
        let run = run_of(&data, Path::new(RUN));
        Self { data, run }
    }

    /// Takes the data directory for this process; `what` tells others for what.
    ///
    /// # Errors
    /// [`Error::Held`] if someone has it.
    pub fn lock(&self, what: &str) -> Result<Lock, Error> {
        let path = self.lock_path();
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .mode(0o600)
            .open(&path)
            .map_err(Error::io("open", &path))?;
        let began = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if began.elapsed() < A_LOOK => std::thread::yield_now(),
                Err(TryLockError::WouldBlock) => {
                    let holder = read_holder(&mut file);
                    if !holder.is_gone() || began.elapsed() > LAST_CHILD {
                        return Err(Error::Held { data_dir: self.data.clone(), holder });
                    }
                    pause();
                }
                Err(TryLockError::Error(source)) => return Err(Error::io("lock", &path)(source)),
            }
        }
        let holder = Holder { pid: Some(std::process::id()), what: Some(what.to_owned()), url: None };
        let mut lock = Lock { file, path, holder };
        lock.write()?;
        Ok(lock)
    }

    /// Who has the data directory at this moment, if someone has. Changes nothing.
    ///
    /// # Errors
    /// If the lock file cannot be read.
    pub fn holder(&self) -> Result<Option<Holder>, Error> {
        let path = self.lock_path();
        let mut file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::io("open", &path)(error)),
        };
        // shared: two that look at once do not take each other for a daemon
        match file.try_lock_shared() {
            Ok(()) => Ok(None),
            Err(TryLockError::WouldBlock) => Ok(Some(read_holder(&mut file))),
            Err(TryLockError::Error(source)) => Err(Error::io("lock", &path)(source)),
        }
    }

    fn lock_path(&self) -> PathBuf {
        self.data.join("lock")
    }
}

/// The data directory is ours until this is dropped or the process ends.
#[derive(Debug)]
pub struct Lock {
    file: File,
    path: PathBuf,
    holder: Holder,
}

impl Lock {
    /// Tells others where this daemon can be reached.
    ///
    /// # Errors
    /// If the lock file cannot be written.
    pub fn announce(&mut self, url: &str) -> Result<(), Error> {
        self.holder.url = Some(url.to_owned());
        self.write()
    }

    fn write(&mut self) -> Result<(), Error> {
        use std::os::unix::fs::FileExt;
        let text = serde_json::to_vec(&self.holder).expect("a holder is plain text and a number");
        // a reader between the two sees an empty file, which says "another process"
        self.file
            .set_len(0)
            .and_then(|()| self.file.write_all_at(&text, 0))
            .and_then(|()| self.file.flush())
            .map_err(Error::io("write", &self.path))
    }
}

fn read_holder(file: &mut File) -> Holder {
    let mut text = Vec::new();
    let read = file.rewind().and_then(|()| file.take(LOCK_TEXT).read_to_end(&mut text));
    read.ok().and_then(|_| serde_json::from_slice(&text).ok()).unwrap_or_default()
}

fn run_of(data: &Path, run: &Path) -> PathBuf {
    let hash = blake3::hash(data.as_os_str().as_bytes()).to_hex();
    run.join(&hash.as_str()[..12])
}

/// Makes `path` (0700) with its parents (0755), and gives its real path.
fn private_dir(path: &Path) -> Result<PathBuf, Error> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    if let Some(parent) = parent {
        DirBuilder::new().recursive(true).mode(0o755).create(parent).map_err(Error::io("make", parent))?;
    }
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists && path.is_dir() => {
            let mode = path.metadata().map_err(Error::io("look at", path))?.permissions().mode();
            if mode & 0o077 != 0 {
                // memory images and secrets lie below
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700))
                    .map_err(Error::io("make private", path))?;
            }
        }
        Err(error) => return Err(Error::io("make", path)(error)),
    }
    path.canonicalize().map_err(Error::io("resolve", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stage() -> (tempfile::TempDir, Paths) {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::open_under(&dir.path().join("a/data"), &dir.path().join("run")).unwrap();
        (dir, paths)
    }

    #[test]
    fn directories_are_private_and_the_run_directory_is_short() {
        let (dir, paths) = stage();
        for path in [&paths.data, &paths.run] {
            assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o700, "{}", path.display());
        }
        assert_eq!(paths.run.file_name().unwrap().len(), 12);

        std::fs::set_permissions(&paths.data, std::fs::Permissions::from_mode(0o755)).unwrap();
        std::os::unix::fs::symlink(&paths.data, dir.path().join("link")).unwrap();
        let again = Paths::open_under(&dir.path().join("link"), &dir.path().join("run")).unwrap();
        assert_eq!(again, paths, "the same directory by another name");
        assert_eq!(paths.data.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    }

    #[test]
    fn a_file_in_the_way_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("data");
        std::fs::write(&file, "").unwrap();
        assert!(matches!(Paths::open_under(&file, dir.path()), Err(Error::Io { doing: "make", .. })));
    }

    #[test]
    fn one_has_it_and_the_others_know_who() {
        let (_dir, paths) = stage();
        assert_eq!(paths.holder().unwrap(), None);
        let mut lock = paths.lock("wakeful serve").unwrap();
        lock.announce("http://127.0.0.1:8080").unwrap();
        let holder = paths.holder().unwrap().unwrap();
        assert_eq!(holder.pid, Some(std::process::id()));
        assert_eq!(holder.url.as_deref(), Some("http://127.0.0.1:8080"));
        let error = paths.lock("wakeful setup").unwrap_err().to_string();
        let expected = format!("is in use by wakeful serve (process {}, http://127.0.0.1:8080)", std::process::id());
        assert!(error.ends_with(&expected), "{error}");
        drop(lock);
        assert_eq!(paths.holder().unwrap(), None);
        drop(paths.lock("wakeful serve").unwrap());
    }

    #[test]
    fn what_a_killed_daemon_left_is_waited_for() {
        let (_dir, paths) = stage();
        let mut ended = std::process::Command::new("true").spawn().unwrap();
        ended.wait().unwrap();
        let holder = Holder { pid: Some(ended.id()), what: Some("wakeful serve".into()), url: None };
        let path = paths.data.join("lock");
        std::fs::write(&path, serde_json::to_vec(&holder).unwrap()).unwrap();
        let last_child = File::open(&path).unwrap();
        last_child.lock().unwrap();
        std::thread::scope(|scope| {
            let next = scope.spawn(|| paths.lock("wakeful serve"));
            for _ in 0..20 {
                pause();
            }
            assert!(!next.is_finished());
            drop(last_child);
            next.join().unwrap().unwrap();
        });
    }

    #[test]
    fn nonsense_in_the_lock_file_is_no_trouble() {
        let (_dir, paths) = stage();
        let lock = paths.lock("wakeful serve").unwrap();
        std::fs::write(paths.data.join("lock"), [0xff; 9000]).unwrap();
        assert_eq!(paths.holder().unwrap(), Some(Holder::default()));
        drop(lock);
    }
}
