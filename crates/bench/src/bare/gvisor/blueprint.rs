//! What a bare sandbox is started with: the program, its options and the bundle's `config.json` of one of our own.
//!
//! They are read off a living engine, from the outside. Places are then its own: state, bundle, mounts, network, cgroup.
//! So a driver that changes its options changes them for both.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::cgroup::Example;
use crate::Error;

/// The word of a sentry's command line that ends the options of the program.
const COMMAND: &str = "boot";

/// Everything that a bare sandbox is started from.
#[derive(Clone, Debug)]
pub(crate) struct Blueprint {
    pub(crate) runsc: PathBuf,
    /// Options of the program, without the place of its state.
    pub(crate) options: Vec<String>,
    config: Value,
    pub(crate) cgroups: Vec<Example>,
    /// What is bound into it from beside the program, the agent, by name.
    pub(crate) bound: Vec<(String, PathBuf)>,
    /// The template's directory.
    pub(crate) base: PathBuf,
    /// The first of the host's ids that are the sandbox's, and how many there are.
    pub(crate) ids: (u32, u32),
}

/// The places of one bare sandbox.
pub(crate) struct Place<'a> {
    /// Where its mounts are: `root`, and what is bound.
    pub(crate) mounts: &'a Path,
    pub(crate) card: &'a str,
    /// Its cgroup's name.
    pub(crate) cgroup: &'a str,
}

impl Blueprint {
    /// Reads it off the sentry of a sandbox that stands on the directory `base`.
    pub(crate) fn of(pid: u32, base: PathBuf) -> Result<Self, Error> {
        let words = fs::read(format!("/proc/{pid}/cmdline")).map_err(Error::io("read an engine's command line"))?;
        let words = words.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect();
        let (options, bundle) = understand(words)?;
        let config = fs::read(bundle.join("config.json")).map_err(Error::io("read an engine's bundle"))?;
        let config: Value = serde_json::from_slice(&config).map_err(|error| Error::engine("be understood", error))?;
        let ids = ids(&config).ok_or_else(|| Error::engine("be understood", "it maps no ids"))?;
        let runsc = fs::read_link(format!("/proc/{pid}/exe")).map_err(Error::io("find an engine's program"))?;
        let beside = runsc.parent().unwrap_or(Path::new("/"));
        let bound: Vec<_> = bound(&config).into_iter().map(|name| (name.clone(), beside.join(name))).collect();
        if let Some((_, path)) = bound.iter().find(|(_, path)| !path.is_dir()) {
            return Err(Error::engine("be understood", format!("{} is not there", path.display())));
        }
        let cgroups = Example::of(pid).map_err(Error::io("find an engine's cgroup"))?;
        Ok(Self { runsc, options, config, cgroups, bound, base, ids })
    }

    /// The `config.json` of a sandbox in another place.
    pub(crate) fn config(&self, place: &Place<'_>) -> Value {
        let mut config = self.config.clone();
        config["root"]["path"] = json!(place.mounts.join("root"));
        for mount in config["mounts"].as_array_mut().into_iter().flatten() {
            if let Some(name) = bound_name(mount) {
                mount["source"] = json!(place.mounts.join(name));
            }
        }
        for namespace in config["linux"]["namespaces"].as_array_mut().into_iter().flatten() {
            if namespace["type"] == "network" {
                namespace["path"] = json!(place.card);
            }
        }
        if let Some(path) = self.config["linux"]["cgroupsPath"].as_str() {
            config["linux"]["cgroupsPath"] = json!(Path::new(path).with_file_name(place.cgroup));
        }
        config
    }
}

/// The options, and where the bundle is.
fn understand(words: Vec<String>) -> Result<(Vec<String>, PathBuf), Error> {
    let strange = || Error::engine("be understood", "its command line has an unknown shape");
    let command = words.iter().position(|word| word == COMMAND).ok_or_else(strange)?;
    let bundle = words[command..].iter().find_map(|word| word.strip_prefix("--bundle=")).ok_or_else(strange)?;
    let bundle = PathBuf::from(bundle);
    // Descriptors are handed on from one process to the next; each start opens its own.
    let own = |word: &String| ["--root=", "--log="].iter().any(|one| word.starts_with(one)) || word.contains("-fd=");
    Ok((words.into_iter().take(command).skip(1).filter(|word| !own(word)).collect(), bundle))
}

/// The ids that the sandbox's are on the host.
fn ids(config: &Value) -> Option<(u32, u32)> {
    let map = config["linux"]["uidMappings"].get(0)?;
    let number = |name: &str| map[name].as_u64().and_then(|number| u32::try_from(number).ok());
    Some((number("hostID")?, number("size")?))
}

/// The name of what a mount binds. Its place is in mounts that only the engine sees.
fn bound_name(mount: &Value) -> Option<String> {
    let source = (mount["type"] == "bind").then(|| mount["source"].as_str()).flatten()?;
    Some(Path::new(source).file_name()?.to_string_lossy().into_owned())
}

fn bound(config: &Value) -> Vec<String> {
    config["mounts"].as_array().into_iter().flatten().filter_map(bound_name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_those_before_the_command() {
        let line = "runsc-sandbox --directfs=true --root=/run/x/state --log=/run/x/log --log-fd=3 --dcache=20000 boot --bundle=/data/x \
                    --controller-fd=7 --spec-fd=8 s1";
        let (options, bundle) = understand(line.split(' ').map(str::to_owned).collect()).expect("a sentry's");
        assert_eq!(options, ["--directfs=true", "--dcache=20000"]);
        assert_eq!(bundle, Path::new("/data/x"));
        assert!(understand(vec!["qemu-system-x86_64".to_owned()]).is_err());
    }

    #[test]
    fn places_are_its_own() {
        let config = json!({
            "root": {"path": "/mnt/root", "readonly": false},
            "mounts": [
                {"destination": "/proc", "type": "proc", "source": "proc"},
                {"destination": "/run/wakeful/bin", "type": "bind", "source": "/mnt/agent"},
            ],
            "linux": {
                "namespaces": [{"type": "pid"}, {"type": "network", "path": "/run/net/1/card"}],
                "cgroupsPath": "/wakeful/ab.first",
                "uidMappings": [{"containerID": 0, "hostID": 1_048_576, "size": 65_536}],
            },
        });
        let (ids, bound) = (ids(&config).expect("there are some"), bound(&config));
        assert_eq!((ids, bound), ((1_048_576, 65_536), vec!["agent".to_owned()]));
        let (runsc, base, cgroups) = (PathBuf::from("/r"), PathBuf::from("/b"), Vec::new());
        let blueprint = Blueprint { runsc, options: Vec::new(), config, cgroups, bound: Vec::new(), base, ids };
        let made = blueprint.config(&Place { mounts: Path::new("/x"), card: "/proc/1/fd/2", cgroup: "ab.bare1" });
        assert_eq!(made["root"], json!({"path": "/x/root", "readonly": false}));
        assert_eq!(made["mounts"][0]["source"], "proc");
        assert_eq!(made["mounts"][1]["source"], "/x/agent");
        assert_eq!(made["linux"]["namespaces"][1]["path"], "/proc/1/fd/2");
        assert_eq!(made["linux"]["namespaces"][0], json!({"type": "pid"}));
        assert_eq!(made["linux"]["cgroupsPath"], "/wakeful/ab.bare1");
    }
}
