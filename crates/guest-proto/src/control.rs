//! The control routes under `/_wakeful/`, which only the host's channel reaches.
//!
//! Whatever is optional may be absent: an agent frozen years ago meets hosts that know more than it does.

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

/// `POST`: repair clock, entropy and identity after a load. See [`Restore`].
pub const RESTORE: &str = "/_wakeful/restore";
/// `POST`: flush the file systems and end the session. See [`QuiesceAnswer`].
pub const QUIESCE: &str = "/_wakeful/quiesce";
/// `POST`: stop every process and the machine.
pub const POWEROFF: &str = "/_wakeful/poweroff";
/// `GET`: see [`Version`].
pub const VERSION: &str = "/_wakeful/version";
/// `GET`: see [`Busy`]. Agents older than this route answer 404, which means "not busy".
pub const BUSY: &str = "/_wakeful/busy";
/// `GET ?path=/abs[&one_file_system=true][&follow=true]`: what is there as a tar stream, cut off if it fails midway.
/// `PUT ?dest=/abs[&owner=USER[:GROUP]][&mode=755][&single=true][&keep_top=true]`: a tar stream unpacked there, see
/// [`Unpacked`]. Agents older than this route answer 404 without a `wakefulCode`.
pub const TREE: &str = "/_wakeful/tree";

/// `POST`: make the file system as large as the disk has become. See [`Grow`]. Agents older than this route answer 404; the
/// next boot does it then.
pub const GROW: &str = "/_wakeful/grow";

/// `GET`: see [`Obstacles`]. Agents older than this route answer 404, which means that they know of none.
pub const OBSTACLES: &str = "/_wakeful/obstacles";

/// The most leases, and the most processes, that a [`Busy`] names.
pub const MAX_BUSY: usize = 64;
/// The longest time that a lease can be taken for, in milliseconds.
pub const MAX_LEASE_MS: u64 = 3_600_000;
/// The longest name of a lease.
pub const MAX_LEASE_NAME: usize = 64;
/// The most that an [`Obstacles`] names.
pub const MAX_OBSTACLES: usize = 64;
/// The most characters of a path in an [`Obstacle`]; a longer one is cut.
pub const MAX_OBSTACLE_PATH: usize = 512;
/// The most characters of a process's name in an [`Obstacle`].
pub const MAX_PROCESS_NAME: usize = 64;

/// Bytes of fresh entropy in a restore.
pub const ENTROPY: usize = 64;

/// What a guest must be told after its memory was loaded, or after a suspend was cancelled.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restore {
    /// The host's clock when it sent this.
    pub time_unix_ns: u64,
    /// [`ENTROPY`] bytes for the kernel's pool, standard base64.
    pub entropy_base64: String,
    /// The name that the guest has from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// Replaces the sandbox's whole environment; absent leaves it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<BTreeMap<String, String>>,
    /// Clone hooks run when this differs from the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clone_generation: Option<u64>,
    /// 32 bytes, standard base64: what hellos are signed with after this call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// Who runs a command that names nobody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_user: Option<String>,
    /// Where a command runs that names no directory; empty means the user's home.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_workdir: Option<String>,
}

/// A field of a [`Restore`] that is not what it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// Not base64, or not [`ENTROPY`] bytes.
    #[error("entropy_base64 is not {ENTROPY} bytes of base64")]
    Entropy,
    /// Not base64, or not 32 bytes.
    #[error("secret is not 32 bytes of base64")]
    Secret,
}

impl Restore {
    /// Clock and entropy only, which is what every restore needs.
    #[must_use]
    pub fn new(time_unix_ns: u64, entropy: &[u8; ENTROPY]) -> Self {
        Self {
            time_unix_ns,
            entropy_base64: STANDARD.encode(entropy),
            hostname: None,
            env: None,
            clone_generation: None,
            secret: None,
            default_user: None,
            default_workdir: None,
        }
    }

    /// Also rotates the channel's secret.
    #[must_use]
    pub fn with_secret(mut self, secret: &[u8; 32]) -> Self {
        self.secret = Some(STANDARD.encode(secret));
        self
    }

    /// The entropy as bytes.
    ///
    /// # Errors
    /// [`Invalid::Entropy`].
    pub fn entropy(&self) -> Result<[u8; ENTROPY], Invalid> {
        bytes(&self.entropy_base64).ok_or(Invalid::Entropy)
    }

    /// The new secret as bytes, if there is one.
    ///
    /// # Errors
    /// [`Invalid::Secret`].
    pub fn new_secret(&self) -> Result<Option<[u8; 32]>, Invalid> {
        self.secret.as_deref().map(|s| bytes(s).ok_or(Invalid::Secret)).transpose()
    }
}

fn bytes<const N: usize>(text: &str) -> Option<[u8; N]> {
    STANDARD.decode(text).ok()?.try_into().ok()
}

/// Without secret, entropy and the values of the environment: those must never reach a log.
impl fmt::Debug for Restore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Restore")
            .field("time_unix_ns", &self.time_unix_ns)
            .field("hostname", &self.hostname)
            .field("env_keys", &self.env.as_ref().map(|env| env.keys().collect::<Vec<_>>()))
            .field("clone_generation", &self.clone_generation)
            .field("rotates_secret", &self.secret.is_some())
            .field("default_user", &self.default_user)
            .field("default_workdir", &self.default_workdir)
            .finish_non_exhaustive()
    }
}

/// What a restore did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestoreAnswer {
    /// The guest's clock minus what was asked for, read right after it was set. Positive: the guest is ahead of the
    /// request, by the time that the request had been under way inside.
    pub clock_error_us: i64,
    /// Clone hooks that failed or were late; the others have run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed_hooks: Vec<String>,
}

/// After this answer the agent's session is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuiesceAnswer {
    /// Whether the file systems are on the disk.
    pub synced: bool,
}

/// The disk is larger than it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grow {
    /// How large, in bytes: the kernel may not have heard of it yet.
    pub bytes: u64,
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grown {
    /// The file system's size.
    pub bytes: u64,
}

/// Which agent this is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    /// Its release.
    pub agent: String,
    /// The protocol that it speaks.
    pub protocol: u8,
}

/// Why the guest does not want to be put to sleep. Times are ages and rests, not instants: its clock is its own affair.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Busy {
    /// Leases that programs inside hold, at most [`MAX_BUSY`].
    #[serde(default)]
    pub leases: Vec<BusyLease>,
    /// Running processes that were started with `keep_awake`, at most [`MAX_BUSY`].
    #[serde(default)]
    pub keep_awake: Vec<BusyProcess>,
}

/// A lease that has not ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BusyLease {
    /// Its name.
    pub name: String,
    /// How much longer it lasts unless it is renewed.
    pub ttl_ms: u64,
    /// How long it has been held.
    #[serde(default)]
    pub since_ms: u64,
}

/// A process that keeps the sandbox awake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BusyProcess {
    /// Process id inside.
    pub pid: u32,
    /// How long it has been running.
    #[serde(default)]
    pub since_ms: u64,
}

/// What an engine that saves processes without their disk cannot save: files that are in use and have no name any more.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Obstacles {
    /// At most [`MAX_OBSTACLES`].
    #[serde(default)]
    pub obstacles: Vec<Obstacle>,
}

/// A file on the disk that a process uses and nobody can find again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Obstacle {
    /// Process id inside.
    pub pid: u32,
    /// The process's name.
    #[serde(default)]
    pub process: String,
    /// How it uses the file.
    pub kind: ObstacleKind,
    /// Where the file was.
    pub path: String,
}

/// How a process uses a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ObstacleKind {
    /// It is the program that it runs.
    Program,
    /// It is the directory that it works in.
    Directory,
    /// It is mapped into its memory.
    Library,
    /// It is open; whatever a newer agent calls otherwise is in use at least.
    #[serde(other)]
    File,
}

impl ObstacleKind {
    /// The word on the wire, which is also one for people.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Program => "program",
            Self::Directory => "directory",
            Self::Library => "library",
            Self::File => "file",
        }
    }
}

/// What became of a tar stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unpacked {
    /// Files, directories and links.
    #[serde(default)]
    pub entries: u64,
    /// Bytes of files, holes included.
    #[serde(default)]
    pub bytes: u64,
}

/// `GET /metrics`, in envd's shape.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Metrics {
    /// Seconds since the epoch, by the guest's clock.
    pub ts: i64,
    /// Processors.
    pub cpu_count: u32,
    /// Share of all processors in use since the last call, in per cent.
    pub cpu_used_pct: f32,
    /// Bytes.
    pub mem_total: u64,
    /// Bytes, page cache not counted.
    pub mem_used: u64,
    /// Bytes of page cache.
    pub mem_cache: u64,
    /// The same in MiB.
    pub mem_total_mib: u64,
    /// The same in MiB.
    pub mem_used_mib: u64,
    /// Bytes in use on the root file system.
    pub disk_used: u64,
    /// Bytes of the root file system.
    pub disk_total: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restore_keeps_its_secrets_and_its_bounds() {
        let restore = Restore::new(5, &[1; ENTROPY]).with_secret(&[2; 32]);
        assert_eq!(restore.entropy(), Ok([1; ENTROPY]));
        assert_eq!(restore.new_secret(), Ok(Some([2; 32])));
        let text = format!("{restore:?}");
        assert!(!text.contains(&restore.entropy_base64) && !text.contains(restore.secret.as_deref().unwrap_or("-")));

        let short: Restore =
            serde_json::from_str(r#"{"time_unix_ns":1,"entropy_base64":"AAAA"}"#).expect("optional fields");
        assert_eq!(short.entropy(), Err(Invalid::Entropy));
        assert_eq!(short.new_secret(), Ok(None));
        assert_eq!(short.env, None);
    }
    #[test]
    fn obstacles_have_the_words_of_the_wire() {
        let text = r#"{"obstacles":[{"pid":12,"process":"sleep","kind":"file","path":"/root/x"}]}"#;
        let said: Obstacles = serde_json::from_str(text).expect("whole");
        assert_eq!(serde_json::to_string(&said).expect("plain"), text);
        for kind in [ObstacleKind::Program, ObstacleKind::Directory, ObstacleKind::Library, ObstacleKind::File] {
            assert_eq!(serde_json::to_value(kind).expect("plain"), kind.as_str());
        }
        assert_eq!(serde_json::from_str::<ObstacleKind>(r#""device""#).expect("a newer word"), ObstacleKind::File);
        assert_eq!(serde_json::from_str::<Obstacles>("{}").expect("nothing said"), Obstacles::default());
    }
}
