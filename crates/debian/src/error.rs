//! How the archive fails.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use wakeful_model::Kind;

/// Why something could not be had from the archive.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The name cannot be a package's, so no program was asked.
    #[error("invalid package name {name:?}")]
    InvalidName {
        /// What was given.
        name: String,
    },
    /// The archive has no such package.
    #[error("the configured archive has no package {name}")]
    NoPackage {
        /// What was asked for.
        name: String,
    },
    /// What is installed excludes it: nothing is removed for it.
    #[error("{packages} cannot be installed without removing other packages")]
    Excluded {
        /// What was asked for.
        packages: String,
    },
    /// `apt` has no usable Debian archive.
    #[error("no Debian archive is configured for apt")]
    NoSources,
    /// A program could not be started.
    #[error("could not run {program}")]
    Spawn {
        /// Its name.
        program: String,
        /// The system's reason.
        source: io::Error,
    },
    /// A program ended with an error.
    #[error("{program} failed ({status}): {output}")]
    Failed {
        /// Its name.
        program: String,
        /// How it ended.
        status: String,
        /// The last that it printed.
        output: String,
    },
    /// A program did not end in time.
    #[error("{program} did not end within {after:?}: {output}")]
    Late {
        /// Its name.
        program: String,
        /// The deadline.
        after: Duration,
        /// The last that it printed.
        output: String,
    },
    /// Another process worked on this host's packages for too long.
    #[error("another process held {path} for {after:?}")]
    Locked {
        /// The lock.
        path: PathBuf,
        /// The deadline.
        after: Duration,
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
            Self::InvalidName { .. } => Kind::Invalid,
            Self::NoPackage { .. } => Kind::NotFound,
            Self::Excluded { .. } => Kind::Conflict,
            Self::NoSources | Self::Failed { .. } | Self::Late { .. } | Self::Locked { .. } => Kind::Unavailable,
            Self::Spawn { .. } | Self::Io { .. } => Kind::Internal,
        }
    }

    /// For `map_err`: an I/O error with what was under way.
    pub(crate) fn io(doing: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { doing, path: path.into(), source }
    }
}
