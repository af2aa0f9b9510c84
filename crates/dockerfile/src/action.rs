//! What is to be done for an instruction, with everything expanded and resolved.

use crate::context::{Selected, SelectedKind};
use crate::error::Error;

/// What one instruction asks of whoever builds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing: only the state changed.
    Config,
    /// A command.
    Run(RunStep),
    /// Files.
    Copy(CopyStep),
    /// A directory that must be there.
    Workdir(WorkdirStep),
}

/// A directory to make, with its parents, where it is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkdirStep {
    /// Absolute and clean.
    pub path: String,
    /// Who owns what is made; root if empty.
    pub user: String,
}

/// A command to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunStep {
    /// The program and its arguments, the shell included.
    pub argv: Vec<String>,
    /// All that it sees: ENV over the ARGs in scope. PATH is always there.
    pub env: Vec<(String, String)>,
    /// Proxies, to be added where `env` does not say otherwise. They do not decide the result, so no key has them.
    pub proxy: Vec<(String, String)>,
    /// Who runs it; root if empty.
    pub user: String,
    /// Where.
    pub workdir: String,
    /// What it sees for its own time.
    pub mounts: Vec<Mount>,
}

/// Something that is there while a command runs and is gone afterwards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Where, absolute and clean.
    pub target: String,
    /// What.
    pub kind: MountKind,
}

/// What a mount shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MountKind {
    /// A directory that may have something from before; an empty one serves.
    Cache {
        /// What it is called.
        id: String,
        /// Its mode.
        mode: u32,
        /// Its owner.
        uid: u32,
        /// Its group.
        gid: u32,
    },
    /// An empty directory.
    Tmpfs {
        /// The most that it should hold, in bytes.
        size: Option<u64>,
    },
    /// A file or a directory from elsewhere.
    Bind {
        /// From where.
        from: Origin,
        /// Which, in there; `.` for all of it.
        source: String,
    },
    /// A file with this content: the script of a heredoc that names its own interpreter.
    File {
        /// All of it.
        content: Vec<u8>,
        /// Its mode.
        mode: u32,
    },
}

/// Where files come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The build's context.
    Context,
    /// Another stage, by its number in the Dockerfile.
    Stage(usize),
    /// An image.
    Image(String),
}

/// Files to copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyStep {
    /// From where.
    pub from: Origin,
    /// Which, with patterns.
    pub sources: Vec<String>,
    /// Files that stand in the Dockerfile, beside them.
    pub inline: Vec<InlineFile>,
    /// Where to: absolute, with a `/` at its end when it must be a directory.
    pub dest: String,
    /// `user[:group]`, unresolved; root if nothing.
    pub chown: Option<String>,
    /// The mode of all that is copied.
    pub chmod: Option<u32>,
    /// What is left out.
    pub excludes: Vec<String>,
    /// Whether the directories above a source are kept.
    pub parents: bool,
    /// Whether archives are unpacked.
    pub unpack_archives: bool,
}

/// A file that stands in the Dockerfile. Its mode is 0644.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InlineFile {
    /// Its name below the destination.
    pub name: String,
    /// All of it.
    pub content: Vec<u8>,
}

/// How what was selected comes to its destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Below it: it is a directory.
    Into,
    /// One file, which takes the destination's name unless that is a directory already.
    Single,
}

impl CopyStep {
    /// How this selection comes to its destination.
    ///
    /// # Errors
    /// Several files for a destination that is not said to be a directory.
    pub fn placement(&self, selected: &[Selected]) -> Result<Placement, Error> {
        let directory = self.dest.ends_with('/');
        let written = self.sources.len() + self.inline.len();
        let files = selected.iter().filter(|one| one.top && one.kind != SelectedKind::Directory).count();
        let several = written > 1 || self.inline.len() + files > 1;
        if several && !directory {
            return Err(Error::syntax(
                0,
                format!(
                    "several sources need a destination that is a directory and ends with a /, not {:?}",
                    self.dest
                ),
            ));
        }
        let unfolds = selected.iter().any(|one| matches!(one.kind, SelectedKind::Archive(_)));
        let single = !directory && !unfolds && !self.parents && self.inline.len() + files == 1;
        Ok(if single { Placement::Single } else { Placement::Into })
    }

    /// The stage that it needs, by its number in the Dockerfile.
    #[must_use]
    pub fn from_stage(&self) -> Option<usize> {
        match self.from {
            Origin::Stage(stage) => Some(stage),
            Origin::Context | Origin::Image(_) => None,
        }
    }
}
