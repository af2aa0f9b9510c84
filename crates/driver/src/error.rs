//! How an engine fails, as far as a caller can act on it.

use std::io;
use std::time::Duration;

use wakeful_model::Kind;

/// Why a driver could not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The image was made by an engine that is no longer here, or the engine refused to load it. Nothing was spent.
    #[error("image does not fit any engine here: {reason}")]
    Unfit {
        /// What did not match.
        reason: String,
    },
    /// The image is not what its account says.
    #[error("image file {file} is damaged: {reason}")]
    Damaged {
        /// Name of the file.
        file: String,
        /// What was wrong with it.
        reason: String,
    },
    /// The engine ended while it was needed.
    #[error("engine ended while trying to {doing}: {output}")]
    Ended {
        /// What was under way.
        doing: &'static str,
        /// The last it printed.
        output: String,
    },
    /// The engine did not answer in time.
    #[error("engine did not {doing} within {after:?}")]
    Late {
        /// What was under way.
        doing: &'static str,
        /// The deadline.
        after: Duration,
    },
    /// The engine said no.
    #[error("engine refused to {doing}: {answer}")]
    Refused {
        /// What was under way.
        doing: &'static str,
        /// Its words.
        answer: String,
    },
    /// The host's disk is full.
    #[error("no space left on the host while trying to {doing}")]
    DiskFull {
        /// What was under way.
        doing: &'static str,
    },
    /// Something that the engine needs is not on this host.
    #[error("{what} is missing")]
    Missing {
        /// What is missing, and how to get it.
        what: String,
    },
    /// The operating system said no.
    #[error("could not {doing}")]
    Io {
        /// What was under way.
        doing: String,
        /// Its reason.
        source: io::Error,
    },
}

impl Error {
    /// Wraps an I/O error, telling a full disk from the rest.
    pub fn io(doing: &'static str, source: io::Error) -> Self {
        if source.kind() == io::ErrorKind::StorageFull || source.kind() == io::ErrorKind::QuotaExceeded {
            Self::DiskFull { doing }
        } else {
            Self::Io { doing: doing.to_owned(), source }
        }
    }

    /// What a caller can do about it.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::Unfit { .. } | Self::Damaged { .. } => Kind::Conflict,
            Self::DiskFull { .. } => Kind::Exhausted,
            Self::Late { .. } | Self::Ended { .. } | Self::Missing { .. } => Kind::Unavailable,
            Self::Refused { .. } | Self::Io { .. } => Kind::Internal,
        }
    }
}
