//! Engines are pinned.
//!
//! Device state fits only the QEMU that wrote it, and a package upgrade would turn every sleeper into a cold boot. So the
//! installed QEMU is copied once, with its firmware, its modules, all its libraries and the loader, to a directory named
//! after the digest of all that, and engines are run from there:
//!
//! ```text
//!   DATA/engines/current.json                      what was copied last: sources with size and time, so that it is quick
//!   DATA/engines/qemu-7.2.22-9f3a…/bin/qemu-system-x86_64   lib/ld-linux-x86-64.so.2, lib/*.so*   share/   modules/
//! ```
//!
//! An engine runs under a uid that cannot enter the data directory. It gets a descriptor of its own directory and names
//! everything through `/proc/self/fd/N`, which needs no right on the directories above.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{CWD, FlockOperation, Mode, OFlags, flock, openat};
use serde::{Deserialize, Serialize};
use wakeful_driver::Error;

use crate::jail::DEVICES;
use wakeful_confine::files;

const PROGRAM: &str = "qemu-system-x86_64";
/// For the whole host, as an installed one would be.
pub(crate) const UNPACKED: &str = "/usr/local/lib/wakeful/qemu";
const LOADER: &str = "ld-linux-x86-64.so.2";
/// What a microvm can ask for; only the first is indispensable.
const FIRMWARE: [&str; 5] = ["qboot.rom", "kvmvapic.bin", "linuxboot_dma.bin", "pvh.bin", "bios-microvm.bin"];
/// Debian builds the emulator itself as a module.
const MODULES: [&str; 1] = ["accel-tcg-x86_64.so"];
/// Name of the account inside an engine's directory.
const ACCOUNT: &str = "engine.json";

/// A kept engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pinned {
    /// Name of its directory.
    pub(crate) name: String,
    /// The directory.
    pub(crate) path: PathBuf,
    /// The version as QEMU prints it.
    pub(crate) version: String,
    /// Digest of all files.
    pub(crate) digest: String,
}

#[derive(Serialize, Deserialize)]
struct Account {
    version: String,
    digest: String,
}

#[derive(Serialize, Deserialize)]
struct Current {
    engine: String,
    binary: PathBuf,
    sources: Vec<Stamp>,
}

#[derive(PartialEq, Eq, Serialize, Deserialize)]
struct Stamp {
    path: PathBuf,
    bytes: u64,
    modified: i64,
    modified_nanoseconds: i64,
}

impl Pinned {
    /// Major and minor number.
    pub(crate) fn numbers(&self) -> (u32, u32) {
        let mut parts = self.version.split('.').map(|part| part.parse().unwrap_or(0));
        (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
    }

    /// It can map a file privately and writably without the right to write to the file.
    pub(crate) fn maps_read_only(&self) -> bool {
        self.numbers() >= (8, 2)
    }

    /// The engine with this name, if it is still kept.
    pub(crate) fn open(data_dir: &Path, name: &str) -> Option<Self> {
        // It comes out of an image's account: a name, never a path.
        if !name.starts_with("qemu-") || name.contains('/') {
            return None;
        }
        let path = data_dir.join("engines").join(name);
        let account: Account = files::read_json(&path.join(ACCOUNT))?;
        Some(Self { name: name.to_owned(), path, version: account.version, digest: account.digest })
    }

    /// All that are kept.
    pub(crate) fn all(data_dir: &Path) -> Vec<Self> {
        let Ok(entries) = fs::read_dir(data_dir.join("engines")) else { return Vec::new() };
        entries.flatten().filter_map(|entry| Self::open(data_dir, entry.file_name().to_str()?)).collect()
    }

    /// For a process that is about to run from it: a shared lock, which goes over to the process, so that the directory is
    /// not removed while one lives. The lock is on the account: a descriptor of the directory would lead out of it.
    pub(crate) fn enter(&self) -> io::Result<File> {
        let account = self.path.join(ACCOUNT);
        let lock = files::open_regular(&account, false)?;
        flock(&lock, FlockOperation::NonBlockingLockShared)?;
        // Whoever removed it before the lock has removed the account first.
        fs::metadata(account)?;
        // Where walls put what is not the engine's own.
        files::make_dir(&self.path.join("proc"), 0o555)?;
        files::make_dir(&self.path.join("dev"), 0o755)?;
        for (device, _) in DEVICES {
            let place = self.path.join(device.trim_start_matches('/'));
            File::options().write(true).create(true).truncate(false).mode(0o644).open(place)?;
        }
        Ok(lock)
    }

    /// Removes it, unless a process runs from it; says whether it is gone. The account goes first, so that half of an
    /// engine is never found.
    pub(crate) fn remove(&self) -> Result<bool, Error> {
        let failed = |source| Error::io("remove an engine that no image needs", source);
        match files::open_regular(&self.path.join(ACCOUNT), false) {
            Ok(lock) => match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {
                    files::absent_is_fine(fs::remove_file(self.path.join(ACCOUNT))).map_err(failed)?;
                    files::absent_is_fine(fs::remove_dir_all(&self.path)).map_err(failed)?;
                    Ok(true)
                }
                Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
                Err(errno) => Err(failed(errno.into())),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
            Err(error) => Err(failed(error)),
        }
    }

    /// A descriptor of the directory, for a process that is not walled in it.
    pub(crate) fn open_dir(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat(CWD, &self.path, flags, Mode::empty())?)
    }
}

/// The QEMU that `setup` has fetched because the installed one cannot map golden memory read-only.
pub(crate) fn fetched(data_dir: &Path) -> PathBuf {
    data_dir.join("qemu/usr/bin").join(PROGRAM)
}

/// The QEMU that `setup` has unpacked beside the installed packages, because those do not get on with it.
pub(crate) fn unpacked() -> PathBuf {
    Path::new(UNPACKED).join("usr/bin").join(PROGRAM)
}

/// Finds the QEMU to use: the configured one, else the one that was fetched, else the installed one.
pub(crate) fn find(data_dir: &Path, binary: Option<&Path>) -> Result<PathBuf, Error> {
    let missing = |what: String| Error::Missing { what };
    if let Some(binary) = binary {
        let real = binary.canonicalize();
        return real.map_err(|_| missing(format!("{} (the configured qemu binary)", binary.display())));
    }
    let installed = ["/usr/local/bin", "/usr/bin", "/bin"].into_iter().map(|dir| Path::new(dir).join(PROGRAM));
    [fetched(data_dir)]
        .into_iter()
        .chain(installed)
        .chain([unpacked()])
        .find_map(|path| path.canonicalize().ok())
        .ok_or_else(|| missing(format!("{PROGRAM} (apt-get install qemu-system-x86)")))
}

/// Copies the installed QEMU, unless that was done before and nothing has changed. Blocks.
pub(crate) fn pin(data_dir: &Path, binary: Option<&Path>) -> Result<Pinned, Error> {
    let binary = find(data_dir, binary)?;
    let engines = data_dir.join("engines");
    let current = engines.join("current.json");
    if let Some(known) = files::read_json::<Current>(&current)
        && known.binary == binary
        && known.sources.iter().all(|source| stamp(&source.path).is_ok_and(|now| now == *source))
        && let Some(engine) = Pinned::open(data_dir, &known.engine)
    {
        return Ok(engine);
    }
    let failed = |source| Error::io("copy the engine", source);
    files::make_dir(&engines, 0o700).map_err(failed)?;
    let sources = collect(&binary)?;
    // Before the copying: a file that changes meanwhile is seen as changed the next time.
    let stamps = sources.values().map(|path| stamp(path)).collect::<io::Result<Vec<_>>>().map_err(failed)?;
    let version = version(&binary)?;
    let temporary = tempfile::Builder::new().prefix(files::NEW).tempdir_in(&engines).map_err(failed)?;
    let digest = copy_all(&sources, temporary.path()).map_err(failed)?;
    let account = Account { version: version.clone(), digest: digest.clone() };
    files::write_json(&temporary.path().join(ACCOUNT), &account).map_err(failed)?;
    fs::set_permissions(temporary.path(), fs::Permissions::from_mode(0o755)).map_err(failed)?;
    let name = format!("qemu-{version}-{}", &digest[..12]);
    let path = engines.join(&name);
    if Pinned::open(data_dir, &name).is_none() {
        // Half of an engine whose removal was cut off.
        files::absent_is_fine(fs::remove_dir_all(&path)).map_err(failed)?;
        match fs::rename(temporary.path(), &path) {
            Ok(()) => files::sync_dir(&engines).map_err(failed)?,
            // Another process was quicker, with the same files.
            Err(_) if Pinned::open(data_dir, &name).is_some() => {}
            Err(source) => return Err(failed(source)),
        }
    }
    files::write_json(&current, &Current { engine: name.clone(), binary, sources: stamps }).map_err(failed)?;
    tracing::info!(engine = name, "engine kept");
    Ok(Pinned { name, path, version, digest })
}

/// What an engine consists of: place in its directory, and where that is now.
fn collect(binary: &Path) -> Result<BTreeMap<String, PathBuf>, Error> {
    let mut found = BTreeMap::from([(format!("bin/{PROGRAM}"), binary.to_owned())]);
    let prefix = binary.parent().and_then(Path::parent).unwrap_or(Path::new("/usr"));
    let shares = [
        prefix.join("share/qemu"),
        prefix.join("share/seabios"),
        "/usr/share/qemu".into(),
        "/usr/share/seabios".into(),
        Path::new(UNPACKED).join("usr/share/qemu"),
    ];
    for name in FIRMWARE {
        if let Some(path) = shares.iter().find_map(|dir| dir.join(name).canonicalize().ok()) {
            found.insert(format!("share/{name}"), path);
        }
    }
    if !found.contains_key("share/qboot.rom") {
        return Err(Error::Missing { what: "qboot.rom (apt-get install qemu-system-data)".to_owned() });
    }
    let mut linked = vec![binary.to_owned()];
    for name in MODULES {
        let dirs = ["lib/x86_64-linux-gnu/qemu", "lib/qemu", "lib64/qemu"];
        if let Some(path) = dirs.iter().find_map(|dir| prefix.join(dir).join(name).canonicalize().ok()) {
            linked.push(path.clone());
            found.insert(format!("modules/{name}"), path);
        }
    }
    for path in &linked {
        for (name, library) in libraries(path)? {
            found.entry(format!("lib/{name}")).or_insert(library);
        }
    }
    if !found.contains_key(&format!("lib/{LOADER}")) {
        return Err(Error::Missing { what: format!("the loader {LOADER} among the libraries of {PROGRAM}") });
    }
    Ok(found)
}

fn libraries(program: &Path) -> Result<Vec<(String, PathBuf)>, Error> {
    let failed = |source| Error::Io { doing: format!("list the libraries of {}", program.display()), source };
    let output = Command::new("ldd").arg(program).env("LC_ALL", "C").stdin(Stdio::null()).output().map_err(failed)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(failed(io::Error::other(said)));
    }
    parse_ldd(&String::from_utf8_lossy(&output.stdout))
        .map_err(|library| Error::Missing { what: format!("the library {library}, which {PROGRAM} needs") })
}

/// `name => path (address)`, or `path (address)` for the loader; the vdso is no file. The name of a missing one is the error.
fn parse_ldd(text: &str) -> Result<Vec<(String, PathBuf)>, String> {
    let mut found = Vec::new();
    for line in text.lines() {
        let line = line.trim();
        let line = line.rsplit_once(" (0x").map_or(line, |(line, _)| line);
        let (name, path) = match line.split_once(" => ") {
            Some((name, "not found")) => return Err(name.to_owned()),
            Some((name, path)) => (name, path),
            None => (line.rsplit('/').next().unwrap_or(line), line),
        };
        let name = name.rsplit('/').next().unwrap_or(name);
        if path.starts_with('/') {
            found.push((name.to_owned(), PathBuf::from(path)));
        }
    }
    Ok(found)
}

fn version(binary: &Path) -> Result<String, Error> {
    let failed = |source| Error::Io { doing: format!("ask {} for its version", binary.display()), source };
    let output = Command::new(binary).arg("--version").stdin(Stdio::null()).output().map_err(failed)?;
    parse_version(&String::from_utf8_lossy(&output.stdout))
        .ok_or_else(|| failed(io::Error::new(io::ErrorKind::InvalidData, "it does not say")))
}

fn parse_version(text: &str) -> Option<String> {
    let word = text.split_once("version ")?.1.split_ascii_whitespace().next()?;
    let plain = word.split('.').all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()));
    plain.then(|| word.to_owned())
}

fn copy_all(sources: &BTreeMap<String, PathBuf>, into: &Path) -> io::Result<String> {
    let mut hasher = blake3::Hasher::new();
    for dir in ["bin", "lib", "share", "modules"] {
        files::make_dir(&into.join(dir), 0o755)?;
    }
    for (place, source) in sources {
        let content = fs::read(source)?;
        hasher.update(place.as_bytes()).update(&[0]).update(&(content.len() as u64).to_le_bytes()).update(&content);
        let mode = if place.starts_with("bin/") || place.ends_with(LOADER) { 0o755 } else { 0o644 };
        let target = into.join(place);
        let mut file = File::options().write(true).create_new(true).mode(mode).open(&target)?;
        file.write_all(&content)?;
        // Whatever the umask is: the engine's uid must be able to read it.
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        file.sync_all()?;
    }
    Ok(hasher.finalize().to_hex().to_string())
}

fn stamp(path: &Path) -> io::Result<Stamp> {
    let meta = fs::metadata(path)?;
    Ok(Stamp {
        path: path.to_owned(),
        bytes: meta.len(),
        modified: meta.mtime(),
        modified_nanoseconds: meta.mtime_nsec(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ldd_is_read() {
        let text = "\tlinux-vdso.so.1 (0x00007fc8)\n\tlibz.so.1 => /lib/x86_64-linux-gnu/libz.so.1 (0x00007fc8)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007fc8)\n\t/odd => /lib/odd (0x1)\n";
        let names: Vec<_> = parse_ldd(text).expect("nothing is missing").into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["libz.so.1", "ld-linux-x86-64.so.2", "odd"]);
        assert_eq!(parse_ldd("\tlibfoo.so.9 => not found\n"), Err("libfoo.so.9".to_owned()));
    }

    #[test]
    fn versions_are_read() {
        let debian = "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b3)\nCopyright";
        assert_eq!(parse_version(debian).as_deref(), Some("7.2.22"));
        assert_eq!(parse_version("QEMU emulator version ../../etc"), None);
        assert_eq!(parse_version("something else"), None);
    }

    #[test]
    fn names_are_no_paths() {
        assert_eq!(Pinned::open(Path::new("/"), "qemu-/../../etc"), None);
        assert_eq!(Pinned::open(Path::new("/"), "../etc"), None);
    }

    #[test]
    fn the_installed_engine_is_copied_once() {
        let data = tempfile::tempdir().expect("can be made");
        let first = pin(data.path(), None).expect("qemu is installed");
        assert!(first.path.join("bin").join(PROGRAM).exists() && first.path.join("lib").join(LOADER).exists());
        let inode = |engine: &Pinned| fs::metadata(&engine.path).expect("is there").ino();
        let before = inode(&first);
        let second = pin(data.path(), None).expect("qemu is installed");
        assert_eq!((&first, before), (&second, inode(&second)));
        // A lost cache costs a copy and gives the same engine.
        fs::remove_file(data.path().join("engines/current.json")).expect("is there");
        assert_eq!(pin(data.path(), None).expect("qemu is installed"), first);
        assert_eq!(Pinned::all(data.path()), std::slice::from_ref(&first));
        let entered = first.enter().expect("is there");
        assert!(!first.remove().expect("can be tried"), "it is in use");
        drop(entered);
        assert!(first.remove().expect("can be removed"));
        assert!(first.remove().expect("twice is fine"));
        assert!(first.enter().is_err());
        assert!(Pinned::all(data.path()).is_empty());
        let left = fs::read_dir(data.path().join("engines")).expect("is there").count();
        assert_eq!(left, 1, "only the account of the last copy is left");
    }
}
