//! What runsc is told: the bundle's `config.json` and the command line.
//!
//! Both are public, because the bare engine that the benchmarks measure against must be told the same.

use std::ffi::OsString;
use std::path::Path;

use serde_json::{Value, json};
use wakeful_confine::range::IDS;

/// The one container of every sandbox: its state lies in a directory of its own, so no two meet.
pub const CONTAINER: &str = "guest";
/// Where the agent's directory is inside.
pub const AGENT_DIR: &str = "/run/wakeful/bin";
/// Name of the agent's program.
pub const AGENT: &str = "wakeful-agent";
/// Where the agent listens for the host.
pub const PORT: u16 = wakeful_guest_proto::card::CHANNEL;

/// What root inside may do to the kernel inside, which is a program on the host without any of these. Nothing that could
/// listen to the host's first words, or take its address.
const CAPABILITIES: [&str; 23] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "IPC_LOCK",
    "IPC_OWNER",
    "KILL",
    "LEASE",
    "LINUX_IMMUTABLE",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_ADMIN",
    "SYS_CHROOT",
    "SYS_NICE",
    "SYS_PTRACE",
    "SYS_RESOURCE",
    "SYS_TTY_CONFIG",
];

/// What one engine's bundle says.
#[derive(Clone, Copy, Debug)]
pub struct Bundle<'a> {
    /// The root file system, as the engine's mounts have it.
    pub root: &'a Path,
    /// The directory with the agent, as the engine's mounts have it.
    pub agent: &'a Path,
    /// The namespace that its card lies in.
    pub card: &'a Path,
    /// Its cgroup, from the top.
    pub cgroup: &'a Path,
    /// The first of its ids on the host.
    pub first_id: u32,
}

impl Bundle<'_> {
    /// `config.json`.
    #[must_use]
    pub fn config(&self) -> Value {
        let mount = |at: &str, kind: &str, options: &[&str]| json!({"destination": at, "type": kind, "source": kind, "options": options});
        let names: Vec<String> = CAPABILITIES.iter().map(|name| format!("CAP_{name}")).collect();
        let ids = json!([{"containerID": 0, "hostID": self.first_id, "size": IDS}]);
        json!({
            "ociVersion": "1.0.2",
            "root": {"path": self.root},
            "hostname": "sandbox",
            "process": {
                "user": {"uid": 0, "gid": 0},
                "args": [format!("{AGENT_DIR}/{AGENT}"), "container"],
                "cwd": "/",
                "env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"],
                "capabilities": {"bounding": names, "effective": names, "permitted": names},
                "rlimits": [{"type": "RLIMIT_NOFILE", "soft": 65_536, "hard": 524_288}],
            },
            // What lies in memory is kept by an image whatever its names: a deleted temporary file is in no sleep's way.
            "mounts": [
                mount("/proc", "proc", &["nosuid", "noexec", "nodev"]),
                mount("/dev", "tmpfs", &["nosuid"]),
                mount("/dev/pts", "devpts", &["nosuid", "noexec"]),
                mount("/dev/shm", "tmpfs", &["nosuid", "nodev", "mode=1777"]),
                mount("/sys", "sysfs", &["nosuid", "noexec", "nodev", "ro"]),
                mount("/run", "tmpfs", &["nosuid", "nodev", "mode=755"]),
                mount("/tmp", "tmpfs", &["nosuid", "nodev", "mode=1777"]),
                {"destination": AGENT_DIR, "type": "bind", "source": self.agent, "options": ["ro", "bind"]},
            ],
            "linux": {
                "cgroupsPath": self.cgroup,
                "uidMappings": ids,
                "gidMappings": ids,
                "namespaces": [
                    {"type": "pid"},
                    {"type": "ipc"},
                    {"type": "uts"},
                    {"type": "mount"},
                    {"type": "user"},
                    {"type": "network", "path": self.card},
                ],
            },
        })
    }
}

/// How runsc is run.
#[derive(Clone, Copy, Debug)]
pub struct Flags<'a> {
    /// Where it keeps its state.
    pub state: &'a Path,
    /// Where it says what went wrong.
    pub log: &'a Path,
    /// The sentry opens no file itself: slower, and without any capability.
    pub hardened: bool,
}

impl Flags<'_> {
    /// The arguments before the command.
    #[must_use]
    pub fn arguments(&self) -> Vec<OsString> {
        let path = |name: &str, path: &Path| {
            let mut argument = OsString::from(name);
            argument.push(path);
            argument
        };
        let mut arguments = vec![path("--root=", self.state), path("--log=", self.log)];
        let fixed = [
            "--platform=systrap",
            "--network=sandbox",
            // Files are on the host's disk: they outlive a killed sentry, and a suspend does not copy them.
            "--overlay2=none",
            // Connections to the outside end with a checkpoint instead of refusing it.
            "--net-disconnect-ok",
            // The default makes walks through trees six times slower.
            "--dcache=20000",
        ];
        arguments.extend(fixed.map(OsString::from));
        arguments.push(format!("--directfs={}", !self.hardened).into());
        arguments
    }
}

/// `run`: starts the bundle's agent.
#[must_use]
pub fn run(bundle: &Path) -> Vec<OsString> {
    vec!["run".into(), "-detach".into(), "-bundle".into(), bundle.into(), CONTAINER.into()]
}

/// `restore`: the same, from an image.
#[must_use]
pub fn restore(bundle: &Path, image: &Path) -> Vec<OsString> {
    let path = ["restore".into(), "-detach".into(), "-image-path".into(), image.into()];
    path.into_iter().chain(["-bundle".into(), bundle.into(), CONTAINER.into()]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bundle_names_nothing_of_the_host_but_its_own() {
        let at = |path| Path::new(path);
        let bundle = Bundle {
            root: at("/mnt/root"),
            agent: at("/mnt/agent"),
            card: at("/run/card"),
            cgroup: at("/wakeful/a.b"),
            first_id: 7,
        };
        let config = bundle.config();
        let sources: Vec<&str> = config["mounts"]
            .as_array()
            .expect("a list")
            .iter()
            .filter_map(|mount| mount["source"].as_str())
            .filter(|source| source.starts_with('/'))
            .collect();
        assert_eq!(sources, ["/mnt/agent"]);
        assert_eq!(config["linux"]["uidMappings"][0]["hostID"], 7);
        let types: Vec<&str> = config["linux"]["namespaces"]
            .as_array()
            .expect("a list")
            .iter()
            .filter_map(|one| one["type"].as_str())
            .collect();
        for wanted in ["user", "network", "mount", "pid", "ipc"] {
            assert!(types.contains(&wanted), "{wanted}");
        }
    }
}
