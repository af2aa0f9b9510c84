//! Engines are kept, with the agent that they start.
//!
//! An image fits only the runsc that wrote it, and the agent in its memory only the program that it was started from. So
//! both are copied once into a directory named after their digest, and engines are run from there:
//!
//! ```text
//!   DATA/engines/runsc-20240729.0-9f3a…/{runsc, agent/wakeful-agent, engine.json}
//!   DATA/engines/runsc.json        what was copied last: the source with size and time, so that it is quick
//! ```

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use wakeful_confine::files;
use wakeful_driver::Error;

use crate::boot::AGENT;

const PROGRAM: &str = "runsc";
const ACCOUNT: &str = "engine.json";
const ASK: Duration = Duration::from_secs(20);
/// The oldest whose checkpoints can leave a sandbox running, and come back.
const OLDEST: u64 = 2024;

/// A kept engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pinned {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    pub(crate) version: String,
    /// Digest of runsc and agent.
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
    bytes: u64,
    modified: (i64, i64),
    agent: String,
}

impl Pinned {
    /// The engine with this name, if it is still kept.
    pub(crate) fn open(data_dir: &Path, name: &str) -> Option<Self> {
        // It comes out of an image's account: a name, never a path.
        if !name.starts_with("runsc-") || name.contains('/') {
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

    pub(crate) fn program(&self) -> PathBuf {
        self.path.join(PROGRAM)
    }

    pub(crate) fn agent(&self) -> PathBuf {
        self.path.join("agent")
    }

    /// Removes it; the account first, so that half of an engine is never found. A running one goes on: it has its files.
    pub(crate) fn remove(&self) -> io::Result<()> {
        files::absent_is_fine(fs::remove_file(self.path.join(ACCOUNT)))?;
        files::absent_is_fine(fs::remove_dir_all(&self.path))
    }
}

/// The runsc that `setup` has fetched.
pub(crate) fn fetched(data_dir: &Path) -> PathBuf {
    data_dir.join("gvisor/usr/bin").join(PROGRAM)
}

/// Finds the runsc to use: the configured one, else the one that was fetched, else an installed one that is new enough.
pub(crate) fn find(data_dir: &Path, binary: Option<&Path>) -> Result<(PathBuf, String), Error> {
    if let Some(binary) = binary {
        let real = binary.canonicalize();
        let real = real.map_err(|_| Error::Missing { what: format!("{} (the configured runsc)", binary.display()) })?;
        let version = version(&real)?;
        check_age(&version)?;
        return Ok((real, version));
    }
    let installed = ["/usr/local/bin", "/usr/bin", "/bin"].into_iter().map(|dir| Path::new(dir).join(PROGRAM));
    let mut old = None;
    for path in [fetched(data_dir)].into_iter().chain(installed).filter_map(|path| path.canonicalize().ok()) {
        let version = version(&path)?;
        match check_age(&version) {
            Ok(()) => return Ok((path, version)),
            Err(error) => old = Some(error),
        }
    }
    Err(old.unwrap_or_else(|| Error::Missing { what: format!("{PROGRAM} (wakeful setup --runtime gvisor)") }))
}

fn check_age(version: &str) -> Result<(), Error> {
    let year = version.split('.').find_map(|part| part.get(..4)?.parse::<u64>().ok()).unwrap_or(u64::MAX);
    if year < OLDEST {
        let what = format!("a {PROGRAM} of {OLDEST} or newer, instead of {version} (wakeful setup --runtime gvisor)");
        return Err(Error::Missing { what });
    }
    Ok(())
}

/// Copies runsc and agent, unless that was done before and nothing has changed. Blocks.
pub(crate) fn pin(data_dir: &Path, binary: Option<&Path>) -> Result<Pinned, Error> {
    let failed = |source| Error::io("copy the engine", source);
    let engines = data_dir.join("engines");
    files::make_dir(&engines, 0o700).map_err(failed)?;
    let current = engines.join("runsc.json");
    let agent = blake3::hash(wakeful_agent_bin::AGENT_CONTAINER).to_hex().to_string();
    if let Some(known) = files::read_json::<Current>(&current)
        && known.agent == agent
        && binary.is_none_or(|binary| binary.canonicalize().is_ok_and(|binary| binary == known.binary))
        && (binary.is_some() || known.binary == fetched(data_dir) || !fetched(data_dir).exists())
        && stamp(&known.binary).is_ok_and(|now| now == (known.bytes, known.modified))
        && let Some(engine) = Pinned::open(data_dir, &known.engine)
    {
        return Ok(engine);
    }
    let (binary, version) = find(data_dir, binary)?;
    // Before the copying: a file that changes meanwhile is seen as changed the next time.
    let (bytes, modified) = stamp(&binary).map_err(failed)?;
    let content = fs::read(&binary).map_err(failed)?;
    let digest = blake3::Hasher::new()
        .update(blake3::hash(&content).as_bytes())
        .update(agent.as_bytes())
        .finalize()
        .to_hex()
        .to_string();
    let name = format!("runsc-{version}-{}", &digest[..12]);
    let path = engines.join(&name);
    if Pinned::open(data_dir, &name).is_none() {
        let temporary = tempfile::Builder::new().prefix(files::NEW).tempdir_in(&engines).map_err(failed)?;
        let write = || -> io::Result<()> {
            let dir = temporary.path();
            files::make_dir(&dir.join("agent"), 0o755)?;
            program(&dir.join(PROGRAM), &content)?;
            program(&dir.join("agent").join(AGENT), wakeful_agent_bin::AGENT_CONTAINER)?;
            // Whatever the umask is: engines have other ids.
            fs::set_permissions(dir.join("agent"), fs::Permissions::from_mode(0o755))?;
            fs::set_permissions(dir, fs::Permissions::from_mode(0o755))?;
            files::write_json(&dir.join(ACCOUNT), &Account { version: version.clone(), digest: digest.clone() })
        };
        write().map_err(failed)?;
        // Half of an engine whose removal was cut off.
        files::absent_is_fine(fs::remove_dir_all(&path)).map_err(failed)?;
        match fs::rename(temporary.path(), &path) {
            Ok(()) => files::sync_dir(&engines).map_err(failed)?,
            // Another process was quicker, with the same files.
            Err(_) if Pinned::open(data_dir, &name).is_some() => {}
            Err(source) => return Err(failed(source)),
        }
    }
    files::write_json(&current, &Current { engine: name.clone(), binary, bytes, modified, agent }).map_err(failed)?;
    tracing::info!(engine = name, "engine kept");
    Ok(Pinned { name, path, version, digest })
}

fn program(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = File::options().write(true).create_new(true).mode(0o755).open(path)?;
    file.write_all(content)?;
    file.set_permissions(fs::Permissions::from_mode(0o755))?;
    file.sync_all()
}

fn stamp(path: &Path) -> io::Result<(u64, (i64, i64))> {
    let meta = fs::metadata(path)?;
    Ok((meta.len(), (meta.mtime(), meta.mtime_nsec())))
}

/// What it says of itself: `runsc version release-20240729.0` or `runsc version 0.0~20240729.0`.
fn version(binary: &Path) -> Result<String, Error> {
    let failed = |source| Error::Io { doing: format!("ask {} for its version", binary.display()), source };
    let mut command = Command::new(binary);
    command.arg("--version").env_clear().stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(failed)?;
    let output = child.stdout.take();
    if crate::control::wait(&mut child, ASK).map_err(failed)?.is_none() {
        return Err(Error::Late { doing: "tell its version", after: ASK });
    }
    let mut text = String::new();
    if let Some(output) = output {
        io::Read::read_to_string(&mut io::Read::take(output, 4096), &mut text).map_err(failed)?;
    }
    parse_version(&text).ok_or_else(|| failed(io::Error::new(io::ErrorKind::InvalidData, "it does not say")))
}

fn parse_version(text: &str) -> Option<String> {
    let word = text.split_once("version ")?.1.split_ascii_whitespace().next()?;
    let digits = word.rsplit(['-', '~']).next()?;
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
        && digits.starts_with(|c: char| c.is_ascii_digit());
    plain.then(|| digits.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_and_judged() {
        for (said, is) in [
            ("runsc version 0.0~20240729.0\nspec: 1.1.0-rc.1\n", "20240729.0"),
            ("runsc version release-20251110.0\n", "20251110.0"),
            ("runsc version\n", ""),
        ] {
            assert_eq!(parse_version(said).unwrap_or_default(), is, "{said}");
        }
        assert!(check_age("20240729.0").is_ok() && check_age("20251110.0").is_ok());
        assert!(matches!(check_age("20221219.0"), Err(Error::Missing { .. })));
    }
}
