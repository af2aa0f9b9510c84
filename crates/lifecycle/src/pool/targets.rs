//! How many members there are to be: what the configuration says, and over it what was said at run time, which is kept.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::files;

/// The longest file that is read.
const LONGEST: u64 = 1 << 20;

/// Which pool: whose template, which one, in which size.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct Name {
    pub(crate) template: String,
    pub(crate) size: String,
    pub(crate) tenant: String,
}

#[derive(Serialize, Deserialize)]
struct Line {
    #[serde(flatten)]
    name: Name,
    target: u32,
}

/// The targets of all pools.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Targets {
    configured: BTreeMap<Name, u32>,
    /// Said at run time; it holds.
    said: BTreeMap<Name, u32>,
}

impl Targets {
    pub(super) fn new(configured: BTreeMap<Name, u32>) -> Self {
        Self { configured, said: BTreeMap::new() }
    }

    /// All that were ever named.
    pub(super) fn all(&self) -> BTreeMap<Name, u32> {
        let mut all = self.configured.clone();
        all.extend(self.said.clone());
        all
    }

    /// Those that are to have members.
    pub(super) fn wanted(&self) -> BTreeMap<Name, u32> {
        self.all().into_iter().filter(|(_, target)| *target > 0).collect()
    }

    pub(super) fn is_configured(&self, name: &Name) -> bool {
        self.configured.contains_key(name)
    }

    /// What is said as the configuration has it need not be remembered.
    pub(super) fn say(&mut self, name: Name, target: u32) {
        if self.configured.get(&name).copied().unwrap_or(0) == target {
            self.said.remove(&name);
        } else {
            self.said.insert(name, target);
        }
    }

    /// Reads what was said to an earlier daemon.
    pub(super) fn read(&mut self, path: &Path) -> io::Result<()> {
        use io::Read as _;
        let file = match std::fs::File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other?,
        };
        let mut text = Vec::new();
        file.take(LONGEST).read_to_end(&mut text)?;
        let lines: Vec<Line> = serde_json::from_slice(&text)?;
        for line in lines {
            self.say(line.name, line.target.min(super::MOST_MEMBERS));
        }
        Ok(())
    }

    /// Writes what was said, whole or not at all.
    pub(super) fn write(&self, path: &Path) -> io::Result<()> {
        let lines: Vec<Line> =
            self.said.iter().map(|(name, target)| Line { name: name.clone(), target: *target }).collect();
        let new: PathBuf = path.with_extension("json.new");
        match std::fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        files::write_new(&new, &serde_json::to_vec_pretty(&lines)?)?;
        std::fs::rename(&new, path)?;
        files::sync_dir(path.parent().unwrap_or(Path::new("/")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(template: &str) -> Name {
        Name { template: template.into(), size: "shared-cpu-1x".into(), tenant: "default".into() }
    }

    #[test]
    fn what_was_said_outlives_the_daemon_and_the_configuration() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("pool.json");
        let mut targets = Targets::new([(name("python"), 3)].into());
        targets.read(&path).expect("no file is fine");
        targets.say(name("base"), 2);
        targets.say(name("python"), 0);
        assert_eq!(targets.wanted(), [(name("base"), 2)].into());
        targets.write(&path).expect("written");
        targets.write(&path).expect("and again");

        let mut next = Targets::new([(name("python"), 5)].into());
        next.read(&path).expect("read");
        assert_eq!(next.all(), [(name("base"), 2), (name("python"), 0)].into());
        next.say(name("base"), 0);
        next.say(name("python"), 5);
        assert_eq!(next.all(), [(name("python"), 5)].into(), "as the configuration says");

        std::fs::write(&path, "nonsense").expect("written");
        assert!(next.read(&path).is_err());
    }
}
