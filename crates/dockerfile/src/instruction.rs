//! What stands in a Dockerfile, as written: nothing is expanded yet.

use std::time::Duration;

/// A Dockerfile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dockerfile {
    /// ARGs before the first FROM.
    pub head: Vec<Instruction>,
    /// The stages, in the order of the text.
    pub stages: Vec<Stage>,
    /// The escape character: `\` or a backtick.
    pub escape: char,
    /// What is accepted and yet probably not meant.
    pub warnings: Vec<String>,
}

/// From one FROM to the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    /// What AS calls it, in lower case.
    pub name: Option<String>,
    /// What it starts from, unexpanded.
    pub image: String,
    /// `--platform`, unexpanded.
    pub platform: Option<String>,
    /// Where its FROM stands.
    pub line: u32,
    /// What follows.
    pub instructions: Vec<Instruction>,
}

/// One instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// Where it begins.
    pub line: u32,
    /// The whole of it in one line, for logs.
    pub text: String,
    /// The escape character of its file.
    pub escape: char,
    /// What it says.
    pub op: Op,
}

/// A command in one of its two forms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// A line for a shell.
    Shell(String),
    /// A program and its arguments.
    Argv(Vec<String>),
}

/// What an instruction says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Names with their defaults.
    Arg(Vec<(String, Option<String>)>),
    /// Names with their values.
    Env(Vec<(String, String)>),
    /// A command to run.
    Run(RunOp),
    /// COPY and ADD.
    Copy(CopyOp),
    /// The working directory from here on.
    Workdir(String),
    /// The user from here on.
    User(String),
    /// What the image runs.
    Entrypoint(Command),
    /// What it runs, or hands to the entry point.
    Cmd(Command),
    /// Labels with their values.
    Label(Vec<(String, String)>),
    /// Ports.
    Expose(Vec<String>),
    /// The shell of shell forms from here on.
    Shell(Vec<String>),
    /// Directories for volumes.
    Volume(Vec<String>),
    /// The signal that ends it.
    StopSignal(String),
    /// How its health is asked; `None` for HEALTHCHECK NONE.
    Healthcheck(Option<HealthcheckOp>),
    /// Who made it.
    Maintainer(String),
    /// An instruction for those who build upon the image, as text.
    Onbuild(String),
}

/// HEALTHCHECK CMD.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthcheckOp {
    /// What is run.
    pub command: Command,
    /// Between two checks.
    pub interval: Option<Duration>,
    /// How long one may take.
    pub timeout: Option<Duration>,
    /// While failures do not count.
    pub start_period: Option<Duration>,
    /// Between two checks in that time.
    pub start_interval: Option<Duration>,
    /// Failures in a row that count.
    pub retries: Option<u32>,
}

/// RUN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunOp {
    /// The command, without the content of heredocs.
    pub command: Command,
    /// The heredocs of its line.
    pub heredocs: Vec<Heredoc>,
    /// Its mounts.
    pub mounts: Vec<MountSpec>,
}

/// COPY and ADD.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyOp {
    /// Whether it is ADD, which unpacks archives.
    pub add: bool,
    /// `--from`: a stage by name or number, or an image.
    pub from: Option<String>,
    /// What is copied, without heredocs.
    pub sources: Vec<String>,
    /// Files that stand in the Dockerfile.
    pub heredocs: Vec<Heredoc>,
    /// Where to.
    pub dest: String,
    /// `--chown`.
    pub chown: Option<String>,
    /// `--chmod`.
    pub chmod: Option<String>,
    /// `--exclude`.
    pub excludes: Vec<String>,
    /// `--parents`.
    pub parents: bool,
    /// Whether archives are unpacked: ADD without `--unpack=false`.
    pub unpack: bool,
}

/// A text inside the Dockerfile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heredoc {
    /// Its delimiter, which names the file too.
    pub name: String,
    /// The lines, as written.
    pub content: String,
    /// Whether variables in it are expanded: its delimiter is not quoted.
    pub expand: bool,
    /// Whether tabs at the beginnings of lines go.
    pub chomp: bool,
}

impl Heredoc {
    /// The lines, without tabs where it says so.
    #[must_use]
    pub fn text(&self) -> String {
        if !self.chomp {
            return self.content.clone();
        }
        self.content.split_inclusive('\n').map(|line| line.trim_start_matches('\t')).collect()
    }
}

/// `RUN --mount`, unexpanded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MountSpec {
    /// Something of the context, a stage or an image.
    Bind {
        /// Where it appears.
        target: String,
        /// What, in `from`.
        source: String,
        /// A stage or an image; the context if nothing.
        from: Option<String>,
    },
    /// A directory that may be kept between builds.
    Cache {
        /// Where it appears.
        target: String,
        /// What it is called.
        id: Option<String>,
        /// Its mode.
        mode: u32,
        /// Its owner.
        uid: u32,
        /// Its group.
        gid: u32,
    },
    /// An empty directory in memory.
    Tmpfs {
        /// Where it appears.
        target: String,
        /// The most that it holds, in bytes.
        size: Option<u64>,
    },
}
