//! How a build fails.

use std::io;
use std::path::PathBuf;

use wakeful_model::Kind;

/// Why there is no base.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A name that no package can have.
    #[error("invalid package name {name:?}")]
    InvalidPackage {
        /// What was given.
        name: String,
    },
    /// A release that this host's archives do not have.
    #[error("unknown Debian release {suite:?}, this host has {}", available.join(", "))]
    InvalidSuite {
        /// What was given.
        suite: String,
        /// What could have been.
        available: Vec<String>,
    },
    /// A name that no user can have.
    #[error("invalid user name {name:?}")]
    InvalidUser {
        /// What was given.
        name: String,
    },
    /// One step of the build failed.
    #[error("{step} failed: {detail}")]
    Step {
        /// Which one: `check`, `bootstrap`, `image`, `digest`, `tree`.
        step: &'static str,
        /// What it said last.
        detail: String,
    },
    /// The host's disk is full.
    #[error("no space left on the host in {step}")]
    DiskFull {
        /// In which step.
        step: &'static str,
    },
    /// A file could not be read or written.
    #[error("could not {doing} {path}")]
    Io {
        /// What was under way.
        doing: &'static str,
        /// With which file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

impl Error {
    /// What a caller can do about it.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::InvalidPackage { .. } | Self::InvalidSuite { .. } | Self::InvalidUser { .. } => Kind::Invalid,
            Self::DiskFull { .. } => Kind::Exhausted,
            Self::Step { .. } => Kind::Unavailable,
            Self::Io { .. } => Kind::Internal,
        }
    }

    /// The step that failed, when it was one.
    #[must_use]
    pub fn step(&self) -> Option<&'static str> {
        match self {
            Self::Step { step, .. } | Self::DiskFull { step } => Some(step),
            _ => None,
        }
    }

    /// For `map_err`: an I/O error with what was under way.
    pub(crate) fn io(doing: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { doing, path: path.into(), source }
    }

    /// For `map_err`: what the archive or a program said, as a failure of `step`.
    pub(crate) fn step_of(step: &'static str) -> impl FnOnce(wakeful_debian::Error) -> Self {
        use wakeful_debian::Error as Debian;
        move |error| {
            let detail = match error {
                Debian::InvalidName { name } => return Self::InvalidPackage { name },
                Debian::Spawn { program, source } => format!("could not run {program}: {source}"),
                Debian::Failed { program, status, output } => format!("{program} ended with {status}\n{output}"),
                other => other.to_string(),
            };
            if detail.contains("No space left on device") {
                Self::DiskFull { step }
            } else {
                Self::Step { step, detail }
            }
        }
    }
}
